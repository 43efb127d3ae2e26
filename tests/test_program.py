"""The sandbox program as a real process: what it leaves behind, what it never tells, and how it fails."""

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from glyph.episode import Rules
from glyph.executor import Executor
from glyph.executor.levels import python_executable
from glyph.harness import ResidentProgram
from glyph.program import JOB_PATH, RECORD_PATH, Job, load_project, run_job, write_atomically
from glyph.protocol import Arm, BreachKind, Label, StopReason
from glyph.records import RolloutRecord, record_from_dict
from glyph.workspace import PLACEHOLDER
from tests.http_server import completion, raw_server, reply
from tests.scripts import OPENING, call, keep, patch, visible

PROGRAM = Path(__file__).parents[1] / "src" / "glyph" / "program.py"
SECRET = "s3cret-4711"
GOLD = "def double(n):\n    return 2 * n"
TESTS = "assert double(2) == 4\n"


def job(url: str, arm: str = "a", **fields: object) -> Job:
    rules = Rules(Arm(arm))
    basics = Job(url, SECRET, "m", "t1", arm, "standard", OPENING, TESTS, rules.budget, rules.max_context_tokens, {})
    return replace(basics, **{"isolation": "process", **fields})


def answers(*turns: str) -> list[bytes]:
    return [reply(completion(turn)) for turn in turns]


def folder(path: Path, rollout: Job, solution: str = PLACEHOLDER) -> Path:
    """A working folder as the taskset and the harness leave it."""
    write_atomically(str(path / "project" / "solution.py"), solution)
    write_atomically(str(path / JOB_PATH), json.dumps(asdict(rollout)))
    return path


def run(path: Path) -> "subprocess.CompletedProcess[str]":
    command = [python_executable(), "-I", "-S", str(PROGRAM)]
    return subprocess.run(command, cwd=path, capture_output=True, text=True, timeout=60)


def record_of(path: Path) -> RolloutRecord:
    return record_from_dict(json.loads((path / RECORD_PATH).read_text()))


def told_processes(parent: int) -> list[str]:
    """The descendants of a process that have the secret in their arguments or environment."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
    family = {parent}
    while more := {child for child, above in parents.items() if above in family} - family:
        family |= more
    told = []
    for member in family:
        for name in ("cmdline", "environ"):
            try:
                if SECRET.encode() in Path(f"/proc/{member}/{name}").read_bytes():
                    told.append(f"{member}/{name}")
            except OSError:
                continue
    return [*told, *(["no child was looked at"] if len(family) < 2 else [])]


def test_a_rollout_leaves_its_record_and_its_solution(tmp_path: Path) -> None:
    told: list[str] = ["nothing looked at"]
    with raw_server(
        answers(patch("1", GOLD), keep("PASS", "2"), "FINAL: done"),
        watch=lambda: told.__setitem__(slice(None), told_processes(os.getpid())),
    ) as server:
        path = folder(tmp_path, job(server.url, "b"))
        done = run(path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    record = record_of(path)
    assert (record.reward, record.stop_reason, record.arm) == (1.0, StopReason.FINAL, "b")
    assert [t.verified_label for t in record.targets] == [Label.PASS]
    assert record.environment["isolation"] == "process"
    assert told == []
    assert (path / "project" / "solution.py").read_text() == GOLD + "\n"
    left = sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())
    assert left == [RECORD_PATH, "project/solution.py"]  # no job, no half-written file
    assert SECRET not in (path / RECORD_PATH).read_text()


def test_a_candidate_finds_no_secret(tmp_path: Path) -> None:
    spy = (
        "import os\n"
        "def read(name):\n"
        "    try:\n"
        "        return open(f'/proc/{name}', 'rb').read().decode('latin-1')\n"
        "    except OSError:\n"
        "        return ''\n"
        "seen = [repr(os.environ), read('self/environ'), read('self/cmdline'), read(f'{os.getppid()}/cmdline')]\n"
        f"def double(n):\n    assert not any({SECRET[:6]!r} + {SECRET[6:]!r} in each for each in seen)\n"
        "    return 2 * n"
    )
    with raw_server(answers(patch("1", spy), visible("2"), "FINAL: done")) as server:
        path = folder(tmp_path, job(server.url))
        assert run(path).returncode == 0
    assert record_of(path).reward == 1.0


def test_what_a_model_says_never_fails_the_program(tmp_path: Path) -> None:
    said = {
        "surrogate": ("\ud800", BreachKind.NOT_TEXT),
        "nul": ("\0", BreachKind.NOT_A_TURN),
        "megabytes": ("x" * 5_000_000, BreachKind.TOO_LONG),
        "path": (call("read_file", "1", file_path="../.glyph/job.json"), BreachKind.BAD_PATH),
        "deep": ("CALL read_file " + '{"a":' * 100_000, BreachKind.NOT_A_TURN),
    }
    with Executor(level="process") as executor:
        for name, (turn, kind) in said.items():
            with raw_server(answers(turn)) as server:
                path = folder(tmp_path / name, job(server.url)) if not (tmp_path / name).mkdir() else tmp_path
                assert run_job(job(server.url), str(path), executor) == (0, "")
            record = record_of(path)
            assert record.protocol_error is not None
            assert (record.protocol_error.kind, record.reward) == (kind, 0.0)


def test_a_nul_in_a_solution_is_a_syntax_error(tmp_path: Path) -> None:
    with raw_server(answers(patch("1", f"{GOLD}\0"), visible("2"), "FINAL: x")) as server:
        path = folder(tmp_path, job(server.url))
        assert run(path).returncode == 0
    assert record_of(path).candidates[0].verdict is not None
    assert record_of(path).candidates[0].verdict.label is Label.SYNTAX_ERROR
    assert (path / "project" / "solution.py").read_text() == f"{GOLD}\0\n"


@pytest.mark.parametrize("fault", ["endpoint", "project", "encoding", "isolation", "variant", "job", "no job"])
def test_a_fault_of_the_environment_is_exit_code_1_and_no_record(tmp_path: Path, fault: str) -> None:
    with raw_server([reply(b"gone", "404 Not Found")]) as server:
        changes = {"isolation": {"isolation": "fortress"}, "variant": {"variant": "nothing"}}
        path = folder(tmp_path, job(server.url, **changes.get(fault, {})))
        if fault == "project":
            (path / "project" / "solution.py").unlink()
        elif fault == "encoding":
            (path / "project" / "solution.py").write_bytes(b"\xff")
        elif fault == "job":
            (path / JOB_PATH).write_text("{")
        elif fault == "no job":
            (path / JOB_PATH).unlink()
        done = run(path)
    assert done.returncode == 1
    assert done.stderr.strip()
    assert SECRET not in done.stderr
    assert not (path / RECORD_PATH).exists()
    assert (path / JOB_PATH).exists() == (fault == "job")


def test_the_program_needs_the_standard_library_alone() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PROGRAM.parents[1])!r}); import glyph.program, glyph.program_server;"
        "print([n for n in sys.modules if n.partition('.')[0] not in {*sys.stdlib_module_names, 'glyph', '__main__'}])"
    )
    done = subprocess.run([python_executable(), "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    write_atomically(str(tmp_path / "project" / "solution.py"), "a\r\nb\u2028\0")
    assert load_project(str(tmp_path / "project")) == {"solution.py": "a\r\nb\u2028\0"}
    assert (tmp_path / "project" / "solution.py").read_bytes() == "a\r\nb\u2028\0".encode()


def test_what_is_no_text_is_written_as_text(tmp_path: Path) -> None:
    write_atomically(str(tmp_path / RECORD_PATH), json.dumps({"detail": "\ud800 é"}, ensure_ascii=False))
    assert (tmp_path / RECORD_PATH).read_bytes() == '{"detail": "? é"}'.encode()


def test_nothing_grows_again_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(str(tmp_path / "gone" / RECORD_PATH), "x")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def resident() -> ResidentProgram:
    program = ResidentProgram("process")
    yield program
    program.close()
    assert not program.alive


async def test_a_resident_program_plays_many_rollouts(tmp_path: Path, resident: ResidentProgram) -> None:
    for name in ("one", "two"):
        with raw_server(answers(patch("1", GOLD), visible("2"), "FINAL: done")) as server:
            (tmp_path / name).mkdir()
            path = folder(tmp_path / name, job(server.url))
            assert (await resident.play(job(server.url), str(path))).exit_code == 0
        assert record_of(path).reward == 1.0
    assert resident.level == "process"
    for member in (resident.process.pid, os.getpid()):
        assert SECRET.encode() not in Path(f"/proc/{member}/cmdline").read_bytes()


async def test_a_fault_of_one_rollout_does_not_end_the_resident_program(
    tmp_path: Path, resident: ResidentProgram
) -> None:
    faults = [
        await resident.play(job("http://127.0.0.1:9"), str(tmp_path / "nowhere")),
        await resident.play(job("nonsense"), str(folder(tmp_path, job("nonsense")))),
        await resident.play(job("http://127.0.0.1:9", messages=[3]), str(tmp_path)),  # type: ignore[list-item]
    ]
    assert [fault.exit_code for fault in faults] == [1, 1, 1]
    assert "no project here" in faults[0].stderr
    assert "no http or https URL" in faults[1].stderr
    assert "Traceback" in faults[2].stderr
    assert resident.alive


async def test_a_rollout_that_is_given_up_leaves_nothing(tmp_path: Path, resident: ResidentProgram) -> None:
    entered, gone = threading.Event(), threading.Event()

    def watch() -> None:
        entered.set()
        gone.wait(10)

    with raw_server(answers("FINAL: late"), watch=watch) as server:
        path = tmp_path / "work"
        path.mkdir()
        folder(path, job(server.url))
        playing = asyncio.create_task(resident.play(job(server.url), str(path)))
        await asyncio.to_thread(entered.wait, 10)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        shutil.rmtree(path)
        gone.set()
        await asyncio.sleep(0.5)
    assert not path.exists()
    assert resident.alive


async def test_a_dead_resident_program_is_an_error_of_the_rollout(tmp_path: Path, resident: ResidentProgram) -> None:
    with raw_server(answers("FINAL: x"), watch=lambda: (resident.process.kill(), time.sleep(0.2))) as server:
        done = await asyncio.wait_for(resident.play(job(server.url), str(folder(tmp_path, job(server.url)))), 20)
    assert (done.exit_code, resident.alive) == (1, False)
    assert "ended during the rollout" in done.stderr


def test_a_resident_program_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="expected auto or one of"):
        ResidentProgram("fortress")
