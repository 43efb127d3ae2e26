"""Policies for the local collector: who says the next turn of a rollout.

`EnginePolicy` samples from the generate core and continues from the very ids that it saw and sampled.
`DemonstrationPolicy` plays demonstrations: for machines without a model, and plainly no result of one.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from glyph.chat import bridge, completion_text, render
from glyph.episode import Message, ModelTurn
from glyph.local.requests import PromptTooLongError, TokenGenerator
from glyph.local.sampling import SamplingParams
from glyph.protocol import Arm
from glyph.tasks.demonstrations import Demonstration, assistant_turns
from glyph.tasks.prompts import Wording


class Policy(Protocol):
    """Says the next turn. `session` names the rollout, so that a policy can keep what it knows of it."""

    async def turn(self, messages: list[Message], session: str) -> ModelTurn: ...

    def end(self, session: str) -> None:
        """The rollout is over."""
        ...


@dataclass
class _Session:
    token_ids: tuple[list[int], list[int]]  # prompt and completion of the last turn
    messages: int  # how many messages those ids stand for
    turns: int


class EnginePolicy:
    """Samples from an engine. A turn's random numbers are keyed by the seed, the session and the turn alone."""

    def __init__(
        self, engine: TokenGenerator, tokenizer: PreTrainedTokenizerBase, sampling: SamplingParams, seed: int = 0
    ) -> None:
        eos = tokenizer.eos_token_id
        assert isinstance(eos, int)  # prepare_tokenizer made sure
        self._engine, self._tokenizer, self._seed = engine, tokenizer, seed
        self._sampling = replace(sampling, stop_token_ids=(eos,))
        self._sessions: dict[str, _Session] = {}

    async def turn(self, messages: list[Message], session: str) -> ModelTurn:
        known = self._sessions.get(session)
        if known is None:
            prompt = render(self._tokenizer, messages, add_generation_prompt=True).token_ids
        else:
            prompt = bridge(self._tokenizer, *known.token_ids, messages[known.messages :]).token_ids
        turns = known.turns if known else 0
        key = hashlib.blake2b(f"{self._seed}/{session}/{turns}".encode(), digest_size=8).digest()
        sampling = replace(self._sampling, seed=int.from_bytes(key, "big"))
        try:
            completion = await self._engine.generate(prompt, sampling, session)
        except PromptTooLongError:
            return ModelTurn("", overflow=True)
        self._sessions[session] = _Session((prompt, completion.token_ids), len(messages) + 1, turns + 1)
        text = completion_text(self._tokenizer, completion.token_ids)
        return ModelTurn(text, completion.finish_reason, len(prompt), len(completion.token_ids))

    def end(self, session: str) -> None:
        self._sessions.pop(session, None)


class DemonstrationPolicy:
    """Plays the demonstration of the task that the last user message poses."""

    def __init__(self, demonstrations: Iterable[Demonstration], arm: Arm, wording: Wording) -> None:
        self._turns = {wording.user(d.task): assistant_turns(d, arm, wording) for d in demonstrations}

    async def turn(self, messages: list[Message], session: str) -> ModelTurn:
        opening = max(i for i, message in enumerate(messages) if message["role"] == "user")
        taken = sum(message["role"] == "assistant" for message in messages[opening:])
        return ModelTurn(self._turns[messages[opening]["content"]][taken])

    def end(self, session: str) -> None:
        pass
