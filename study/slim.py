"""Evaluation traces without the texts of their tasks, and back again from the prepared data.

What a published trace must not hold is MBPP's text: the prompt and the assertions. They stand in the prepared data
folder, so a trace can do without: `slim` leaves them out and says so, `rejoin` puts them back and checks that they are
the very ones. A slim file is read by the same reader; only what needs the test code (hard-coded solutions) is
undefined in it. What the model wrote stays as it is.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from glyph.evaluation.traces import Message, Trace
from glyph.protocol import Arm
from glyph.records import CandidateRecord, RolloutRecord, Verdict
from glyph.tasks.validation import read_rows

LEFT_OUT = "left out: sha256 "
DOES_NOT_HOLD = "does not hold: "
PLACE = re.compile(r"line \d+ of the tests|an assertion")
DETAIL_LENGTH = 200
"""The executor quotes so many characters of an assertion that does not hold."""


@dataclass(frozen=True)
class TaskText:
    """What the prepared data say of a task: the prompt of the arm, and the test code."""

    prompt: str
    test_code: str


class RejoinError(ValueError):
    """The data are not those that the traces were made with."""


def task_texts(data: Path, arm: str, split: str) -> dict[str, TaskText]:
    """The texts of a split by task id. Raises: ValueError: no such data."""
    rows = read_rows(data, f"arm_{Arm(arm).value}_{split}.jsonl", ("system", "prompt"))
    return {row["task_id"]: TaskText(row["prompt"], row["test_code"]) for row in rows}


def slim(trace: Trace, texts: Mapping[str, TaskText]) -> Trace:
    """The trace without its task's texts.

    Raises:
        RejoinError: what it holds is not what the data say, so that it could not be put back.
    """
    text = _text_of(trace, texts)
    messages = tuple(_without(message, text, trace.id) for message in trace.messages)
    if trace.test_code is not None and trace.test_code != text.test_code:
        raise RejoinError(f"trace {trace.id}: its test code is not that of the data")
    record = _each_verdict(trace.record, lambda verdict: _quote_nothing(verdict, text)) if trace.record else None
    return replace(trace, messages=messages, record=record, test_code=None)


def rejoin(trace: Trace, texts: Mapping[str, TaskText]) -> Trace:
    """The trace as it was before `slim`, but for quotes of an assertion in no form that the data have.

    Raises:
        RejoinError: the data are of other tasks.
    """
    text = _text_of(trace, texts)
    messages = tuple(_with(message, text, trace.id) for message in trace.messages)
    record = _each_verdict(trace.record, lambda verdict: _quote_again(verdict, text)) if trace.record else None
    return replace(trace, messages=messages, record=record, test_code=text.test_code)


def _text_of(trace: Trace, texts: Mapping[str, TaskText]) -> TaskText:
    if trace.task_id is None or trace.task_id not in texts:
        raise RejoinError(f"trace {trace.id}: the data have no task {trace.task_id!r}")
    return texts[trace.task_id]


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _without(message: Message, text: TaskText, where: str) -> Message:
    """Only the environment's first turn quotes the task; another `user` turn is a fault."""
    if message.role != "user" or message.content.startswith(LEFT_OUT):
        return message
    if message.content != text.prompt:
        raise RejoinError(f"trace {where}: its prompt is not that of the data: {message.content[:60]!r} …")
    return replace(message, content=LEFT_OUT + _digest(message.content))


def _with(message: Message, text: TaskText, where: str) -> Message:
    if message.role != "user" or not message.content.startswith(LEFT_OUT):
        return message
    expected, got = message.content.removeprefix(LEFT_OUT), _digest(text.prompt)
    if expected != got:
        raise RejoinError(f"trace {where}: the prompt's sha256 must be {expected}, that of the data is {got}")
    return replace(message, content=text.prompt)


def _assertions(text: TaskText) -> list[str]:
    return [line.strip()[:DETAIL_LENGTH] for line in text.test_code.splitlines()]


def _quote_nothing(verdict: Verdict, text: TaskText) -> Verdict:
    if not verdict.detail.startswith(DOES_NOT_HOLD):
        return verdict
    quoted, lines = verdict.detail.removeprefix(DOES_NOT_HOLD), _assertions(text)
    if PLACE.fullmatch(quoted):
        return verdict  # slim already
    place = f"line {lines.index(quoted) + 1} of the tests" if quoted in lines else "an assertion"
    return replace(verdict, detail=DOES_NOT_HOLD + place)


def _quote_again(verdict: Verdict, text: TaskText) -> Verdict:
    lines = _assertions(text)
    for number, line in enumerate(lines, 1):
        if verdict.detail == f"{DOES_NOT_HOLD}line {number} of the tests":
            return replace(verdict, detail=DOES_NOT_HOLD + line)
    return verdict


def _each_verdict(record: RolloutRecord, change: Callable[[Verdict], Verdict]) -> RolloutRecord:
    def of(candidate: CandidateRecord) -> CandidateRecord:
        return replace(candidate, verdict=candidate.verdict and change(candidate.verdict))

    final = record.final_verdict and change(record.final_verdict)
    return replace(record, candidates=tuple(map(of, record.candidates)), final_verdict=final)
