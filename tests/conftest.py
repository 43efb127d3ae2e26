"""What several test modules share: one executor, a tiny data folder of our own, and MBPP prepared once a session."""

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from glyph.executor import Executor
from tests.tiny_tasks import write_tiny_data

SHARED_MBPP = Path(__file__).parents[2] / "shared" / "data" / "mbpp.jsonl"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An object's address in a test's id differs between workers, and pytest-xdist then refuses to run anything."""
    for item in items:
        if ADDRESS.search(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: the id holds an address: give ids= to its parametrize")


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    with Executor(workers=2) as shared:
        yield shared


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory, executor: Executor) -> Path:
    """A data folder of the form of `data.prepare` with the project's own hand-written tasks."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_data(folder, executor)
    return folder


@pytest.fixture(scope="session")
def mbpp_source() -> Path:
    """A copy of MBPP: `MBPP_SOURCE`, or the shared one beside the checkout."""
    source = Path(os.environ.get("MBPP_SOURCE") or SHARED_MBPP)
    if not source.exists():
        pytest.skip("no copy of MBPP: set MBPP_SOURCE")
    return source


@pytest.fixture(scope="session")
def mbpp_data(tmp_path_factory: pytest.TempPathFactory, mbpp_source: Path) -> Path:
    """MBPP as `python -m data.prepare` writes it: built by the first worker that needs it, shared by all."""
    from glyph.commands.task_data import prepare_data as prepare

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "mbpp"
    with (shared / "mbpp.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "manifest.json").exists():  # written last
            prepare("mbpp", mbpp_source, folder)
    return folder
