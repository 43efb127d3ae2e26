"""One test on one zygote: ask the candidate's process question by question, compare here, return the verdict.

Owns the wall clock of a test. What the other side says is untrusted: it becomes a value, an exception report, or a
hang-up; nothing that it says is taken for a truth value.
"""

import base64
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from glyph.executor import values
from glyph.executor.assertions import Evaluator, Step, TestCodeError, TestFailure
from glyph.executor.rules import classify_ending, classify_exception, published_rule
from glyph.executor.sandbox import Conversation, ExecutorError, Limits, Zygote
from glyph.executor.values import OPAQUE, Encoded
from glyph.protocol import MAX_VALUE_CHARACTERS, Label
from glyph.records import Verdict

AFTERWORD_SECONDS = 0.5
PHASES, ORIGINS = ("compile", "load", "call"), ("candidate", "test")

KnownValues = dict[int, dict[str, Encoded]]
"""By step and source: the values of the leaves of the tests that need no candidate."""


class _HungUp(Exception):
    """The candidate's process closed its end, most often by ending."""


class _Malformed(Exception):
    """The candidate's process said something that is no answer."""


class _Raised(Exception):
    """The candidate's process reported an exception; the report is untrusted but typed."""

    def __init__(self, report: dict[str, Any], traceback: str) -> None:
        self.report, self.traceback = report, traceback


class _Test:
    """A test in progress: the conversation, its deadline, and the step that it has reached."""

    def __init__(self, conversation: Conversation, deadline: float) -> None:
        self._conversation, self._deadline = conversation, deadline
        self.step: int | None = None

    def ask(self, phase: str, code: str) -> Encoded:
        """Put one question: load (source in base64), exec or eval.

        Raises:
            _Raised, _HungUp, _Malformed, TimeoutError: what came instead of a value.
        """
        try:
            self._conversation.write({"phase": phase, "code": code}, self._deadline)
            answer = self._conversation.read(self._deadline)
        except EOFError as error:
            raise _HungUp from error
        except ValueError as error:
            raise _Malformed from error
        if "raised" in answer:
            raise _Raised(_checked_report(answer), self._afterword())
        value = answer.get("value")
        if not isinstance(value, list) or not values.well_formed(value):
            raise _Malformed
        return value

    def load(self, source: bytes) -> None:
        self.ask("load", base64.b64encode(source).decode())

    def _afterword(self) -> str:
        """The formatted traceback; formatting runs the candidate's code, so that it may never come."""
        try:
            text = self._conversation.read(time.monotonic() + AFTERWORD_SECONDS).get("traceback")
        except (EOFError, TimeoutError, ValueError):
            text = None
        return text if isinstance(text, str) else "Traceback"


def _checked_report(answer: dict[str, Any]) -> dict[str, Any]:
    kinds = {"raised": str, "phase": str, "origin": str, "detail": str, "assertion": bool, "exit": bool}
    if any(not isinstance(answer.get(name), kind) for name, kind in kinds.items()):
        raise _Malformed
    if answer["phase"] not in PHASES or answer["origin"] not in ORIGINS:
        raise _Malformed
    clipped = {name: answer[name][:300].encode("utf-8", "replace").decode() for name in ("raised", "detail")}
    return {**answer, **clipped}


def run_test(zygote: Zygote, source: bytes, steps: tuple[Step, ...], known: KnownValues, limits: Limits) -> Verdict:
    """Run one candidate against the steps of its tests.

    Raises:
        ExecutorError: the zygote failed; nothing is known about the candidate.
    """
    started, hung_up = time.monotonic(), False
    conversation = zygote.start(limits)
    test = _Test(conversation, started + limits.wall_seconds)
    try:
        verdict = _judge(test, source, steps, known)
    except _HungUp:
        verdict, hung_up = Verdict(Label.OTHER, Label.OTHER, reason="hung up", failed_step=test.step), True
    except _Malformed:
        verdict = Verdict(Label.OTHER, Label.OTHER, reason="malformed answer", failed_step=test.step)
    except TimeoutError:
        verdict = Verdict(Label.TIMEOUT, Label.TIMEOUT, reason="wall limit", failed_step=test.step)
    finally:
        conversation.close()
    ending = zygote.end(hung_up)
    return replace(
        classify_ending(verdict, ending, hung_up, limits.cpu_seconds),
        wall_seconds=round(time.monotonic() - started, 4),
        cpu_seconds=round(ending["cpu_seconds"], 4),
    )


def _judge(test: _Test, source: bytes, steps: tuple[Step, ...], known: KnownValues) -> Verdict:
    """Ask one question at a time; the first failing step decides."""
    assertions = 0
    try:
        test.load(source)
        for step in steps:
            test.step = step.index
            if step.condition is None:
                test.ask("exec", step.source)
                continue
            assertions += 1
            evaluator = Evaluator(_asker(test), known.get(step.index, {}))
            if not evaluator.holds(step.condition):
                return _failure(step, assertions, evaluator.given)
    except _Raised as raised:
        return _exception(raised, test.step)
    except TestFailure as failure:
        return Verdict(
            Label.RUNTIME_ERROR,
            Label.RUNTIME_ERROR,
            exception_type=failure.exception_type,
            phase="call",
            origin="test",
            failed_step=test.step,
            detail=str(failure)[:200],
        )
    return Verdict(Label.PASS, Label.PASS)


def _asker(test: _Test) -> Callable[[str], Encoded]:
    return lambda code: test.ask("eval", code)


def _failure(step: Step, number: int, given: list[Encoded]) -> Verdict:
    """`given` are the values that the assertion asked of the candidate: of several, none says why it failed."""
    return Verdict(
        Label.ASSERTION_FAILURE,
        Label.ASSERTION_FAILURE,
        exception_type="AssertionError",
        phase="call",
        origin="test",
        failed_step=step.index,
        detail=f"does not hold: {step.source[:200]}",
        failed_assertion=number,
        observed=values.literal(given[0], MAX_VALUE_CHARACTERS) if len(given) == 1 else None,
    )


def _exception(raised: _Raised, step: int | None) -> Verdict:
    report = raised.report
    label, reason = classify_exception(report)
    return Verdict(
        label,
        published_rule(raised.traceback),
        exception_type=report["raised"],
        phase=report["phase"],
        origin=report["origin"],
        reason=reason,
        failed_step=step,
        detail=report["detail"],
    )


def find_known_values(zygote: Zygote, steps: tuple[Step, ...], imports: bytes, limits: Limits) -> KnownValues:
    """Walk through the tests without a candidate; what can be evaluated needs none.

    From the first statement that fails on, names may have other values with a candidate: nothing after it is known.

    Raises:
        ExecutorError: the process without a candidate failed.
        TestCodeError: a value that the tests compare with has no canonical encoding.
    """
    conversation = zygote.start(limits)
    test = _Test(conversation, time.monotonic() + limits.wall_seconds)
    known: KnownValues = {}
    try:
        test.load(imports)
        for step in steps:
            if step.condition is None:
                test.ask("exec", step.source)
            elif len(step.leaves()) > 1:
                known[step.index] = _known_leaves(test, step)
    except _Raised:
        pass
    except (_HungUp, _Malformed, TimeoutError) as error:
        raise ExecutorError("the tests' own values could not be computed") from error
    finally:
        conversation.close()
    zygote.end(hung_up=False)
    return known


def _known_leaves(test: _Test, step: Step) -> dict[str, Encoded]:
    known = {}
    for leaf in step.leaves():
        try:
            value = test.ask("eval", leaf)
        except _Raised:
            continue  # it needs the candidate
        if value == OPAQUE:
            raise TestCodeError(f"statement {step.index}: the value of {leaf[:100]} cannot be compared: {step.source}")
        known[leaf] = value
    return known
