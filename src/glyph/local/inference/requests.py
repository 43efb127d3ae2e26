"""What goes into an engine and comes out of it, and how it fails: the types that engines and clients share."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from glyph.local.inference.sampling import SamplingParams

FinishReason = Literal["stop", "length"]


class PromptTooLongError(ValueError):
    """The prompt leaves no room for a completion in the context."""


class QueueFullError(RuntimeError):
    """As many requests wait as the engine allows; try again later."""


class GenerationError(RuntimeError):
    """The engine could not finish this request: it was closed, ran out of memory, or got logits that are NaN."""


@dataclass(frozen=True)
class GenerationRequest:
    """`session` names a conversation that will go on: its keys and values are kept for the next turn."""

    token_ids: Sequence[int]
    sampling: SamplingParams
    session: str | None = None


@dataclass(frozen=True)
class Completion:
    """What was sampled: ids with the stop token, if one was drawn, and one log-prob each.

    `cached_tokens` counts the prompt tokens whose keys and values were taken over.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    cached_tokens: int = 0


class TokenGenerator(Protocol):
    """What a client needs of an engine; a scripted policy may stand in."""

    async def generate(
        self, token_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion: ...


class SteppedGenerator(Protocol):
    """What a collector and a trainer need of an engine that they drive themselves, step by step, in one thread.

    On a CPU the same calls give the same bits, whatever ran before the last `updating()`.
    """

    def submit(self, request: GenerationRequest) -> int:
        """Queue a request and return its ticket. Raises: PromptTooLongError, ValueError."""
        ...

    def step(self) -> list[tuple[int, Completion | GenerationError]]:
        """Draw one token for every live row; return what ended in this step, by ticket in ascending order."""
        ...

    @property
    def busy(self) -> bool:
        """Whether anything is live or waits."""
        ...

    def updating(self) -> AbstractContextManager[Any]:
        """Change weights inside: kept prefixes are forgotten, and later bits carry no trace of earlier steps."""
        ...
