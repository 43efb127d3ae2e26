"""The run folder: one process, nothing overwritten, a resume that sets aside what it computes again."""

import gzip
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest

from glyph.evaluation.traces import read_traces
from glyph.local.runs.durable import FileLock
from glyph.local.runs.heartbeat import Heartbeat
from glyph.local.runs.run_folder import RunFolder, RunFolderError
from glyph.local.runs.tracking import TrackerError, flatten, open_trackers
from tests.builders import error_trace, trace
from tests.disk import file_size_limit

CONFIG = 'seed = 1\narm = "predictive"\n'


def create(path: Path, **facts: Any) -> RunFolder:
    return RunFolder.create(path, CONFIG, {"arm": "predictive", "seed": 1, **facts})


def manifest(path: Path) -> dict[str, Any]:
    return json.loads((path / "manifest.json").read_text())


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_a_run_from_its_claim_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first"
    with create(path) as run:
        begun = manifest(path)
        assert run.config_toml == CONFIG == (path / "config.toml").read_text()
        assert (begun["status"], begun["seconds"], begun["arm"], begun["seed"]) == ("running", None, "predictive", 1)
        assert {"schema_version", "commit", "versions", "machine", "started", "run_id"} <= begun.keys()
        assert (begun["sessions"][0]["pid"], begun["sessions"][0]["status"]) == (os.getpid(), "running")
        run.finish("finished", best_step=4)
    ended = manifest(path)
    assert (ended["status"], ended["best_step"], ended["run_id"]) == ("finished", 4, begun["run_id"])
    assert ended["seconds"] == ended["sessions"][0]["seconds"] >= 0


@pytest.mark.parametrize(
    ("error", "status"), [(None, "finished"), (KeyboardInterrupt(), "interrupted"), (ValueError("no loss"), "failed")]
)
def test_the_ending_is_written_down(tmp_path: Path, error: BaseException | None, status: str) -> None:
    with nullcontext() if error is None else pytest.raises(type(error)), create(tmp_path / "run"):
        if error:
            raise error
    ended = manifest(tmp_path / "run")
    assert (ended["status"], ended.get("error")) == (status, "ValueError: no loss" if status == "failed" else None)
    RunFolder.open(tmp_path / "run").finish("finished")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run"
    create(path).finish("finished")
    before = {file: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(RunFolderError, match=r"not empty \(it holds config.toml.*give another folder, or go on"):
        create(path)
    assert {file: file.read_bytes() for file in path.iterdir() if file.name != ".lock"} == {
        file: content for file, content in before.items() if file.name != ".lock"
    }
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="a file; give a folder"):
        create(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty").finish("finished")


def test_without_a_run_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no run to resume: there is no manifest\.json"):
        RunFolder.open(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for text in ("{", "[]", '{"status": "finished"}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(RunFolderError, match="manifest"):
            RunFolder.open(tmp_path)


def test_one_process_at_a_time_until_it_ends_or_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    program = (
        "import sys, time; from pathlib import Path; from glyph.local.runs.run_folder import RunFolder\n"
        "run = RunFolder.create(Path(sys.argv[1]), 'seed = 1\\n', {'seed': 1})\n"
        "run.log_metrics({'kind': 'train', 'step': 1}); print('claimed', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "claimed\n"
    for claim in (lambda: RunFolder.open(path), lambda: create(path)):
        with pytest.raises(RunFolderError, match=f"process {other.pid} on .* is writing this run"):
            claim()
    other.kill()
    other.communicate()
    assert manifest(path)["status"] == "running"
    with RunFolder.open(path) as run:
        assert run.metrics() == [{"kind": "train", "step": 1}]
    ended = manifest(path)
    assert [session["status"] for session in ended["sessions"]] == ["killed", "finished"]
    assert ended["seconds"] == pytest.approx(sum(session["seconds"] for session in ended["sessions"]))
    assert 0 <= ended["sessions"][0]["seconds"] < 60


def test_a_killed_session_lasted_until_its_last_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = create(path)
    run.log_metrics({"kind": "train", "step": 1})
    run._close()  # as its death would
    late = time.time() + 100
    os.utime(path / "metrics.jsonl", (late, late))
    RunFolder.open(path).finish("finished")
    assert 99 <= manifest(path)["sessions"][0]["seconds"] <= 102


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire()
    assert not second.acquire()
    asks, answers = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answers)
        os.read(asks, 1)  # until the parent closes it
        os._exit(0)
    try:
        first.release()
        assert second.acquire(timeout_seconds=10)
    finally:
        os.close(answers)
        os.close(asks)
        os.waitpid(child, 0)
        second.release()


def test_metrics_are_lines_with_finite_numbers(tmp_path: Path) -> None:
    line = {
        "kind": "train",
        "step": 1,
        "loss": math.nan,
        "reward_mean": numpy.float32(0.5),
        "seconds": {"total": math.inf, "training": 2.0},
        "ratios": [1.0, -math.inf],
        "entropy": None,
    }
    with create(tmp_path / "run") as run:
        run.log_metrics(line)
        run.log_metrics({"kind": "evaluation", "step": 1, "pass@1": 0.25})
        assert run.metrics("evaluation") == [{"kind": "evaluation", "step": 1, "pass@1": 0.25}]
        for bad in ({"step": 1}, {"kind": "train"}, {"kind": "train", "step": "1"}):
            with pytest.raises(ValueError, match="a kind and an integer step"):
                run.log_metrics(bad)
    first, second = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(first) == {
        "kind": "train",
        "step": 1,
        "loss": None,
        "reward_mean": 0.5,
        "seconds": {"total": None, "training": 2.0},
        "ratios": [1.0, None],
        "entropy": None,
        "non_finite": ["loss", "seconds/total", "ratios/1"],
    }
    assert "non_finite" not in json.loads(second)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = create(path)
    run.log_metrics({"kind": "train", "step": 1})
    size = (path / "metrics.jsonl").stat().st_size
    with file_size_limit(size + 20):
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl: cannot be written: File too large"):
            run.log_metrics({"kind": "train", "step": 2, "loss": 0.123456789})
        with pytest.raises(RunFolderError, match=r"step_000002\.jsonl\.gz: cannot be written"):
            run.write_traces(2, [os.urandom(200).hex()])
        run.log("a" * 10_000)
    assert steps(path) == [1]
    assert list((path / "traces").iterdir()) == []
    run.log_metrics({"kind": "train", "step": 2})
    assert steps(path) == [1, 2]
    run.finish("finished")


def test_a_torn_line_is_cut_off_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run"
    with create(path) as run:
        run.log_metrics({"kind": "train", "step": 1})
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "ste')
    (path / "traces").mkdir()
    (path / "traces" / "step_000002.jsonl.gz.partial").touch()
    with caplog.at_level(logging.WARNING), RunFolder.open(path) as run:
        run.log_metrics({"kind": "train", "step": 2})
    assert steps(path) == [1, 2]
    assert "torn" in caplog.text
    assert '"ste' in (path / "log.txt").read_text()
    assert list((path / "traces").iterdir()) == []


def test_traces_are_compressed_the_same_way_each_time(tmp_path: Path) -> None:
    lines = [json.dumps({"id": "a", "advantage": 0.5}), json.dumps({"id": "b"}) + "\n"]
    with create(tmp_path / "one") as one, create(tmp_path / "two") as two:
        first, second = one.write_traces(12, lines), two.write_traces(12, iter(lines))
        assert first == tmp_path / "one" / "traces" / "step_000012.jsonl.gz"
        assert first.read_bytes() == second.read_bytes()
        assert gzip.decompress(first.read_bytes()) == b'{"id": "a", "advantage": 0.5}\n{"id": "b"}\n'
        assert one.write_traces(12, lines) == first
        with pytest.raises(RunFolderError, match="other content"):
            one.write_traces(12, lines[:1])


def test_an_evaluation_is_a_folder_that_the_reader_reads(tmp_path: Path) -> None:
    traces = (trace("t1"), trace("t2", solved=False), error_trace())
    with create(tmp_path / "run") as run:
        run.write_evaluation(0, traces)
    assert read_traces(tmp_path / "run" / "evaluations" / "step_000000").traces == traces


def filled(path: Path) -> RunFolder:
    """Three steps, a checkpoint and an evaluation after each; that of step 2 broke off before its metrics line."""
    run = create(path)
    for step in (1, 2, 3):
        run.write_traces(step, [f'{{"step": {step}}}'])
        run.log_metrics({"kind": "train", "step": step})
        (run.checkpoints / f"step_{step:06d}").mkdir(parents=True)
        run.write_evaluation(step, [trace(f"t{step}")])
        if step != 2:
            run.log_metrics({"kind": "evaluation", "step": step})
    return run


def tree(path: Path) -> set[str]:
    return {each.relative_to(path).as_posix() for each in path.rglob("step_*")}


def test_going_back_sets_aside_what_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with filled(path) as run:
        aside = run.truncate_after(2)
        assert aside == path / "superseded-1"
        assert [(line["kind"], line["step"]) for line in run.metrics()] == [
            ("train", 1),
            ("evaluation", 1),
            ("train", 2),
        ]
        assert steps(aside) == [3, 3]
        assert tree(aside) == {
            "traces/step_000003.jsonl.gz",
            "checkpoints/step_000003",
            "evaluations/step_000002",
            "evaluations/step_000003",
        }
        assert not {name for name in tree(path) if "000003" in name and not name.startswith("superseded")}
        assert (
            "back to step 2: 2 metrics lines and 4 later files are in superseded-1/" in (path / "log.txt").read_text()
        )
        assert run.truncate_after(2) is None
        run.write_traces(3, ["{}"])
        assert run.truncate_after(2) == path / "superseded-2"
        assert run.truncate_after(0) == path / "superseded-3"
        assert (run.metrics(), steps(path / "superseded-3")) == ([], [1, 1, 2])


def test_an_unreadable_line_is_set_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with filled(path) as run:
        metrics = path / "metrics.jsonl"
        metrics.write_bytes(b"\0\0\0\n" + b'{"kind": "train"}\n' + metrics.read_bytes())
        run.truncate_after(9)
        assert steps(path) == [1, 1, 2, 3, 3]
        assert (path / "superseded-1" / "metrics.jsonl").read_bytes() == b'\0\0\0\n{"kind": "train"}\n'


def test_warnings_of_the_project_are_in_the_log_of_the_open_run_only(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with create(path) as run:
        run.log("step 1 took 2.0 s")
        logging.getLogger("glyph.local.training.rl").warning("group %s is empty", "t3")
        logging.getLogger("other").warning("not ours")
    logging.getLogger("glyph.local.training.rl").warning("too late")
    lines = (path / "log.txt").read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines[:2]] == [
        "step 1 took 2.0 s",
        "WARNING glyph.local.training.rl: group t3 is empty",
    ]
    assert lines[2].partition(" ")[2].startswith("finished after")
    assert len(lines) == 3
    assert all(line[:19].count(":") == 2 and "+00:00 " in line for line in lines)


def test_a_lasting_wait_is_said_and_written(tmp_path: Path) -> None:
    said: list[str] = []
    heard = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    left = 3
    with create(tmp_path / "run") as run, run.heartbeat(say, every_seconds=0.06) as heartbeat:
        heartbeat.step = 12
        with heartbeat("step 12"), heartbeat(lambda: f"waiting for {left} tests of step 12"):
            assert heard.wait(20)
        seen = json.loads((tmp_path / "run" / "heartbeat.json").read_text())
    assert said[0] == "waiting for 3 tests of step 12 (0 s)"
    assert (seen["step"], seen["pid"]) == (12, os.getpid())
    assert seen["what"] == "waiting for 3 tests of step 12"


def test_the_innermost_wait_that_lasts_is_said() -> None:
    said: list[str] = []
    heartbeat = Heartbeat(said.append, every_seconds=30)
    with heartbeat("step 1"):
        start = heartbeat._waits[0].since
        heartbeat._beat(start + 29)
        with heartbeat("a short test"):
            heartbeat._waits[1].said = heartbeat._waits[1].since = start + 28
            heartbeat._beat(start + 31)
            heartbeat._beat(start + 32)
            heartbeat._beat(start + 58)
            heartbeat._beat(start + 62)
    heartbeat._beat(start + 999)
    assert said == ["step 1 (31 s)", "a short test (30 s)", "step 1 (62 s)"]


LINE = {
    "kind": "evaluation",
    "split": "validation",
    "step": 3,
    "pass@1": 0.5,
    "seconds": {"total": 2.5, "note": "x"},
    "entropy": None,
}
FLAT = {"evaluation/validation/pass@1": 0.5, "evaluation/validation/seconds/total": 2.5}


def test_trackers_get_flat_numbers() -> None:
    assert flatten(LINE) == FLAT
    assert flatten({"kind": "train", "step": 1, "misses": {"label": 2}, "non_finite": []}) == {"train/misses/label": 2}


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[tuple[str, Any]] = []

    def init(self, **options: Any) -> SimpleNamespace:
        self.calls.append(("init", options))
        return SimpleNamespace(
            define_metric=lambda *names, **options: self.calls.append(("define_metric", (*names, options))),
            log=lambda line: self.calls.append(("log", line)),
            finish=lambda: self.calls.append(("finish", None)),
        )


def test_wandb_gets_the_lines_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with create(tmp_path / "run") as run:
        run.trackers += open_trackers(["wandb"], run.path, run.manifest["run_id"], {"seed": 1})
        run.log_metrics({**LINE, "loss": math.nan})
        assert wandb.calls.pop(0)[1] == {
            "project": "glyph",
            "name": "run",
            "id": run.manifest["run_id"],
            "dir": str(run.path),
            "config": {"seed": 1},
            "resume": "allow",
        }
    assert wandb.calls == [
        ("define_metric", ("*", {"step_metric": "step"})),
        ("log", {"step": 3, **FLAT}),
        ("finish", None),
    ]


def test_a_tracker_that_fails_is_dropped_and_the_run_goes_on(tmp_path: Path) -> None:
    class Broken:
        def log(self, line: Any) -> None:
            raise ConnectionError("no network")

        def close(self) -> None:
            raise AssertionError("it was dropped")

    with create(tmp_path / "run") as run:
        run.trackers.append(Broken())
        run.log_metrics({"kind": "train", "step": 1})
        run.log_metrics({"kind": "train", "step": 2})
    assert steps(tmp_path / "run") == [1, 2]
    assert (tmp_path / "run" / "log.txt").read_text().count("Broken is dropped: ConnectionError: no network") == 1


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_an_absent_extra_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TrackerError, match=rf'{name} is not installed; pip install "glyph\[{name}\]"'):
        open_trackers([name], tmp_path, "id", {})
    with pytest.raises(TrackerError, match="'mlflow': expected wandb or tensorboard"):
        open_trackers([name, "mlflow"], tmp_path, "id", {})


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = open_trackers(["tensorboard"], tmp_path, "id", {})
    tracker.log(LINE)
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]} == {
        tag: [(3, value)] for tag, value in FLAT.items()
    }
