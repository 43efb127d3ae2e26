"""A rollout as a person reads it: turns with their roles, patches as lines, verdicts and labels beside the turn.

In: a `Trace`. Out: plain text, safe to print: control characters of the model are shown, not sent to the terminal.
"""

from collections.abc import Iterator

from glyph.evaluation.predicates import calls_spent
from glyph.evaluation.traces import Message, Trace
from glyph.protocol import Call, Label, Prediction, Tool, parse_prediction_turn, parse_turn
from glyph.records import CallRecord, CandidateRecord, PredictionTarget, RolloutRecord, Verdict
from glyph.report.format import UNDEFINED, counted

NOTE = "    · "
DEMONSTRATION = "demonstration in the prompt, not the model"


def render_rollout(trace: Trace, full: bool = False) -> str:
    """The rollout, ending with the stop reason, what was spent and the reward.

    Demonstrations in the prompt are one line that counts their messages; `full` shows them, each one marked.
    """
    lines, prompt = [_heading(trace), ""], trace.demonstrations
    for index, message in enumerate(trace.messages):
        if index in prompt and not full:
            if index == prompt.start:
                lines += [f"── {DEMONSTRATION}: {counted(len(prompt), 'message')} (glyph show --full shows them)", ""]
            continue
        mark = f"· {DEMONSTRATION} " if index in prompt else ""
        lines += [f"── {index} {message.role} {mark}" + "─" * 20, *_message_lines(message)]
        if trace.record:
            lines += [NOTE + note for note in _notes(trace.record, index)]
        lines.append("")
    lines += _outcome(trace)
    text = printable("\n".join(lines))
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip() + "\n"


def printable(text: str) -> str:
    """The text with control characters and lone surrogates written as escapes; tabs and line ends stay."""
    return "".join(char if char in "\n\t" or char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def _heading(trace: Trace) -> str:
    parts = [f"task {trace.task_id or '?'}", f"arm {trace.arm or '?'}"]
    if trace.record:
        parts.append(f"variant {trace.record.variant}")
    if trace.split:
        parts.append(trace.split)
    if trace.model:
        parts.append(f"model {trace.model}")
    return " · ".join([*parts, f"rollout {trace.id}"])


def _message_lines(message: Message) -> list[str]:
    """The text of a turn; in a turn that calls apply_patch the call becomes lines of code."""
    if message.role != "assistant":
        return message.content.splitlines()
    turn = parse_turn(message.content)
    head: list[str] = []
    if not isinstance(turn, Call):
        for gated in (True, False):
            prediction = parse_prediction_turn(message.content, gated)
            if isinstance(prediction, Prediction):
                turn, head = prediction.call, message.content.strip().split("\n")[:-1]
                break
    if isinstance(turn, Call) and turn.tool is Tool.APPLY_PATCH:
        return [*head, *_patch_lines(turn)]
    return message.content.splitlines()


def _patch_lines(call: Call) -> Iterator[str]:
    yield f"CALL {call.tool.value} {call.id} {call.arguments['file_path']}"
    yield from (f"  - {line}" for line in call.arguments["find"].splitlines())
    yield from (f"  + {line}" for line in call.arguments["replace"].splitlines())


def _notes(record: RolloutRecord, index: int) -> Iterator[str]:
    """What the environment did with the turn at `index`: the prediction, the call, the candidate it made."""
    yield from (_target_note(target) for target in record.targets if target.message_index == index)
    for call in record.calls:
        if call.message_index == index:
            yield _call_note(call)
            if call.tool is Tool.APPLY_PATCH and call.success:
                yield from (
                    _candidate_note(number, candidate)
                    for number, candidate in enumerate(record.candidates, 1)
                    if candidate.call_id == call.id
                )
    if record.protocol_error and record.protocol_error.message_index == index:
        yield f"protocol error {record.protocol_error.kind.value}: {record.protocol_error.detail}"


def _target_note(target: PredictionTarget) -> str:
    said = target.label.value if target.label else "no label"
    mark = "right" if target.label is target.verified_label else "WRONG"
    decision = target.decision.value if target.decision else "no decision"
    note = f"predicted {said}, verified {target.verified_label.value}: {mark}; {decision}"
    if target.overridden:
        carried_out = target.effective_decision.value if target.effective_decision else "nothing"
        note += f", overridden: {carried_out} carried out"
    return note + ("; shadow test" if target.shadow else "")


def _call_note(call: CallRecord) -> str:
    outcome = call.label.value if call.label else "ok" if call.success else "failed"
    extras = (", timed out" if call.timed_out and call.label is not Label.TIMEOUT else "") + (
        ", overridden" if call.overridden else ""
    )
    return f"call {call.id} {call.tool.value}: {outcome}, cost {call.cost}{extras}"


def _candidate_note(number: int, candidate: CandidateRecord) -> str:
    how = "tested" if candidate.tested else "shadow-tested" if candidate.shadow else "not shown"
    return f"candidate {number} ({candidate.sha256[:8]}): {_verdict(candidate.verdict)}, {how}"


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return UNDEFINED
    cause = verdict.exception_type or verdict.reason
    step = f" at step {verdict.failed_step}" if verdict.failed_step is not None else ""
    return verdict.label.value + (f" ({cause}{step})" if cause else step)


def _outcome(trace: Trace) -> list[str]:
    if trace.error is not None:
        return [f"error (not scored): {trace.error}"]
    if trace.record is None:
        return ["no record"]
    record = trace.record
    return [
        f"stop {record.stop_reason.value} · final check {_verdict(record.final_verdict)} · "
        f"{calls_spent(record)} of {record.budget} spent in {counted(len(record.calls), 'call')} · "
        f"{counted(record.shadow_tests, 'shadow test')} · reward {record.reward:g}"
    ]
