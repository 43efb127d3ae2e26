"""What a check looks at, and what it says."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glyph.versions import CONFIGS

ROOT = CONFIGS.resolve().parent
PAPER = tuple(CONFIGS.resolve() / "paper" / f"arm_{arm}_{stage}.toml" for stage in ("sft", "rl") for arm in "ab")
SETUP = "bash scripts/setup.sh --prime-rl"


@dataclass(frozen=True)
class Machine:
    """What is looked at: the repository, PRIME-RL's configs that are to run, the start model, the prepared data.

    `steps` is how many steps of SFT are tried; 0: none.
    """

    configs: tuple[Path, ...] = PAPER
    model: Path | None = None
    data: Path = Path("data")
    root: Path = ROOT
    steps: int = 0

    @property
    def prime_rl(self) -> Path:
        return self.root / ".vendor" / "prime-rl"

    def program(self, name: str) -> Path:
        return self.prime_rl / ".venv" / "bin" / name

    @property
    def variables(self) -> dict[str, str]:
        """The environment of PRIME-RL's programs, which start each other by name."""
        return {**os.environ, "PATH": f"{self.program('').resolve()}{os.pathsep}{os.environ['PATH']}"}

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The configs' contents by file name."""
        return {path.name: read_toml(path) for path in self.configs}

    @property
    def pins(self) -> dict[str, Any]:
        return read_toml(self.root / "configs" / "versions.toml")


@dataclass(frozen=True)
class Finding:
    """The outcome of a check: `mend` is empty exactly if nothing is missing; `details` are further lines."""

    name: str
    found: str
    mend: str = ""
    details: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.mend


class Missing(Exception):
    """Something is missing: what was found, how to mend it, and lines of detail."""

    def __init__(self, found: str, mend: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(found)
        self.found, self.mend, self.details = found, mend, details


def read_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def is_rl(settings: dict[str, Any]) -> bool:
    """Whether a config is one of `rl`; else it is one of `sft`."""
    return "orchestrator" in settings
