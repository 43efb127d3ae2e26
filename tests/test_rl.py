"""Whole runs on the mini model: SFT → RL → evaluation through the commands, a function of the seed, exact resume."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glyph.commands.evaluation import _config as evaluation_config
from glyph.config import dump_config
from glyph.evaluation.traces import read_traces
from glyph.local.runs.checkpoints import checkpoints
from glyph.local.training.metric_lines import peak_memory
from glyph.report.tokens import Role, read_annotated
from tests.small_runs import (
    RL,
    glyph,
    lines,
    manifest,
    outcome,
    play,
    rl_config,
    rollouts,
    said,
    sft_config,
)

SMOKE = [*RL, "rl.steps=2", "evaluation.at_start=false"]


@pytest.mark.parametrize("arm", ["a", "b"])
def test_sft_then_rl_then_evaluation(tmp_path: Path, sft_runs: dict[str, Path], small_data: Path, arm: str) -> None:
    losses = [line["loss"] for line in lines(sft_runs[arm])]
    assert losses[-1] < losses[0] / 5
    assert manifest(sft_runs[arm])["status"] == "finished"

    run = tmp_path / "rl"
    done = glyph("rl", arm, "--model", sft_runs[arm], "--data", small_data, "--output", run, *SMOKE)
    assert done.exit_code == 0, done.output
    assert f"wrote {run}\nnext: glyph report {run}" in done.stdout
    assert [(line["kind"], line["step"]) for line in lines(run)] == [("train", 1), ("train", 2), ("evaluation", 2)]
    assert any(line["policy_tokens"] for line in lines(run, "train"))
    facts = manifest(run)
    assert (facts["status"], facts["arm"], facts["scale"], facts["stage"]) == ("finished", arm, "mini", "rl")
    assert facts["model_folder"] == str(checkpoints(sft_runs[arm] / "checkpoints")[-1])

    tested = tmp_path / "test"
    done = glyph("evaluate", run, "--split", "test", "-n", 3, "--output", tested)
    assert done.exit_code == 0, done.output
    assert len(read_traces(tested).traces) == 3
    assert json.loads((tested / "manifest.json").read_text())["split"] == "test"
    done = glyph("report", run, tested, "--output", tmp_path / "report")
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "report").glob("*.html"))


def test_evaluating_a_run_is_its_own_last_evaluation(tmp_path: Path, unbroken: dict[int, Path]) -> None:
    run, again = unbroken[0], tmp_path / "again"
    done = glyph("evaluate", run, "--split", "validation", "-n", 4, "--output", again)
    assert done.exit_code == 0, done.output
    assert {path.name for path in again.iterdir()} == {"config.toml", "manifest.json", "traces.jsonl.gz"}
    assert said(read_traces(again).traces) == rollouts(run)["evaluations/step_000005/traces.jsonl.gz"]
    done = glyph("evaluate", run, "--split", "validation", "-n", 4, "--output", again)
    assert done.exit_code == 2
    assert "nothing is overwritten" in done.stderr


def test_an_sft_run_is_evaluated_with_its_own_wording_and_data(tmp_path: Path, small_data: Path) -> None:
    own = sft_config("b", small_data, ["prompts=configs/prompts_detail.toml", "seed=3"])
    (tmp_path / "config.toml").write_text(dump_config(own))
    config = evaluation_config(str(tmp_path), None, None, [], {"data": None, "device": None})
    assert (config.arm, config.prompts, config.data, config.seed) == (own.arm, own.prompts, small_data, 3)


def test_more_tasks_than_there_are_is_said(tmp_path: Path, small_data: Path) -> None:
    tasks = len((small_data / "arm_b_test.jsonl").read_text().splitlines())
    run = tmp_path / "run"
    done = glyph("rollouts", run, "--split", "test", "--data", small_data, "-n", tasks + 1, "--arm", "b")
    assert done.exit_code == 0, done.output
    assert f"test has {tasks} tasks, not {tasks + 1}: all of them are played" in done.output
    assert len(read_traces(run / "arm_b").traces) == tasks


@pytest.mark.parametrize("off_policy_steps", [0, 1])
def test_a_run_is_a_function_of_its_seed(
    tmp_path: Path, unbroken: dict[int, Path], sft_runs: dict[str, Path], small_data: Path, off_policy_steps: int
) -> None:
    """Scheduling is part of the config: `environment.test_delay` or `generation.max_rows` of another value put other
    rows together in a batch, and change last bits of log-probs with which a token may, rarely, be another one."""
    run = unbroken[off_policy_steps]
    trained = [line for line in lines(run, "train") if line["policy_tokens"]]
    assert len(trained) > 1
    assert any(line["ce_tokens"] for line in trained)
    settings = [f"rl.off_policy_steps={off_policy_steps}"]
    again = play(tmp_path / "again", rl_config(sft_runs["b"], "b", small_data, settings))
    assert outcome(again) == outcome(run)
    other = rl_config(sft_runs["b"], "b", small_data, [*settings, "rl.steps=1", "evaluation.at_start=false"], seed=8)
    first = "traces/step_000001.jsonl.gz"
    assert rollouts(play(tmp_path / "other", other))[first] != rollouts(run)[first]


def test_one_step_off_policy_trains_on_rollouts_of_the_weights_before(unbroken: dict[int, Path]) -> None:
    """The first two steps sample with the SFT weights; from then on the trainer is a step ahead of the sampler."""
    on_policy, off_policy = (rollouts(unbroken[n]) for n in (0, 1))
    first = "traces/step_000001.jsonl.gz"
    assert on_policy[first] == off_policy[first]
    drift = [[line["mismatch_kl"] for line in lines(unbroken[n], "train")[1:] if line["policy_tokens"]] for n in (0, 1)]
    assert max(map(abs, drift[0])) < 1e-5
    assert max(drift[1]) > 10 * max(map(abs, drift[0]))


@pytest.mark.parametrize(
    ("stop_after", "off_policy_steps"),
    [(("train", 3), 0), (("train", 3), 1), (("evaluation", 2), 1), (("evaluation", 0), 0)],
)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path,
    unbroken: dict[int, Path],
    sft_runs: dict[str, Path],
    small_data: Path,
    stop_after: tuple[str, int],
    off_policy_steps: int,
) -> None:
    settings = [f"rl.off_policy_steps={off_policy_steps}", "checkpoints.every=0"]
    run = play(tmp_path / "run", rl_config(sft_runs["b"], "b", small_data, settings), stop_after)
    assert manifest(run)["status"] == "interrupted"
    _, step = stop_after
    assert [folder.name for folder in checkpoints(run / "checkpoints")][-1:] == ([f"step_00000{step}"] if step else [])
    done = glyph("resume", run)
    assert done.exit_code == 0, done.output
    assert outcome(run) == outcome(unbroken[off_policy_steps])
    assert [session["status"] for session in manifest(run)["sessions"]] == ["interrupted", "finished"]


def test_a_task_may_come_twice_in_a_step(tmp_path: Path, sft_runs: dict[str, Path], small_data: Path) -> None:
    """As it does where an epoch ends and the next begins: here three groups of two tasks."""
    data = shutil.copytree(small_data, tmp_path / "data")
    rows = (data / "arm_b_train.jsonl").read_text().splitlines(keepends=True)
    (data / "arm_b_train.jsonl").write_text("".join(rows[:2]))
    run = play(tmp_path / "run", rl_config(sft_runs["b"], "b", data, ["rl.steps=1", "evaluation.at_start=false"]))
    (line,) = lines(run, "train")
    traces = read_traces(run / "traces" / "step_000001.jsonl.gz").traces
    assert line["n"] == len({trace.id for trace in traces}) == 12
    assert len({tuple(message.content for message in trace.messages[2:]) for trace in traces}) > 2


def test_arm_a_resumes_too(tmp_path: Path, sft_runs: dict[str, Path], small_data: Path) -> None:
    config = rl_config(sft_runs["a"], "a", small_data, ["rl.steps=2", "evaluation.at_start=false"])
    whole, broken = play(tmp_path / "whole", config), play(tmp_path / "broken", config, ("train", 1))
    assert any(line["policy_tokens"] for line in lines(whole, "train"))
    assert glyph("resume", broken).exit_code == 0
    assert outcome(broken) == outcome(whole)


def test_sft_resumes_exactly(tmp_path: Path, small_data: Path) -> None:
    """Even where its newest checkpoint is damaged: then from the one before."""
    settings = ["sft.steps=4", "checkpoints.every=1", "checkpoints.keep_last=0", "optimiser.warmup_steps=1"]
    config = sft_config("b", small_data, settings)
    whole, broken = play(tmp_path / "whole", config), play(tmp_path / "broken", config, ("train", 2))
    newest = broken / "checkpoints" / "step_000002" / "training.pt"
    newest.write_bytes(newest.read_bytes()[:-1])
    done = glyph("resume", broken)
    assert done.exit_code == 0, done.output
    assert f"{newest}: sha256" in done.stderr
    assert outcome(broken) == outcome(whole)
    assert (broken / "superseded-1" / "checkpoints" / "step_000002").is_dir()


def test_shared_and_separate_label_branches_train_the_same(
    tmp_path: Path, sft_runs: dict[str, Path], small_data: Path
) -> None:
    """`epsilon` is wide: else Adam's first step is the sign of a gradient, of which rounding decides where it is 0."""
    settings = ["rl.steps=1", "evaluation.at_start=false", "credit.uniform_groups=keep_ce", "optimiser.epsilon=1e-3"]
    runs = {}
    for way in ("shared", "separate"):
        config = rl_config(sft_runs["b"], "b", small_data, [*settings, f"rl.label_branches={way}"])
        runs[way] = play(tmp_path / way, config)
    (shared,), (separate,) = (lines(runs[way], "train") for way in ("shared", "separate"))
    assert (shared["policy_tokens"], shared["ce_tokens"]) == (separate["policy_tokens"], separate["ce_tokens"])
    assert shared["ce_tokens"] > 0 < shared["policy_tokens"]
    assert shared["input_tokens"] < 0.7 * separate["input_tokens"]
    assert shared["label_loss"] == pytest.approx(separate["label_loss"], rel=1e-5)
    before = load_file(checkpoints(sft_runs["b"] / "checkpoints")[-1] / "model.safetensors")
    moved, difference = 0.0, 0.0
    one, other = (load_file(runs[way] / "checkpoints" / "step_000001" / "model.safetensors") for way in runs)
    for name, tensor in one.items():
        moved = max(moved, float((tensor - before[name]).abs().max()))
        difference = max(difference, float((tensor - other[name]).abs().max()))
    assert difference < 5e-3 * moved


@pytest.mark.parametrize("off_policy_steps", [0, 1])
def test_the_stored_rollouts_show_what_was_trained(unbroken: dict[int, Path], off_policy_steps: int) -> None:
    run = unbroken[off_policy_steps]
    for line in lines(run, "train"):
        file = run / "traces" / f"step_{line['step']:06d}.jsonl.gz"
        shown = list(read_annotated(file))
        assert len(shown) == len(read_traces(file).traces) == 12
        roles = [role for _, annotated in shown for _, role in annotated.tokens]
        branches = [branch for _, annotated in shown for branch in annotated.targets]
        assert roles.count(Role.RL) == (line["policy_tokens"] or 0)
        assert sum(kind == "ce" for branch in branches for _, kind in branch.tokens) == (line["ce_tokens"] or 0)
        for trace, annotated in shown:
            text = "".join(text for text, _ in annotated.tokens)
            assert all(message.content in text for message in trace.messages if message.role != "tool")
            trains = any(role is Role.RL for _, role in annotated.tokens)
            assert (annotated.advantage is not None) == trains


def test_how_much_of_the_gpu_was_taken_is_recorded(unbroken: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert {line["peak_memory_gib"] for line in lines(unbroken[0], "train")} == {None}  # on a CPU
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 3 * 2**29)
    assert peak_memory() == 1.5
