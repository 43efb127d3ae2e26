"""What a run survives, and what it refuses: kills, signals, full disks, dead workers, poisoned rollouts, lost steps."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch

from glyph.executor import pool
from glyph.local.inference.engine import EngineCore
from glyph.local.runs.checkpoint_folders import checkpoint_step
from glyph.local.runs.checkpoints import checkpoints, latest_checkpoint, model_digest
from glyph.local.runs.run_folder import RunFolder
from glyph.local.training.losses import label_loss
from glyph.local.training.trainer import Trainer
from glyph.local.training.workbench import Workbench, wording_of
from tests.disk import file_size_limit
from tests.small_runs import (
    MODEL,
    RL,
    SFT,
    glyph,
    lines,
    manifest,
    outcome,
    play,
    process_of,
    rl_config,
    sft_config,
)

KILLS = 20
FULL = 100_000
"""Bytes of a file that a full disk takes: a metrics line, but no weights."""


@pytest.fixture
def rl_words(sft_runs: dict[str, Path], small_data: Path) -> list[object]:
    """`glyph rl` with the settings of `unbroken`."""
    return ["rl", "b", "--model", sft_runs["b"], "--data", small_data, "--seed", 7, *RL]


def wait_for(event: Callable[[], bool], process: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not event():
        alive = process.poll() is None if isinstance(process, subprocess.Popen) else process.is_alive()
        assert alive, "the run ended"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def steps_of(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b'"kind": "train"') if metrics.exists() else 0


def sessions_of(run: Path) -> int:
    return len(manifest(run)["sessions"]) if (run / "manifest.json").exists() else 0


def finished(run: Path) -> bool:
    return manifest(run)["status"] == "finished"


def log_of(run: Path) -> str:
    return (run / "log.txt").read_text()


# Kills and signals.


@pytest.mark.parametrize("off_policy_steps", [0, 1])
def test_kills_at_random_moments_change_nothing(
    tmp_path: Path, unbroken: dict[int, Path], rl_words: list[object], off_policy_steps: int
) -> None:
    """A session is killed while it loads or in its first step, or after a step: while it saves, evaluates or goes on.
    Where a run comes to its end, a new one begins, until there were ten kills. All of them come to the same end."""
    dice, stood, runs, start = random.Random(off_policy_steps), [], [], 0.0
    while len(stood) < KILLS // 2:
        run = tmp_path / f"run-{len(runs)}"
        runs.append(run)
        words = [*rl_words, f"rl.off_policy_steps={off_policy_steps}", "--output", run]
        killed = True
        while killed and len(stood) < KILLS // 2:
            before = sessions_of(run)
            process = process_of(words, tmp_path / "output")
            wait_for(lambda run=run, before=before: sessions_of(run) > before, process)
            began, done = time.monotonic(), steps_of(run)
            if not start or dice.random() < 0.5:
                wait_for(lambda run=run, done=done: steps_of(run) > done or finished(run), process)
                start = start or time.monotonic() - began
                process.join(dice.uniform(0, 1.5 * lines(run, "train")[-1]["seconds"]["total"]))
            else:
                process.join(dice.uniform(0, start))
            process.kill()
            process.join()
            killed = process.exitcode == -signal.SIGKILL
            assert killed or process.exitcode == 0, (tmp_path / "output").read_text()
            stood += [steps_of(run)] if killed else []
            words = ["resume", run]
    assert len(set(stood)) > 2, f"the kills were to come at different steps: {stood}"
    for run in runs:
        done = glyph("resume", run)
        assert done.exit_code == 0, done.output
        assert outcome(run) == outcome(unbroken[off_policy_steps])


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path, unbroken: dict[int, Path], rl_words: list[object]) -> None:
    """In the folder of its default name."""
    name = "runs/mini-rl-b-seed7"
    run = tmp_path / name
    command = [sys.executable, "-m", "glyph", *map(str, rl_words), "checkpoints.every=0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    wait_for(lambda: steps_of(run) > 0, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "warning: stopping: this step is finished and saved first (Ctrl-C again stops at once)" in said
    step = checkpoint_step(checkpoints(run / "checkpoints")[-1])
    assert said.endswith(f"stopped after step {step}; go on with: glyph resume {name}\n")
    assert steps_of(run) == step < 5
    assert manifest(run)["status"] == "interrupted"
    assert f"stopped after step {step}" in log_of(run)
    assert glyph("resume", run).exit_code == 0
    assert outcome(run) == outcome(unbroken[0])


def test_sigterm_saves_too(tmp_path: Path, rl_words: list[object]) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    process = process_of([*rl_words, "checkpoints.every=0", "--output", run], output)
    wait_for(lambda: steps_of(run) > 1, process)
    process.terminate()
    process.join()
    assert process.exitcode == 130, output.read_text()
    assert checkpoints(run / "checkpoints")[-1].name == f"step_{steps_of(run):06d}"


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, rl_words: list[object]) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    long = ["evaluation.num_tasks=16", "evaluation.samples=60", "evaluation.temperature=1.0"]
    process = process_of([*rl_words, *long, "--output", run], output, beat_seconds=0.1)
    for expected in ("waiting for evaluation after step 0: ", "warning: stopping"):
        wait_for(lambda: expected in output.read_text(), process)  # noqa: B023 (called at once)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    assert output.read_text().endswith(f"interrupted; go on with: glyph resume {run}\n")
    assert manifest(run)["status"] == "interrupted"
    assert not (run / "metrics.jsonl").exists(), "the evaluation was to be broken off"


# Disks, workers, poison.


def test_a_full_disk_ends_the_run_and_leaves_the_older_checkpoint(
    tmp_path: Path, unbroken: dict[int, Path], rl_words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, save = tmp_path / "run", Workbench.save

    def save_on_a_full_disk(bench: Workbench, folder: RunFolder, step: int, state: Any) -> Path:
        with file_size_limit(FULL) if step == 2 else nullcontext():
            return save(bench, folder, step, state)

    with monkeypatch.context() as patch:
        patch.setattr(Workbench, "save", save_on_a_full_disk)
        done = glyph(*rl_words, "--output", run)
    older = run / "checkpoints" / "step_000001"
    message = f"{run}/checkpoints/step_000002: cannot be written: "
    assert done.exit_code == 2
    for text in (done.stderr, log_of(run), manifest(run)["error"]):
        assert message in text
        assert f"{older} stands as it was" in text
    assert manifest(run)["status"] == "failed"
    assert latest_checkpoint(run / "checkpoints") == older
    assert glyph("resume", run).exit_code == 0
    assert outcome(run) == outcome(unbroken[0])


def test_metrics_that_cannot_be_written_end_the_run(
    tmp_path: Path, unbroken: dict[int, Path], rl_words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, log_metrics = tmp_path / "run", RunFolder.log_metrics

    def log_on_a_full_disk(folder: RunFolder, line: dict[str, Any]) -> None:
        full = (line["kind"], line["step"]) == ("train", 3)
        with file_size_limit((run / "metrics.jsonl").stat().st_size + 20) if full else nullcontext():
            log_metrics(folder, line)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log_metrics", log_on_a_full_disk)
        done = glyph(*rl_words, "--output", run)
    assert done.exit_code == 2
    assert f"{run}/metrics.jsonl: cannot be written: File too large" in done.stderr
    assert steps_of(run) == 2
    assert glyph("resume", run).exit_code == 0
    assert outcome(run) == outcome(unbroken[0])


def test_killed_workers_of_the_environment_change_nothing(
    tmp_path: Path, unbroken: dict[int, Path], rl_words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has served once is killed, before its second test or while the candidate runs; twenty of them."""
    run, tests, real = tmp_path / "run", [], pool.run_test

    def run_test(zygote: Any, *rest: Any) -> Any:
        tests.append(zygote)
        if tests.count(zygote) > 1 and len(set(map(id, tests))) <= 20:
            threading.Timer(0.004 * (len(tests) % 3), zygote.process.kill).start()
        return real(zygote, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(pool, "run_test", run_test)
        done = glyph(*rl_words, "--output", run)
    assert done.exit_code == 0, done.output
    assert len(set(map(id, tests))) > 15
    assert outcome(run) == outcome(unbroken[0])


def test_a_test_that_always_kills_its_worker_costs_its_rollouts_and_no_more(
    tmp_path: Path, rl_words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, lock, deadly, real = tmp_path / "run", threading.Lock(), [], pool.run_test

    def run_test(zygote: Any, source: bytes, *rest: Any) -> Any:
        with lock:
            if not deadly and b"colorsys" not in source:  # that is the executor's own trial
                deadly.append(source)
        if source in deadly:
            zygote.process.kill()
        return real(zygote, source, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(pool, "run_test", run_test)
        done = glyph(*rl_words, "rl.steps=1", "evaluation.at_start=false", "evaluation.num_tasks=1", "--output", run)
    assert done.exit_code == 0, done.output
    (line,) = lines(run, "train")
    assert line["left_out"]["fault"] == line["errors"] > 0
    assert line["reward_n"] == 12 - line["errors"] > 0


def test_logits_that_are_not_numbers_cost_their_rollout_and_no_more(
    tmp_path: Path, rl_words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls, real = tmp_path / "run", [0], EngineCore._decode_eagerly

    def decode(core: EngineCore, inputs: Any, visible: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits, uniforms = real(core, inputs, visible)
        calls[0] += 1
        if calls[0] == 7:
            logits[3] = torch.nan
        return logits, uniforms

    with monkeypatch.context() as patch:
        patch.setattr(EngineCore, "_decode_eagerly", decode)
        done = glyph(*rl_words, "rl.steps=2", "evaluation.at_start=false", "--output", run)
    assert done.exit_code == 0, done.output
    first, second = lines(run, "train")
    assert (first["left_out"]["fault"], first["errors"], first["reward_n"]) == (1, 1, 11)
    assert (second["left_out"].get("fault", 0), second["reward_n"]) == (0, 12)


# Steps that train nothing.


def test_a_loss_that_is_not_a_number_skips_its_step(
    tmp_path: Path, rl_words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, steps, real = tmp_path / "run", [0], Trainer.step
    reason = "the policy loss of micro-batch 1 of 1 is not finite: the step is not taken"

    def step(trainer: Trainer, trees: Any, temperature: float) -> Any:
        steps[0] += 1
        with monkeypatch.context() as patch:
            if steps[0] == 2:
                patch.setattr(
                    "glyph.local.training.losses.policy_loss", lambda logprobs, *_: logprobs.sum() * torch.nan
                )
            return real(trainer, trees, temperature)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", step)
        done = glyph(
            *rl_words, "rl.steps=3", "credit.uniform_groups=keep_ce", "checkpoints.keep_last=0", "--output", run
        )
    assert done.exit_code == 0, done.output
    assert [line["skipped"] for line in lines(run, "train")] == [None, reason, None]
    assert f"no step was taken (1 in a row): {reason}" in log_of(run)
    assert reason in done.stderr
    before, after, last = map(model_digest, checkpoints(run / "checkpoints"))
    assert before == after != last


def test_sft_stops_at_a_loss_that_is_not_a_number(
    tmp_path: Path, small_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["sft.steps=3", "checkpoints.every=1", "optimiser.warmup_steps=1"]
    whole, run, losses, real = (
        play(tmp_path / "whole", sft_config("b", small_data, settings)),
        tmp_path / "run",
        [0],
        label_loss,
    )

    def loss(*given: Any) -> torch.Tensor:
        losses[0] += 1
        return real(*given) * (torch.nan if losses[0] == 2 else 1)

    with monkeypatch.context() as patch:
        patch.setattr("glyph.local.training.losses.label_loss", loss)
        done = glyph("sft", "b", "--model", MODEL, "--data", small_data, "--output", run, *SFT, *settings)
    reason = "the label loss of micro-batch 1 of 1 is not finite: the step is not taken"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, f"glyph sft: {reason}")
    assert reason in log_of(run)
    assert steps_of(run) == 1
    assert glyph("resume", run).exit_code == 0
    assert outcome(run) == outcome(whole)


def test_ten_steps_that_train_nothing_end_the_run(tmp_path: Path, small_data: Path) -> None:
    """The base model says no turn of the protocol, so that all rewards are 0."""
    run = tmp_path / "run"
    tiny = ["rl.steps=30", "rl.rollouts_per_step=2", "rl.group_size=2", "sampling.max_completion_tokens=4"]
    rest = ["evaluation.at_start=false", "evaluation.every=0", "checkpoints.every=0"]
    done = glyph("rl", "b", "--model", MODEL, "--data", small_data, "--output", run, *tiny, *rest)
    reason = "10 steps in a row trained nothing; the last: no token to train in the 0 trees of the step"
    assert done.exit_code == 2
    assert done.stderr.endswith(f"glyph rl: {reason}\n")
    assert reason in log_of(run)
    assert (manifest(run)["status"], manifest(run)["error"]) == ("failed", f"RunFailedError: {reason}")
    assert all("no token to train" in line["skipped"] for line in lines(run, "train"))
    assert steps_of(run) == 10
    assert [folder.name for folder in checkpoints(run / "checkpoints")] == ["step_000010"]
    assert glyph("resume", run).exit_code == 2
    assert steps_of(run) == 11


# What is refused, and what is said.


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, unbroken: dict[int, Path]) -> None:
    run = shutil.copytree(unbroken[0], tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    done = glyph("resume", run)
    assert (done.exit_code, done.stderr) == (0, "")
    skipped, *rest = done.stdout.splitlines()
    assert skipped.startswith("1 of 5 steps trained nothing: see `skipped` in ")
    assert rest == [f"{run} is finished already: nothing is left to do", f"next: glyph report {run}"]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_run_in_use_and_a_folder_that_is_none_are_refused(
    tmp_path: Path, rl_words: list[object], unbroken: dict[int, Path]
) -> None:
    run = shutil.copytree(unbroken[0], tmp_path / "run")
    with RunFolder.open(run):
        done = glyph("resume", run)
        assert done.exit_code == 2
        assert f"process {os.getpid()} on" in done.stderr
        assert "is writing this run" in done.stderr
    done = glyph(*rl_words, "--output", run)
    assert done.exit_code == 2
    assert "nothing is overwritten" in done.stderr
    done = glyph("resume", tmp_path / "nothing")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"glyph resume: {tmp_path}/nothing: no run to resume")


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path, small_data: Path) -> None:
    data, run = shutil.copytree(small_data, tmp_path / "data"), tmp_path / "run"
    words = ["sft", "b", "--model", MODEL, "--data", data, "--output", run, *SFT]
    assert glyph(*words, "sft.steps=1", "optimiser.warmup_steps=0").exit_code == 0
    (run / "manifest.json").write_text(json.dumps(manifest(run) | {"status": "interrupted"}))
    assert glyph("resume", run).exit_code == 0
    facts = json.loads((data / "manifest.json").read_text())
    facts["files"]["sft/arm_b/train.jsonl"] = "0" * 64
    (data / "manifest.json").write_text(json.dumps(facts))
    (run / "manifest.json").write_text(json.dumps(manifest(run) | {"status": "interrupted"}))
    done = glyph("resume", run)
    assert done.exit_code == 2
    assert f"{data} is no longer the data that the run began with: sft/arm_b/train.jsonl differ" in done.stderr


def test_rl_without_a_model_is_refused(tmp_path: Path, small_data: Path) -> None:
    done = glyph("rl", "b", "--data", small_data, "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert "model is missing: give --model" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"wording_digest": "0" * 64}, [], "was prepared with another wording than"),
        (
            {"variant": "detailed_prediction(level=index)"},
            [],
            "was prepared with variant detailed_prediction(level=index), but environment.variant is standard",
        ),
        (
            {"variant": "standard"},
            ["environment.variant=detailed_prediction(level=value)"],
            "was prepared with variant standard, but environment.variant is detailed_prediction(level=value)",
        ),
    ],
)
def test_data_of_another_wording_or_grammar_are_refused(
    tmp_path: Path,
    small_data: Path,
    rl_words: list[object],
    change: dict[str, str],
    settings: list[str],
    message: str,
) -> None:
    data = shutil.copytree(small_data, tmp_path / "data")
    facts = json.loads((data / "manifest.json").read_text())
    (data / "manifest.json").write_text(json.dumps(facts | change))
    done = glyph(*rl_words, "--data", data, *settings, "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_grammar_that_both_have_and_other_variants_are_taken(tmp_path: Path, small_data: Path) -> None:
    data = shutil.copytree(small_data, tmp_path / "data")
    facts = json.loads((data / "manifest.json").read_text())
    detailed = "detailed_prediction(level=index)"
    (data / "manifest.json").write_text(json.dumps(facts | {"variant": detailed}))
    for folder, variant, arm in (
        (data, f"forced_keep+{detailed}", "b"),
        (data, "standard", "a"),
        (small_data, "forced_keep", "b"),
    ):
        wording_of(rl_config(MODEL, arm, folder, [f"environment.variant={variant}"]))


def test_the_heartbeat_says_what_is_waited_for(
    tmp_path: Path, rl_words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(RunFolder, "heartbeat", partialmethod(RunFolder.heartbeat, every_seconds=0.03))
    done = glyph(*rl_words, "rl.steps=1", "evaluation.at_start=false", "--output", run)
    assert done.exit_code == 0, done.output
    assert re.search(r"waiting for rollouts of step 1: \d+ rollouts in generation, \d+ in a test \(0 s\)", done.stderr)
    assert "waiting for evaluation after step 1: " in done.stderr
    seen = json.loads((run / "heartbeat.json").read_text())
    assert seen["pid"] == os.getpid()
    assert seen["step"] in (None, 1)


def test_a_start_that_fails_leaves_nothing_in_the_way(small_data: Path, tmp_path: Path) -> None:
    done = glyph("sft", "b", "--data", small_data, "--output", tmp_path / "run", "--model", tmp_path / "none")
    assert (done.exit_code, (tmp_path / "run").exists()) == (2, False)
    broken = tmp_path / "broken"
    shutil.copytree(MODEL, broken)
    (broken / "model.safetensors").write_bytes(b"\0" * 100)
    done = glyph("sft", "b", "--data", small_data, "--output", tmp_path / "run", "--model", broken)
    assert (done.exit_code, (tmp_path / "run").exists()) == (2, False)
    assert f"{broken}: no model to be had from there" in done.stderr


def test_the_other_arms_model_is_refused(small_data: Path, sft_runs: dict[str, Path], tmp_path: Path) -> None:
    done = glyph("rl", "a", "--data", small_data, "--output", tmp_path / "run", "--model", sft_runs["b"])
    assert done.exit_code == 2
    assert "is a run of arm b, not a" in done.stderr


def test_data_that_are_not_those_of_their_manifest_are_refused(small_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(small_data, data)
    traces = data / "sft" / "arm_b" / "train.jsonl"
    traces.write_text(traces.read_text().replace("FINAL", "FINALE", 1))
    done = glyph("sft", "b", "--data", data, "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert f"{traces} is not the file that manifest.json names" in done.stderr


def test_a_changed_config_is_not_resumed(rl_words: list[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert glyph(*rl_words, "rl.steps=1", "evaluation.at_start=false", "--output", run).exit_code == 0
    (run / "manifest.json").write_text(json.dumps(manifest(run) | {"status": "interrupted"}))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("seed = ", "seed = 1"))
    done = glyph("resume", run)
    assert done.exit_code == 2
    assert "config.toml was changed since the run began (seed, config_digest differ" in done.stderr
