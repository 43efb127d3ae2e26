"""Small records and traces, built by hand, for the tests of the analysis."""

from collections.abc import Sequence
from typing import Any

from glyph.evaluation.predicates import Rollout
from glyph.evaluation.traces import Message, Trace
from glyph.protocol import BreachKind, Decision, Label, StopReason, Tool
from glyph.records import (
    CallRecord,
    CandidateRecord,
    PredictionTarget,
    ProtocolError,
    RolloutRecord,
    TurnUsage,
    Verdict,
)

TEST_CODE = "assert double(2) == 4\nassert double(5) == 10\nassert double(7) == 14\n"
GOLD = "def double(n):\n    return 2 * n\n"


def patch(call_id: str, index: int = 2, success: bool = True) -> CallRecord:
    return CallRecord(call_id, Tool.APPLY_PATCH, index, success)


def visible_test(call_id: str, label: Label | None, index: int = 4, cost: int = 1) -> CallRecord:
    return CallRecord(call_id, Tool.PYTHON_TEST, index, label is Label.PASS, cost, label)


def candidate(call_id: str, label: Label, source: str = GOLD, tested: bool = True) -> CandidateRecord:
    return CandidateRecord(call_id, "0" * 64, source, Verdict(label, label), tested, not tested)


def target(
    label: Label | None,
    verified: Label,
    decision: Decision | None = Decision.KEEP,
    published: Label | None = None,
    **fields: Any,
) -> PredictionTarget:
    return PredictionTarget("c1", 4, "0" * 64, verified, published or verified, label, decision, **fields)


def record(task_id: str = "t1", arm: str = "b", solved: bool = True, **fields: Any) -> RolloutRecord:
    """A rollout of one patch and one test, which passes if `solved`; any field can be given instead."""
    label = Label.PASS if solved else Label.ASSERTION_FAILURE
    made: dict[str, Any] = {
        "variant": "standard",
        "stop_reason": StopReason.FINAL,
        "calls": (patch("c1"), visible_test("c2", label)),
        "candidates": (candidate("c1", label),),
        "usage": (TurnUsage(100, 10), TurnUsage(120, 5)),
        "final_verdict": Verdict(label, label),
    }
    return RolloutRecord(task_id=task_id, arm=arm, **{**made, **fields})


def rollout(*args: Any, **fields: Any) -> Rollout:
    return Rollout(record(*args, **fields), TEST_CODE)


def solved_samples(task_id: str, outcomes: Sequence[int]) -> list[Rollout]:
    """One rollout for each outcome, 1 for solved."""
    return [rollout(task_id, solved=bool(outcome)) for outcome in outcomes]


def breach(kind: BreachKind) -> ProtocolError:
    return ProtocolError(kind, "what was wrong", 2)


PATCH_TURN = (
    'CALL apply_patch {"id": "c1", "file_path": "solution.py", "find": "# todo", '
    '"replace": "def double(n):\\n    return 2 * n"}'
)
KEEP_TURN = (
    "<PREDICTION>PASS</PREDICTION>\n<DECISION>KEEP</DECISION>\n"
    'CALL python_test {"id": "c2", "project_path": "."}'
)  # fmt: skip


def trace(task_id: str = "t1", solved: bool = True, trace_id: str | None = None, **fields: Any) -> Trace:
    """An Arm B rollout with its conversation."""
    verified = Label.PASS if solved else Label.ASSERTION_FAILURE
    made = record(task_id, solved=solved, **{"targets": (target(Label.PASS, verified),), **fields})
    result = "tests passed" if solved else "tests failed: an assertion does not hold"
    messages = (
        Message("system", "You write Python."),
        Message("user", "Write double(n)."),
        Message("assistant", PATCH_TURN),
        Message("tool", "RESULT c1:\nstatus: success\nstdout:\npatch applied"),
        Message("assistant", KEEP_TURN),
        Message("tool", f"RESULT c2:\nstatus: {'success' if solved else 'failed'}\nstdout:\n{result}"),
        Message("assistant", "FINAL: done"),
    )
    return Trace(
        trace_id or f"{task_id}-{made.arm}", task_id, made.arm, "test", messages, made, TEST_CODE, model="scripted"
    )


def error_trace(task_id: str = "t9", arm: str = "b") -> Trace:
    return Trace(f"{task_id}-error", task_id, arm, "test", (), None, TEST_CODE, error="SandboxError: no interpreter")


def verifiers_line(trace: Trace, **fields: Any) -> dict[str, Any]:
    """The same rollout as a Verifiers 0.2 trace of one branch."""
    nodes: list[dict[str, Any]] = [
        {
            "parent": index - 1 if index else None,
            "message": {"role": message.role, "content": message.content},
            "sampled": message.role == "assistant",
            "token_ids": [],
            "mask": [],
            "logprobs": [],
            "finish_reason": None,
            "usage": None,
        }
        for index, message in enumerate(trace.messages)
    ]
    data = {"idx": 0, "prompt": None, "task_id": trace.task_id, "arm": trace.arm, "split": trace.split}
    data["test_code"] = trace.test_code
    return {
        "id": trace.id,
        "task": {"type": "GlyphTask", "data": data},
        "nodes": nodes,
        "rewards": {"solved": 1.0},
        "metrics": {},
        "info": {"glyph": trace.record.to_dict()} if trace.record else {},
        "stop_condition": None,
        "errors": [{"type": "SandboxError", "message": "no interpreter", "traceback": "…"}] if trace.error else [],
        **fields,
    }
