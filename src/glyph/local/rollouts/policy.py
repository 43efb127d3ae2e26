"""Policies for the local collector: who says the next turn of a rollout.

`EnginePolicy` samples from a generator and continues from the very ids that it saw and sampled; when a rollout ends
it hands these tokens over, for credit. `DemonstrationPolicy` plays demonstrations: for machines without a model, and
plainly no result of one.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from glyph.chat import bridge, completion_text, render
from glyph.credit import Branch, Segment
from glyph.episode import Message, ModelTurn
from glyph.local.inference.requests import (
    Completion,
    GenerationError,
    GenerationRequest,
    PromptTooLongError,
    SteppedGenerator,
)
from glyph.local.inference.sampling import SamplingParams
from glyph.protocol import Arm
from glyph.tasks.demonstrations import Demonstration, assistant_turns
from glyph.tasks.prompts import Wording

Reply = tuple[str, ModelTurn | GenerationError]
"""A session, and its next turn or why there is none."""


class Policy(Protocol):
    """Says turns. `session` names a rollout; a rollout asks for its next turn only when it has the last one."""

    def ask(self, messages: list[Message], session: str) -> None:
        """Ask for the turn that follows these messages; a later `poll` gives it."""
        ...

    def poll(self) -> list[Reply]:
        """Work a little, and return the turns that are ready, in an order that does not depend on time."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a turn that was asked for is still to come."""
        ...

    def end(self, session: str) -> tuple[Branch, ...]:
        """The rollout is over; returns its tokens, none where the policy has no tokens."""
        ...


@dataclass
class _Session:
    """The tokens of a rollout so far: the prompt of the last turn, its completion, and both by message."""

    prompt: list[int]
    messages: int  # how many messages prompt and completion stand for
    completion: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    turns: int = 0

    def take(self, completion: Completion) -> None:
        at = self.messages
        length = len(completion.token_ids)
        self.completion = completion.token_ids
        sampled = Segment(at, tuple(completion.token_ids), (True,) * length, tuple(completion.logprobs))
        self.segments.append(sampled)
        self.messages += 1
        self.turns += 1


class EnginePolicy:
    """Samples from a generator. A turn's random numbers are keyed by the seed, the session and the turn alone."""

    def __init__(
        self,
        generator: SteppedGenerator,
        tokenizer: PreTrainedTokenizerBase,
        sampling: SamplingParams,
        seed: int | str = 0,
    ) -> None:
        eos = tokenizer.eos_token_id
        assert isinstance(eos, int)  # prepare_tokenizer made sure
        self._generator, self._tokenizer, self._seed = generator, tokenizer, seed
        self._sampling = replace(sampling, stop_token_ids=(eos,))
        self._sessions: dict[str, _Session] = {}
        self._tickets: dict[int, str] = {}
        self._ready: list[Reply] = []
        self._openings: dict[tuple[str, ...], list[int]] = {}
        self.generated_tokens = 0

    def ask(self, messages: list[Message], session: str) -> None:
        state = self._continue(messages, session)
        key = hashlib.blake2b(f"{self._seed}/{session}/{state.turns}".encode(), digest_size=8).digest()
        sampling = replace(self._sampling, seed=int.from_bytes(key, "big"))
        try:
            ticket = self._generator.submit(GenerationRequest(state.prompt, sampling, session))
        except PromptTooLongError:
            self._ready.append((session, ModelTurn("", overflow=True)))
        else:
            self._tickets[ticket] = session

    def _continue(self, messages: list[Message], session: str) -> _Session:
        """Lengthen a session's prompt by what is new, and note the new tokens as not sampled."""
        state = self._sessions.get(session)
        if state is None:
            prompt, new, at = self._opening(messages), 0, 0
            state = self._sessions[session] = _Session(prompt, len(messages))
        else:
            new, at = len(state.prompt) + len(state.completion), state.messages
            state.prompt = bridge(self._tokenizer, state.prompt, state.completion, messages[at:]).token_ids
            state.messages = len(messages)
        context = tuple(state.prompt[new:])
        state.segments.append(Segment(at, context, (False,) * len(context)))
        return state

    def _opening(self, messages: list[Message]) -> list[int]:
        """The first prompt; members of a group share it."""
        key = tuple(message["content"] for message in messages)
        if key not in self._openings:
            self._openings[key] = render(self._tokenizer, messages, add_generation_prompt=True).token_ids
        return self._openings[key]

    def poll(self) -> list[Reply]:
        replies, self._ready = self._ready, []
        if not self._generator.busy:
            return replies
        for ticket, result in self._generator.step():
            session = self._tickets.pop(ticket)
            if isinstance(result, Completion):
                state = self._sessions[session]
                state.take(result)
                self.generated_tokens += len(result.token_ids)
                text = completion_text(self._tokenizer, result.token_ids)
                turn = ModelTurn(text, result.finish_reason, len(state.prompt), len(result.token_ids))
                replies.append((session, turn))
            else:
                replies.append((session, result))
        return replies

    @property
    def busy(self) -> bool:
        return bool(self._ready) or self._generator.busy

    def end(self, session: str) -> tuple[Branch, ...]:
        state = self._sessions.pop(session, None)
        return (tuple(state.segments),) if state else ()


class DemonstrationPolicy:
    """Plays the demonstration of the task that the last user message poses."""

    def __init__(self, demonstrations: Iterable[Demonstration], arm: Arm, wording: Wording) -> None:
        self._turns = {wording.user(d.task): assistant_turns(d, arm, wording) for d in demonstrations}
        self._ready: list[Reply] = []

    def ask(self, messages: list[Message], session: str) -> None:
        opening = max(i for i, message in enumerate(messages) if message["role"] == "user")
        taken = sum(message["role"] == "assistant" for message in messages[opening:])
        self._ready.append((session, ModelTurn(self._turns[messages[opening]["content"]][taken])))

    def poll(self) -> list[Reply]:
        replies, self._ready = self._ready, []
        return replies

    @property
    def busy(self) -> bool:
        return bool(self._ready)

    def end(self, session: str) -> tuple[Branch, ...]:
        return ()
