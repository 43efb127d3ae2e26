"""The server: both routes, every kind of bad input, concurrency, hang-ups, and Verifiers' own train client."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import aiohttp
import pytest
import torch
from openai import AsyncOpenAI
from verifiers.v1.clients.train import TrainClient
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.errors import _CONTEXT_LENGTH_PHRASES, OverlongPromptError, ProviderError
from verifiers.v1.graph import prepare_turn
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace, TraceTask
from verifiers.v1.types import SamplingConfig, SystemMessage, ToolMessage, UserMessage

from glyph.chat import render
from glyph.local.inference.generation import GenerationEngine
from glyph.local.serving.server import Service, create_app, start
from tests.tiny_model import CONTEXT, save_tiny_model, tiny_model, tiny_tokenizer

torch.set_num_threads(1)
NAME = "tiny"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def add(a, b):"}]


@pytest.fixture(scope="module")
def engine():
    with GenerationEngine(tiny_model(), max_model_len=CONTEXT) as engine:
        yield engine


@pytest.fixture
async def url(engine):
    runner, url = await start(create_app(Service(engine, tiny_tokenizer(), (NAME,))), "127.0.0.1", 0)
    yield url
    await runner.cleanup()


async def post(url: str, route: str, body, raw: bytes | None = None, headers=None) -> tuple[int, dict]:
    data = json.dumps(body).encode() if raw is None else raw
    async with aiohttp.ClientSession() as session, session.post(url + route, data=data, headers=headers) as reply:
        return reply.status, await reply.json()


def chat(**fields) -> dict:
    return {"model": NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 8, **fields}


async def test_models_and_health(url) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/health") as reply:
            assert (reply.status, await reply.json()) == (200, {"status": "ok"})
        async with session.get(f"{url}/v1/models") as reply:
            [card] = (await reply.json())["data"]
    assert (card["id"], card["max_model_len"]) == (NAME, CONTEXT)


async def test_openai_client_gets_a_chat_completion(url) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        reply = await client.chat.completions.create(
            model=NAME, messages=MESSAGES, max_tokens=8, seed=1, logprobs=True, extra_body={"top_k": 20}
        )
    choice = reply.choices[0]
    assert choice.message.role == "assistant"
    assert "<|im_end|>" not in choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert reply.usage.completion_tokens == len(choice.logprobs.content) <= 8
    prompt = render(tiny_tokenizer(), MESSAGES, add_generation_prompt=True).token_ids
    assert reply.usage.prompt_tokens == len(prompt)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 11}])
async def test_chat_route_equals_token_route(url, sampling) -> None:
    tokenizer = tiny_tokenizer()
    messages = [*MESSAGES, {"role": "assistant", "content": "FINAL:"}, {"role": "tool", "content": "RESULT 1:"}]
    _, said = await post(url, "/v1/chat/completions", chat(messages=messages, **sampling))
    prompt = render(tokenizer, messages, add_generation_prompt=True).token_ids
    body = {"model": NAME, "token_ids": prompt, "sampling_params": {**sampling, "max_tokens": 8, "logprobs": 1}}
    status, tokens = await post(url, "/inference/v1/generate", body)
    assert status == 200
    [choice] = tokens["choices"]
    text = tokenizer.decode(choice["token_ids"], skip_special_tokens=True)
    assert said["choices"][0]["message"]["content"] == text
    assert said["choices"][0]["finish_reason"] == choice["finish_reason"]
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(entry["logprob"] <= 0 for entry in content)


async def test_a_stop_string_cuts_the_text(url) -> None:
    _, free = await post(url, "/v1/chat/completions", chat())
    text = free["choices"][0]["message"]["content"]
    stop = text[2:4]
    _, cut = await post(url, "/v1/chat/completions", chat(stop=stop))
    assert cut["choices"][0]["message"]["content"] == text[: text.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"


BAD_CHATS = {
    "no messages": ({"model": NAME}, "messages"),
    "empty messages": (chat(messages=[]), "messages"),
    "messages is text": (chat(messages="hello"), "messages"),
    "unknown role": (chat(messages=[{"role": "wizard", "content": "x"}]), "messages.0.role"),
    "no role": (chat(messages=[{"content": "x"}]), "messages.0.role"),
    "content is a number": (chat(messages=[{"role": "user", "content": 3}]), "messages.0.content"),
    "an image": (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages.0.content"),
    "a lone surrogate": (chat(messages=[{"role": "user", "content": "\ud800"}]), "surrogate"),
    "stream": (chat(stream=True), "stream"),
    "two choices": (chat(n=2), "'n'"),
    "tools": (chat(tools=[{"type": "function"}]), "tools"),
    "a penalty": (chat(presence_penalty=0.5), "presence_penalty"),
    "temperature is text": (chat(temperature="hot"), "temperature"),
    "temperature below 0": (chat(temperature=-1), "temperature"),
    "temperature is NaN": (chat(temperature=float("nan")), "temperature"),
    "top_p is 0": (chat(top_p=0), "top_p"),
    "top_k is a float": (chat(top_k=1.5), "top_k"),
    "max_tokens is 0": (chat(max_tokens=0), "max_tokens"),
    "max_tokens is true": (chat(max_tokens=True), "max_tokens"),
    "seed is text": (chat(seed="s"), "seed"),
    "an empty stop": (chat(stop=""), "stop"),
    "a prompt beyond the context": (chat(messages=[{"role": "user", "content": "a " * CONTEXT}]), "context length"),
}


@pytest.mark.parametrize("name", BAD_CHATS)
async def test_bad_chat_requests(url, name) -> None:
    body, word = BAD_CHATS[name]
    status, reply = await post(url, "/v1/chat/completions", body)
    assert status == 400
    assert set(reply["error"]) == {"message", "type", "param", "code"}
    assert reply["error"]["type"] == "invalid_request_error"
    assert word in reply["error"]["message"]


BAD_GENERATES = {
    "no ids": ({}, "token_ids"),
    "empty ids": ({"token_ids": []}, "token_ids"),
    "ids are text": ({"token_ids": ["a"]}, "token_ids.0"),
    "an id is true": ({"token_ids": [True]}, "token_ids.0"),
    "a negative id": ({"token_ids": [-1]}, "vocabulary"),
    "an id too large": ({"token_ids": [10**30]}, "vocabulary"),
    "parameters are a list": ({"token_ids": [5], "sampling_params": []}, "sampling_params"),
    "two choices": ({"token_ids": [5], "sampling_params": {"n": 2}}, "'n'"),
    "stop strings": ({"token_ids": [5], "sampling_params": {"stop": ["x"]}}, "stop_token_ids"),
    "stream": ({"token_ids": [5], "stream": True}, "stream"),
    "too long": ({"token_ids": [5] * CONTEXT}, "maximum context length"),
}


@pytest.mark.parametrize("name", BAD_GENERATES)
async def test_bad_token_requests(url, name) -> None:
    body, word = BAD_GENERATES[name]
    status, reply = await post(url, "/inference/v1/generate", body)
    assert status == 400
    assert word in reply["error"]["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b"null", b'"text"'])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/inference/v1/generate"])
async def test_bodies_that_are_no_object(url, raw, route) -> None:
    status, reply = await post(url, route, None, raw=raw)
    assert status == 400
    assert "JSON" in reply["error"]["message"]


async def test_other_http_faults_have_the_same_shape(url) -> None:
    assert (await post(url, "/v1/completions", {}))[0] == 404
    status, reply = await post(url, "/v1/chat/completions", chat(model="gpt-4"))
    assert (status, reply["error"]["code"]) == (404, "model_not_found")
    assert (await post(url, "/health", {}))[0] == 405
    status, reply = await post(url, "/v1/chat/completions", None, raw=b" " * (33 * 2**20))
    assert status == 413
    assert reply["error"]["message"]


async def test_context_overflow_is_known_to_verifiers(url) -> None:
    _, reply = await post(url, "/inference/v1/generate", {"token_ids": [5] * CONTEXT})
    assert any(phrase in reply["error"]["message"].casefold() for phrase in _CONTEXT_LENGTH_PHRASES)
    assert reply["error"]["code"] == "context_length_exceeded"


async def test_a_key_is_required_when_one_is_set(engine) -> None:
    runner, url = await start(create_app(Service(engine, tiny_tokenizer(), (NAME,), "secret")), "127.0.0.1", 0)
    for given in (None, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
        assert (await post(url, "/v1/chat/completions", chat(), headers=given))[0] == 401
    assert (await post(url, "/v1/chat/completions", chat(), headers={"Authorization": "Bearer secret"}))[0] == 200
    await runner.cleanup()


async def test_a_full_queue_is_503_and_nothing_is_lost() -> None:
    with GenerationEngine(tiny_model(), max_model_len=CONTEXT, max_rows=1, max_queue=2) as engine:
        runner, url = await start(create_app(Service(engine, tiny_tokenizer(), (NAME,))), "127.0.0.1", 0)
        with engine.exclusive():
            tasks = [asyncio.create_task(post(url, "/v1/chat/completions", chat())) for _ in range(5)]
            while sum(task.done() for task in tasks) < 3:
                await asyncio.sleep(0.01)
        statuses = sorted([status for status, _ in await asyncio.gather(*tasks)])
        assert statuses == [200, 200, 503, 503, 503]
        await runner.cleanup()


async def test_thirty_two_requests_at_once(url) -> None:
    bodies = [chat(temperature=0.8, seed=seed) for seed in range(32)]
    together = await asyncio.gather(*(post(url, "/v1/chat/completions", body) for body in bodies))
    for body, (status, reply) in list(zip(bodies, together, strict=True))[::8]:
        assert status == 200
        _, alone = await post(url, "/v1/chat/completions", body)
        assert alone["choices"] == reply["choices"]


async def test_a_client_that_hangs_up_frees_its_row(engine, url) -> None:
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 500, "temperature": 1, "stop_token_ids": []}}
    tasks = [asyncio.create_task(post(url, "/inference/v1/generate", body)) for _ in range(3)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await post(url, "/v1/chat/completions", chat()))[0] == 200
    for _ in range(200):
        if not engine._live:
            break
        await asyncio.sleep(0.01)
    assert not engine._live


async def test_verifiers_train_client_end_to_end(tmp_path, engine) -> None:
    folder = str(save_tiny_model(tmp_path / "model"))
    runner, url = await start(create_app(Service(engine, tiny_tokenizer(), (folder,))), "127.0.0.1", 0)
    client = TrainClient(AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
    trace = Trace(task=TraceTask(type="T", data=TaskData(idx=0, prompt=None)))
    prompt = [SystemMessage(content="Be brief."), UserMessage(content="def add(a, b):")]
    sampling = SamplingConfig(temperature=0.8, max_tokens=6, seed=3, top_k=20)
    for index in range(3):
        turn = prepare_turn(trace, prompt)
        response = await client.get_response(ChatDialect(), {}, folder, sampling, trace.id, turn)
        turn.commit(response)
        tokens = response.tokens
        assert len(tokens.completion_ids) == len(tokens.completion_logprobs) <= 6
        assert tokens.prompt_ids == render(tiny_tokenizer(), _wire(prompt), add_generation_prompt=True).token_ids
        prompt = [*prompt, response.message, ToolMessage(tool_call_id=str(index), content=f"RESULT {index}:")]
    assert trace.num_turns == 3
    long = prepare_turn(trace, [UserMessage(content="a " * CONTEXT)])
    with pytest.raises(OverlongPromptError):
        await client.get_response(ChatDialect(), {}, folder, sampling, trace.id, long)
    bad = SamplingConfig(temperature=-1)
    with pytest.raises(ProviderError, match="temperature"):
        await client.get_response(ChatDialect(), {}, folder, bad, trace.id, prepare_turn(trace, prompt))
    await client.close()
    await runner.cleanup()


def _wire(messages) -> list[dict]:
    return [{"role": message.role, "content": message.content} for message in messages]


def test_serve_says_when_it_is_ready_and_ends_cleanly_on_ctrl_c(tmp_path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    code = "import sys; from glyph.local.serving.server import serve; serve(sys.argv[1], port=0)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    ready = process.stdout.readline()
    assert ready.startswith(f"serving {folder} at http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in errors
