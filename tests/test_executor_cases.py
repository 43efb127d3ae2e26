"""Hostile and odd candidates as data: our own, and the shared file where it is at hand, at the best level there is.

As root, both run once more as an ordinary user, since the level is built in another way there.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from glyph.executor import Executor
from glyph.executor.cases import Case, load_cases, run_cases
from glyph.executor.levels import python_executable
from glyph.protocol import Label

ROOT = Path(__file__).parents[1]
OWN = ROOT / "tests" / "cases" / "executor.json"
SHARED = ROOT.parent / "shared" / "cases" / "executor.json"
ORDINARY_USER = 65534
PARTS = 4  # so that several workers share them

PROGRAM = """
import json, sys
from pathlib import Path
from glyph.executor import ExecutorError
from glyph.executor.cases import load_cases, run_cases
cases = [case for path in sys.argv[2:] for case in load_cases(Path(path))][int(sys.argv[1])::4]
misses = [(case.name, fault) for case, fault in run_cases(cases, "namespaces") if fault]
print(json.dumps([len(cases), misses]))
"""


def level_here() -> str:
    with Executor() as executor:
        return executor.level


def misses(cases: list[Case]) -> list[tuple[str, str]]:
    return [(case.name, fault) for case, fault in run_cases(cases) if fault]


@pytest.fixture(scope="module", autouse=True)
def _best_level_only() -> None:
    if level_here() != "namespaces":
        pytest.skip("no namespaces on this machine: docs/sandbox.md says which cases the lower levels do not cover")


@pytest.mark.parametrize("part", range(PARTS))
def test_our_own_cases(part: int) -> None:
    assert misses(load_cases(OWN)[part::PARTS]) == []


@pytest.mark.parametrize("part", range(2))
def test_the_shared_cases(part: int) -> None:
    if not SHARED.exists():
        pytest.skip("no shared case file beside this repository")
    assert misses(load_cases(SHARED)[part::2]) == []


def test_our_cases_are_many_and_well_formed() -> None:
    cases = load_cases(OWN)
    assert len(cases) >= 60
    assert len({case.name for case in cases}) == len(cases)
    assert {label for case in cases for label in case.accept} == set(Label)


@pytest.fixture(scope="module")
def readable_copy() -> Iterator[tuple[str, Path]]:
    """An interpreter that every user may run, and the package and the case files where every user may read them."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    interpreter = next((path for path in (python_executable(), "/usr/bin/python3.11") if _runs_for_others(path)), None)
    if interpreter is None:
        pytest.skip("no Python 3.11 or later that an ordinary user may run")
    folder = Path(tempfile.mkdtemp(prefix="glyph-readable-"))
    try:
        shutil.copytree(ROOT / "src" / "glyph", folder / "glyph", ignore=shutil.ignore_patterns("__pycache__"))
        for source in (OWN, SHARED):
            if source.exists():
                shutil.copy(source, folder / f"{source.parents[1].name}.json")
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield interpreter, folder
    finally:
        shutil.rmtree(folder)


def _runs_for_others(interpreter: str) -> bool:
    try:
        check = "import sys, ctypes; sys.exit(sys.version_info < (3, 11))"
        return subprocess.run([interpreter, "-c", check], **_as_ordinary_user()).returncode == 0
    except OSError:
        return False


def _as_ordinary_user() -> dict:
    return {"user": ORDINARY_USER, "group": ORDINARY_USER, "extra_groups": [], "cwd": "/", "env": {"HOME": "/tmp"}}


@pytest.mark.parametrize("part", range(PARTS))
def test_all_cases_as_an_ordinary_user(part: int, readable_copy: tuple[str, Path]) -> None:
    interpreter, folder = readable_copy
    settings = _as_ordinary_user()
    settings["env"]["PYTHONPATH"] = str(folder)
    files = sorted(map(str, folder.glob("*.json")))
    done = subprocess.run(
        [interpreter, "-B", "-c", PROGRAM, str(part), *files], **settings, capture_output=True, text=True, timeout=300
    )
    if "cannot be set up" in done.stderr:
        pytest.skip(f"no namespaces for an ordinary user: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    count, missed = json.loads(done.stdout)
    assert count >= 15
    assert missed == []
