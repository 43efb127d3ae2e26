"""The in-process policy: a Verifiers client that samples from a generate core without HTTP.

A turn's prompt starts from the very ids that the policy saw and sampled (`turn.previous_token_ids()`); only the new
messages are rendered, so a rollout's trace is one branch. A prompt without such a start is rendered whole.

Seeds: a completion is keyed by (seed, task index, ordinal of the rollout, turn), where the seed is the sampling
config's `seed`, else the client's, and the ordinal counts the rollouts of one seed and task in the order of their
first turns. A collector that gives each rollout a seed of its own thereby makes it a function of that seed alone.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase
from verifiers.v1.clients import Client
from verifiers.v1.clients.train import serialize_completion
from verifiers.v1.dialects import ChatDialect, Dialect
from verifiers.v1.errors import OverlongPromptError, ProviderError
from verifiers.v1.graph import PendingTurn
from verifiers.v1.types import AssistantMessage, Message, Response, SamplingConfig, TextContentPart, TurnTokens, Usage

from glyph.chat import bridge, completion_text, render
from glyph.local.inference.requests import Completion, PromptTooLongError, QueueFullError, TokenGenerator
from glyph.local.inference.sampling import SamplingParams
from glyph.local.serving.wire import SamplingFields, describe_validation_error
from glyph.protocol import is_text

REMEMBERED_SESSIONS = 65_536


class LocalClient(Client):
    """Samples a rollout's turns from `engine`; `tokenizer` must be prepared (see `chat.prepare_tokenizer`)."""

    def __init__(self, engine: TokenGenerator, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.seed = seed
        self._ordinals: OrderedDict[str, int] = OrderedDict()
        self._rollouts: Counter[tuple[int, str]] = Counter()

    async def get_response(
        self,
        dialect: Dialect,
        body: dict,
        model: str,
        sampling_args: SamplingConfig,
        session_id: str | None = None,
        turn: PendingTurn | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """One completion with its token ids. Raises: OverlongPromptError, or ProviderError for anything else."""
        if not isinstance(dialect, ChatDialect):
            raise ProviderError(f"only the chat dialect is supported, got {type(dialect).__name__}", status_code=400)
        prompt = turn.prompt if turn is not None else dialect.parse_request(body)[0]
        try:
            prompt_ids, spans, is_content = self._prompt(prompt, turn)
            sampling = self._sampling(sampling_args, prompt, session_id, turn)
            completion = await self.engine.generate(prompt_ids, sampling, session_id)
        except PromptTooLongError as error:
            raise OverlongPromptError(str(error), status_code=400) from error
        except QueueFullError as error:
            raise ProviderError(str(error), status_code=503) from error
        except ProviderError:
            raise
        except ValueError as error:
            raise ProviderError(str(error), status_code=400) from error
        except Exception as error:  # the boundary: whatever an engine raises is a failed provider call
            raise ProviderError(f"{type(error).__name__}: {error}") from error
        tokens = TurnTokens.model_construct(
            prompt_ids=prompt_ids,
            completion_ids=completion.token_ids,
            completion_logprobs=completion.logprobs,
            message_spans=spans,
            is_content=is_content,
        )
        return _response(self.tokenizer, completion, tokens, model)

    def _prompt(
        self, prompt: list[Message], turn: PendingTurn | None
    ) -> tuple[list[int], list[tuple[int, int] | None], list[bool]]:
        """Prompt ids, each message's span (None where the trace has it already), and the content mask."""
        previous = turn.previous_token_ids() if turn is not None else None
        if turn is None or previous is None:
            rendered = render(self.tokenizer, [_to_wire(m) for m in prompt], add_generation_prompt=True)
            return rendered.token_ids, list(rendered.message_spans), rendered.is_content
        rendered = bridge(self.tokenizer, previous[0], previous[1], [_to_wire(m) for m in turn.tail])
        return rendered.token_ids, [None] * turn.tail_start + list(rendered.message_spans), rendered.is_content

    def _sampling(
        self, config: SamplingConfig, prompt: list[Message], session_id: str | None, turn: PendingTurn | None
    ) -> SamplingParams:
        wire = config.model_dump(exclude_none=True)
        wire = {**(wire.pop("extra_body", None) or {}), **wire}
        wire.pop("stop_token_ids", None)  # a turn ends at the EOS, as with the train client
        try:
            fields = SamplingFields.model_validate(wire)
        except ValidationError as error:
            raise ProviderError(f"sampling: {describe_validation_error(error)}", status_code=400) from error
        seed = self.seed if fields.seed is None else fields.seed
        task = str(turn.trace.task.data.idx) if turn is not None else ""
        turn_index = sum(message.role == "assistant" for message in prompt)
        key = f"{seed}/{task}/{self._ordinal(seed, task, session_id)}/{turn_index}"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        eos_token_id = self.tokenizer.eos_token_id
        assert isinstance(eos_token_id, int)  # prepare_tokenizer made sure
        return fields.model_copy(update={"seed": int.from_bytes(digest, "big")}).to_params(eos_token_id)

    def _ordinal(self, seed: int, task: str, session_id: str | None) -> int:
        if session_id is None:
            return 0
        if session_id not in self._ordinals:
            self._ordinals[session_id] = self._rollouts[seed, task]
            self._rollouts[seed, task] += 1
            if len(self._ordinals) > REMEMBERED_SESSIONS:
                self._ordinals.popitem(last=False)
        return self._ordinals[session_id]


def _response(tokenizer: PreTrainedTokenizerBase, completion: Completion, tokens: TurnTokens, model: str) -> Response:
    response = Response(
        id="local",
        created=0,
        model=model,
        message=AssistantMessage(content=completion_text(tokenizer, completion.token_ids) or None),
        finish_reason=completion.finish_reason,
        usage=Usage(prompt_tokens=len(tokens.prompt_ids), completion_tokens=len(completion.token_ids)),
        tokens=tokens,
    )
    response.raw = serialize_completion(response, model)
    return response


def _to_wire(message: Message) -> dict[str, Any]:
    """Role and content as the template takes them. Raises: ProviderError for content that is not text."""
    content = message.content
    text = "" if isinstance(content, list) else content or ""
    for part in content if isinstance(content, list) else []:
        if not isinstance(part, TextContentPart):
            raise ProviderError("only text messages are supported", status_code=400)
        text += part.text
    if not is_text(text):
        raise ProviderError("a message holds a lone surrogate, which is no text", status_code=400)
    return {"role": message.role, "content": text}
