"""The record of a rollout: written by the agent loop, attached to the trace by the taskset, read by everyone else.

Owns the typed shape of what happened and its JSON form, and the reward, which is a function of the record.
A record holds everything about a rollout but its messages: those stay in the trace that carries it.
Stdlib only, because the sandbox writes it. Reading a trace file is `evaluation/traces.py`.
"""

from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from glyph.protocol import BreachKind, Decision, Label, StopReason, Tool

SCHEMA_VERSION = 1
TRACE_KEY = "glyph"
"""Where the `info` of a Verifiers trace holds the record."""


@dataclass(frozen=True)
class Verdict:
    """What a test of a candidate established. `label` is ours, `published_label` the study's stderr rule.

    `phase` is compile, load or call; `origin` candidate or test; both None for PASS. `failed_step` is the
    0-based index of the test statement that failed, None when none was reached. `detail` is for people.
    Of an assertion that did not hold, `failed_assertion` is its 1-based number among the assertions (setup lines do
    not count), and `observed` the literal of the one value that it asked of the candidate, where that is short and
    plain.
    """

    label: Label
    published_label: Label
    exception_type: str | None = None
    phase: str | None = None
    origin: str | None = None
    reason: str | None = None
    failed_step: int | None = None
    detail: str = ""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    failed_assertion: int | None = None
    observed: str | None = None


@dataclass(frozen=True)
class CallRecord:
    """One visible tool call. `cost` is what it took from the budget; `label` is set for a test that ran.

    `message_index` is the assistant message that asked for it; `tool` is what ran, which differs from what the
    message says when a variant overrode the decision (`overridden`).
    """

    id: str
    tool: Tool
    message_index: int
    success: bool
    cost: int = 1
    label: Label | None = None
    timed_out: bool = False
    overridden: bool = False


@dataclass(frozen=True)
class CandidateRecord:
    """One state of the solution that a patch made, in order. Every candidate is verified, shown or not.

    `tested` says whether a visible test ran on it; `shadow` whether it was verified without being shown.
    """

    call_id: str
    sha256: str
    source: str
    verdict: Verdict | None = None
    tested: bool = False
    shadow: bool = False


@dataclass(frozen=True)
class PredictionTarget:
    """One prediction turn of Arm B and the outcome that the environment verified for it.

    `message_index` points into the conversation: it is the depth of the turn's node in every branch of a trace that
    forked, of which one holds the turn as sampled. `label` and `decision` are as sampled, None where the turn did not
    give one. `effective_decision` is what was carried out, None when nothing was. `overridden` says that a variant
    imposed another decision than the sampled one, carried out or not: the sampled decision and call earn no credit.
    `shadow` says that the turn ran no visible test, so that its outcome was not shown. `detail` is what was said
    besides the label and `verified_detail` what was to be said, both None in the published grammar.
    """

    call_id: str
    message_index: int
    candidate_sha256: str
    verified_label: Label
    published_label: Label
    label: Label | None = None
    decision: Decision | None = None
    effective_decision: Decision | None = None
    overridden: bool = False
    shadow: bool = False
    failed_step: int | None = None
    detail: str | None = None
    verified_detail: str | None = None


@dataclass(frozen=True)
class TurnUsage:
    """Tokens of one model turn as the endpoint reported them; None where it did not."""

    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True)
class ProtocolError:
    kind: BreachKind
    detail: str
    message_index: int


@dataclass(frozen=True)
class RolloutRecord:
    """Everything that happened in one rollout, except its messages."""

    task_id: str
    arm: str
    variant: str
    stop_reason: StopReason
    calls: tuple[CallRecord, ...] = ()
    candidates: tuple[CandidateRecord, ...] = ()
    targets: tuple[PredictionTarget, ...] = ()
    usage: tuple[TurnUsage, ...] = ()
    protocol_error: ProtocolError | None = None
    final_verdict: Verdict | None = None
    final_text: str | None = None
    budget: int = 8
    shadow_tests: int = 0
    wall_seconds: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def reward(self) -> float:
        """1.0 if a visible test passed, the final check passes, and the rollout ended with FINAL; else 0.0."""
        solved = (
            self.stop_reason is StopReason.FINAL
            and self.protocol_error is None
            and any(call.label is Label.PASS for call in self.calls)
            and self.final_verdict is not None
            and self.final_verdict.label is Label.PASS
        )
        return float(solved)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self, dict_factory=_plain)


def record_from_dict(data: dict[str, Any]) -> RolloutRecord:
    """Rebuild a record from its JSON form.

    Raises:
        ValueError: a field is missing, unknown or of the wrong type, or the schema version is another one.
    """
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"rollout record: schema_version {version!r}, this code reads {SCHEMA_VERSION}")
    return _build(RolloutRecord, data, "record")


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in items}


def _build(kind: Any, value: Any, where: str) -> Any:
    """Convert a JSON value to the annotated type `kind`, naming the field that does not fit."""
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        return _build(next(part for part in get_args(kind) if part is not NoneType), value, where)
    if origin is tuple:
        _require(isinstance(value, list | tuple), where, "a list", value)
        return tuple(_build(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        _require(isinstance(value, dict), where, "an object", value)
        return {key: _build(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if issubclass(kind, Enum):
        _require(value in [member.value for member in kind], where, f"one of {[m.value for m in kind]}", value)
        return kind(value)
    if hasattr(kind, "__dataclass_fields__"):
        return _build_dataclass(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        _require(abs(value) < 2**63, where, "a number of sane size", value)
        return float(value)
    _require(isinstance(value, kind) and (kind is not int or not isinstance(value, bool)), where, kind.__name__, value)
    return value


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), where, "an object", value)
    hints = get_type_hints(kind)
    unknown = sorted(set(value) - set(hints))
    _require(not unknown, where, f"only known fields, not {unknown}", unknown)
    built = {name: _build(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    try:
        return kind(**built)
    except TypeError:
        required = [f.name for f in fields(kind) if f.name not in built]
        raise ValueError(f"{where}: missing {required}") from None


def _require(condition: bool, where: str, expected: str, got: Any) -> None:
    if not condition:
        raise ValueError(f"{where}: expected {expected}, got {str(got)[:80]!r}")
