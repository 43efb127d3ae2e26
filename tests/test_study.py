"""The study's machinery: the matrix, what a visit does whatever happens to it, what is published, and the tables."""

import gzip
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.document import shown
from glyph.config import load_config
from glyph.evaluation.statistics import mcnemar_exact
from glyph.evaluation.traces import Trace, local_trace_line, read_traces, write_traces
from glyph.local.runs.durable import FileLock
from glyph.protocol import BreachKind, Decision, Label, StopReason
from glyph.records import Verdict
from glyph.variants import parse_variant
from study import behaviour, document, figures, tables
from study.matrix import MatrixError, Question, load_matrix, quarters
from study.pieces import Kind, Piece, Plan, pieces
from study.plain import code_of
from study.publish import Publisher, pack
from study.results import MINI, Results, ResultsError, read_results
from study.runner import Limits, Runner, Running, make_room
from study.slim import RejoinError, TaskText, rejoin, slim, task_texts
from tests import builders
from tests.checkouts import ROOT
from tests.run_folders import write_metrics, write_run

MATRIX = load_matrix()


def plan_of(tmp_path: Path, data: Path, runs: Sequence[str] = (), **fields: Any) -> Plan:
    names = tuple(run.name for run in MATRIX.select(runs))
    return Plan(**{"work": tmp_path, "scale": "small", "model": "m", "data": data, "runs": names, "steps": 4, **fields})


# The matrix.


@pytest.mark.parametrize("scale", MATRIX.scale)
def test_every_run_has_settings_that_the_engine_takes(scale: str, tmp_path: Path, tiny_data: Path) -> None:
    steps = MATRIX.scale[scale].steps
    runs = [p for p in pieces(plan_of(tmp_path, tiny_data, scale=scale, steps=steps)) if p.is_training]
    assert len(runs) == len(MATRIX.sft) + len(MATRIX.run) * len(MATRIX.seeds)
    for piece in runs:
        settings = [text for text in piece.arguments if "=" in text]
        config = load_config(piece.arguments[0], scale, piece.arguments[1], (), settings, model="m")  # type: ignore[call-overload]
        assert config.checkpoints.keep_last == 1
        if piece.kind is Kind.RL:
            assert config.rl.steps == steps
            assert config.checkpoints.every == config.checkpoints.keep_every == config.evaluation.every == steps // 4


def test_arms_and_seeds_differ_only_where_they_should(tmp_path: Path, tiny_data: Path) -> None:
    found = {p.name: p.arguments for p in pieces(plan_of(tmp_path, tiny_data)) if p.kind is Kind.RL}
    changed = [text.replace("-a", "-b") if "sft-a" in text else text for text in found["rl-a-seed42"]]
    changed[1] = "b"
    assert tuple(changed) == found["rl-b-seed42"]
    assert [text.replace("43", "42") for text in found["rl-b-seed43"]] == list(found["rl-b-seed42"])
    assert [*found["rl-b-seed42"], "credit.alpha=0"] == list(found["rl-b-alpha0-seed42"])


def test_a_run_without_the_gate_starts_from_traces_without_it() -> None:
    for spec in MATRIX.run:
        config = load_config("rl", "small", MATRIX.sft_of(spec).arm, (), list(spec.settings), model="m")
        assert config.rules().variant.gated is parse_variant(MATRIX.sft_of(spec).variant).gated


def test_every_run_has_a_visit() -> None:
    assert {name for visit in MATRIX.visit for name in visit.runs} == {spec.name for spec in MATRIX.run}
    assert [run.name for run in MATRIX.select(visit=1)] == [
        f"{name}-seed{seed}" for name in ("a", "b-overlap") for seed in (42, 43)
    ]


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(MatrixError, match="run 'c': expected one of a, b, b-alpha0"):
        MATRIX.select(["c"])
    with pytest.raises(MatrixError, match=f"visit 9: expected 1 to {len(MATRIX.visit)}"):
        MATRIX.select(visit=9)
    with pytest.raises(MatrixError, match="multiple of 4, for checkpoints at quarters: got 30"):
        quarters(30)
    changed = {**MATRIX.model_dump(), "question": [{"name": "q", "title": "?", "pairs": [("z", "b")]}]}
    with pytest.raises(ValueError, match="question: unknown z; known are"):
        type(MATRIX).model_validate(changed)


# Traces without their tasks' texts.

TEXT = TaskText("Write double(n).", builders.TEST_CODE)
TEXTS = {"t1": TEXT, "t9": TEXT}


def quoting(quoted: str) -> Trace:
    """A trace whose verdicts quote an assertion."""
    trace = builders.trace(solved=False)
    assert trace.record
    verdict = Verdict(Label.ASSERTION_FAILURE, Label.ASSERTION_FAILURE, detail=f"does not hold: {quoted}")
    candidates = tuple(replace(each, verdict=verdict) for each in trace.record.candidates)
    return replace(trace, record=replace(trace.record, candidates=candidates, final_verdict=verdict))


@pytest.mark.parametrize("trace", [quoting("assert double(5) == 10"), builders.error_trace()], ids=["failed", "fault"])
def test_a_slim_trace_has_no_text_of_its_task_and_gets_it_back(trace: Trace, tmp_path: Path) -> None:
    thin = slim(trace, TEXTS)
    line = local_trace_line(thin)
    assert "double(5)" not in line
    assert "Write double(n)." not in line
    assert thin.test_code is None
    assert slim(thin, TEXTS) == thin
    assert rejoin(read_traces(write_traces(tmp_path / "traces.jsonl.gz", [thin])).traces[0], TEXTS) == trace


def test_a_quote_that_is_no_line_of_the_tests_is_left_out_for_good() -> None:
    thin = slim(quoting("assert double(5) in (10,)"), TEXTS)
    assert thin.record
    assert thin.record.final_verdict
    assert thin.record.final_verdict.detail == "does not hold: an assertion"


def test_the_wrong_data_are_refused() -> None:
    other = {"t1": replace(TEXT, prompt="Write triple(n).")}
    with pytest.raises(RejoinError, match="its prompt is not that of the data: 'Write double"):
        slim(builders.trace(), other)
    with pytest.raises(RejoinError, match="the prompt's sha256 must be"):
        rejoin(slim(builders.trace(), TEXTS), other)
    with pytest.raises(RejoinError, match="the data have no task 't1'"):
        slim(builders.trace(), {})


# A visit.


@pytest.fixture
def visit(tmp_path: Path, tiny_data: Path) -> dict[str, Any]:
    """A study of two runs whose commands are `tests/fake_study.py`."""
    texts = task_texts(tiny_data, "b", "test")
    played = [in_words_of(builders.trace(name), text) for name, text in texts.items()]
    write_traces(tmp_path / "played.jsonl.gz", played)
    (tmp_path / "work").mkdir()
    return {"folder": tmp_path, "data": tiny_data, "work": tmp_path / "work", "results": tmp_path / "results" / "visit"}


def in_words_of(trace: Trace, text: TaskText) -> Trace:
    messages = tuple(replace(m, content=text.prompt) if m.role == "user" else m for m in trace.messages)
    return replace(trace, messages=messages, test_code=text.test_code)


def command(visit: Mapping[str, Any], *options: str) -> list[str]:
    fake = f"{sys.executable} {ROOT}/tests/fake_study.py"
    fixed = ["--work", visit["work"], "--results", visit["results"], "--model", "m", "--data", visit["data"]]
    fixed += ["--runs", "b-seed42,a-seed43", "--steps", "8", "--python", fake]
    return [sys.executable, "-m", "study", "run", *map(str, fixed), *options]


def environment(visit: Mapping[str, Any], **variables: str) -> dict[str, str]:
    traces = {"TRACES": str(visit["folder"] / "played.jsonl.gz"), "WORK": str(visit["work"])}
    return {**os.environ, **traces, "PYTHONPATH": f"{ROOT}:{ROOT}/src", "PROGRESS_SECONDS": "1", **variables}


def study(visit: Mapping[str, Any], *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(visit, *options),
        env=environment(visit, **variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def asked(visit: Mapping[str, Any]) -> list[str]:
    return (visit["work"] / "asked").read_text().splitlines()


EVERYTHING = {
    "sft-a", "sft-b", "test-sft-a", "test-sft-b", "rl-a-seed43", "rl-b-seed42",
    "base-plain", "test-base-a", "test-base-b",
    *(f"test-rl-{run}-step{step}" for run in ("a-seed43", "b-seed42") for step in (2, 4, 6, 8)),
    *(f"forced_keep-rl-b-seed42-step{step}" for step in (2, 4, 6, 8)),
}  # fmt: skip


def test_a_visit_makes_everything_once(visit: dict[str, Any]) -> None:
    done = study(visit, "--commit", "abc123")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in visit["results"].iterdir()} == EVERYTHING
    assert sorted(line.split()[1] for line in asked(visit)) == sorted(EVERYTHING)
    assert [path.name for path in visit["work"].glob("runs/rl-*/checkpoints/*")] == ["step_000008"] * 2
    assert not list(visit["work"].glob("runs/*/checkpoints/*/training.pt"))
    summary = json.loads((visit["results"] / "forced_keep-rl-b-seed42-step4" / "summary.json").read_text())
    assert (summary["run"], summary["seed"], summary["step"]) == ("b:forced_keep", 42, 4)
    assert summary["source_commit"] == "abc123"
    assert summary["metrics"]["pass_at_1"]["value"] == 1.0
    assert summary["metrics"]["hardcoded"]["denominator"] == 2  # computed before the tests are left out
    assert len(gzip.decompress((visit["results"] / "rl-a-seed43" / "metrics.jsonl.gz").read_bytes()).splitlines()) == 8
    assert str(visit["folder"]) not in "".join(
        path.read_text() for path in visit["results"].rglob("*") if path.suffix in (".json", ".toml")
    )
    with tarfile.open(visit["results"].parent / "visit-archives" / "results-1.tar.xz") as archive:
        assert {name.split("/")[0] for name in archive.getnames()} == EVERYTHING

    again = study(visit, "--commit", "abc123")
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(asked(visit)) == len(EVERYTHING)


def test_a_run_is_cut_short_in_time_to_be_evaluated_where_it_stands(visit: dict[str, Any]) -> None:
    options = ("--minutes", "2", "--reserve", "80", "--evaluations", "4")
    done = study(visit, *options, HANG="rl-b-seed42")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "rl-b-seed42: told to stop after its step" in done.stdout
    assert "cut short: rl-b-seed42: 3 of 8 steps" in done.stdout
    assert "not played" not in done.stdout
    results = visit["results"]
    stopped = {"test-rl-b-seed42-step3", "forced_keep-rl-b-seed42-step3"}
    assert stopped < {path.name for path in results.iterdir() if (path / "summary.json").is_file()}
    assert (results / "test-rl-a-seed43-step8" / "summary.json").is_file()
    assert json.loads((results / "rl-b-seed42" / "summary.json").read_text())["status"] == "interrupted"

    done = study(visit, *options)  # with more time the run goes on
    assert done.returncode == 0, done.stdout + done.stderr
    assert asked(visit).count("resume rl-b-seed42") == 1
    assert {path.name for path in results.iterdir()} == EVERYTHING | stopped


def test_after_a_kill_the_same_command_goes_on(visit: dict[str, Any]) -> None:
    options = ("--jobs", "1")
    first = subprocess.Popen(
        command(visit, *options), env=environment(visit), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    running = visit["work"] / "runs" / "rl-a-seed43" / "checkpoints" / "step_000002"
    deadline = time.monotonic() + 60
    while not running.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = asked(visit)
    done = study(visit, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in visit["results"].iterdir()} == EVERYTHING
    new = asked(visit)[len(before) :]
    assert "resume rl-a-seed43" in new  # it was told to stop by the death of its parent
    assert not any(line in ("sft sft-a", "sft sft-b") for line in new)


def test_a_checkpoint_waits_for_its_evaluation(visit: dict[str, Any]) -> None:
    """Its training state goes, its weights stay; the last one stays whole; where a run was stopped it has its own."""
    plan = plan_of(visit["work"], visit["data"], ["b-seed42"], steps=8)
    run = MATRIX.select(["b-seed42"])[0]
    for step in (2, 4, 5):
        plan.checkpoint(run, step).mkdir(parents=True)
        for name in ("model.safetensors", "training.pt"):
            (plan.checkpoint(run, step) / name).touch()
    found = pieces(plan, MATRIX)
    tested = {piece.name: piece.deleted_by for piece in found if piece.name.startswith("test-rl")}
    stop = {"test-rl-b-seed42-step5": "rl-b-seed42"}
    assert tested == {**{f"test-rl-b-seed42-step{step}": "" for step in (2, 4, 6, 8)}, **stop}
    make_room(plan, run, found, {"test-rl-b-seed42-step2", "forced_keep-rl-b-seed42-step2", "test-rl-b-seed42-step4"})
    left = [str(path.relative_to(plan.runs_folder / run.folder / "checkpoints")) for path in visit["work"].rglob("*.*")]
    assert sorted(left) == ["step_000004/model.safetensors", "step_000005/model.safetensors", "step_000005/training.pt"]


def test_evaluations_have_the_room_that_no_run_takes(visit: dict[str, Any]) -> None:
    plan = plan_of(visit["work"], visit["data"], ["a-seed43"])
    runner = Runner(plan, MATRIX, Limits(2, 0, None, 0), ("false",), lambda text: None, lambda piece: None)
    training, evaluation = (next(p for p in runner.pieces() if p.is_training is kind) for kind in (True, False))
    for waiting, at_work, room in ((1, 1, False), (0, 1, True), (0, 2, False), (0, 0, True), (2, 0, False)):
        runner.runs_waiting = waiting
        runner.running = {str(i): Running(training, None, visit["folder"], 0.0) for i in range(at_work)}  # type: ignore[arg-type]
        assert runner._has_room(evaluation) is room, (waiting, at_work)


def test_no_evaluation_takes_the_place_of_a_run(visit: dict[str, Any]) -> None:
    done = study(visit, "--evaluations", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = [line.split()[1].split("-")[0] for line in asked(visit)]
    assert kinds[:4] == ["sft", "sft", "rl", "rl"]


def test_evaluations_are_played_though_training_failed(visit: dict[str, Any]) -> None:
    done = study(visit, "--jobs", "1", "--evaluations", "0", FAIL="sft-b")
    assert done.returncode == 1
    assert {path.name for path in visit["results"].iterdir()} >= {"rl-a-seed43", "test-rl-a-seed43-step8", "base-plain"}
    assert "failed: sft-b: see " in done.stdout
    assert asked(visit).count("sft sft-b") == 2


def test_what_fails_once_is_tried_again(visit: dict[str, Any]) -> None:
    done = study(visit, "--jobs", "4", FAIL_ONCE="test-rl-a-seed43-step8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert asked(visit).count("evaluate test-rl-a-seed43-step8") == 2


def test_what_does_not_stop_is_killed_in_time_to_publish(visit: dict[str, Any]) -> None:
    done = study(visit, "--minutes", "1.3", "--reserve", "50", HANG="rl-b-seed42", DEAF="rl-b-seed42")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "rl-b-seed42: killed: it does not stop" in done.stdout
    assert (visit["results"] / "rl-b-seed42" / "summary.json").is_file()
    assert (visit["results"].parent / "visit-archives" / "results-1.tar.xz").is_file()


def test_a_run_that_another_process_still_holds_is_waited_for(visit: dict[str, Any]) -> None:
    runner = Runner(
        plan_of(visit["work"], visit["data"], ["a-seed43"]),
        MATRIX,
        Limits(2, 0, None, 0),
        (),
        print,
        lambda piece: None,
    )
    folder = visit["work"] / "runs" / "rl-a-seed43"
    folder.mkdir(parents=True)
    assert not runner._is_held_up()
    holder = FileLock(folder / ".lock")
    assert holder.acquire()
    assert runner._is_held_up()
    holder.release()
    assert not runner._is_held_up()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--evaluate-every", "3"), "--evaluate-every 3: expected a multiple of 2, a quarter"),
        (("--until", "3"), "--until 3: no quarter of 8 steps; give --until one of 2, 4, 6, 8"),
        (
            ("--until", "4", "--rl", "optimiser.schedule=linear"),
            "--until 4 with optimiser.schedule=linear: runs that end early are the first part of longer ones",
        ),
        (
            ("--minutes", "4"),
            "--reserve 240: expected seconds between 30, which packing takes, and the 240 of --minutes",
        ),
        (("--minutes", "4", "--reserve", "20"), "--reserve 20: expected seconds between 30"),
    ],
)
def test_limits_that_leave_no_time_are_refused(visit: dict[str, Any], options: tuple[str, ...], message: str) -> None:
    done = study(visit, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (visit["work"] / "asked").exists()


def test_what_runs_are_compared_by_is_evaluated_first(visit: dict[str, Any]) -> None:
    """The last step, the quarter before it, which a run that was cut short has too, where it was stopped, the rest."""
    plan = plan_of(visit["work"], visit["data"], ["b-seed42"], steps=8)
    run = MATRIX.select(["b-seed42"])[0]
    plan.checkpoint(run, 7).mkdir(parents=True)
    order = [p.facts["step"] for p in pieces(plan, MATRIX) if p.name.startswith("test-rl")]
    assert order == [8, 6, 7, 4, 2]
    sparse = replace(plan, evaluate_every=6)
    assert [p.facts["step"] for p in pieces(sparse, MATRIX) if p.name.startswith("test-rl")] == [8, 6, 7]
    (training,) = (p for p in pieces(sparse, MATRIX) if p.kind is Kind.RL)
    assert {"checkpoints.every=2", "checkpoints.keep_every=6"} <= set(training.arguments)


def test_every_model_before_rl_plays_in_a_visit() -> None:
    names = {name for visit in MATRIX.visit for name in visit.untrained}
    assert names == {"base", *(sft.name for sft in MATRIX.sft)}


def test_what_plays_before_rl_is_trained_though_no_run_starts_from_it(tmp_path: Path, tiny_data: Path) -> None:
    plan = plan_of(tmp_path, tiny_data, ["b"], untrained=("sft-b-ungated",))
    names = [piece.name for piece in pieces(plan, MATRIX) if "sft" in piece.name]
    assert names == ["sft-b", "sft-b-ungated", "test-sft-b-ungated"]


def test_a_visit_ends_at_a_quarter_of_its_scale() -> None:
    assert {visit.until for visit in MATRIX.visit} <= {0, *quarters(MATRIX.scale["small"].steps)}


def test_runs_may_end_at_a_quarter(tmp_path: Path, tiny_data: Path) -> None:
    plan = plan_of(tmp_path, tiny_data, ["b-seed42"], steps=60, until=45)
    found = pieces(plan, MATRIX)
    (training,) = (p for p in found if p.kind is Kind.RL)
    assert {"rl.steps=45", "checkpoints.every=15", "evaluation.every=15"} <= set(training.arguments)
    assert (training.facts["step"], training.facts["steps_planned"]) == (45, 60)
    played = [piece.name for piece in found if piece.kind is Kind.AFTER_RL]
    assert played[:2] == ["test-rl-b-seed42-step45", "forced_keep-rl-b-seed42-step45"]
    assert not any("step60" in name for name in played)


def test_a_visit_plays_what_it_is_to_play(tmp_path: Path, tiny_data: Path) -> None:
    plan = plan_of(tmp_path, tiny_data, ["b-ungated"], untrained=("sft-b-ungated",))
    played = {piece.name for piece in pieces(plan) if piece.kind in (Kind.BASE, Kind.PLAIN, Kind.AFTER_SFT)}
    assert played == {"test-sft-b-ungated"}


def test_what_else_lies_in_the_results_folder_stays(visit: dict[str, Any]) -> None:
    note = visit["results"] / "notes" / "n.txt"
    note.parent.mkdir(parents=True)
    note.touch()
    torn = visit["results"] / "test-rl-b-seed42-step8"
    torn.mkdir()
    done = study(visit, "--minutes", "1", "--reserve", "59")
    assert done.returncode == 3
    assert note.is_file()
    assert not torn.exists()


@pytest.mark.parametrize("place", ["work", "folder", "data", "root"])
def test_results_have_a_folder_of_their_own(visit: dict[str, Any], place: str) -> None:
    folder = ROOT if place == "root" else visit[place]
    before = sorted(folder.iterdir())
    done = study({**visit, "results": folder})
    assert done.returncode == 2
    assert f"--results {folder}: expected a folder of its own, apart from" in done.stderr
    assert sorted(folder.iterdir()) == before


def test_one_runner_makes_a_study(visit: dict[str, Any]) -> None:
    lock = FileLock(visit["work"] / ".lock")
    assert lock.acquire()
    done = study(visit)
    lock.release()
    assert done.returncode == 2
    assert f"process {os.getpid()}" in done.stderr
    assert "makes this study already" in done.stderr


def test_what_could_not_be_published_or_played_fails(visit: dict[str, Any]) -> None:
    assert study(visit).returncode == 0
    (visit["results"] / "sft-a" / "summary.json").write_text("{")
    (visit["work"] / "runs" / "sft-b" / "metrics.jsonl").write_text("{")
    shutil.rmtree(visit["work"] / "runs" / "test-rl-a-seed43-step4")
    done = study(visit)
    assert done.returncode == 1
    assert "not published: sft-b: " in done.stdout
    assert "cannot be played any more: test-rl-a-seed43-step4: its checkpoint is gone" in done.stdout
    assert "goes on with what is missing" not in done.stdout
    assert json.loads((visit["results"] / "sft-a" / "summary.json").read_text())["kind"] == "sft"


@pytest.mark.parametrize("text", ["alpha", "rl.steps=8", "checkpoints.keep_every=3", "evaluation.every=1"])
def test_settings_that_are_the_studys_own_are_refused(visit: dict[str, Any], text: str) -> None:
    done = study(visit, "--rl", text)
    assert done.returncode == 2
    assert f"{text!r}: expected key=value, and none of rl.steps, checkpoints., evaluation.every" in done.stderr
    assert not (visit["work"] / "study.json").exists()


def test_a_folder_holds_one_study(visit: dict[str, Any]) -> None:
    (visit["work"] / "study.json").write_text("{}\n")
    done = study(visit)
    assert done.returncode == 2
    assert "this folder holds a study that was asked for otherwise" in done.stderr


def test_settings_that_contradict_each_other_are_refused_before_anything_runs(visit: dict[str, Any]) -> None:
    done = study(visit, "--rl", "rl.group_size=7")
    assert done.returncode == 2
    assert "rl.rollouts_per_step must be a multiple of rl.group_size" in done.stderr
    assert not (visit["work"] / "asked").exists()


# The scripts.


def script(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["bash", str(ROOT / "scripts" / name), *arguments]
    variables = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240)


REFUSED = {
    "unknown": (["--fast"], "study: unknown argument --fast"),
    "no value": (["--jobs"], "study: --jobs needs a value"),
    "scale": (["--scale", "paper"], "study: --scale must be mini or small, got 'paper'"),
    "no model": (["--work", "w", "--results", "r"], "study: which model? --model a folder or a hub id"),
    "no such model": (["--model", "./no", "--work", "w", "--results", "r"], "study: --model ./no: no such folder"),
    "no folders": (["--model", "m", "--work", "w"], "study: --work and --results are needed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_script_refuses_what_it_cannot_do(name: str) -> None:
    arguments, message = REFUSED[name]
    done = script("study.sh", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert "bash scripts/study.sh --list" in done.stderr


def test_the_script_lists_the_runs_without_an_environment() -> None:
    done = script("study.sh", "--list")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [run.name for run in MATRIX.runs()]


def test_the_machinery_needs_neither_verifiers_nor_datasets() -> None:
    blocked = "import sys\nfor name in ('verifiers', 'renderers', 'datasets'): sys.modules[name] = None\n"
    code = f"{blocked}import study.__main__, study.plain\nimport glyph.cli; glyph.cli.build_app()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


# What is published.


def test_archives_are_small_enough(tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / "results" / str(number)
        folder.mkdir(parents=True)
        (folder / "traces").write_bytes(os.urandom(600))
    made = pack(tmp_path / "results", tmp_path / "out", limit_bytes=1300)
    assert [path.name for path in made] == ["results-1.tar.xz", "results-2.tar.xz"]
    with tarfile.open(made[1]) as archive:
        assert archive.getnames() == ["2", "2/traces"]
    with pytest.raises(ValueError, match="600 bytes, an archive holds 500"):
        pack(tmp_path / "results", tmp_path / "out", limit_bytes=500)


def test_code_is_taken_out_of_an_answer() -> None:
    assert code_of("Sure:\n```python\ndef f():\n    return 1\n```\nDone.") == "def f():\n    return 1\n"
    assert code_of("```\nx = 1") == "x = 1\n"
    assert code_of("x = 2") == "x = 2\n"


# Tables.


def publish_outcomes(results: Path, run: str, seed: int | None, step: int, solved: Sequence[int], data: Path) -> None:
    """One evaluation as a visit publishes it; its tasks are those of `data`, in order."""
    publish_rollouts(results, run, seed, step, [{"solved": bool(one)} for one in solved], data)


def publish_rollouts(
    results: Path, run: str, seed: int | None, step: int, fields: Sequence[Mapping[str, Any]], data: Path
) -> None:
    """The same of rollouts whose records have these fields."""
    kind = Kind.AFTER_RL if seed else Kind.AFTER_SFT
    arm = "a" if run.startswith(("a", "sft-a")) else "b"
    name = f"test-{run}-{seed}-step{step}"
    folder = results.parent / "work" / name
    folder.mkdir(parents=True)
    texts = task_texts(data, arm, "test")
    played = [
        in_words_of(builders.trace(task, arm=arm, **one), texts[task]) for task, one in zip(texts, fields, strict=True)
    ]
    write_traces(folder / "traces.jsonl.gz", played)
    (folder / "manifest.json").write_text("{}")
    (folder / "config.toml").write_text(f'data = "{data}"\n')
    trained = run.partition(":")[0]
    if not (results / f"{trained}-{seed}").is_dir():
        publish_start(results, trained, seed, "aa")
    facts: dict[str, Any] = {"run": run, "arm": arm, "seed": seed, "step": step}
    Publisher(results, {}, {}).publish(Piece(name, kind, folder, "glyph", (), facts=facts))


def publish_start(visit: Path, run: str, seed: int | None, digest: str) -> None:
    """The training that evaluations of a visit come from: SFT without a seed, else 60 steps of RL from sft-b."""
    folder = visit / f"{run}-{seed}"
    folder.mkdir(parents=True)
    kind, status = ("rl", "interrupted") if seed else ("sft", "finished")
    facts = {"kind": kind, "run": run, "arm": "b", "seed": seed, "step": 60, "status": status, "steps_planned": 60}
    (folder / "summary.json").write_text(json.dumps({**facts, "weights_sha256": "end" if seed else digest}))
    manifest = {"model": "study/runs/sft-b", "model_digest": digest, "sessions": [{}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def twelve_tasks(tmp_path: Path, tiny_data: Path) -> Path:
    """Prepared data of twelve test tasks an arm."""
    for arm in "ab":
        row = json.loads((tiny_data / f"arm_{arm}_test.jsonl").read_text().splitlines()[0])
        rows = [{**row, "task_id": f"task-{number:02}"} for number in range(12)]
        (tmp_path / f"arm_{arm}_test.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return tmp_path


def table_rows(table: str) -> list[list[str]]:
    """The cells of a Markdown table without its headings."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines[2:]]


def shares(row: Sequence[str]) -> list[str]:
    """The cells after run, seed and step, without intervals."""
    return [re.sub(r" \[.*\]\S?", "", cell) for cell in row[3:]]


def outcomes(first: int) -> list[int]:
    """The first tasks are solved."""
    return [1] * first + [0] * (12 - first)


def test_a_question_compares_at_the_last_step_that_both_have(tmp_path: Path, twelve_tasks: Path) -> None:
    results = tmp_path / "results"
    for seed, a, b in ((42, 2, 8), (43, 4, 5)):
        publish_outcomes(results, "a", seed, 50, outcomes(a), twelve_tasks)
        publish_outcomes(results, "a", seed, 75, outcomes(12), twelve_tasks)
        publish_outcomes(results, "b", seed, 50, outcomes(b), twelve_tasks)
    of = Question(name="arms", title="?", pairs=(("a", "b"),))
    found = table_rows(tables.question(read_results(results), of))
    rows, own = found[:3], found[3:]
    assert [row[1] for row in rows] == ["42", "43", "mean of 2"]
    assert {row[2] for row in rows} == {"50"}
    assert [row[3:5] for row in rows] == [
        ["16.7% n=12", "66.7% n=12"],
        ["33.3% n=12", "41.7% n=12"],
        ["25.0% n=12", "54.2% n=12"],
    ]
    assert [row[5].split(" [")[0] for row in rows] == ["+50.0 pp", "+8.3 pp", "+29.2 pp"]
    assert rows[0][6:9] == ["0 : 6", f"{mcnemar_exact(0, 6):.4f}", f"{2 * mcnemar_exact(0, 6):.4f}"]
    assert rows[1][6:9] == ["0 : 1", "1.0000", "1.0000"]
    assert rows[2][6:9] == ["–", "–", "–"]  # two samples a task: no McNemar, and no part in the family
    assert [row[9] for row in rows] == ["-4.4 pp, p 0.068", "-0.6 pp, p 0.86", "–"]
    assert [row[1:5] for row in own] == [  # each at its own last step, and no part in the family
        ["42", "75, 50", "100.0% n=12", "66.7% n=12"],
        ["43", "75, 50", "100.0% n=12", "41.7% n=12"],
    ]
    assert own[0][6:] == ["4 : 0", f"{mcnemar_exact(4, 0):.4f}", "–", "–"]


def test_an_sft_model_is_compared_with_every_seed(tmp_path: Path, twelve_tasks: Path) -> None:
    results = tmp_path / "results"
    publish_outcomes(results, "sft-b", None, 0, outcomes(3), twelve_tasks)
    for seed in (42, 43):
        publish_outcomes(results, "b", seed, 100, outcomes(6), twelve_tasks)
    publish_outcomes(results, "b", 43, 107, outcomes(12), twelve_tasks)  # seed 43 alone came so far
    of = Question(name="gain", title="?", pairs=(("sft-b", "b"),))
    rows = table_rows(tables.question(read_results(results), of))
    assert [row[1:6] for row in rows[:2]] == [
        [seed, "100", "25.0% n=12", "50.0% n=12", rows[0][5]] for seed in ("42", "43")
    ]
    assert rows[0][9] == "+3.8 pp, p 0.033"
    assert [row[1:3] for row in rows[2:]] == [["mean of 2", "100"], ["43", "107"]]
    assert rows[3][6] == "0 : 9"


def publish_visits(root: Path, made: Sequence[tuple[str, str, int | None, str, int]], data: Path) -> Results:
    """Visit, run, seed, SHA-256 of the SFT weights, tasks solved at the last step: of several visits."""
    for visit, run, seed, digest, solved in made:
        results = root / visit / visit
        if not (results / f"{run.partition(':')[0]}-{seed}").is_dir():
            publish_start(results, run.partition(":")[0], seed, digest)
        publish_outcomes(results, run, seed, 60 if seed else 0, outcomes(solved), data)
    return read_results(root)


def compared_rows(found: Results, first: str, second: str) -> list[list[str]]:
    """Seed, and tasks of twelve solved by the first and by the second."""
    shown = tables.question(found, Question(name="q", title="?", pairs=((first, second),)))
    rows = table_rows(shown.split("\n\n")[0])
    assert ("The two were made in different visits" in shown) is any("◊" in row[1] for row in rows)
    solved = [[round(float(cell.split("%")[0]) * 0.12, 1) for cell in row[3:5]] for row in rows]
    return [[row[1], *map(str, counts)] for row, counts in zip(rows, solved, strict=True)]


def test_runs_are_compared_with_those_of_the_same_start(tmp_path: Path, twelve_tasks: Path) -> None:
    """b was made in two visits, from other weights; b-alpha0 in the second, b-class in a third, from others still."""
    made = [("one", "b", 42, "aa", 3), ("one", "b", 43, "aa", 4), ("two", "b-alpha0", 42, "bb", 5)]
    made += [("two", "b-alpha0", 43, "bb", 6), ("four", "b", 42, "bb", 7), ("three", "b-class", 42, "cc", 8)]
    made += [("one", "sft-b", None, "aa", 1), ("four", "sft-b", None, "bb", 2)]
    found = publish_visits(tmp_path, made, twelve_tasks)
    assert compared_rows(found, "b-alpha0", "b") == [["42 four", "5.0", "7.0"], ["43 ◊", "6.0", "4.0"]]
    assert compared_rows(found, "b", "b-class") == [["42 four ◊", "7.0", "8.0"]]
    assert compared_rows(found, "sft-b", "b") == [
        ["42 four", "2.0", "7.0"], ["42 one", "1.0", "3.0"], ["43 one", "1.0", "4.0"], ["mean of 2 one", "1.0", "3.5"]
    ]  # fmt: skip
    passed = [row[:3] for row in table_rows(tables.passes(found, MATRIX))]
    assert [row[1] for row in passed] == ["– four", "– one", "42 four", "42 one", "43", "42", "43", "42"]
    (row,) = [row for row in table_rows(behaviour.costs(found, MATRIX)) if row[:2] == ["b", "42 four"]]
    assert row[2] == "60"


def test_a_replay_is_compared_with_its_own_run(tmp_path: Path, twelve_tasks: Path) -> None:
    """Two visits from the same weights, as repeatable SFT makes them; the second's run itself was not evaluated."""
    made = [("one", "b", 42, "aa", 3), ("one", "b:forced_keep", 42, "aa", 5)]
    made += [("two", "b", 42, "aa", 7), ("two", "b:forced_keep", 42, "aa", 8), ("two", "sft-b", None, "aa", 2)]
    found = publish_visits(tmp_path, made, twelve_tasks)
    replays = [["42 one", "3.0", "5.0"], ["42 two", "7.0", "8.0"]]
    assert compared_rows(found, "b", "b:forced_keep") == replays
    assert [row[1:4] for row in compared_rows(found, "sft-b", "b")] == [["2.0", "3.0"], ["2.0", "7.0"]]
    shown = tables.question(found, Question(name="q", title="?", pairs=(("b", "b:forced_keep"),)))
    assert [row[8] for row in table_rows(shown)[:2]] == ["1.0000", "1.0000"]  # both are of the family


def test_what_a_comparison_needs_is_published(tmp_path: Path, twelve_tasks: Path) -> None:
    found = publish_visits(tmp_path, [("one", "b", 42, "aa", 3), ("one", "sft-b", None, "bb", 1)], twelve_tasks)
    assert compared_rows(found, "sft-b", "b") == [["42", "1.0", "3.0"]]
    visit = tmp_path / "one" / "one"
    (visit / "again").mkdir()
    shutil.copy(visit / "test-b-42-step60" / "summary.json", visit / "again")
    with pytest.raises(ResultsError, match=r"test-b-42-step60: the same evaluation as .*again: remove one"):
        read_results(tmp_path).series("b")
    shutil.rmtree(visit / "again")
    (visit / "b-42" / "manifest.json").write_text('{"model": "sft-b"}')
    with pytest.raises(ResultsError, match=r"b-42: no SHA-256 of its SFT weights"):
        read_results(tmp_path).series("b")
    (visit / "b-42" / "manifest.json").unlink()
    with pytest.raises(ResultsError, match=r"manifest\.json: .*; a result is published with its manifest"):
        read_results(tmp_path).series("b")
    shutil.rmtree(visit / "b-42")
    with pytest.raises(ResultsError, match="one: evaluations of b without its training run: publish them together"):
        read_results(tmp_path).series("b")


def test_three_seeds_have_an_interval_over_seeds(tmp_path: Path, twelve_tasks: Path) -> None:
    results = tmp_path / "results"
    of = Question(name="q", title="?", pairs=(("a", "b"),))
    for seed, first, second in ((42, 2, 8), (43, 4, 5), (44, 3, 5)):  # +6, +1, +2 tasks
        publish_outcomes(results, "a", seed, 60, outcomes(first), twelve_tasks)
        publish_outcomes(results, "b", seed, 60, outcomes(second), twelve_tasks)
        pooled = table_rows(tables.question(read_results(results, MINI), of))[-1]
        assert ("§" in pooled[5]) is (seed == 44)
    half = 4.303 * statistics.stdev([6, 1, 2]) / 3**0.5 / 12 * 100
    assert pooled[5].endswith(f"† [{25 - half:+.1f}, {25 + half:+.1f}]§")
    assert len(pooled) == 9  # the published figures stand beside the small scale's alone


def overridden(*verified: Label) -> dict[str, Any]:
    """A solved rollout whose REVISEs of candidates so verified were overridden, after a KEEP."""
    kept = builders.target(Label.PASS, Label.ASSERTION_FAILURE)
    revised = [builders.target(Label.RUNTIME_ERROR, one, Decision.REVISE, overridden=True) for one in verified]
    return {"solved": True, "targets": (kept, *revised)}


def test_a_gain_is_from_the_first_overridden_candidate_or_from_a_later_one(tmp_path: Path, twelve_tasks: Path) -> None:
    results = tmp_path / "results"
    failed = {"solved": False}
    after = [
        overridden(Label.PASS),  # was solved before
        *[overridden(Label.PASS), overridden(Label.PASS, Label.RUNTIME_ERROR)],
        overridden(Label.RUNTIME_ERROR, Label.PASS),
        {**overridden(Label.PASS), **failed},
    ]
    publish_rollouts(results, "b", 42, 50, [{"solved": True}, *[failed] * 11], twelve_tasks)
    publish_rollouts(results, "b:forced_keep", 42, 50, [*after, *[failed] * 7], twelve_tasks)
    of = Question(name="gate", title="?", pairs=(("b", "b:forced_keep"), ("a", "b")))
    pairs, gained = (table_rows(block) for block in tables.question(read_results(results), of).split("\n\n")[:2])
    assert [row[6] for row in pairs] == ["0 : 3"]
    assert gained == [["b:forced_keep − b", "42", "50", "3", "2", "1"]]


def behaved() -> list[dict[str, Any]]:
    """Twelve rollouts of Arm B; three revise, two of which break the protocol."""
    kept = builders.target(Label.PASS, Label.ASSERTION_FAILURE)
    right = builders.target(Label.PASS, Label.PASS)
    bad = builders.target(Label.RUNTIME_ERROR, Label.RUNTIME_ERROR, Decision.REVISE)
    good = builders.target(Label.RUNTIME_ERROR, Label.PASS, Decision.REVISE)
    unreadable = builders.target(None, Label.RUNTIME_ERROR, None)
    broken = {"stop_reason": StopReason.PROTOCOL, "protocol_error": builders.breach(BreachKind.NOT_A_TURN)}
    return [
        *[{"solved": False, "targets": (kept, bad), **broken}] * 2,
        {"solved": False, "targets": (kept, good, kept, unreadable)},
        {"solved": True, "targets": (right,)},
        *[{"solved": False, "targets": (kept,)}] * 8,
    ]


def test_first_candidates_stand_apart_from_later_ones(tmp_path: Path, twelve_tasks: Path) -> None:
    results = tmp_path / "results"
    publish_rollouts(results, "b", 42, 50, behaved(), twelve_tasks)
    found = read_results(results)
    rejected, note, ended = behaviour.decisions(found, MATRIX).split("\n\n")[:3]
    assert [shares(row) for row in table_rows(rejected)[:1]] == [
        ["0.0% n=11", "66.7% n=3", "14.3% n=14", "0.0% n=1", "100.0% n=1", "50.0% n=2"]
    ]
    assert "left out (b 42: 1)" in note
    assert shares(table_rows(ended)[0]) == ["11.1% n=9", "0.0% n=9", "0.0% n=3", "0.0% n=3", "66.7% n=3"]
    predicted = table_rows(behaviour.predictions(found, MATRIX))[0]
    assert shares(predicted)[-2:] == ["50.0% n=4", "66.7% n=3"]  # the unreadable one has no part


def test_development_counts_labels_decisions_and_breaches(tmp_path: Path, twelve_tasks: Path) -> None:
    results = tmp_path / "results"
    fields = behaved()
    spent = tuple(builders.patch(str(number)) for number in range(8))
    fields[0] = {**fields[0], "calls": spent}  # broke the protocol with its budget spent
    publish_rollouts(results, "b", 42, 50, fields, twelve_tasks)
    publish_rollouts(results, "b", 42, 25, [{"solved": False}] * 12, twelve_tasks)
    publish_rollouts(results, "a", 42, 50, [{"solved": False}] * 12, twelve_tasks)
    variant = {"solved": False, "variant": "ungated", "targets": (builders.target(Label.PASS, Label.PASS, None),)}
    publish_rollouts(results, "b-ungated", 42, 50, [variant] * 12, twelve_tasks)
    rows = table_rows(behaviour.development(read_results(results), MATRIX))
    assert rows == [
        ["b", "42", "25", "0 of 12", "0 of 12", "0 of 12", "0", "0"],
        ["b", "42", "50", "3 of 16", "3 of 16", "2 of 12", "2", "1"],
        ["b-ungated", "42", "50", "0 of 12", "–", "0 of 12", "–", "0"],
    ]


def test_costs_show_breaches_and_what_was_played_again(tmp_path: Path, twelve_tasks: Path) -> None:
    results = tmp_path / "results"
    publish_rollouts(results, "b", 42, 50, behaved(), twelve_tasks)
    publish_outcomes(results, "b:forced_keep", 42, 50, outcomes(3), twelve_tasks)
    rows = table_rows(behaviour.costs(read_results(results), MATRIX))
    assert [(row[0], shares(row)[2]) for row in rows] == [("b", "16.7% n=12"), ("b:forced_keep", "0.0% n=12")]


def test_steps_where_a_run_was_stopped_share_a_column(tmp_path: Path, twelve_tasks: Path) -> None:
    results = tmp_path / "results"
    for seed, step in ((42, 45), (42, 60), (43, 45), (43, 52)):
        publish_outcomes(results, "b", seed, step, outcomes(6), twelve_tasks)
    shown = tables.passes(read_results(results), MATRIX)
    assert "| step 45 | step 60 | other steps |" in shown
    assert [shares(row)[-3:] for row in table_rows(shown)] == [
        ["50.0% n=12", "50.0% n=12", "–"], ["50.0% n=12", "–", "52: 50.0% n=12"]
    ]  # fmt: skip


def test_training_is_shown_by_its_first_and_last_ten_steps(tmp_path: Path) -> None:
    share = {"value": 0.5, "numerator": 8, "denominator": 16}
    steps = [
        {
            "kind": "train",
            "step": step,
            "reward_mean": step / 100,
            "ce_nll": None if step == 1 else 2.0 - step / 25,
            "ce_tokens": 9 if step == 25 else 1,
        }
        for step in range(1, 26)
    ]
    steps[0]["metrics"] = {"stop_protocol_error": share}
    steps[24]["metrics"] = {"stop_protocol_error": {**share, "numerator": 4}, "bad_patch_rejection": {**share}}
    run = tmp_path / "rl-b-seed42"
    write_metrics(write_run(run, "b", 42, steps=1, every=1, tasks=1), steps)
    facts = {"kind": "rl", "run": "b", "arm": "b", "seed": 42, "step": 60, "status": "finished"}
    (run / "summary.json").write_text(json.dumps(facts))
    (row,) = table_rows(behaviour.training(read_results(tmp_path), MATRIX))
    assert row == ["b", "42", "0.06 → 0.20", "50.0% → 25.0%", "1.76 → 1.10", "–", "– → 50.0%", "–"]


def test_the_runs_say_how_often_they_were_resumed(tmp_path: Path) -> None:
    facts = {"kind": "rl", "run": "b", "arm": "b", "seed": 42, "step": 60, "status": "interrupted"}
    facts |= {"steps_done": 56, "steps_skipped": 4}
    (tmp_path / "summary.json").write_text(json.dumps(facts))
    (tmp_path / "manifest.json").write_text(
        json.dumps({"model": "sft-b", "model_digest": "0123456789", "sessions": [{}] * 3})
    )
    row = table_rows(tables.runs(read_results(tmp_path)))[0]
    assert row[3:] == ["56, cut short (interrupted)", "2", "4", "–", "01234567"]


def test_sft_that_came_out_differently_is_said(tmp_path: Path) -> None:
    for visit, digest in (("visit1", "aa"), ("visit2", "aa"), ("visit3", "bb")):
        (tmp_path / visit / "sft-b").mkdir(parents=True)
        facts = {"kind": "sft", "run": "sft-b", "arm": "b", "seed": None, "step": 0, "status": "finished"}
        (tmp_path / visit / "sft-b" / "summary.json").write_text(json.dumps({**facts, "weights_sha256": digest}))
        (tmp_path / visit / "sft-b" / "manifest.json").write_text('{"sessions": [{}]}')
        differs = "**sft-b has 2 different weights**" in tables.runs(read_results(tmp_path))
        assert differs is (visit == "visit3")


def test_what_nobody_played_has_no_table(tmp_path: Path) -> None:
    found = read_results(tmp_path)
    assert {tables.question(found, of) for of in MATRIX.question} == {""}
    assert (
        behaviour.decisions(found, MATRIX)
        == behaviour.development(found, MATRIX)
        == tables.runs(found)
        == behaviour.costs(found, MATRIX)
        == behaviour.training(found, MATRIX)
        == behaviour.predictions(found, MATRIX)
        == ""
    )
    (tmp_path / "summary.json").write_text('{"kind": "after_rl"}')
    with pytest.raises(ResultsError, match=r"summary\.json: run: Field required"):
        read_results(tmp_path)


def test_their_figures_are_marked_in_every_table_that_has_them() -> None:
    assert tables.theirs(("a", "b-alpha0"), 42) == "–"
    assert "JayZenith/PREDICT" in tables.published()["source"]


# The pages.


def test_the_pages_show_the_tables_of_the_published_results() -> None:
    wanted = document.parts()
    found: dict[str, str] = {}
    for page in document.PAGES:
        found |= shown(page.read_text("utf-8"))
    assert found == {name: wanted[name] for name in found}  # if not: bash scripts/reproduce_tables.sh
    assert {name for name, table in wanted.items() if table} <= found.keys()


def test_the_figures_are_those_of_the_published_results() -> None:
    made = document.figure_files()
    assert set(made) == set(figures.FOLDER.glob("study_*.svg"))
    assert {file: file.read_text("utf-8") for file in made} == made  # if not: bash scripts/reproduce_tables.sh


def test_a_figure_has_a_line_a_run(tmp_path: Path) -> None:
    """Of seeds that came to different steps, and not of runs that have no such metric or were not made."""
    assert figures.figures(read_results(tmp_path)) == {}
    for run, seed, steps, rejected in (("b", 42, 9, 0.75), ("b", 43, 5, 0.25), ("b-alpha0", 42, 9, 0.0)):
        share = {"value": rejected, "numerator": 16 * rejected, "denominator": 16}
        lines = [{"kind": "train", "step": n, "metrics": {"bad_patch_rejection": share}} for n in range(1, steps + 1)]
        folder = tmp_path / f"rl-{run}-seed{seed}"
        write_metrics(write_run(folder, "b", seed, steps=1, every=1, tasks=1), lines)
        facts = {"kind": "rl", "run": run, "arm": "b", "seed": seed, "step": 60, "status": "interrupted"}
        (folder / "summary.json").write_text(json.dumps(facts))
    drawn = figures.figures(read_results(tmp_path))
    described = drawn["study_rejections"].split("<desc")[1].split(">")[1].split("<")[0]
    assert described == "Bad patches rejected: b from 50.0% to 50.0%; b-alpha0 from 0.0% to 0.0%"
    assert drawn["study_rejections"].count('class="seed') == 3
    assert set(drawn) == {"study_rejections"}


def test_one_command_checks_the_pages() -> None:
    done = script("reproduce_tables.sh", "--check")
    assert done.returncode == 0, done.stderr
    assert "results.md: unchanged" in done.stdout
    assert script("reproduce_tables.sh", "--all").stderr.startswith("reproduce_tables: unknown argument --all")


def test_one_command_makes_every_report_and_table() -> None:
    """With a command that runs nothing: which reports are made, and that it comes to its end."""
    done = script("reproduce_tables.sh", "--python", "echo")
    assert done.returncode == 0, done.stderr
    visits = sorted(path.parents[1] for path in tables.SMALL.glob("*/*/summary.json"))
    folders = ["RESULTS_PUBLISHED/mini", *dict.fromkeys(str(path.relative_to(ROOT)) for path in visits)]
    written = [f"wrote {folder}/report" for folder in folders]
    assert done.stdout.splitlines() == [*written, "-m benchmarks.document", "-m study.document"]


def test_only_what_stands_between_the_marks_is_written() -> None:
    page = "a\n<!-- one -->\n| old |\n<!-- end -->\nb\n<!-- two -->\n| gone |\n<!-- end -->\n"
    assert document.with_parts(page, {"one": "| new |", "two": ""}) == page.replace("old", "new").replace(
        "| gone |\n", ""
    )
    with pytest.raises(KeyError):
        document.with_parts(page, {"one": ""})


def test_published_traces_hold_no_task_of_mbpp() -> None:
    """Everything under the small scale's results is slim."""
    for file in tables.SMALL.rglob("traces.jsonl.gz"):
        for trace in read_traces(file).traces:
            assert trace.test_code is None
            assert not any(re.match("(?!left out)", m.content) for m in trace.messages if m.role == "user")
