"""What several test modules share: an executor, data folders, short runs; what is slow is made once a session."""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
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

    return build_once(tmp_path_factory, "mbpp", lambda folder: prepare("mbpp", mbpp_source, folder))


def build_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """A folder that the first worker of the session that needs it builds, and all share."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, partial = shared / name, shared / f"{name}.partial"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(partial, ignore_errors=True)
            build(partial)
            partial.rename(folder)
    return folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory, executor: Executor) -> Path:
    """The data folder of `tests.small_runs`."""
    from tests.small_runs import write_small_data

    return build_once(tmp_path_factory, "small_data", lambda folder: write_small_data(folder, executor))


@pytest.fixture(scope="session")
def sft_runs(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> dict[str, Path]:
    """The SFT run of each arm, made by `glyph sft`."""
    from tests.small_runs import run_sft

    def run(arm: str) -> Path:
        return build_once(tmp_path_factory, f"sft_{arm}", lambda folder: run_sft(folder, arm, small_data))

    return {arm: run(arm) for arm in "ab"}


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory, sft_runs: dict[str, Path], small_data: Path) -> dict[int, Path]:
    """Arm B's runs of RL that nothing disturbed, by `rl.off_policy_steps`."""
    from tests.small_runs import play, rl_config

    def run(name: str, off_policy_steps: int) -> Path:
        config = rl_config(sft_runs["b"], "b", small_data, [f"rl.off_policy_steps={off_policy_steps}"])
        return build_once(tmp_path_factory, name, lambda folder: play(folder, config))

    return {0: run("rl_b_on_policy", 0), 1: run("rl_b_off_policy", 1)}


@pytest.fixture(scope="session")
def patched_prime_rl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned PRIME-RL with our patches, to read; skips where PRIME_RL_SOURCE names no checkout."""
    from tests.prime_rl_checkout import write_patched

    return build_once(tmp_path_factory, "prime_rl", write_patched)


@pytest.fixture(scope="session")
def prime_rl(patched_prime_rl: Path) -> Path:
    """The same, importable in this process from now on."""
    from tests.prime_rl_checkout import make_importable

    make_importable(patched_prime_rl)
    return patched_prime_rl
