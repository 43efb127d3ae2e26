"""The local collector and `glyph rollouts`: the same episodes in process, stored, resumed, never overwritten."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from glyph.cli import build_app
from glyph.credit import Branch
from glyph.episode import Message, ModelTurn, Rules
from glyph.evaluation.traces import Trace, read_traces
from glyph.executor import Executor
from glyph.local.inference.requests import GenerationError
from glyph.local.rollouts.collector import Assignment, Collector
from glyph.local.rollouts.policy import DemonstrationPolicy
from glyph.protocol import Arm, BreachKind, StopReason
from glyph.tasks.demonstrations import Family
from glyph.tasks.prompts import load_wording
from glyph.variants import parse_variant
from tests.scripts import keep, patch, visible
from tests.tiny_tasks import DEMONSTRATIONS, DOUBLE, LARGEST

A, B = Rules(Arm.REACTIVE), Rules(Arm.PREDICTIVE)
SHOWN = {LARGEST.task_id: Family.DEEP_VISIBLE, DOUBLE.task_id: Family.DIRECT}


class Script:
    """A policy that says these turns in every rollout, and may fail."""

    def __init__(self, *turns: str | ModelTurn | Exception) -> None:
        self.turns, self.ended, self.ready = turns, [], []

    def ask(self, messages: list[Message], session: str) -> None:
        said = self.turns[sum(message["role"] == "assistant" for message in messages)]
        if isinstance(said, Exception) and not isinstance(said, GenerationError):
            raise said
        self.ready.append((session, ModelTurn(said) if isinstance(said, str) else said))

    def poll(self) -> list[tuple[str, ModelTurn | GenerationError]]:
        replies, self.ready = self.ready, []
        return replies

    @property
    def busy(self) -> bool:
        return bool(self.ready)

    def end(self, session: str) -> tuple[Branch, ...]:
        self.ended.append(session)
        return ()


def collect(executor: Executor, rules: Rules, policy: Any, work: Sequence[Assignment], **options: Any) -> list[Trace]:
    collector = Collector(policy, executor, rules, load_wording(), "scripted", **options)
    return [played.trace for played in collector.collect(work)]


@pytest.mark.parametrize("rules", [A, B], ids="ab")
def test_demonstrations_earn_their_reward(executor: Executor, rules: Rules) -> None:
    policy = DemonstrationPolicy([DEMONSTRATIONS[f] for f in SHOWN.values()], rules.arm, load_wording())
    work = [Assignment(task, "train", sample) for task in (DOUBLE, LARGEST) for sample in range(3)]
    traces: list[Trace] = collect(executor, rules, policy, work, concurrency=4)
    assert sorted(trace.id for trace in traces) == sorted(each.session(rules) for each in work)
    assert [trace.scored and trace.scored.reward for trace in traces] == [1.0] * 6
    for trace in traces:
        assert trace.record is not None
        assert len(trace.record.candidates) == (1 if trace.task_id == "tiny-1" else 3)
        assert (trace.split, trace.model, trace.arm) == ("train", "scripted", rules.arm.value)
        assert trace.test_code in (DOUBLE.test_code, LARGEST.test_code)
        assert [m.role for m in trace.messages[:3]] == ["system", "user", "assistant"]


def test_demonstrations_follow_shots(executor: Executor) -> None:
    policy = DemonstrationPolicy([DEMONSTRATIONS[Family.DIRECT]], Arm.REACTIVE, load_wording())
    shot = [{"role": "user", "content": "Example."}, {"role": "assistant", "content": "FINAL: example"}]
    (trace,) = collect(executor, A, policy, [Assignment(DOUBLE, "test")], shots=[shot])
    assert trace.scored is not None
    assert trace.scored.reward == 1.0
    assert trace.scored.calls[0].message_index == 4  # system, two of the shot, the task, then the first turn
    assert trace.messages[4].content.startswith("CALL apply_patch")


def test_a_variant_is_named_in_the_session_and_the_prompt(executor: Executor) -> None:
    rules = Rules(Arm.PREDICTIVE, parse_variant("test_budget(n=0)"))
    policy = Script(patch("1", DOUBLE.gold), keep("PASS", "2"), "FINAL: no")
    (trace,) = collect(executor, rules, policy, [Assignment(DOUBLE, "test", 2)])
    assert trace.id == "b/test_budget(n=0,cost=1)/test/tiny-1/2"
    assert policy.ended == [trace.id]
    assert "At most 0 of your calls" in trace.messages[0].content
    assert trace.scored is not None
    assert (trace.scored.reward, trace.scored.variant) == (0.0, rules.variant.name)


def test_a_fault_of_the_environment_is_an_error_and_no_reward(executor: Executor) -> None:
    fault = GenerationError("no memory")
    policy = Script(patch("1", DOUBLE.gold), fault)
    (trace,) = collect(executor, A, policy, [Assignment(DOUBLE, "test")])
    assert trace.error == f"{type(fault).__name__}: {fault}"
    assert (trace.record, trace.scored, trace.task_id, trace.arm) == (None, None, "tiny-1", "a")
    assert len(trace.messages) == 4
    assert policy.ended == [trace.id]


def test_a_dead_executor_is_an_error() -> None:
    with Executor(level="process", workers=1) as executor:
        executor.level = "fortress"  # as if the level had gone away
        executor.close()
        (trace,) = collect(executor, A, Script(visible("1")), [Assignment(DOUBLE, "test")])
    assert trace.error is not None
    assert trace.error.startswith("ExecutorError")


def test_a_fault_of_the_programmer_stops_the_run(executor: Executor) -> None:
    with pytest.raises(ZeroDivisionError):
        collect(executor, A, Script(ZeroDivisionError()), [Assignment(DOUBLE, "test")] * 3)


def test_whatever_a_model_says_is_data(executor: Executor) -> None:
    for turn, kind in (("\ud800", BreachKind.NOT_TEXT), ("\0", BreachKind.NOT_A_TURN)):
        (trace,) = collect(executor, B, Script(turn), [Assignment(DOUBLE, "test")])
        assert trace.scored is not None
        assert trace.scored.protocol_error is not None
        assert (trace.scored.protocol_error.kind, trace.messages[-1].content) == (kind, turn)
    (trace,) = collect(executor, B, Script(ModelTurn("", overflow=True)), [Assignment(DOUBLE, "test")])
    assert trace.scored is not None
    assert trace.scored.stop_reason is StopReason.CONTEXT


def rollouts(output: Path, data: Path, *options: str) -> Result:
    return CliRunner().invoke(build_app(), ["rollouts", str(output), "--data", str(data), *options])


def test_the_command_plays_both_arms_and_names_what_is_next(tmp_path: Path, tiny_data: Path) -> None:
    output = tmp_path / "run"
    done = rollouts(output, tiny_data, "--samples", "2")
    assert done.exit_code == 0, done.output
    assert f"wrote {output}" in done.stdout
    assert f"next: glyph report {output}/arm_a {output}/arm_b" in done.stdout
    manifest = json.loads((output / "manifest.json").read_text())
    assert (manifest["finished"], manifest["plan"]["model"]) == (True, "demonstrations")
    assert manifest["data"]["task_set"] == "mini"
    for arm in "ab":
        traces = read_traces(output / f"arm_{arm}").traces
        assert [trace.scored and trace.scored.reward for trace in traces] == [1.0] * 4


def test_an_interrupted_run_goes_on(tmp_path: Path, tiny_data: Path) -> None:
    output = tmp_path / "run"
    assert rollouts(output, tiny_data, "--samples", "2").exit_code == 0
    path, manifest = output / "arm_b" / "traces.jsonl", output / "manifest.json"
    lines = path.read_bytes().splitlines(keepends=True)
    fault = json.loads(lines[1]) | {"record": None, "error": "OSError: gone", "task_id": "tiny-1", "arm": "b"}
    path.write_bytes(lines[0] + json.dumps(fault).encode() + b"\n" + lines[2][:100])
    (output / "arm_a" / "traces.jsonl").unlink()
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"finished": False, "commit": "another"}))

    assert rollouts(output, tiny_data, "--samples", "3", "--resume").exit_code == 2  # another plan
    done = rollouts(output, tiny_data, "--samples", "2", "--resume")
    assert done.exit_code == 0, done.output
    assert f"{path}:3: dropped and played again" in done.stdout
    assert path.read_bytes().splitlines(keepends=True)[0] == lines[0]
    for arm in "ab":
        traces = read_traces(output / f"arm_{arm}").traces
        assert sorted(trace.id for trace in traces) == [
            f"{arm}/standard/validation/{task}/{sample}" for task in ("tiny-1", "tiny-2") for sample in (0, 1)
        ]
        assert [trace.scored and trace.scored.reward for trace in traces] == [1.0] * 4  # the fault was played again
    assert json.loads(manifest.read_text())["finished"]

    again = path.read_bytes()
    assert rollouts(output, tiny_data, "--samples", "2", "--resume").exit_code == 0  # nothing left to play
    assert path.read_bytes() == again


def test_a_run_is_never_overwritten(tmp_path: Path, tiny_data: Path) -> None:
    output = tmp_path / "run"
    (output / "arm_a").mkdir(parents=True)
    (output / "arm_a" / "traces.jsonl").write_text("someone else's\n")
    done = rollouts(output, tiny_data)
    assert done.exit_code == 2
    assert "not an empty folder" in done.stderr
    assert (output / "arm_a" / "traces.jsonl").read_text() == "someone else's\n"
    assert not (output / "manifest.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "there is no run to resume"),
        (["--arm", "c"], "expected a, b or both"),
        (["--variant", "forced_keep"], "give --model"),
        (["--variant", "nothing", "--model", "m"], "expected one of"),
        (["--variant", "forced_keep", "--model", "m"], "Arm A knows test_budget only"),
        (["--split", "nowhere"], r"expected one of train, validation, test"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    tmp_path: Path, tiny_data: Path, options: list[str], message: str
) -> None:
    done = rollouts(tmp_path / "run", tiny_data, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.startswith("glyph rollouts: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--budget", "--samples", "--concurrency", "--max-completion-tokens"])
def test_a_number_that_makes_no_run_is_refused(tmp_path: Path, tiny_data: Path, option: str) -> None:
    done = rollouts(tmp_path / "run", tiny_data, option, "0")
    assert done.exit_code == 2
    assert option in done.stderr
    assert not (tmp_path / "run").exists()
