"""A `SteppedGenerator` that says given texts, canonically tokenised, one token a step: a policy without a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from glyph.chat import canonical_completion
from glyph.local.inference.requests import Completion, GenerationError, GenerationRequest, PromptTooLongError

Say = Callable[[str, int], str | Exception]
"""(session, number of the turn from 0) → what the policy says, or how the request fails."""


@dataclass
class _Row:
    ticket: int
    left: int
    outcome: Completion | GenerationError


class ScriptedGenerator:
    """Log-probs are -0.5 for each token; `requests` keeps what was asked for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, say: Say, max_model_len: int = 100_000) -> None:
        self._tokenizer, self._say, self._limit = tokenizer, say, max_model_len
        self._rows: list[_Row] = []
        self._turns: dict[str, int] = {}
        self.requests: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> int:
        if len(request.token_ids) >= self._limit:
            raise PromptTooLongError("too long")
        self.requests.append(request)
        session = request.session or ""
        said = self._say(session, self._turns.get(session, 0))
        self._turns[session] = self._turns.get(session, 0) + 1
        if isinstance(said, str):
            ids = canonical_completion(self._tokenizer, said)
            outcome: Completion | GenerationError = Completion(ids, [-0.5] * len(ids), "stop")
        elif isinstance(said, GenerationError):
            ids, outcome = [0], said
        else:
            raise said
        self._rows.append(_Row(len(self.requests), len(ids), outcome))
        return len(self.requests)

    def step(self) -> list[tuple[int, Completion | GenerationError]]:
        for row in self._rows:
            row.left -= 1
        ended = [row for row in self._rows if row.left <= 0]
        self._rows = [row for row in self._rows if row.left > 0]
        return [(row.ticket, row.outcome) for row in ended]

    @property
    def busy(self) -> bool:
        return bool(self._rows)

    @contextmanager
    def updating(self) -> Iterator[None]:
        yield
