"""Copies of the checkout for the tests of the scripts, their `.venv` this very environment; and how to run a script."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
STAMP = "cat pyproject.toml constraints.txt | cksum > .venv/.installed"
VALIDATED = (
    "touch .venv/.validated-$(cat data/mini/manifest.json data/mini/*.jsonl data/mini/sft/*/*.jsonl | cksum | tr ' ' -)"
)


def tracked_files() -> list[str]:
    """What git knows or would add: the files of a fresh clone, and those that are about to be committed."""
    if not shutil.which("git"):
        pytest.skip("no git: which files make a checkout is not known")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("this is no git checkout: which files belong to it is not known")
    return [name for name in listed.stdout.decode().split("\0") if name and os.path.lexists(ROOT / name)]


def bare_checkout(folder: Path) -> Path:
    """A copy of the checkout, without an environment."""
    for name in tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def whole_checkout(folder: Path) -> Path:
    """A copy of the checkout whose environment is this one, as if it had been installed."""
    programs = bare_checkout(folder) / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "glyph", "eval"):
        program = programs / name  # a link would not find its pyvenv.cfg
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/src" exec "{BIN}/{name}" "$@"\n')
        program.chmod(0o755)
    subprocess.run(STAMP, shell=True, cwd=folder, check=True)
    return folder


def give_tiny_data(checkout: Path, tiny_data: Path) -> None:
    """Two tasks in data/mini save the minute that making the mini set takes; being no full set, they count as valid."""
    shutil.copytree(tiny_data, checkout / "data" / "mini")
    subprocess.run(VALIDATED, shell=True, cwd=checkout, check=True)


def environment(checkout: Path, **variables: str) -> dict[str, str]:
    """Nothing of this shell but where programs are; no hub, and no model that an earlier run fetched."""
    fixed = {"HOME": str(checkout.parent), "HF_HOME": str(checkout.parent / "hub"), "HF_HUB_OFFLINE": "1"}
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", **fixed, **variables}


def script(name: str, checkout: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", f"scripts/{name}.sh", *arguments],
        cwd=checkout,
        env=environment(checkout, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


def refusal(name: str, checkout: Path, *arguments: str) -> str:
    """What a script says of arguments that it refuses, with nothing on stdout and nothing made."""
    before = entries(checkout)
    done = script(name, checkout, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert entries(checkout) == before
    return done.stderr


def entries(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}
