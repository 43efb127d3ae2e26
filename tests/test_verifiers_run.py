"""Whole rollouts through the pinned Verifiers: in process for both arms and each variant, and by its command line."""

import asyncio
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.cli.output import write_trace
from verifiers.v1.clients.eval import EvalClient

from glyph.evaluation.traces import read_traces
from glyph.local.serving.scripted import ScriptedClient, scripted_server
from glyph.protocol import BreachKind, StopReason
from glyph.records import RolloutRecord, record_from_dict
from tests.http_server import completion, raw_server, reply
from tests.scripts import call, keep, patch, predict, revise, visible
from tests.tiny_tasks import DOUBLE, LARGEST

GOLDS = [DOUBLE.gold, LARGEST.gold]
WRONG = "def double(n):\n    return n"
FIX = "    return 2 * n"

Messages = Sequence[dict[str, Any]]
Policy = Callable[[Messages], str]


def script(*turns: str) -> Policy:
    """Say these turns; GOLD stands for the gold code of the task that the prompt poses."""

    def policy(messages: Messages) -> str:
        taken = sum(message["role"] == "assistant" for message in messages)
        prompt = next(str(message["content"]) for message in messages if message["role"] == "user")
        gold = GOLDS["largest(" in prompt]
        return turns[taken].replace("GOLD", json.dumps(gold)[1:-1])

    return policy


SOLVE_A = script(patch("1", "GOLD"), visible("2"), "FINAL: done")
SOLVE_B = script(patch("1", "GOLD"), keep("PASS", "2"), "FINAL: done")


def environment(data: Path, arm: str = "a", variant: str = "standard", **config: Any) -> vf.Environment:
    harness = {"id": "glyph", **config.pop("harness", {})}
    taskset = {"id": "glyph", "data": str(data), "arm": arm, "variant": variant, **config.pop("taskset", {})}
    return vf.Environment(vf.EnvConfig(taskset=taskset, harness=harness, **config))


async def run(env: vf.Environment, client: Any, tasks: int = 1, samples: int = 1) -> list[vf.Trace]:
    context = vf.ModelContext(client=client, model="scripted", sampling=vf.SamplingConfig())
    async with env.serving():
        episodes = [env.episode(task, context, n=samples) for task in env.taskset.load()[:tasks]]
        results = await asyncio.gather(*(episode.run(None) for episode in episodes))
    return [trace for traces in results for trace in traces]


def record_of(trace: vf.Trace) -> RolloutRecord:
    assert trace.errors == []
    return record_from_dict(trace.info["glyph"])


def stored(trace: vf.Trace, folder: Path) -> Any:
    """The trace as `eval` stores it, read by our reader."""
    write_trace(folder, trace)
    return read_traces(folder).traces[-1]


STARTS = {"resident": {}, "started": {"resident": False}, "shipped": {"ship": True, "python": sys.executable}}


@pytest.mark.parametrize("harness", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize(("arm", "policy"), [("a", SOLVE_A), ("b", SOLVE_B)], ids="ab")
async def test_both_arms_solve_tasks_however_the_program_is_started(
    tiny_data: Path, tmp_path: Path, arm: str, policy: Policy, harness: dict[str, Any]
) -> None:
    env = environment(tiny_data, arm, harness={"isolation": "process", **harness})
    traces = await run(env, ScriptedClient(policy), tasks=2)
    assert [trace.reward for trace in traces] == [1.0, 1.0]
    for trace, name in zip(traces, ["tiny-1", "tiny-2"], strict=True):
        record = record_of(trace)
        assert (record.task_id, record.arm, record.stop_reason) == (name, arm, StopReason.FINAL)
        assert (trace.stop_condition, trace.num_turns, trace.num_branches) == ("agent_completed", 3, 1)
        assert trace.rewards == {"solved": 1.0}
        assert trace.metrics["solved"] == 1.0
        assert len(trace.info["glyph"]["targets"]) == (arm == "b")
        assert record.environment["isolation"] == "process"
        assert stored(trace, tmp_path).record == record
        assert not Path(str(trace.runtime.id)).exists()


VARIANTS = {
    "forced_keep": script(patch("1", "GOLD"), revise("OTHER", "2", "x", "y"), "FINAL: done"),
    "ungated": script(patch("1", "GOLD"), predict("PASS", "2"), "FINAL: done"),
    "random_gate(rate=0.0,seed=0)": script(patch("1", "GOLD"), revise("OTHER", "2", "x", "y"), "FINAL: done"),
    "random_gate(rate=1.0,seed=0)": script(
        patch("1", WRONG), keep("PASS", "2"), patch("3", FIX, "    return n"), keep("PASS", "4"), "FINAL: no"
    ),
    "revise_feedback": script(
        patch("1", WRONG), revise("PASS", "2", FIX, "    return n"), keep("PASS", "3"), "FINAL: done"
    ),
    "test_budget(n=1,cost=4)": script(
        patch("1", WRONG), keep("PASS", "2"), patch("3", FIX, "    return n"), keep("PASS", "4"), "FINAL: no"
    ),
}
EXPECTED: dict[str, dict[str, Any]] = {
    "forced_keep": {"effective": ["KEEP"], "overridden": [True], "reward": 1.0, "costs": [1, 1]},
    "ungated": {"effective": ["KEEP"], "overridden": [False], "reward": 1.0, "costs": [1, 1]},
    "random_gate(rate=0.0,seed=0)": {"effective": ["KEEP"], "overridden": [True], "reward": 1.0, "costs": [1, 1]},
    "random_gate(rate=1.0,seed=0)": {
        "effective": ["REVISE", "REVISE"],
        "overridden": [True, True],
        "reward": 0.0,
        "costs": [1, 1],
        "breach": BreachKind.WRONG_TURN,
        "said": "stderr:\ntest withheld: answer with one apply_patch call",
    },
    "revise_feedback": {
        "effective": ["REVISE", "KEEP"],
        "overridden": [False, False],
        "reward": 1.0,
        "costs": [1, 1, 1],
        "said": "previous candidate: tests failed: an assertion does not hold",
    },
    "test_budget(n=1,cost=4)": {
        "effective": ["KEEP", "KEEP"],
        "overridden": [False, False],
        "reward": 0.0,
        "costs": [1, 4, 1, 1],
        "said": "stderr:\ntest budget exhausted",
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
async def test_each_variant_through_verifiers(tiny_data: Path, tmp_path: Path, variant: str) -> None:
    env = environment(tiny_data, "b", variant, harness={"isolation": "process"})
    (trace,) = await run(env, ScriptedClient(VARIANTS[variant]))
    record, expected = record_of(trace), EXPECTED[variant]
    assert record.variant == variant == trace.task.data.variant  # type: ignore[attr-defined]
    assert [t.effective_decision and t.effective_decision.value for t in record.targets] == expected["effective"]
    assert [t.overridden for t in record.targets] == expected["overridden"]
    assert [c.cost for c in record.calls] == expected["costs"]
    assert trace.reward == record.reward == expected["reward"]
    assert (record.protocol_error and record.protocol_error.kind) == expected.get("breach")
    heard = [m.content for m in stored(trace, tmp_path).messages if m.role == "tool"]
    assert any(expected.get("said", "stdout:\ntests passed") in text for text in heard)


HOSTILE = {
    "nothing": ("", BreachKind.NOT_A_TURN),
    "a surrogate": ("FINAL: \ud800\nx", BreachKind.NOT_A_TURN),
    "an escaped surrogate": (call("read_file", "1", file_path="\ud800"), BreachKind.NOT_TEXT),
    "megabytes": ("x" * 3_000_000, BreachKind.TOO_LONG),
    "NUL": ("\0", BreachKind.NOT_A_TURN),
    "deep JSON": ("CALL read_file " + '{"a":' * 20_000 + "1" + "}" * 20_000, BreachKind.BAD_JSON),
    "separators": ("FINAL: a\u2028b\x85c\r\nd", BreachKind.NOT_A_TURN),
    "a way out": (call("read_file", "1", file_path="../../etc/passwd"), BreachKind.BAD_PATH),
}


async def test_whatever_a_model_says_is_stored_with_its_breach(tiny_data: Path, tmp_path: Path) -> None:
    env = environment(tiny_data, taskset={"max_context_tokens": 10_000_000}, harness={"isolation": "process"})
    for name, (turn, kind) in HOSTILE.items():
        (trace,) = await run(env, ScriptedClient(script(turn)))
        record = record_of(trace)
        assert record.protocol_error is not None, name
        assert (record.protocol_error.kind, trace.reward) == (kind, 0.0), name
        assert stored(trace, tmp_path).record == record, name
    assert len((tmp_path / "traces.jsonl").read_bytes().splitlines()) == len(HOSTILE)


async def test_a_refused_prompt_is_a_stop_and_a_first_fault_is_retried(tiny_data: Path) -> None:
    env = environment(tiny_data, harness={"isolation": "process"})
    gold = [patch("1", DOUBLE.gold), visible("2"), "FINAL: done"]
    busy = [reply(b"busy", "503 Service Unavailable"), *(reply(_openai(turn)) for turn in gold)]
    with raw_server(busy) as server:
        (trace,) = await run(env, EvalClient(server.url, "key"))
    assert (record_of(trace).reward, trace.reward, trace.num_branches) == (1.0, 1.0, 1)
    too_long = reply(b'{"error": "This model\'s maximum context length is 9 tokens"}', "400 Bad Request")
    with raw_server([reply(_openai(patch("1", DOUBLE.gold))), too_long]) as server:
        (trace,) = await run(env, EvalClient(server.url, "key"))
    record = record_of(trace)
    assert (record.stop_reason, trace.reward, trace.stop_condition) == (StopReason.CONTEXT, 0.0, "context_length")
    assert len(record.candidates) == 1


@pytest.mark.parametrize(
    ("turns", "limit", "stop", "truncated"),
    [
        (["FINAL: done"], 4096, StopReason.FINAL, False),
        (["nonsense"], 4096, StopReason.PROTOCOL, False),
        ([call("read_file", str(i), file_path="solution.py") for i in range(9)], 4096, StopReason.BUDGET, False),
        (["FINAL: done"], 10, StopReason.CONTEXT, True),  # the usage that the endpoint reports is above the limit
    ],
    ids=["final", "protocol error", "budget", "context"],
)
async def test_verifiers_sees_a_truncation_as_one(
    tiny_data: Path, turns: list[str], limit: int, stop: StopReason, truncated: bool
) -> None:
    env = environment(tiny_data, taskset={"max_context_tokens": limit}, harness={"isolation": "process"})
    (trace,) = await run(env, ScriptedClient(script(*turns)))
    assert (record_of(trace).stop_reason, trace.is_truncated) == (stop, truncated)


@pytest.mark.parametrize(("limit", "error"), [(4096, None), (10, "CutRolloutError")], ids=["whole", "cut"])
async def test_a_cut_rollout_is_an_error_where_the_taskset_says_so(
    tiny_data: Path, limit: int, error: str | None
) -> None:
    taskset = {"max_context_tokens": limit, "cut": "error"}
    env = environment(tiny_data, taskset=taskset, harness={"isolation": "process"})
    [trace] = await run(env, ScriptedClient(script("FINAL: done")))
    assert (trace.error.type if trace.error else None) == error
    assert record_from_dict(trace.info["glyph"]).stop_reason.cut == (error is not None)


def _openai(text: str) -> bytes:
    return completion(text, id="1", object="chat.completion", created=0, model="m")


@pytest.mark.parametrize("resident", [True, False])
async def test_a_fault_of_the_endpoint_is_an_error_and_not_a_reward_of_0(tiny_data: Path, resident: bool) -> None:
    env = environment(tiny_data, harness={"isolation": "process", "resident": resident})

    def broken(messages: Messages) -> str:
        raise RuntimeError("no such model")

    (trace,) = await run(env, ScriptedClient(broken))
    assert [error.type for error in trace.errors] == ["ProviderError"]
    assert "no such model" in trace.errors[0].message
    assert (trace.rewards, trace.metrics, trace.info) == ({}, {}, {})


async def test_replies_that_are_no_text_and_lasting_5xx_are_provider_errors(tiny_data: Path) -> None:
    """Verifiers refuses a lone surrogate in a provider's JSON: no UTF-8 endpoint can send one."""
    env = environment(tiny_data, harness={"isolation": "process"})
    answers = [[reply(_openai("\ud800"))] * 4, [reply(b"oops", "500 Internal Server Error")] * 4]
    with raw_server(answers[0]) as one, raw_server(answers[1]) as other:
        clients = [EvalClient(server.url, "key") for server in (one, other)]
        results = await asyncio.gather(*(run(env, client) for client in clients))
    for (trace,) in results:
        assert [error.type for error in trace.errors] == ["ProviderError"]
        assert (trace.rewards, trace.info) == ({}, {})
    assert [len(server.requests) for server in (one, other)] == [4, 4]


async def test_errors_are_retried_as_whole_rollouts(tiny_data: Path) -> None:
    faults = iter([True])

    def at_second_attempt(messages: Messages) -> str:
        if next(faults, False):
            raise RuntimeError("first attempt")
        return SOLVE_A(messages)

    env = environment(tiny_data, harness={"isolation": "process"}, retries={"rollout": {"max_retries": 1}})
    (trace,) = await run(env, ScriptedClient(at_second_attempt))
    assert record_of(trace).reward == trace.reward == 1.0


@pytest.mark.parametrize("resident", [True, False])
async def test_a_time_out_of_the_harness_is_an_error(tiny_data: Path, resident: bool) -> None:
    env = environment(tiny_data, harness={"isolation": "process", "resident": resident}, timeout={"rollout": 0.7})
    with raw_server([reply(_openai("FINAL: late"))], watch=lambda: time.sleep(2)) as server:
        (trace,) = await run(env, EvalClient(server.url, "key"))
    assert [error.type for error in trace.errors] == ["TaskError"]
    assert "left no record; it stopped with 'harness_timeout'" in trace.errors[0].message
    assert trace.rewards == {}
    assert _left_running(str(trace.runtime.id)) == []
    assert not Path(str(trace.runtime.id)).exists()


def _left_running(folder: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if folder in line]


async def test_a_limit_that_the_arm_does_not_know_is_an_error(tiny_data: Path) -> None:
    env = environment(tiny_data, harness={"isolation": "process"}, max_turns=1)
    (trace,) = await run(env, ScriptedClient(SOLVE_A))
    assert [error.type for error in trace.errors] == ["TaskError"]
    assert "max_turns" in trace.errors[0].message


async def test_samples_of_a_task_run_at_once(tiny_data: Path) -> None:
    env = environment(tiny_data, "b", harness={"isolation": "process"})
    traces = await run(env, ScriptedClient(SOLVE_B), tasks=2, samples=6)
    assert [trace.reward for trace in traces] == [1.0] * 12
    assert len({trace.id for trace in traces}) == 12


async def eval_command(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "eval"), *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await asyncio.wait_for(process.communicate(), 120))[0].decode()
    assert process.returncode == 0, output[-3_000:]
    return output


async def test_the_eval_command_line_runs_and_resumes(tiny_data: Path, tmp_path: Path) -> None:
    arms = {"a": SOLVE_A, "b": VARIANTS["forced_keep"]}

    async def evaluate(arm: str, url: str) -> None:
        options = f"--harness.id glyph -m scripted -n 2 -r 2 --no-rich --no-push --client.base-url {url}"
        variant = "forced_keep" if arm == "b" else "standard"
        ours = ["--taskset.arm", arm, "--taskset.data", str(tiny_data), "--taskset.variant", variant]
        await eval_command("glyph", *options.split(), *ours, "-o", str(tmp_path / arm))

    async with scripted_server(arms["a"]) as a, scripted_server(arms["b"]) as b:
        await asyncio.gather(evaluate("a", a), evaluate("b", b))
        for arm in arms:
            traces = read_traces(tmp_path / arm).traces
            assert sorted(trace.task_id or "" for trace in traces) == ["tiny-1", "tiny-1", "tiny-2", "tiny-2"]
            assert [trace.scored and trace.scored.reward for trace in traces] == [1.0] * 4
        assert tomllib.loads((tmp_path / "b" / "config.toml").read_text())["taskset"]["variant"] == "forced_keep"

        path = tmp_path / "b" / "traces.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(lines[0] + lines[1])
        await eval_command("--resume", str(tmp_path / "b"))
        resumed = path.read_bytes().splitlines(keepends=True)
    assert set(lines[:2]) < set(resumed)
    assert len(set(resumed)) == 4
    assert [trace.scored and trace.scored.reward for trace in read_traces(path).traces] == [1.0] * 4
