"""A scripted policy of no latency, for tests, benchmarks and machines without a model.

A policy is a function from the messages so far to the text of the next turn; `from_texts` makes one of a list, read
by the number of turns already taken, so it keeps no state and serves any number of rollouts. It is offered as an
OpenAI-compatible server (`scripted_server`, for the `eval` command line) and as a Verifiers client in process
(`ScriptedClient`). With a tokenizer the client records token ids, canonical ones, with log-probs of 0.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from transformers import PreTrainedTokenizerBase
from verifiers.v1.clients import Client
from verifiers.v1.clients.train import serialize_completion
from verifiers.v1.dialects import Dialect
from verifiers.v1.errors import ProviderError
from verifiers.v1.graph import PendingTurn
from verifiers.v1.types import AssistantMessage, Response, SamplingConfig, Usage, content_text

from glyph.chat import Message, canonical_completion
from glyph.local.inference.requests import Completion
from glyph.local.inference.sampling import SamplingParams
from glyph.local.serving.client import LocalClient

Policy = Callable[[Sequence[Message]], str]
SCRIPTED_MODEL = "scripted"
CHARACTERS_PER_TOKEN = 4
"""Usage without a tokenizer is an estimate at this rate."""


def from_texts(texts: Sequence[str]) -> Policy:
    """The policy that says `texts[t]` as its t-th turn, and the last one for ever after."""
    if not texts:
        raise ValueError("a scripted policy needs at least one text")

    def policy(messages: Sequence[Message]) -> str:
        taken = sum(message["role"] == "assistant" for message in messages)
        return texts[min(taken, len(texts) - 1)]

    return policy


def as_text(text: str) -> str:
    """What is left of a text on the way through UTF-8: lone surrogates become U+FFFD, as in any tokenizer's output."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ScriptedClient(Client):
    """A Verifiers client whose turns come from a policy."""

    def __init__(self, policy: Policy, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.policy = policy
        self.tokenizer = tokenizer

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
        prompt = turn.prompt if turn is not None else dialect.parse_request(body)[0]
        messages = [{"role": message.role, "content": content_text(message.content)} for message in prompt]
        try:
            text = as_text(self.policy(messages))
        except Exception as error:  # the boundary: a fault of the script is a failed provider call
            raise ProviderError(f"scripted policy: {type(error).__name__}: {error}", status_code=400) from error
        if self.tokenizer is not None:
            engine = _OneCompletion(canonical_completion(self.tokenizer, text))
            local = LocalClient(engine, self.tokenizer)
            return await local.get_response(dialect, body, model, sampling_args, session_id, turn, headers)
        usage = _estimated_usage(messages, text)
        response = Response(
            id="scripted",
            created=0,
            model=model,
            message=AssistantMessage(content=text),
            finish_reason="stop",
            usage=Usage(prompt_tokens=usage["prompt_tokens"], completion_tokens=usage["completion_tokens"]),
        )
        response.raw = serialize_completion(response, model)
        return response


class _OneCompletion:
    """An engine that says what it was given."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids

    async def generate(
        self, token_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        return Completion(self.token_ids, [0.0] * len(self.token_ids), "stop")


def create_app(policy: Policy) -> web.Application:
    """An app with the chat route and the model list; it accepts every model name."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        text = as_text(policy(body["messages"]))
        message = {"role": "assistant", "content": text}
        reply = {
            "id": "scripted",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model") or SCRIPTED_MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": _estimated_usage(body["messages"], text),
        }
        return web.json_response(reply)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": SCRIPTED_MODEL, "object": "model"}]})

    app = web.Application(client_max_size=32 * 2**20)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    return app


@asynccontextmanager
async def scripted_server(policy: Policy, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve a policy while the context lasts; yields the base URL, with `/v1`."""
    runner = web.AppRunner(create_app(policy), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def _estimated_usage(messages: Sequence[Message], text: str) -> dict[str, Any]:
    prompt = sum(len(message.get("content") or "") for message in messages) // CHARACTERS_PER_TOKEN
    completion = len(text) // CHARACTERS_PER_TOKEN + 1
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
