"""The in-process and the scripted policy, against Verifiers' own trace graph and eval client."""

import asyncio
import math

import pytest
import torch
from verifiers.v1.clients.eval import EvalClient
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.errors import OverlongPromptError, ProviderError
from verifiers.v1.graph import prepare_turn
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace, TraceTask
from verifiers.v1.types import SamplingConfig, SystemMessage, ToolMessage, UserMessage

from glyph.local.inference.generation import GenerationEngine
from glyph.local.inference.requests import Completion, GenerationError, QueueFullError
from glyph.local.serving.client import LocalClient
from glyph.local.serving.scripted import ScriptedClient, from_texts, scripted_server
from tests.tiny_model import CONTEXT, tiny_model, tiny_tokenizer

torch.set_num_threads(1)
SAMPLING = SamplingConfig(temperature=0.8, max_tokens=8, top_k=20)


@pytest.fixture(scope="module")
def engine():
    with GenerationEngine(tiny_model(), max_model_len=CONTEXT) as engine:
        yield engine


class FixedEngine:
    """Says the given ids, whatever the prompt; records what it was asked."""

    def __init__(self, *completions: list[int] | Exception) -> None:
        self.completions = list(completions)
        self.asked = []

    async def generate(self, token_ids, sampling, session=None) -> Completion:
        self.asked.append((list(token_ids), sampling, session))
        said = self.completions.pop(0)
        if isinstance(said, Exception):
            raise said
        return Completion(said, [-0.5] * len(said), "stop")


def new_trace(idx: int = 0) -> Trace:
    return Trace(task=TraceTask(type="T", data=TaskData(idx=idx, prompt=None)))


async def rollout(client, turns: int = 3, sampling=SAMPLING, idx: int = 0, trace: Trace | None = None) -> Trace:
    trace = trace or new_trace(idx)
    prompt = [SystemMessage(content="Be brief.\n"), UserMessage(content="def add(a, b):")]
    for index in range(turns):
        turn = prepare_turn(trace, prompt)
        response = await client.get_response(ChatDialect(), {}, "m", sampling, trace.id, turn)
        turn.commit(response)
        prompt = [*prompt, response.message, ToolMessage(tool_call_id=str(index), content=f"RESULT {index}:\nok")]
    return trace


async def test_a_rollout_is_one_branch_of_the_ids_that_the_model_saw(engine) -> None:
    trace = await rollout(LocalClient(engine, tiny_tokenizer()), turns=4)
    [branch] = trace.branches
    assert trace.num_turns == 4
    assert len(branch.token_ids) == len(branch.sampled_mask) == len(branch.logprobs)
    with torch.no_grad():
        logits = engine.model(torch.tensor([branch.token_ids])).logits[0, :-1] / 0.8
    kept = logits.masked_fill(logits < logits.topk(20).values[:, -1:], -math.inf).log_softmax(-1)
    expected = [kept[i - 1, branch.token_ids[i]].item() for i, sampled in enumerate(branch.sampled_mask) if sampled]
    got = [logprob for logprob, sampled in zip(branch.logprobs, branch.sampled_mask, strict=True) if sampled]
    assert len(got) == sum(node.usage.completion_tokens for node in trace.nodes if node.sampled)
    assert got == pytest.approx(expected, abs=1e-4)


async def test_each_node_holds_its_message_and_marks_its_content() -> None:
    tokenizer = tiny_tokenizer()
    end = tokenizer.eos_token_id
    said = [*tokenizer.encode("CALL x"), end]  # no newline before the end: a re-rendering would fork here
    trace = await rollout(LocalClient(FixedEngine(said, said), tokenizer), turns=2)
    [branch] = trace.branches
    system, user, first, tool, second = [trace.nodes[i] for i in range(5)]
    assert tokenizer.decode(system.token_ids) == "<|im_start|>system\nBe brief.\n<|im_end|>\n\n"
    assert tokenizer.decode(user.token_ids) == "<|im_start|>user\ndef add(a, b):\n<|im_end|>\n\n"
    assert tokenizer.decode(first.token_ids) == "<|im_start|>assistant\nCALL x<|im_end|>"
    assert tokenizer.decode(tool.token_ids) == "\n\n<|im_start|>tool\nRESULT 0:\nok\n<|im_end|>\n\n"
    assert first.message.content == "CALL x"
    assert [node.sampled for node in (system, user, first, tool, second)] == [False, False, True, False, True]
    for node, text in ((system, "Be brief."), (user, "def add(a, b):"), (tool, "RESULT 0:\nok")):
        body = [token for token, content in zip(node.token_ids, node.is_content, strict=True) if content]
        assert tokenizer.decode(body).strip() == text
    assert branch.token_ids == [token for node in trace.nodes for token in node.token_ids]


async def test_raw_is_what_the_program_reads() -> None:
    tokenizer = tiny_tokenizer()
    said = [*tokenizer.encode("FINAL: x\n"), tokenizer.eos_token_id]
    client = LocalClient(FixedEngine(said), tokenizer)
    body = {"messages": [{"role": "user", "content": "hi"}]}
    response = await client.get_response(ChatDialect(), body, "m", SAMPLING)
    assert response.raw["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": "FINAL: x\n"},
        "finish_reason": "stop",
    }
    assert response.raw["usage"]["completion_tokens"] == len(said)
    assert response.raw["usage"]["prompt_tokens"] == len(response.tokens.prompt_ids)


async def test_rollouts_are_functions_of_the_seed(engine) -> None:
    tokenizer = tiny_tokenizer()

    async def group(client, idx=0, sampling=SAMPLING) -> list[list[int]]:
        traces = [await rollout(client, sampling=sampling, idx=idx) for _ in range(3)]
        return [trace.branches[0].token_ids for trace in traces]

    first = await group(LocalClient(engine, tokenizer, seed=1))
    assert first == await group(LocalClient(engine, tokenizer, seed=1))
    assert first != await group(LocalClient(engine, tokenizer, seed=2))
    assert first != await group(LocalClient(engine, tokenizer, seed=1), idx=7)
    assert len({tuple(ids) for ids in first}) == 3  # the members of a group differ
    seeded = SamplingConfig(**SAMPLING.model_dump(exclude_none=True), seed=1)
    assert first == await group(LocalClient(engine, tokenizer, seed=99), sampling=seeded)


async def test_a_repeated_turn_repeats_its_answer(engine) -> None:
    client, trace = LocalClient(engine, tiny_tokenizer()), new_trace()
    turn = prepare_turn(trace, [UserMessage(content="x")])
    answers = [await client.get_response(ChatDialect(), {}, "m", SAMPLING, trace.id, turn) for _ in range(2)]
    assert answers[0].tokens.completion_ids == answers[1].tokens.completion_ids


async def test_concurrent_rollouts_equal_sequential_ones(engine) -> None:
    configs = [SamplingConfig(temperature=0.8, max_tokens=8, top_k=20, seed=seed) for seed in range(12)]
    client = LocalClient(engine, tiny_tokenizer())
    together = await asyncio.gather(*(rollout(client, sampling=config) for config in configs))
    alone = [await rollout(LocalClient(engine, tiny_tokenizer()), sampling=config) for config in configs]
    assert [t.branches[0].token_ids for t in together] == [t.branches[0].token_ids for t in alone]


async def test_the_engine_gets_sampling_stops_and_session() -> None:
    tokenizer = tiny_tokenizer()
    engine = FixedEngine([tokenizer.eos_token_id])
    config = SamplingConfig(temperature=0.5, top_p=0.9, max_tokens=3, extra_body={"top_k": 4}, stop_token_ids=[9])
    trace = await rollout(LocalClient(engine, tokenizer), turns=1, sampling=config)
    [(_, sampling, session)] = engine.asked
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 4, 3)
    assert sampling.stop_token_ids == (tokenizer.eos_token_id,)
    assert session == trace.id


async def test_an_overlong_prompt_is_verifiers_own_error(engine) -> None:
    body = {"messages": [{"role": "user", "content": "a " * CONTEXT}]}
    with pytest.raises(OverlongPromptError, match="maximum context length"):
        await LocalClient(engine, tiny_tokenizer()).get_response(ChatDialect(), body, "m", SAMPLING)


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("failure", "status"), [(QueueFullError("full"), 503), (GenerationError("NaN"), 502), (KeyError("x"), 502)]
)
async def test_engine_failures_are_provider_errors(failure, status) -> None:
    with pytest.raises(ProviderError) as error:
        await rollout(LocalClient(FixedEngine(failure), tiny_tokenizer()), turns=1)
    assert error.value.status_code == status
    assert type(error.value) is ProviderError


@pytest.mark.parametrize(
    ("sampling", "content", "word"),
    [
        (SamplingConfig(temperature=-1), "x", "temperature"),
        (SamplingConfig(presence_penalty=1), "x", "presence_penalty"),
        (SAMPLING, [IMAGE], "only text"),
        (SAMPLING, "\ud800", "surrogate"),
    ],
)
async def test_bad_requests_are_provider_errors(engine, sampling, content, word) -> None:
    body = {"messages": [{"role": "user", "content": content}]}
    with pytest.raises(ProviderError, match=word) as error:
        await LocalClient(engine, tiny_tokenizer()).get_response(ChatDialect(), body, "m", sampling)
    assert error.value.status_code == 400


# ── the scripted policy ─────────────────────────────────────────────────────────────────────────────────────────

TEXTS = ['CALL read_file {"id": "1", "file_path": "solution.py"}', "FINAL: done"]


@pytest.mark.parametrize("tokenizer", [None, tiny_tokenizer()])
async def test_a_scripted_client_says_its_texts_turn_by_turn(tokenizer) -> None:
    trace = await rollout(ScriptedClient(from_texts(TEXTS), tokenizer))
    said = [node.message.content.rstrip() for node in trace.nodes if node.sampled]
    assert said == [*TEXTS, TEXTS[-1]]
    assert len(trace.branches) == 1
    assert bool(trace.branches[0].token_ids) == (tokenizer is not None)


async def test_a_policy_may_be_any_function_and_its_faults_are_provider_errors() -> None:
    trace = await rollout(ScriptedClient(lambda messages: f"{len(messages)} {messages[-1]['role']}"))
    assert [node.message.content for node in trace.nodes if node.sampled] == ["2 user", "4 tool", "6 tool"]
    with pytest.raises(ProviderError, match="ZeroDivisionError"):
        await rollout(ScriptedClient(lambda messages: 1 // 0))
    with pytest.raises(ValueError, match="at least one"):
        from_texts([])


async def test_the_scripted_server_answers_verifiers_eval_client() -> None:
    async with scripted_server(from_texts(TEXTS)) as base_url:
        client = EvalClient(base_url, "none")
        trace, messages = new_trace(), [{"role": "user", "content": "x"}]
        for text in TEXTS:
            response = await client.get_response(ChatDialect(), {"messages": messages}, "any", SAMPLING, trace.id)
            assert response.message.content == text
            assert response.usage.prompt_tokens + response.usage.completion_tokens > 0
            messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": "RESULT 1:"}]
        await client.close()
