"""The pinned PRIME-RL with our patches, from the checkout that PRIME_RL_SOURCE names: what its fixtures do."""

import importlib.util
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.repositories import git

ROOT = Path(__file__).parents[1]
PIN = tomllib.loads((ROOT / "configs" / "versions.toml").read_text())["upstream"]["prime_rl"]
PATCHES = sorted((ROOT / "patches" / "prime_rl").glob("*.patch"))


def source() -> Path:
    """The checkout that the user names; skips the test where none is named."""
    named = os.environ.get("PRIME_RL_SOURCE")
    if not named:
        pytest.skip("no PRIME-RL checkout: set PRIME_RL_SOURCE to one that has the pinned commit")
    return Path(named).resolve()


def write_patched(folder: Path) -> None:
    """The pinned commit of the user's checkout, with our patches, in a new folder."""
    git(ROOT, "clone", "--quiet", "--shared", "--no-checkout", str(source()), str(folder))
    git(folder, "checkout", "--quiet", "--detach", PIN)
    for patch in PATCHES:
        git(folder, "apply", str(patch))


def parts(folder: Path) -> list[str]:
    """What a checkout has to have on the path of Python."""
    return [str(folder / "packages" / "prime-rl-configs" / "src"), str(folder / "src")]


UNCALLED = ("wandb", "pynvml")


def make_importable(folder: Path) -> None:
    """Put the patched sources on the path. What they import and nothing here calls is an empty module."""
    sys.path[:0] = parts(folder)
    for name in UNCALLED:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
