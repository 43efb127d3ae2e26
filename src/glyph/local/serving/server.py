"""A small HTTP server over the generate core: OpenAI's chat route and the token endpoint of Verifiers' train client.

    GET  /health                 → {"status": "ok"}
    GET  /v1/models              → the served names with max_model_len
    POST /v1/chat/completions    messages in, text out; never streams
    POST /inference/v1/generate  token ids in; token ids with log-probs out

Both POST routes render to the same token requests, so equal prompts and seeds give equal completions. Bad input is a
4xx in OpenAI's error shape, a full queue a 503, a fault of the engine a 500; nothing that a client sends stops the
server. A client that hangs up frees its row. Not done here: training, weight pushes, streaming, tool schemas.
"""

import asyncio
import hmac
import json
import logging
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from transformers import PreTrainedTokenizerBase

from glyph.chat import completion_text, render
from glyph.local.inference.generation import GenerationEngine
from glyph.local.inference.loading import load_tokenizer, require_device
from glyph.local.inference.requests import Completion, GenerationError, PromptTooLongError, QueueFullError
from glyph.local.serving.wire import ChatRequest, GenerateRequest, SamplingFields, describe_validation_error

SESSION_HEADER = "X-Session-ID"
MAX_BODY_BYTES = 32 * 2**20
SHUTDOWN_SECONDS = 2.0
"""How long requests may still run after the server was told to stop."""

log = logging.getLogger(__name__)
RequestT = TypeVar("RequestT", bound=BaseModel)


@dataclass(frozen=True)
class Service:
    """What the routes share. A request may name the model by any of `names`, or not at all."""

    engine: GenerationEngine
    tokenizer: PreTrainedTokenizerBase
    names: tuple[str, ...]
    api_key: str | None = None


SERVICE: web.AppKey[Service] = web.AppKey("service", Service)


class RequestError(Exception):
    """A request that cannot be served, with its HTTP status and OpenAI's error code."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def create_app(service: Service) -> web.Application:
    app = web.Application(middlewares=[_errors_as_json, _authorise], client_max_size=MAX_BODY_BYTES)
    app[SERVICE] = service
    app.router.add_get("/health", _health)
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_post("/inference/v1/generate", _generate)
    return app


async def start(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, str]:
    """Listen; return the runner, to clean up later, and the base URL (port 0 picks a free one)."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    bound = runner.addresses[0]
    return runner, f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"


def serve(
    model_dir: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    device: str = "auto",
    max_model_len: int = 4096,
    max_rows: int = 16,
    max_queue: int = 256,
    served_name: str | None = None,
    api_key: str | None = None,
) -> None:
    """Load a model folder and serve it until SIGINT or SIGTERM. Prints one line when it is ready.

    Raises: TokenizerError if the folder's tokenizer has no `<|im_end|>` token to end turns with.
    """
    require_device(device)
    tokenizer = load_tokenizer(model_dir)
    names = (served_name,) if served_name else tuple(dict.fromkeys((str(model_dir), Path(model_dir).resolve().name)))
    with GenerationEngine.load(
        model_dir, device, max_model_len=max_model_len, max_rows=max_rows, max_queue=max_queue
    ) as engine:
        asyncio.run(_serve_until_stopped(Service(engine, tokenizer, names, api_key), host, port))


async def _serve_until_stopped(service: Service, host: str, port: int) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    runner, url = await start(create_app(service), host, port)
    engine = service.engine
    print(
        f"serving {service.names[0]} at {url}/v1 (max_model_len {engine.max_model_len}, "
        f"{engine.max_rows} rows, {engine.model.device.type} {engine.model.dtype})",
        flush=True,
    )
    await stopped.wait()
    await runner.cleanup()


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _models(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    card = {"object": "model", "created": 0, "owned_by": "glyph", "max_model_len": service.engine.max_model_len}
    return web.json_response({"object": "list", "data": [{"id": name, **card} for name in service.names]})


async def _chat(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    body = await _parse(request, ChatRequest)
    _check_model(service, body.model)
    messages = [message.model_dump() for message in body.messages]
    prompt_ids = render(service.tokenizer, messages, add_generation_prompt=True).token_ids
    completion = await _complete(request, prompt_ids, body)
    text, reason = _cut_at_stop(completion_text(service.tokenizer, completion.token_ids), completion, body.stop)
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": reason,
        "logprobs": _chat_logprobs(service.tokenizer, completion) if body.logprobs else None,
    }
    reply = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model or service.names[0],
        "choices": [choice],
        "usage": _usage(prompt_ids, completion),
    }
    return web.json_response(reply)


async def _generate(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    body = await _parse(request, GenerateRequest)
    _check_model(service, body.model)
    completion = await _complete(request, body.token_ids, body.sampling_params)
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    choice = {
        "index": 0,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "logprobs": {"content": [{"token": f"token_id:{token}", "logprob": value} for token, value in pairs]},
    }
    usage = _usage(body.token_ids, completion)
    return web.json_response({"request_id": f"gen-{uuid.uuid4().hex}", "choices": [choice], "usage": usage})


async def _parse(request: web.Request, kind: type[RequestT]) -> RequestT:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}", "invalid_json") from error
    if not isinstance(body, dict):
        raise RequestError(400, f"the body must be a JSON object, got {type(body).__name__}", "invalid_request")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise RequestError(400, describe_validation_error(error), "invalid_request") from error


def _check_model(service: Service, name: str | None) -> None:
    if name is not None and name not in service.names:
        raise RequestError(404, f"no model {name!r} here, only {', '.join(service.names)}", "model_not_found")


async def _complete(request: web.Request, prompt_ids: list[int], fields: SamplingFields) -> Completion:
    service = request.app[SERVICE]
    eos_token_id = service.tokenizer.eos_token_id
    assert isinstance(eos_token_id, int)  # prepare_tokenizer made sure
    try:
        sampling = fields.to_params(eos_token_id)
        return await service.engine.generate(prompt_ids, sampling, request.headers.get(SESSION_HEADER))
    except PromptTooLongError as error:
        raise RequestError(400, str(error), "context_length_exceeded") from error
    except ValueError as error:
        raise RequestError(400, str(error), "invalid_request") from error
    except QueueFullError as error:
        raise RequestError(503, str(error), "queue_full") from error
    except GenerationError as error:
        raise RequestError(500, str(error), "generation_failed") from error


def _cut_at_stop(text: str, completion: Completion, stop: list[str] | None) -> tuple[str, str]:
    """Cut a reply at its first stop string; the tokens behind it were generated and count in the usage."""
    found = [position for position in (text.find(string) for string in stop or []) if position >= 0]
    return (text[: min(found)], "stop") if found else (text, completion.finish_reason)


def _chat_logprobs(tokenizer: PreTrainedTokenizerBase, completion: Completion) -> dict[str, Any]:
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    entries = [{"token": tokenizer.decode([token]), "logprob": value, "top_logprobs": []} for token, value in pairs]
    return {"content": entries}


def _usage(prompt_ids: list[int], completion: Completion) -> dict[str, Any]:
    prompt, sampled = len(prompt_ids), len(completion.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
    }


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return _error(error.status, str(error), error.code)
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path}: {error.reason}", "http_error")
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        return _error(500, f"{type(error).__name__}: {error}", "internal_error")


@web.middleware
async def _authorise(request: web.Request, handler: Handler) -> web.StreamResponse:
    key = request.app[SERVICE].api_key
    if key is not None and request.path != "/health":
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {key}".encode()):
            raise RequestError(401, "a valid bearer key is required", "invalid_api_key")
    return await handler(request)


def _error(status: int, message: str, code: str) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return web.json_response(body, status=status)
