"""What an episode is played by, what it asks of its driver, and what it remembers."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias

from glyph.protocol import Arm, Decision, Label, StopReason
from glyph.records import CallRecord, PredictionTarget, ProtocolError, TurnUsage, Verdict
from glyph.variants import STANDARD, Variant


@dataclass(frozen=True)
class Rules:
    """What an episode is played by. `max_context_tokens` counts prompt plus completion of a turn.

    Raises:
        ValueError: a limit below 1, or a variant that contradicts the arm or the budget.
    """

    arm: Arm
    variant: Variant = STANDARD
    budget: int = 8
    max_context_tokens: int = 4096

    def __post_init__(self) -> None:
        if self.budget < 1 or self.max_context_tokens < 1:
            raise ValueError(f"budget {self.budget} and max_context_tokens {self.max_context_tokens} must be positive")
        self.variant.check(self.arm, self.budget)


@dataclass(frozen=True)
class AskModel:
    """The driver samples the next assistant turn from `Episode.messages` and sends a `ModelTurn`."""


@dataclass(frozen=True)
class RunTest:
    """The driver runs the task's tests on `source` and sends the `Verdict`."""

    source: str


@dataclass(frozen=True)
class ModelTurn:
    """A sampled turn. `finish_reason` is the endpoint's; `overflow` says that it refused the prompt as too long."""

    text: str
    finish_reason: str = "stop"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    overflow: bool = False


Action: TypeAlias = AskModel | RunTest
Play: TypeAlias = Generator[Action, ModelTurn | Verdict, None]
Message: TypeAlias = dict[str, str]


@dataclass
class Candidate:
    call_id: str
    sha256: str
    source: str
    tested: bool = False
    shadow: bool = False


@dataclass(frozen=True)
class Choice:
    """What a prediction turn said, what was carried out of it, and whether a variant imposed another decision."""

    label: Label | None
    decision: Decision | None
    carried_out: Decision | None = None
    overridden: bool = False
    detail: str | None = None


@dataclass
class EpisodeState:
    spent: int = 0
    tests_run: int = 0
    shadow_tests: int = 0
    stop: StopReason | None = None
    pending: Candidate | None = None
    patch_owed: bool = False  # random_gate took the test away: the next turn must be one apply_patch call
    error: ProtocolError | None = None
    final_text: str | None = None
    final_verdict: Verdict | None = None
    used_ids: set[str] = field(default_factory=set)
    calls: list[CallRecord] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    targets: list[PredictionTarget] = field(default_factory=list)
    usage: list[TurnUsage] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by candidate digest
