"""The wire protocol: the one grammar of a turn, for parsing and for rendering.

Owns the outcome labels, the tools and their argument names, the stop reasons, and the text form of every
turn. Text goes in and typed turns come out, or the other way round; nothing here keeps state or runs code.
Whatever a model says parses to a value: a breach of the grammar is a `Breach`, never an exception.

LF alone separates lines. A CR in a turn is a breach; other Unicode separators are characters like any other (they
may stand in a JSON string or in a final sentence).
"""

import json
import re
from dataclasses import dataclass
from enum import Enum


class Label(str, Enum):
    """The outcome of a test, as predicted by Arm B and as verified by the executor."""

    PASS = "PASS"
    ASSERTION_FAILURE = "ASSERTION_FAILURE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    SYNTAX_ERROR = "SYNTAX_ERROR"
    TIMEOUT = "TIMEOUT"
    OTHER = "OTHER"


class Decision(str, Enum):
    """What Arm B does with a pending candidate: run the visible test, or replace the candidate."""

    KEEP = "KEEP"
    REVISE = "REVISE"


class Detail(str, Enum):
    """What a prediction says besides ASSERTION_FAILURE in a grammar that asks for more than the outcome."""

    INDEX = "index"  # the 1-based number of the first assertion that does not hold
    VALUE = "value"  # that, and the value which the candidate gave there, where it is short


class Arm(str, Enum):
    """The two agents. Arm A tests and reacts; Arm B predicts the outcome first."""

    REACTIVE = "a"
    PREDICTIVE = "b"


class Tool(str, Enum):
    READ_FILE = "read_file"
    APPLY_PATCH = "apply_patch"
    PYTHON_TEST = "python_test"


class StopReason(str, Enum):
    """Why a rollout ended. Only `FINAL` can earn a reward."""

    FINAL = "final"
    BUDGET = "budget"  # the turn asked for a call that the budget could not pay
    LENGTH = "length"  # the completion was cut at its token limit
    CONTEXT = "context"  # prompt plus completion reached the context limit
    PROTOCOL = "protocol_error"

    @property
    def cut(self) -> bool:
        """Whether a limit of tokens ended the rollout in the middle: such a rollout trains nothing."""
        return self in (StopReason.LENGTH, StopReason.CONTEXT)


class BreachKind(str, Enum):
    """How a turn broke the protocol. A breach ends the rollout with reward 0."""

    NOT_A_TURN = "not_a_turn"
    BAD_JSON = "bad_json"
    BAD_ARGUMENTS = "bad_arguments"
    UNKNOWN_TOOL = "unknown_tool"
    DUPLICATE_ID = "duplicate_id"
    BAD_PATH = "bad_path"
    BAD_LABEL = "bad_label"
    BAD_DECISION = "bad_decision"
    WRONG_TOOL = "wrong_tool"
    WRONG_TURN = "wrong_turn"
    NOT_TEXT = "not_text"
    TOO_LONG = "too_long"


TOOL_ARGUMENTS = {
    Tool.READ_FILE: ("file_path",),
    Tool.APPLY_PATCH: ("file_path", "find", "replace"),
    Tool.PYTHON_TEST: ("project_path",),
}
MAX_TURN_CHARACTERS = 1_000_000
MAX_ID_CHARACTERS = 64
MAX_VALUE_CHARACTERS = 60

TEST_LINES = {
    Label.PASS: "tests passed",
    Label.ASSERTION_FAILURE: "tests failed: an assertion does not hold",
    Label.RUNTIME_ERROR: "tests failed: the code raised an exception",
    Label.SYNTAX_ERROR: "tests failed: the code does not compile",
    Label.TIMEOUT: "tests failed: time limit reached",
    Label.OTHER: "tests failed: the process ended abnormally",
}
"""The only thing a test says, one fixed line an outcome: no traceback, no expected value."""


@dataclass(frozen=True)
class Call:
    tool: Tool
    id: str
    arguments: dict[str, str]


@dataclass(frozen=True)
class Final:
    text: str


@dataclass(frozen=True)
class Prediction:
    """Arm B's turn after a successful patch. `decision` is None in the ungated grammar, `detail` where none is said."""

    label: Label
    decision: Decision | None
    call: Call
    detail: str | None = None


@dataclass(frozen=True)
class Breach:
    """A turn that broke the protocol. The last three are what could still be read of a prediction turn."""

    kind: BreachKind
    detail: str
    label: Label | None = None
    decision: Decision | None = None
    label_detail: str | None = None


_TOOL_NAMES = {tool.value for tool in Tool}
_CALL = re.compile(r"CALL ([^\s{]+) (\{.*\})", re.DOTALL)
_PREDICTION = re.compile(r"<PREDICTION>(.*)</PREDICTION>")
_DECISION = re.compile(r"<DECISION>(.*)</DECISION>")
_DETAILS = {
    Detail.INDEX: re.compile(r"[1-9]\d{0,3}", re.ASCII),
    Detail.VALUE: re.compile(rf"[1-9]\d{{0,3}}(?: (?! ).{{1,{MAX_VALUE_CHARACTERS}}}(?<! ))?", re.ASCII),
}


def parse_turn(text: str) -> Call | Final | Breach:
    """Parse a turn that is one CALL or one FINAL. Whitespace around the turn is ignored."""
    text, breach = _plain_text(text)
    if breach:
        return breach
    if text.startswith("FINAL:"):
        if not _is_one_line(text):
            return Breach(BreachKind.NOT_A_TURN, "FINAL must be a single line")
        return Final(text[len("FINAL:") :].strip())
    return _parse_call(text)


def parse_prediction_turn(text: str, gated: bool = True, level: Detail | None = None) -> Prediction | Breach:
    """Parse Arm B's turn while a candidate is pending: PREDICTION, DECISION (if `gated`), CALL, a line each.

    The decision binds the tool: KEEP and the ungated grammar call python_test, REVISE calls apply_patch. `level` is
    the most that the prediction may say besides ASSERTION_FAILURE.
    """
    text, breach = _plain_text(text)
    if breach:
        return breach
    lines = text.split("\n")
    label, label_detail = read_prediction(lines[0], level) or (None, None)
    decision = read_decision(lines[1]) if gated and len(lines) > 1 else None
    if label is None:
        fault = f"expected a <PREDICTION> line, got {_clip(lines[0])}"
        return Breach(_label_fault(lines[0]), fault, None, decision)
    if gated and decision is None:
        got = _clip(lines[1]) if len(lines) > 1 else "the end of the turn"
        kind = BreachKind.BAD_DECISION if len(lines) > 1 and "DECISION" in lines[1] else BreachKind.NOT_A_TURN
        return Breach(kind, f"expected a <DECISION> line, got {got}", label, None, label_detail)
    call = _parse_call("\n".join(lines[2 if gated else 1 :]))
    if isinstance(call, Breach):
        return Breach(call.kind, call.detail, label, decision, label_detail)
    wanted = Tool.APPLY_PATCH if decision is Decision.REVISE else Tool.PYTHON_TEST
    if call.tool is not wanted:
        said = decision.value if decision else "a prediction"
        fault = f"{said} must call {wanted.value}, got {call.tool.value}"
        return Breach(BreachKind.WRONG_TOOL, fault, label, decision, label_detail)
    return Prediction(label, decision, call, label_detail)


def read_prediction(line: str, level: Detail | None = None) -> tuple[Label, str | None] | None:
    """The label of a PREDICTION line and its detail; None when the line is anything else (lower case included)."""
    match = _PREDICTION.fullmatch(line)
    said, space, detail = match[1].partition(" ") if match else ("", "", "")
    if said not in Label.__members__:
        return None
    label = Label(said)
    if not space:
        return label, None
    readable = level and label is Label.ASSERTION_FAILURE and detail.isprintable() and _DETAILS[level].fullmatch(detail)
    return (label, detail) if readable else None


def read_label(line: str) -> Label | None:
    """The label of a PREDICTION line that says nothing else; None for any other line."""
    said = read_prediction(line)
    return said[0] if said else None


def read_decision(line: str) -> Decision | None:
    match = _DECISION.fullmatch(line)
    return Decision(match[1]) if match and match[1] in Decision.__members__ else None


@dataclass(frozen=True)
class PredictionSpans:
    """Where the parts of a prediction turn stand: [start, end) in characters; None for a part that is not there.

    `label` is the whole content of the tag, with the detail where there is one.
    """

    label: tuple[int, int]
    decision: tuple[int, int] | None
    call: tuple[int, int] | None


def find_prediction(text: str) -> PredictionSpans | None:
    """Find label, decision line and call of a turn that begins with a valid PREDICTION line; None for any other.

    The line may be of any grammar, the most detailed included.
    """
    start = len(text) - len(text.lstrip())
    first, _, _ = text[start:].partition("\n")
    if read_prediction(first.rstrip(), Detail.VALUE) is None:
        return None
    label = (start + len("<PREDICTION>"), start + first.rindex("</PREDICTION>"))
    at = start + len(first) + 1
    second, _, _ = text[at:].partition("\n")
    decision = (at, at + len(second.rstrip())) if read_decision(second.rstrip()) else None
    at = at + len(second) + 1 if decision else at
    end = len(text.rstrip())
    return PredictionSpans(label, decision, (at, end) if at < end else None)


def render_call(call: Call) -> str:
    return f"CALL {call.tool.value} {json.dumps({'id': call.id, **call.arguments}, ensure_ascii=False)}"


def render_final(text: str) -> str:
    return f"FINAL: {text}"


def render_prediction(prediction: Prediction) -> str:
    lines = [f"<PREDICTION>{render_label(prediction.label, prediction.detail)}</PREDICTION>"]
    if prediction.decision:
        lines.append(f"<DECISION>{prediction.decision.value}</DECISION>")
    return "\n".join([*lines, render_call(prediction.call)])


def render_label(label: Label, detail: str | None) -> str:
    """What stands between the tags of a PREDICTION line."""
    return label.value if detail is None else f"{label.value} {detail}"


def render_detail(level: Detail | None, number: int | None, value: str | None) -> str | None:
    """The detail of a failed assertion: its number, and at the level of values what it gave, where that is known."""
    if level is None or number is None:
        return None
    return f"{number} {value}" if level is Detail.VALUE and value is not None else str(number)


def render_result(call_id: str, success: bool, stdout: str = "", stderr: str = "", timed_out: bool = False) -> str:
    """The tool turn that answers a call."""
    lines = [f"RESULT {call_id}:", f"status: {'success' if success else 'failed'}"]
    if timed_out:
        lines.append("timed_out: true")
    if stdout:
        lines += ["stdout:", stdout]
    if stderr:
        lines += ["stderr:", stderr]
    return "\n".join(lines)


def render_test_result(call_id: str, label: Label) -> str:
    """The tool turn that answers python_test: a fixed line for each outcome, nothing about the cause."""
    line = TEST_LINES[label]
    if label is Label.PASS:
        return render_result(call_id, True, stdout=line)
    return render_result(call_id, False, stderr=line, timed_out=label is Label.TIMEOUT)


def _plain_text(text: str) -> tuple[str, Breach | None]:
    """Strip the turn; a Breach when it cannot be stored or sent back as UTF-8, or is absurdly long."""
    if len(text) > MAX_TURN_CHARACTERS:
        return "", Breach(BreachKind.TOO_LONG, f"a turn of {len(text)} characters, at most {MAX_TURN_CHARACTERS}")
    if not is_text(text):
        return "", Breach(BreachKind.NOT_TEXT, "the turn holds a lone surrogate")
    return text.strip(), None


def is_text(text: str) -> bool:
    """Whether a string can be written as UTF-8 (JSON escapes can smuggle in lone surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_call(text: str) -> Call | Breach:
    match = _CALL.fullmatch(text)
    if not match or not _is_one_line(text):
        return Breach(BreachKind.NOT_A_TURN, f"expected one line 'CALL tool {{json}}' or 'FINAL: …', got {_clip(text)}")
    name, body = match[1], match[2]
    if name not in _TOOL_NAMES:
        return Breach(BreachKind.UNKNOWN_TOOL, f"no tool {_clip(name)}")
    try:
        arguments = json.loads(body, object_pairs_hook=_object_without_duplicates)
    except (ValueError, RecursionError) as error:
        return Breach(BreachKind.BAD_JSON, f"the arguments are no JSON object: {_clip(str(error))}")
    return _check_call(Tool(name), arguments)


def _check_call(tool: Tool, arguments: dict) -> Call | Breach:
    wanted = {"id", *TOOL_ARGUMENTS[tool]}
    if set(arguments) != wanted:
        got = _clip(", ".join(sorted(map(str, arguments))))
        return Breach(BreachKind.BAD_ARGUMENTS, f"{tool.value} takes {', '.join(sorted(wanted))}; got {got}")
    for name, value in arguments.items():
        if not isinstance(value, str):
            return Breach(BreachKind.BAD_ARGUMENTS, f"{name} must be a string, got {type(value).__name__}")
        if not is_text(value):
            return Breach(BreachKind.NOT_TEXT, f"{name} holds a lone surrogate")
    call_id = arguments.pop("id")
    if not call_id or len(call_id) > MAX_ID_CHARACTERS or not call_id.isprintable():
        return Breach(BreachKind.BAD_ARGUMENTS, f"id must be 1 to {MAX_ID_CHARACTERS} printable characters")
    return Call(tool, call_id, arguments)


def _is_one_line(text: str) -> bool:
    return "\n" not in text and "\r" not in text


def _object_without_duplicates(pairs: list) -> dict:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _label_fault(line: str) -> BreachKind:
    return BreachKind.BAD_LABEL if "PREDICTION" in line.upper() else BreachKind.NOT_A_TURN


def _clip(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
