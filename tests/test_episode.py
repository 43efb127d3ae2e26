"""The arms, rule by rule: scripted rollouts with the record and the tool messages that each must give.

A rollout opens with two messages, so that its assistant turns stand at 2, 4, 6, … A row of `calls` reads (id, tool,
success, cost, label, overridden); of `targets` (call that made the candidate, message index, sampled label, decision,
effective decision, verified label, overridden, shadow); of `candidates` (call, verified label, tested, shadow).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from glyph.episode import Episode, ModelTurn, Rules, RunTest
from glyph.protocol import Arm, BreachKind, Decision, Label, StopReason
from glyph.variants import parse_variant
from glyph.workspace import PLACEHOLDER, Workspace
from tests.scripts import OPENING, call, judge, keep, patch, play, predict, read, revise, visible

A, B = Rules(Arm.REACTIVE), Rules(Arm.PREDICTIVE)
READ, PATCH, TEST = "read_file", "apply_patch", "python_test"
PASS, FAIL, ERROR = "PASS", "ASSERTION_FAILURE", "RUNTIME_ERROR"
KEEP, REVISE = "KEEP", "REVISE"
APPLIED = "status: success\nstdout:\npatch applied"
PASSED = "status: success\nstdout:\ntests passed"
FAILED = "status: failed\nstderr:\ntests failed: an assertion does not hold"
NOT_THERE = "status: failed\nstderr:\npatch failed: find does not occur in solution.py, it must occur exactly once"
EXHAUSTED = "status: failed\nstderr:\ntest budget exhausted"
WITHHELD = "status: failed\nstderr:\ntest withheld: answer with one apply_patch call"


def b(variant: str, budget: int = 8) -> Rules:
    return Rules(Arm.PREDICTIVE, parse_variant(variant), budget)


@dataclass(frozen=True)
class Case:
    """A script and what must come of it. `said` are the tool messages, `shadow` the number of shadow executions."""

    rules: Rules
    turns: Sequence[str | ModelTurn]
    stop: StopReason
    reward: float = 0.0
    calls: Sequence[tuple[Any, ...]] = ()
    targets: Sequence[tuple[Any, ...]] = ()
    candidates: Sequence[tuple[Any, ...]] = ()
    said: Sequence[str] = ()
    shadow: int = 0
    breach: BreachKind | None = None
    final: str = ERROR  # the placeholder raises: the function is missing


CASES = {
    "A: patch, test, final": Case(
        A,
        [patch("1", "good"), visible("2"), "FINAL: done"],
        StopReason.FINAL,
        1.0,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, True, 1, PASS, False)],
        candidates=[("1", PASS, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{PASSED}"],
        final=PASS,
    ),
    "A: recovery after a failed test": Case(
        A,
        [patch("1", "wrong"), visible("2"), patch("3", "good", "wrong"), visible("4"), "FINAL: done"],
        StopReason.FINAL,
        1.0,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("2", TEST, False, 1, FAIL, False),
            ("3", PATCH, True, 1, None, False),
            ("4", TEST, True, 1, PASS, False),
        ],
        candidates=[("1", FAIL, True, False), ("3", PASS, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{FAILED}", f"RESULT 3:\n{APPLIED}", f"RESULT 4:\n{PASSED}"],
        final=PASS,
    ),
    "A: an untested candidate is verified in the shadow and earns nothing": Case(
        A,
        [patch("1", "good"), "FINAL: done"],
        StopReason.FINAL,
        calls=[("1", PATCH, True, 1, None, False)],
        candidates=[("1", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        final=PASS,
    ),
    "A: a pass that the last patch undoes earns nothing": Case(
        A,
        [patch("1", "good"), visible("2"), patch("3", "wrong", "good"), "FINAL: done"],
        StopReason.FINAL,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("2", TEST, True, 1, PASS, False),
            ("3", PATCH, True, 1, None, False),
        ],
        candidates=[("1", PASS, True, False), ("3", FAIL, False, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{PASSED}", f"RESULT 3:\n{APPLIED}"],
        shadow=1,
        final=FAIL,
    ),
    "A: read, a failed patch, a test of the placeholder": Case(
        A,
        [read("1"), patch("2", "good", "nowhere"), visible("3"), "FINAL: no"],
        StopReason.FINAL,
        calls=[
            ("1", READ, True, 1, None, False),
            ("2", PATCH, False, 1, None, False),
            ("3", TEST, False, 1, ERROR, False),
        ],
        said=[
            f"RESULT 1:\nstatus: success\nstdout:\n{PLACEHOLDER}",
            f"RESULT 2:\n{NOT_THERE}",
            "RESULT 3:\nstatus: failed\nstderr:\ntests failed: the code raised an exception",
        ],
    ),
    "A: FINAL after the eighth call": Case(
        A,
        [patch("1", "good"), *(read(str(n)) for n in range(2, 8)), visible("8"), "FINAL: done"],
        StopReason.FINAL,
        1.0,
        calls=[
            ("1", PATCH, True, 1, None, False),
            *((str(n), READ, True, 1, None, False) for n in range(2, 8)),
            ("8", TEST, True, 1, PASS, False),
        ],
        candidates=[("1", PASS, True, False)],
        said=[
            f"RESULT 1:\n{APPLIED}",
            *(f"RESULT {n}:\nstatus: success\nstdout:\ngood\n" for n in range(2, 8)),
            f"RESULT 8:\n{PASSED}",
        ],
        final=PASS,
    ),
    "A: a ninth call": Case(
        Rules(Arm.REACTIVE, budget=2),
        [read("1"), read("2"), visible("3")],
        StopReason.BUDGET,
        calls=[("1", READ, True, 1, None, False), ("2", READ, True, 1, None, False)],
        said=[f"RESULT {n}:\nstatus: success\nstdout:\n{PLACEHOLDER}" for n in "12"],
    ),
    "A: a time-out says so": Case(
        A,
        [patch("1", "loops"), visible("2"), "FINAL:"],
        StopReason.FINAL,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, False, 1, "TIMEOUT", False)],
        candidates=[("1", "TIMEOUT", True, False)],
        said=[
            f"RESULT 1:\n{APPLIED}",
            "RESULT 2:\nstatus: failed\ntimed_out: true\nstderr:\ntests failed: time limit reached",
        ],
        final="TIMEOUT",
    ),
    "A: a breach after a pass": Case(
        A,
        [patch("1", "good"), visible("2"), "It works."],
        StopReason.PROTOCOL,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, True, 1, PASS, False)],
        candidates=[("1", PASS, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{PASSED}"],
        breach=BreachKind.NOT_A_TURN,
        final=PASS,
    ),
    "A: an id twice": Case(
        A,
        [read("1"), patch("1", "good")],
        StopReason.PROTOCOL,
        calls=[("1", READ, True, 1, None, False)],
        said=[f"RESULT 1:\nstatus: success\nstdout:\n{PLACEHOLDER}"],
        breach=BreachKind.DUPLICATE_ID,
    ),
    "B: PASS, KEEP, final": Case(
        B,
        [patch("1", "good"), keep("PASS", "2"), "FINAL: done"],
        StopReason.FINAL,
        1.0,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, True, 1, PASS, False)],
        targets=[("1", 4, PASS, KEEP, KEEP, PASS, False, False)],
        candidates=[("1", PASS, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{PASSED}"],
        final=PASS,
    ),
    "B: a foreseen failure is revised and never shown": Case(
        B,
        [
            patch("1", "wrong"),
            revise("ASSERTION_FAILURE", "2", "good", "wrong"),
            keep("PASS", "3"),
            "FINAL: done",
        ],
        StopReason.FINAL,
        1.0,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("2", PATCH, True, 1, None, False),
            ("3", TEST, True, 1, PASS, False),
        ],
        targets=[
            ("1", 4, FAIL, REVISE, REVISE, FAIL, False, True),
            ("2", 6, PASS, KEEP, KEEP, PASS, False, False),
        ],
        candidates=[("1", FAIL, False, True), ("2", PASS, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{APPLIED}", f"RESULT 3:\n{PASSED}"],
        shadow=1,
        final=PASS,
    ),
    "B: a failed revising patch leaves its candidate pending": Case(
        B,
        [
            patch("1", "wrong"),
            revise("ASSERTION_FAILURE", "2", "good", "nowhere"),
            keep("PASS", "3"),
            "FINAL: no",
        ],
        StopReason.FINAL,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("2", PATCH, False, 1, None, False),
            ("3", TEST, False, 1, FAIL, False),
        ],
        targets=[
            ("1", 4, FAIL, REVISE, REVISE, FAIL, False, True),
            ("1", 6, PASS, KEEP, KEEP, FAIL, False, False),
        ],
        candidates=[("1", FAIL, True, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{NOT_THERE}", f"RESULT 3:\n{FAILED}"],
        shadow=1,
        final=FAIL,
    ),
    "B: the same candidate again costs no second execution": Case(
        B,
        [
            patch("1", "wrong"),
            revise("ASSERTION_FAILURE", "2", "raises", "wrong"),
            revise("RUNTIME_ERROR", "3", "wrong", "raises"),
            revise("ASSERTION_FAILURE", "4", "wrong ", "wrong"),
            keep("PASS", "5"),
            "FINAL: no",
        ],
        StopReason.FINAL,
        calls=[*((str(n), PATCH, True, 1, None, False) for n in range(1, 5)), ("5", TEST, False, 1, FAIL, False)],
        targets=[
            ("1", 4, FAIL, REVISE, REVISE, FAIL, False, True),
            ("2", 6, ERROR, REVISE, REVISE, ERROR, False, True),
            ("3", 8, FAIL, REVISE, REVISE, FAIL, False, True),
            ("4", 10, PASS, KEEP, KEEP, FAIL, False, False),
        ],
        candidates=[
            ("1", FAIL, False, True),
            ("2", ERROR, False, True),
            ("3", FAIL, False, True),
            ("4", FAIL, True, False),
        ],
        said=[*(f"RESULT {n}:\n{APPLIED}" for n in range(1, 5)), f"RESULT 5:\n{FAILED}"],
        shadow=2,
        final=FAIL,
    ),
    "B: the last call is a patch, KEEP cannot be paid": Case(
        Rules(Arm.PREDICTIVE, budget=1),
        [patch("1", "good"), keep("PASS", "2")],
        StopReason.BUDGET,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, PASS, KEEP, None, PASS, False, True)],
        candidates=[("1", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        final=PASS,
    ),
    "B: REVISE with no call left": Case(
        Rules(Arm.PREDICTIVE, budget=1),
        [patch("1", "wrong"), revise("ASSERTION_FAILURE", "2", "good", "wrong")],
        StopReason.BUDGET,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, FAIL, REVISE, None, FAIL, False, True)],
        candidates=[("1", FAIL, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        final=FAIL,
    ),
    "B: a cut prediction turn makes no target": Case(
        B,
        [patch("1", "wrong"), ModelTurn(keep("PASS", "2"), "length", 100, 512)],
        StopReason.LENGTH,
        calls=[("1", PATCH, True, 1, None, False)],
        candidates=[("1", FAIL, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        final=FAIL,
    ),
    "B: a turn beyond the context limit makes no target": Case(
        B,
        [patch("1", "wrong"), ModelTurn(keep("PASS", "2"), "stop", 4_000, 97)],
        StopReason.CONTEXT,
        calls=[("1", PATCH, True, 1, None, False)],
        candidates=[("1", FAIL, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        final=FAIL,
    ),
    "B: a refused prompt": Case(
        B,
        [patch("1", "good"), ModelTurn("", overflow=True)],
        StopReason.CONTEXT,
        calls=[("1", PATCH, True, 1, None, False)],
        candidates=[("1", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        final=PASS,
    ),
    "B: python_test without a prediction": Case(B, [visible("1")], StopReason.PROTOCOL, breach=BreachKind.WRONG_TURN),
    "B: FINAL while a candidate is pending": Case(
        B,
        [patch("1", "good"), "FINAL: done"],
        StopReason.PROTOCOL,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, None, None, None, PASS, False, True)],
        candidates=[("1", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        breach=BreachKind.NOT_A_TURN,
        final=PASS,
    ),
    "B: a malformed prediction turn keeps its verified label": Case(
        B,
        [patch("1", "broken"), keep("SYNTAX_ERROR", "2").replace("KEEP", "REVISE")],
        StopReason.PROTOCOL,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, "SYNTAX_ERROR", REVISE, None, "SYNTAX_ERROR", False, True)],
        candidates=[("1", "SYNTAX_ERROR", False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        breach=BreachKind.WRONG_TOOL,
        final="SYNTAX_ERROR",
    ),
    "B: an id twice in a prediction turn": Case(
        B,
        [patch("1", "dies"), keep("OTHER", "1")],
        StopReason.PROTOCOL,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, "OTHER", KEEP, None, "OTHER", False, True)],
        candidates=[("1", "OTHER", False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        breach=BreachKind.DUPLICATE_ID,
        final="OTHER",
    ),
    "B: after a visible failure the next turn is plain": Case(
        B,
        [patch("1", "wrong"), keep("PASS", "2"), read("3"), "FINAL: no"],
        StopReason.FINAL,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("2", TEST, False, 1, FAIL, False),
            ("3", READ, True, 1, None, False),
        ],
        targets=[("1", 4, PASS, KEEP, KEEP, FAIL, False, False)],
        candidates=[("1", FAIL, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{FAILED}", "RESULT 3:\nstatus: success\nstdout:\nwrong\n"],
        final=FAIL,
    ),
    "forced_keep: the patch is discarded, the test runs under its id": Case(
        b("forced_keep"),
        [patch("1", "good"), revise("ASSERTION_FAILURE", "2", "wrong", "good"), "FINAL: done"],
        StopReason.FINAL,
        1.0,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, True, 1, PASS, True)],
        targets=[("1", 4, FAIL, REVISE, KEEP, PASS, True, False)],
        candidates=[("1", PASS, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{PASSED}"],
        final=PASS,
    ),
    "forced_keep: a sampled KEEP is not overridden": Case(
        b("forced_keep"),
        [patch("1", "wrong"), keep("PASS", "2"), "FINAL: no"],
        StopReason.FINAL,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, False, 1, FAIL, False)],
        targets=[("1", 4, PASS, KEEP, KEEP, FAIL, False, False)],
        candidates=[("1", FAIL, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{FAILED}"],
        final=FAIL,
    ),
    "ungated: predict, then always test": Case(
        b("ungated"),
        [patch("1", "good"), predict("TIMEOUT", "2"), "FINAL: done"],
        StopReason.FINAL,
        1.0,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, True, 1, PASS, False)],
        targets=[("1", 4, "TIMEOUT", None, KEEP, PASS, False, False)],
        candidates=[("1", PASS, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{PASSED}"],
        final=PASS,
    ),
    "ungated: a DECISION line is a breach": Case(
        b("ungated"),
        [patch("1", "good"), keep("PASS", "2")],
        StopReason.PROTOCOL,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, PASS, None, None, PASS, False, True)],
        candidates=[("1", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        breach=BreachKind.NOT_A_TURN,
        final=PASS,
    ),
    "random_gate: REVISE becomes KEEP": Case(
        b("random_gate(rate=0)"),
        [patch("1", "good"), revise("ASSERTION_FAILURE", "2", "wrong", "good"), "FINAL: done"],
        StopReason.FINAL,
        1.0,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, True, 1, PASS, True)],
        targets=[("1", 4, FAIL, REVISE, KEEP, PASS, True, False)],
        candidates=[("1", PASS, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{PASSED}"],
        final=PASS,
    ),
    "random_gate: REVISE stays REVISE": Case(
        b("random_gate(rate=1)"),
        [
            patch("1", "wrong"),
            revise("ASSERTION_FAILURE", "2", "good", "wrong"),
            ModelTurn("", overflow=True),
        ],
        StopReason.CONTEXT,
        calls=[("1", PATCH, True, 1, None, False), ("2", PATCH, True, 1, None, False)],
        targets=[("1", 4, FAIL, REVISE, REVISE, FAIL, False, True)],
        candidates=[("1", FAIL, False, True), ("2", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{APPLIED}"],
        shadow=2,
        final=PASS,
    ),
    "random_gate: KEEP becomes REVISE by a continuation turn that costs one call": Case(
        b("random_gate(rate=1)"),
        [patch("1", "wrong"), keep("PASS", "2"), patch("3", "good", "wrong"), ModelTurn("x", "length")],
        StopReason.LENGTH,
        calls=[("1", PATCH, True, 1, None, False), ("3", PATCH, True, 1, None, False)],
        targets=[("1", 4, PASS, KEEP, REVISE, FAIL, True, True)],
        candidates=[("1", FAIL, False, True), ("3", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{WITHHELD}", f"RESULT 3:\n{APPLIED}"],
        shadow=2,
        final=PASS,
    ),
    "random_gate: the continuation must be a patch": Case(
        b("random_gate(rate=1)"),
        [patch("1", "wrong"), keep("PASS", "2"), read("3")],
        StopReason.PROTOCOL,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, PASS, KEEP, REVISE, FAIL, True, True)],
        candidates=[("1", FAIL, False, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{WITHHELD}"],
        shadow=1,
        breach=BreachKind.WRONG_TOOL,
        final=FAIL,
    ),
    "random_gate: FINAL is no continuation": Case(
        b("random_gate(rate=1)"),
        [patch("1", "good"), keep("PASS", "2"), "FINAL: done"],
        StopReason.PROTOCOL,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, PASS, KEEP, REVISE, PASS, True, True)],
        candidates=[("1", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{WITHHELD}"],
        shadow=1,
        breach=BreachKind.WRONG_TURN,
        final=PASS,
    ),
    "random_gate: the withheld test's id is used up": Case(
        b("random_gate(rate=1)"),
        [patch("1", "wrong"), keep("PASS", "2"), patch("2", "good", "wrong")],
        StopReason.PROTOCOL,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, PASS, KEEP, REVISE, FAIL, True, True)],
        candidates=[("1", FAIL, False, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{WITHHELD}"],
        shadow=1,
        breach=BreachKind.DUPLICATE_ID,
        final=FAIL,
    ),
    "random_gate: a continuation that does not fit leaves the candidate pending": Case(
        b("random_gate(rate=1)", budget=3),
        [
            patch("1", "wrong"),
            keep("PASS", "2"),
            patch("3", "good", "nowhere"),
            revise("ASSERTION_FAILURE", "4", "good", "wrong"),
            keep("PASS", "5"),
        ],
        StopReason.BUDGET,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("3", PATCH, False, 1, None, False),
            ("4", PATCH, True, 1, None, False),
        ],
        targets=[
            ("1", 4, PASS, KEEP, REVISE, FAIL, True, True),
            ("1", 8, FAIL, REVISE, REVISE, FAIL, False, True),
            ("4", 10, PASS, KEEP, None, PASS, True, True),
        ],
        candidates=[("1", FAIL, False, True), ("4", PASS, False, True)],
        said=[
            f"RESULT 1:\n{APPLIED}",
            f"RESULT 2:\n{WITHHELD}",
            f"RESULT 3:\n{NOT_THERE}",
            f"RESULT 4:\n{APPLIED}",
        ],
        shadow=2,
        final=PASS,
    ),
    "revise_feedback: the revising patch tells the outcome": Case(
        b("revise_feedback"),
        [patch("1", "wrong"), revise("PASS", "2", "good", "wrong"), keep("PASS", "3"), "FINAL: done"],
        StopReason.FINAL,
        1.0,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("2", PATCH, True, 1, None, False),
            ("3", TEST, True, 1, PASS, False),
        ],
        targets=[
            ("1", 4, PASS, REVISE, REVISE, FAIL, False, True),
            ("2", 6, PASS, KEEP, KEEP, PASS, False, False),
        ],
        candidates=[("1", FAIL, False, True), ("2", PASS, True, False)],
        said=[
            f"RESULT 1:\n{APPLIED}",
            f"RESULT 2:\n{APPLIED}\nprevious candidate: tests failed: an assertion does not hold",
            f"RESULT 3:\n{PASSED}",
        ],
        shadow=1,
        final=PASS,
    ),
    "revise_feedback: the continuation turn tells the outcome of the candidate that the coin rejected": Case(
        b("random_gate(rate=1)+revise_feedback"),
        [patch("1", "wrong"), keep("PASS", "2"), patch("3", "good", "wrong"), ModelTurn("", overflow=True)],
        StopReason.CONTEXT,
        calls=[("1", PATCH, True, 1, None, False), ("3", PATCH, True, 1, None, False)],
        targets=[("1", 4, PASS, KEEP, REVISE, FAIL, True, True)],
        candidates=[("1", FAIL, False, True), ("3", PASS, False, True)],
        said=[
            f"RESULT 1:\n{APPLIED}",
            f"RESULT 2:\n{WITHHELD}",
            f"RESULT 3:\n{APPLIED}\nprevious candidate: tests failed: an assertion does not hold",
        ],
        shadow=2,
        final=PASS,
    ),
    "revise_feedback: a patch that does not fit tells nothing": Case(
        b("revise_feedback"),
        [patch("1", "wrong"), revise("PASS", "2", "good", "nowhere"), ModelTurn("", overflow=True)],
        StopReason.CONTEXT,
        calls=[("1", PATCH, True, 1, None, False), ("2", PATCH, False, 1, None, False)],
        targets=[("1", 4, PASS, REVISE, REVISE, FAIL, False, True)],
        candidates=[("1", FAIL, False, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{NOT_THERE}"],
        shadow=1,
        final=FAIL,
    ),
    "test_budget: a KEEP beyond it costs one call, makes its target by shadow, and goes on": Case(
        b("test_budget(n=1,cost=4)"),
        [
            patch("1", "wrong"),
            keep("PASS", "2"),
            patch("3", "good", "wrong"),
            keep("PASS", "4"),
            read("5"),
            "FINAL: done",
        ],
        StopReason.FINAL,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("2", TEST, False, 4, FAIL, False),
            ("3", PATCH, True, 1, None, False),
            ("4", TEST, False, 1, None, False),
            ("5", READ, True, 1, None, False),
        ],
        targets=[
            ("1", 4, PASS, KEEP, KEEP, FAIL, False, False),
            ("3", 8, PASS, KEEP, KEEP, PASS, False, True),
        ],
        candidates=[("1", FAIL, True, False), ("3", PASS, False, True)],
        said=[
            f"RESULT 1:\n{APPLIED}",
            f"RESULT 2:\n{FAILED}",
            f"RESULT 3:\n{APPLIED}",
            f"RESULT 4:\n{EXHAUSTED}",
            "RESULT 5:\nstatus: success\nstdout:\ngood\n",
        ],
        shadow=1,
        final=PASS,
    ),
    "test_budget: a test that cannot be paid stops the rollout": Case(
        b("test_budget(n=2,cost=4)", budget=4),
        [patch("1", "good"), keep("PASS", "2")],
        StopReason.BUDGET,
        calls=[("1", PATCH, True, 1, None, False)],
        targets=[("1", 4, PASS, KEEP, None, PASS, False, True)],
        candidates=[("1", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}"],
        shadow=1,
        final=PASS,
    ),
    "test_budget in Arm A": Case(
        Rules(Arm.REACTIVE, parse_variant("test_budget(n=1,cost=3)"), 5),
        [patch("1", "wrong"), visible("2"), visible("3"), visible("4")],
        StopReason.BUDGET,
        calls=[
            ("1", PATCH, True, 1, None, False),
            ("2", TEST, False, 3, FAIL, False),
            ("3", TEST, False, 1, None, False),
        ],
        candidates=[("1", FAIL, True, False)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{FAILED}", f"RESULT 3:\n{EXHAUSTED}"],
        final=FAIL,
    ),
    "forced_keep with a test budget": Case(
        b("forced_keep+test_budget(n=0)"),
        [patch("1", "good"), revise("OTHER", "2", "wrong", "good"), "FINAL: no"],
        StopReason.FINAL,
        calls=[("1", PATCH, True, 1, None, False), ("2", TEST, False, 1, None, True)],
        targets=[("1", 4, "OTHER", REVISE, KEEP, PASS, True, True)],
        candidates=[("1", PASS, False, True)],
        said=[f"RESULT 1:\n{APPLIED}", f"RESULT 2:\n{EXHAUSTED}"],
        shadow=1,
        final=PASS,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_scripted_rollout(name: str) -> None:
    case = CASES[name]
    record, said, tested = play(case.rules, case.turns)
    calls = [(c.id, c.tool.value, c.success, c.cost, c.label and c.label.value, c.overridden) for c in record.calls]
    targets = [
        (
            *(t.call_id, t.message_index),
            *_values(t.label, t.decision, t.effective_decision, t.verified_label),
            *(t.overridden, t.shadow),
        )
        for t in record.targets
    ]
    candidates = [(c.call_id, c.verdict and c.verdict.label.value, c.tested, c.shadow) for c in record.candidates]
    assert (record.stop_reason, record.reward) == (case.stop, case.reward)
    assert calls == list(case.calls)
    assert targets == list(case.targets)
    assert candidates == list(case.candidates)
    assert said == list(case.said)
    assert record.shadow_tests == case.shadow
    assert (record.protocol_error and record.protocol_error.kind) == case.breach
    assert record.final_verdict is not None
    assert record.final_verdict.label.value == case.final
    *cached, _ = tested  # every source runs once, and the final check once more
    assert len(set(cached)) == len(cached)
    assert sum(c.cost for c in record.calls) <= case.rules.budget
    assert record.variant == case.rules.variant.name


def _values(*members: Any) -> tuple[Any, ...]:
    return tuple(member and member.value for member in members)


@pytest.mark.parametrize(
    ("turn", "stop"),
    [
        (ModelTurn("FINAL: x", "stop", 4_000, 96), StopReason.FINAL),  # 4096 in all is within the limit
        (ModelTurn("FINAL: x", "stop", 4_000, 97), StopReason.CONTEXT),
        (ModelTurn("FINAL: x", "length", 4_000, 96), StopReason.CONTEXT),  # cut by the context, not by 512
        (ModelTurn("FINAL: x", "length", 3_000, 512), StopReason.LENGTH),
        (ModelTurn("FINAL: x", "length"), StopReason.LENGTH),
        (ModelTurn("FINAL: x", "stop", 5_000, None), StopReason.FINAL),  # nothing reported, nothing enforced
        (ModelTurn("FINAL: x", "tool_calls"), StopReason.FINAL),
        (ModelTurn("", overflow=True), StopReason.CONTEXT),
    ],
    ids=[
        *("within the limit", "beyond the limit", "cut by the context", "cut by its length", "cut, nothing reported"),
        *("half reported", "another reason", "refused"),
    ],
)
def test_cut_turns_stop_with_their_reason(turn: ModelTurn, stop: StopReason) -> None:
    record, _, _ = play(A, [turn])
    assert record.stop_reason is stop
    assert record.protocol_error is None
    assert len(record.usage) == (0 if turn.overflow else 1)


HOSTILE = {
    "a surrogate": ("\ud800", BreachKind.NOT_TEXT),
    "an escaped surrogate": (patch("1", "good").replace("good", "\\ud800"), BreachKind.NOT_TEXT),
    "megabytes": ("FINAL: " + "x" * 2_000_000, BreachKind.TOO_LONG),
    "deep JSON": ("CALL read_file " + '{"a":' * 50_000 + "1" + "}" * 50_000, BreachKind.BAD_JSON),
    "a path above": (call("read_file", "1", file_path="../etc/passwd"), BreachKind.BAD_PATH),
    "an absolute path": (call("read_file", "1", file_path="/etc/passwd"), BreachKind.BAD_PATH),
    "the folder": (call("read_file", "1", file_path="."), BreachKind.BAD_PATH),
    "NUL in a path": (call("read_file", "1", file_path="solution.py\0"), BreachKind.BAD_PATH),
    "another project": (call("python_test", "1", project_path=".."), BreachKind.BAD_PATH),
    "a file as project": (call("python_test", "1", project_path="solution.py"), BreachKind.BAD_PATH),
    "a wrong type": ('CALL read_file {"id": "1", "file_path": ["solution.py"]}', BreachKind.BAD_ARGUMENTS),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_model_says_is_a_recorded_breach(name: str) -> None:
    turn, kind = HOSTILE[name]
    record, said, _ = play(A, [turn])
    assert record.stop_reason is StopReason.PROTOCOL
    assert record.protocol_error is not None
    assert (record.protocol_error.kind, record.protocol_error.message_index) == (kind, 2)
    assert (record.reward, record.calls, said) == (0.0, (), [])


def test_folders_of_the_project_are_no_files() -> None:
    episode = Episode(A, "t", [dict(m) for m in OPENING], Workspace({"a/b/solution.py": "x", "solution.py": "y"}))
    episode.start()
    episode.send(ModelTurn(call("read_file", "1", file_path="a/b/solution.py")))
    assert episode.messages[-1]["content"].endswith("stdout:\nx")
    episode.send(ModelTurn(call("read_file", "2", file_path="a")))
    assert episode._state.error is not None
    assert episode._state.error.kind is BreachKind.BAD_PATH


def test_a_nul_in_the_solution_is_only_a_solution() -> None:
    record, said, _ = play(A, [patch("1", "good \0"), read("2"), "FINAL: x"])
    assert record.candidates[0].source == "good \0\n"
    assert said[1].endswith("stdout:\ngood \0\n")


def test_every_message_stays_as_sampled() -> None:
    rules = b("forced_keep")
    turns = [patch("1", "good"), revise("OTHER", "2", "wrong", "good"), "  FINAL: done \n"]
    episode, script = Episode(rules, "t", [dict(m) for m in OPENING], Workspace()), iter(turns)
    action = episode.start()
    while action is not None:
        action = episode.send(judge(action.source) if isinstance(action, RunTest) else ModelTurn(next(script)))
    assert [m["content"] for m in episode.messages if m["role"] == "assistant"] == turns
    assert episode.workspace.solution == "good\n"


def test_the_candidate_is_verified_before_the_revising_patch_applies() -> None:
    _, _, tested = play(B, [patch("1", "wrong"), revise("PASS", "2", "good", "wrong"), ModelTurn("", overflow=True)])
    assert tested == ["wrong\n", "good\n", "good\n"]


def test_a_record_needs_a_finished_rollout() -> None:
    episode = Episode(A, "t", [dict(m) for m in OPENING], Workspace())
    episode.start()
    with pytest.raises(RuntimeError, match="not over"):
        episode.record()


def test_the_failed_step_and_the_published_label_reach_the_target() -> None:
    record, _, _ = play(B, [patch("1", "wrong"), keep("PASS", "2"), "FINAL: x"])
    assert (record.targets[0].failed_step, record.targets[0].published_label) == (2, Label.ASSERTION_FAILURE)
    assert record.targets[0].candidate_sha256 == record.candidates[0].sha256
    assert record.final_text == "x"


OPENINGS = [[OPENING[0], {"role": "user", "content": f"Write double(n), please. {n}"}] for n in range(24)]


def coin(opening: Sequence[dict[str, str]], turn: str, seed: int = 3) -> Decision | None:
    """What `random_gate` makes of a prediction turn."""
    rules = b(f"random_gate(rate=0.5,seed={seed})")
    episode = Episode(rules, "t", [dict(message) for message in opening], Workspace())
    episode.start()
    episode.send(ModelTurn(patch("1", "wrong")))
    episode.send(ModelTurn(turn))
    episode.send(judge("wrong"))  # the test of the candidate, shown or not
    return episode._state.targets[0].effective_decision


@pytest.mark.parametrize("differ", ["opening", "turn", "seed"])
def test_the_coin_depends_on_the_whole_conversation_and_on_the_seed(differ: str) -> None:
    tossed = []
    for n in range(24):
        opening = OPENINGS[n if differ == "opening" else 0]
        turn = keep("PASS", f"id-{n}" if differ == "turn" else "2")
        tossed.append(coin(opening, turn, seed=n if differ == "seed" else 3))
        assert coin(opening, turn, seed=n if differ == "seed" else 3) is tossed[-1]  # the same again
    assert {Decision.KEEP, Decision.REVISE} == set(tossed)  # all alike by chance: 1 in 2^23


@pytest.mark.parametrize(
    ("variant", "said", "detail", "verified"),
    [
        ("standard", FAIL, None, None),
        ("detailed_prediction", FAIL, None, "2"),
        ("detailed_prediction", f"{FAIL} 1", "1", "2"),
        ("detailed_prediction(level=value)", f"{FAIL} 2 [1]", "2 [1]", "2 [1, 2]"),
    ],
)
def test_a_target_holds_what_was_said_and_what_was_to_be_said(
    variant: str, said: str, detail: str | None, verified: str | None
) -> None:
    turns = [patch("1", "wrong"), revise(said, "2", "good", "wrong"), keep(PASS, "3"), "FINAL: done"]
    record, _, _ = play(b(variant), turns)
    first, second = record.targets
    assert (first.label, first.detail, first.verified_detail) == (Label.ASSERTION_FAILURE, detail, verified)
    assert (second.label, second.detail, second.verified_detail) == (Label.PASS, None, None)
    assert record.reward == 1.0


def test_a_detail_in_the_published_grammar_is_a_bad_label() -> None:
    record, _, _ = play(B, [patch("1", "wrong"), keep(f"{FAIL} 2", "2")])
    assert record.protocol_error is not None
    assert record.protocol_error.kind is BreachKind.BAD_LABEL
    assert (record.targets[0].label, record.targets[0].detail) == (None, None)


@pytest.mark.parametrize("rest", ["CALL rm {}", visible("1"), f"<DECISION>KEEP</DECISION>\n{visible('1')}"])
def test_a_detail_survives_a_breach_further_on(rest: str) -> None:
    turns = [patch("1", "wrong"), f"<PREDICTION>{FAIL} 2</PREDICTION>\n{rest}"]
    record, _, _ = play(b("detailed_prediction"), turns)
    assert record.stop_reason is StopReason.PROTOCOL
    target = record.targets[0]
    assert (target.label, target.detail, target.verified_detail) == (Label.ASSERTION_FAILURE, "2", "2")


def test_the_agent_is_told_no_detail() -> None:
    turns = [patch("1", "wrong"), keep(PASS, "2"), patch("3", "good", "wrong"), keep(PASS, "4"), "FINAL: done"]
    standard, detailed = (play(b(variant), turns) for variant in ("standard", "detailed_prediction(level=value)"))
    assert standard[1] == detailed[1]
    assert detailed[0].targets[0].verified_detail == "2 [1, 2]"
