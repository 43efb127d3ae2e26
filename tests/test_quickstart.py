"""scripts/quickstart.sh: once in earnest, interrupted and resumed; else with a scripted `glyph` (fake_glyph.py)."""

import importlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from glyph.evaluation.traces import read_traces, write_traces
from tests.builders import trace
from tests.checkouts import ROOT, entries, environment, give_tiny_data, script, whole_checkout

STAGES = ("sft-{}-seed{}", "rl-{}-seed{}", "test-sft-{}-seed{}", "test-rl-{}-seed{}")
TINY = ("--sft", "sft.steps=6 sft.batch_size=2", "--rl", "rl.steps=2 rl.rollouts_per_step=4 rl.group_size=2")


@pytest.fixture
def checkout(tmp_path: Path, tiny_data: Path) -> Path:
    checkout = whole_checkout(tmp_path / "checkout")
    give_tiny_data(checkout, tiny_data)
    return checkout


@pytest.fixture
def faked(checkout: Path) -> Path:
    """With `glyph` scripted, and traces for its evaluations: of four tasks one is solved after SFT, three after RL."""
    program = checkout / ".venv" / "bin" / "glyph"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/fake_glyph.py" "$@"\n')
    for stage, solved in (("sft", [1, 0, 0, 0]), ("rl", [1, 1, 1, 0])):
        write_outcomes(checkout / f"{stage}.jsonl.gz", solved)
    return checkout


def write_outcomes(path: Path, solved: Sequence[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_traces(path, [trace(f"task-{number}", bool(one)) for number, one in enumerate(solved)])


def quickstart(checkout: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return script("quickstart", checkout, *arguments, TRACES=str(checkout), **variables)


def asked(run: Path, arm: str) -> list[str]:
    lines = (run / f"arm_{arm}.log").read_text().splitlines()
    return [line.removeprefix("asked: ") for line in lines if line.startswith("asked: ")]


def test_every_seed_goes_through_all_stages_in_both_arms(faked: Path) -> None:
    settings = ("--sft", "sft.steps=9", "--rl", "rl.steps=2 evaluation.num_tasks=9")
    done = quickstart(faked, "--seeds", "7 0", "--output", "runs/q", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    run = faked / "runs" / "q"
    for arm in "ab":
        commands = []
        for seed in (7, 0):
            sft, rl, *tests = (str(run / stage.format(arm, seed)) for stage in STAGES)
            common = f"{arm} --scale mini --data data/mini --seed {seed}"
            commands += [
                f"sft {common} sft.steps=9 --output {sft}",
                f"rl {common} --model {sft} rl.steps=2 evaluation.num_tasks=9 --output {rl}",
                f"evaluate {sft} --split test rl.steps=2 --output {tests[0]}",
                f"evaluate {rl} --split test --output {tests[1]}",
            ]
        assert asked(run, arm) == commands
        assert f"arm {arm}: RL, seed 7: done in 0:0" in done.stdout
    assert json.loads((run / "quickstart.json").read_text())["seeds"] == [7, 0]
    assert "Arm B, seed 0  25.0% [4.6, 69.9] n=4  75.0% [30.1, 95.4] n=4  +50.0 pp" in done.stdout
    assert f"the report is {run}/report.html" in done.stdout
    assert f"glyph show {run}/test-rl-b-seed7 --task task-0 " in done.stdout

    again = quickstart(faked, "--resume", "runs/q")
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(asked(run, "a")) == 8  # what is finished is not done again
    assert again.stdout.split("== 3 of 3")[1] == done.stdout.split("== 3 of 3")[1]


def test_a_failing_arm_is_named_and_the_other_goes_on(faked: Path) -> None:
    done = quickstart(faked, "--output", "runs/q", FAIL="rl-b-seed42")
    run = faked / "runs" / "q"
    assert done.returncode == 1
    failure, rest = done.stderr.split("] ", 1)[1].split("\n", 1)
    assert failure == f"arm b FAILED in RL, seed 42 (exit 3); the end of {run}/arm_b.log:"
    assert "    step 1 of 2\n    the disk is full\n" in rest
    assert "Loading weights" not in rest
    assert rest.endswith(
        f"arm b failed; what was done is in {run}\ngo on with: bash scripts/quickstart.sh --resume {run}\n"
    )
    assert "3 of 3" not in done.stdout
    assert [line.split()[0] for line in asked(run, "a")] == ["sft", "rl", "evaluate", "evaluate"]
    assert [line.split()[0] for line in asked(run, "b")] == ["sft", "rl"]

    done = quickstart(faked, "--resume", "runs/q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(asked(run, "a")) == 4
    assert asked(run, "b")[2] == f"resume {run}/rl-b-seed42"
    assert "arm b: RL, seed 42 (going on)" in done.stdout


def test_what_a_kill_left_is_cleared_away(faked: Path) -> None:
    """A run without a manifest and an evaluation without traces have nothing to go on with."""
    assert quickstart(faked, "--output", "runs/q", FAIL="test-sft-a-seed42").returncode == 1
    run = faked / "runs" / "q"
    (run / "rl-a-seed42" / "manifest.json").rename(run / "rl-a-seed42" / "config.toml")
    (run / "test-sft-a-seed42" / "manifest.json").touch()
    done = quickstart(faked, "--resume", "runs/q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in asked(run, "a")[3:]] == ["rl", "evaluate", "evaluate"]
    assert not (run / "rl-a-seed42" / "config.toml").exists()
    assert not (run / "test-sft-a-seed42" / "manifest.json").exists()


def interrupted(checkout: Path, until: str, times: int, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Start a quickstart, press Ctrl-C once it says `until`, and let it end: exit code, stdout and stderr."""
    said, complained = checkout / "stdout", checkout / "stderr"
    with said.open("w") as out, complained.open("w") as err:
        process = subprocess.Popen(
            ["bash", "scripts/quickstart.sh", *arguments],
            cwd=checkout,
            env=environment(checkout, TRACES=str(checkout), **variables),
            stdout=out,
            stderr=err,
        )
    try:
        deadline = time.monotonic() + 120
        while until not in said.read_text():
            assert process.poll() is None, complained.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        process.wait(120)
    finally:
        process.terminate()
        process.wait(120)
    return process.returncode, said.read_text(), complained.read_text()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_handed_on_once_for_each_time(faked: Path, times: int) -> None:
    run = faked / "runs" / "q"
    waits = "arm b: RL, seed 42: hanging"
    variables = {"HANG": "rl-b-seed42", "PROGRESS_SECONDS": "0.1", **({"STUBBORN": "1"} if times == 2 else {})}
    code, said, complained = interrupted(faked, waits, times, "--output", "runs/q", **variables)
    assert code == 130, complained
    assert said.count("stopping both arms after the step, which is saved") == 1
    assert said.count("stopping both arms at once") == times - 1
    heard = [line for line in (run / "arm_b.log").read_text().splitlines() if line.startswith("interrupt ")]
    assert heard == [f"interrupt {number + 1}" for number in range(times)]
    assert len(asked(run, "b")) == 2  # nothing was begun afterwards
    again = f"bash scripts/quickstart.sh --resume {run}"
    assert complained == f"stopped; what was done is in {run}\ngo on with: {again}\n"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--rl", "rl.stepz=3"], "rl of arm b: override 'rl.stepz=3': unknown key 'rl.stepz'; did you mean 'rl.steps'"),
        (["--sft", "rl.steps=3"], "sft of arm a: override 'rl.steps=3': 'rl.steps' belongs to the rl stage"),
        (["--rl", "rl.group_size=7"], "rl.rollouts_per_step must be a multiple of rl.group_size: got 64 and 7"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_made(faked: Path, settings: list[str], said: str) -> None:
    before = entries(faked)
    done = quickstart(faked, *settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert entries(faked) == before


def test_the_table_has_the_means_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arm A: 1, 3 of 4 and 2, 3 of 4; Arm B: 2, 4 and 2, 2. Student's t with one degree of freedom is 12.706."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("quickstart_table")
    outcomes = {("a", 1): (1, 3), ("a", 2): (2, 3), ("b", 1): (2, 4), ("b", 2): (2, 2)}
    for (arm, seed), several in outcomes.items():
        for stage, solved in zip(("sft", "rl"), several, strict=True):
            folder = tmp_path / f"test-{stage}-{arm}-seed{seed}"
            write_outcomes(folder / "traces.jsonl.gz", [1] * solved + [0] * (4 - solved))
    rows = {row[0]: row[1:] for row in module.table(tmp_path, [1, 2])}
    assert rows["Arm A, seed 1"][0] == "25.0% [4.6, 69.9] n=4"
    assert rows["Arm A, seed 1"][2].startswith("+50.0 pp [")
    assert rows["B − A, seed 1"][1].startswith("+25.0 pp [")
    # sft of A: 0.25 and 0.5, so 0.375 ± 12.706 · 0.125; both ends are cut. RL is 0.75 twice: no interval.
    assert rows["Arm A, mean"][:2] == ["37.5% [0.0, 100.0]§ n=2 seeds", "75.0% n=2 seeds"]
    # Its change is 0.5 and 0.25, so 37.5 points ± 158.8.
    assert rows["Arm A, mean"][2] == "+37.5 pp [-121.3, +196.3]§ n=2 seeds"
    # B − A after RL: +0.25 and −0.25.
    assert rows["B − A, mean"][1] == "+0.0 pp [-317.6, +317.6]§ n=2 seeds"
    aligned = module.lines([["", "one"], ["long name", "2"]])
    assert aligned == ["           one", "long name  2"]


def test_a_tiny_quickstart_is_interrupted_and_goes_on_to_its_end(checkout: Path) -> None:
    """The engine itself, untrained for all that a few steps do; then `evaluate.sh` on what came of it."""
    run = checkout / "runs" / "q"
    code, said, complained = interrupted(checkout, "arm b: RL, seed 42\n", 1, "--output", "runs/q", *TINY)
    assert code == 130, complained
    assert "arm b: RL, seed 42: done" not in said

    done = quickstart(checkout, "--resume", "runs/q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "arm b: RL, seed 42" in done.stdout
    assert "SFT, seed 42\n" not in done.stdout.replace("test after SFT", "")
    for arm in "ab":
        assert json.loads((run / f"rl-{arm}-seed42" / "manifest.json").read_text())["status"] == "finished"
        for stage in ("sft", "rl"):
            traces = read_traces(run / f"test-{stage}-{arm}-seed42").traces
            assert {(trace.arm, trace.split) for trace in traces} == {(arm, "test")}
            assert [trace.task_id for trace in traces] == ["tiny-1", "tiny-2"]
    assert "Arm A, seed 42  0.0% [0.0, 65.8] n=2  0.0% [0.0, 65.8] n=2  +0.0 pp n=2" in done.stdout
    assert "<html" in (run / "report.html").read_text()
    names = [column["name"] for column in json.loads((run / "report.json").read_text())["columns"]]
    assert "Arm B, RL, step 2, test" in names

    model = ("b", "runs/q/rl-b-seed42", "validation", "--num-tasks", "1")
    done = script("evaluate", checkout, "--scale", "mini", *model, OUTPUT="runs/e")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [trace.split for trace in read_traces(checkout / "runs" / "e").traces] == ["validation"]
    assert "1 rollout scored" in (checkout / "runs" / "e" / "report.md").read_text()
