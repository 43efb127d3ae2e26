"""The generate core: exact sampling, right log-probs, and rows that do not feel their neighbours."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from glyph.local.inference.attention import use_grouped_attention
from glyph.local.inference.generation import GenerationEngine
from glyph.local.inference.kv_cache import Prefix, PrefixStore, shared_length
from glyph.local.inference.requests import GenerationError, GenerationRequest, PromptTooLongError, QueueFullError
from glyph.local.inference.sampling import SamplingParams, SamplingTable, UniformStream, processed_logprobs, sample
from tests.tiny_model import CONTEXT, tiny_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def engine():
    with GenerationEngine(use_grouped_attention(tiny_model()), max_model_len=CONTEXT) as engine:
        yield engine


def prompts(count: int, length: int = 12) -> list[list[int]]:
    numbers = np.random.default_rng(count).integers(3, 390, size=(count, length + count))
    return [row[: length + index].tolist() for index, row in enumerate(numbers)]


def requests(count: int, **sampling) -> list[GenerationRequest]:
    options = {"temperature": 0.8, "top_k": 20, "max_tokens": 16, **sampling}
    return [GenerationRequest(p, SamplingParams(seed=i, **options)) for i, p in enumerate(prompts(count))]


def full_logprobs(engine, prompt, completion, params) -> list[float]:
    """Log-probs of a completion from one forward pass without cache or padding."""
    with torch.no_grad():
        logits = engine.model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    table = SamplingTable.of([params] * len(completion), logits.shape[-1], logits.device)
    return processed_logprobs(logits, table).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


def one_row(logits: list[float], **params) -> list[float]:
    table = SamplingTable.of([SamplingParams(**params)], len(logits), torch.device("cpu"))
    return processed_logprobs(torch.tensor([logits]), table)[0].exp().tolist()


# ── the distribution ────────────────────────────────────────────────────────────────────────────────────────────

LOGS = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"top_k": 1}, [1, 0, 0, 0]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_k": -1}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_k": 99}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_p": 0.39}, [1, 0, 0, 0]),
        ({"top_p": 0.41}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.69}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.71}, [4 / 9, 3 / 9, 2 / 9, 0]),
        # top-p works on what top-k left: 4/9, 3/9, 2/9, so 0.75 needs two of them
        ({"top_k": 3, "top_p": 0.75}, [4 / 7, 3 / 7, 0, 0]),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.9}, [16 / 29, 9 / 29, 4 / 29, 0]),
        # greedy: the plain softmax, whatever the masks
        ({"temperature": 0.0, "top_k": 2, "top_p": 0.1}, [0.4, 0.3, 0.2, 0.1]),
    ],
)
def test_masks_against_hand_computed_values(params, expected) -> None:
    assert one_row(LOGS, **params) == pytest.approx(expected, abs=1e-6)


def test_tokens_that_tie_with_the_last_kept_one_stay() -> None:
    logs = [math.log(p) for p in (0.4, 0.2, 0.2, 0.2)]
    assert one_row(logs, top_k=2) == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=1e-6)
    assert one_row(logs, top_p=0.5) == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=1e-6)


def test_rows_with_different_parameters_do_not_mix() -> None:
    rows = [{}, {"top_k": 2}, {"top_p": 0.41}, {"temperature": 0.0}, {"top_k": 3, "top_p": 0.75, "temperature": 0.5}]
    table = SamplingTable.of([SamplingParams(**row) for row in rows], 4, torch.device("cpu"))
    together = processed_logprobs(torch.tensor([LOGS] * len(rows)), table).exp()
    for row, got in zip(rows, together.tolist(), strict=True):
        assert got == pytest.approx(one_row(LOGS, **row), abs=1e-6)


def test_sampling_inverts_the_cdf() -> None:
    draws = [0.0, 0.399, 0.401, 0.699, 0.701, 0.899, 0.901, 1 - 2**-53]
    table = SamplingTable.of([SamplingParams()] * len(draws), 4, torch.device("cpu"))
    tokens, logprobs = sample(torch.tensor([LOGS] * len(draws)), table, draws)
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3]
    assert logprobs == pytest.approx([LOGS[token] for token in tokens], abs=1e-6)


def test_frequencies_follow_the_distribution() -> None:
    count = 20_000
    table = SamplingTable.of([SamplingParams(top_k=3)] * count, 4, torch.device("cpu"))
    stream = UniformStream(7)
    tokens, _ = sample(torch.tensor([LOGS] * count), table, [stream.next() for _ in range(count)])
    frequencies = np.bincount(tokens, minlength=4) / count
    assert frequencies == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0], abs=0.015)
    assert frequencies[3] == 0


def test_uniforms_are_a_function_of_seed_and_index() -> None:
    first, again, other = UniformStream(3), UniformStream(3), UniformStream(4)
    numbers = [first.next() for _ in range(5)]
    assert numbers == [again.next() for _ in range(5)]
    assert numbers != [other.next() for _ in range(5)]
    assert all(0 <= number < 1 for number in numbers)
    assert UniformStream(None).next() != UniformStream(None).next()
    assert UniformStream(-1).next() == UniformStream(2**64 - 1).next()
    bits, stream = np.random.Philox(key=5), UniformStream(5)
    assert [stream.next() for _ in range(70)] == [(int(bits.random_raw()) >> 11) * 2.0**-53 for _ in range(70)]


def test_a_shortlist_draws_what_the_whole_vocabulary_would() -> None:
    rows = [{"top_k": 5}, {"temperature": 0.0}, {"top_k": 8, "top_p": 0.7}, {"top_k": 3, "temperature": 1.7}] * 50
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(rows), 120, generator=generator) * 3
    table = SamplingTable.of([SamplingParams(**row) for row in rows], 120, logits.device)
    assert table.shortlist == 12
    draws = torch.rand(len(rows), dtype=torch.float64, generator=generator)
    for case in (logits, logits.bfloat16(), logits.round()):  # the last two with few and with many ties
        tokens, logprobs = sample(case, table, draws)
        expected, expected_logprobs = sample(case, replace(table, shortlist=0), draws)
        assert tokens == expected
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-6)


def test_more_ties_than_a_shortlist_holds_are_all_kept() -> None:
    table = SamplingTable.of([SamplingParams(top_k=2)] * 3, 100, torch.device("cpu"))
    tokens, logprobs = sample(torch.zeros(3, 100), table, [0.0, 0.505, 0.999])
    assert tokens == [0, 50, 99]
    assert logprobs == pytest.approx([-math.log(100)] * 3)


def test_a_row_that_is_not_finite_has_no_finite_logprob_and_touches_no_other() -> None:
    logits = torch.arange(300.0).reshape(3, 100) / 100
    for bad in (math.nan, math.inf):
        logits[1, 7] = bad
        for top_k in (0, 5):
            table = SamplingTable.of([SamplingParams(top_k=top_k)] * 3, 100, torch.device("cpu"))
            _, logprobs = sample(logits, table, [0.5] * 3)
            assert [math.isfinite(value) for value in logprobs] == [True, False, True]


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_k": -2},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"max_tokens": 0},
    ],
)
def test_parameters_out_of_range_are_refused(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SamplingParams(**bad)


# ── the engine ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("grouped", [True, False])
def test_greedy_equals_plain_generate_and_a_full_forward_pass(architecture, grouped) -> None:
    model = tiny_model(architecture)
    if grouped:
        use_grouped_attention(model)
    with GenerationEngine(model, max_model_len=CONTEXT) as engine:
        asked = requests(5, temperature=0.0, max_tokens=12)
        for request, got in zip(asked, engine.generate_batch(asked), strict=True):
            plain = model.generate(
                torch.tensor([request.token_ids]), do_sample=False, max_new_tokens=12, min_new_tokens=12
            )
            assert got.token_ids == plain[0, len(request.token_ids) :].tolist()
            expected = full_logprobs(engine, request.token_ids, got.token_ids, request.sampling)
            assert got.logprobs == pytest.approx(expected, abs=1e-4)


def test_logprobs_are_those_of_the_distribution_sampled_from(engine) -> None:
    for options in ({}, {"top_k": 0}, {"top_k": 0, "top_p": 0.7}, {"top_p": 0.9, "temperature": 1.3}):
        asked = requests(4, **options)
        for request, got in zip(asked, engine.generate_batch(asked), strict=True):
            expected = full_logprobs(engine, request.token_ids, got.token_ids, request.sampling)
            assert got.logprobs == pytest.approx(expected, abs=1e-4)


def test_batched_equals_single(engine) -> None:
    asked = requests(24, max_tokens=24)  # more than the engine's rows: some join while others leave
    together = engine.generate_batch(asked)
    for request, batched in zip(asked, together, strict=True):
        alone = engine.generate_batch([request])[0]
        assert alone.token_ids == batched.token_ids
        assert alone.logprobs == pytest.approx(batched.logprobs, abs=1e-4)


def test_the_same_calls_give_the_same_bits(engine) -> None:
    assert engine.generate_batch(requests(9)) == engine.generate_batch(requests(9))


def test_random_numbers_are_keyed_by_seed_not_by_arrival(engine) -> None:
    asked = requests(6)
    forward = engine.generate_batch(asked)
    backward = engine.generate_batch(asked[::-1])[::-1]
    assert [c.token_ids for c in forward] == [c.token_ids for c in backward]
    prompt = asked[0].token_ids
    seeds = [GenerationRequest(prompt, SamplingParams(max_tokens=16, seed=seed)) for seed in (1, 2, 1)]
    one, two, again = (completion.token_ids for completion in engine.generate_batch(seeds))
    assert one == again != two


def test_stop_token_ends_and_belongs_to_the_completion(engine) -> None:
    [free] = engine.generate_batch(requests(1, temperature=0.0))
    stop = free.token_ids[5]
    first = free.token_ids.index(stop)
    [stopped] = engine.generate_batch(requests(1, temperature=0.0, stop_token_ids=(stop,)))
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert (stopped.finish_reason, free.finish_reason) == ("stop", "length")
    assert len(stopped.logprobs) == first + 1
    [at_the_limit] = engine.generate_batch(requests(1, temperature=0.0, stop_token_ids=(stop,), max_tokens=first + 1))
    assert at_the_limit.finish_reason == "stop"


def test_completion_is_clipped_to_the_context(engine) -> None:
    prompt = [5] * (CONTEXT - 3)
    [got] = engine.generate_batch([GenerationRequest(prompt, SamplingParams(temperature=0.0, max_tokens=50))])
    assert len(got.token_ids) == 3
    assert got.finish_reason == "length"


def test_bad_prompts_are_typed_errors(engine) -> None:
    with pytest.raises(PromptTooLongError, match="This model's maximum context length is 512 tokens"):
        engine.submit(GenerationRequest([5] * CONTEXT, SamplingParams()))
    with pytest.raises(ValueError, match="empty"):
        engine.submit(GenerationRequest([], SamplingParams()))
    for token in (-1, engine.vocabulary):
        with pytest.raises(ValueError, match="vocabulary"):
            engine.submit(GenerationRequest([3, token], SamplingParams()))


def test_a_conversation_reuses_its_prefix_with_equal_results(engine) -> None:
    plain = GenerationEngine(tiny_model(), max_model_len=CONTEXT, prefix_cache_tokens=0)
    prompt = prompts(1, 40)[0]
    for turn in range(4):
        sampling = SamplingParams(temperature=0.8, top_k=20, max_tokens=10, seed=turn)
        [cached] = engine.generate_batch([GenerationRequest(prompt, sampling, session="talk")])
        [fresh] = plain.generate_batch([GenerationRequest(prompt, sampling)])
        assert cached.token_ids == fresh.token_ids
        assert cached.logprobs == pytest.approx(fresh.logprobs, abs=1e-4)
        # all but the last sampled token, which was never fed, is taken over
        assert cached.cached_tokens == (0 if turn == 0 else len(prompt) - 4)
        prompt = [*prompt, *cached.token_ids, 7, 8, 9]
    plain.close()


def test_an_edited_conversation_reuses_only_what_is_equal(engine) -> None:
    prompt = prompts(1, 60)[0]
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    engine.generate_batch([GenerationRequest(prompt, sampling, session="edited")])
    edited = [*prompt[:30], 11, *prompt[31:]]
    [got] = engine.generate_batch([GenerationRequest(edited, sampling, session="edited")])
    assert got.cached_tokens == 30
    with engine.exclusive():
        pass  # forgets every prefix
    [fresh] = engine.generate_batch([GenerationRequest(edited, sampling)])
    assert fresh.cached_tokens == 0
    assert fresh.token_ids == got.token_ids


def test_members_of_a_group_prefill_their_prompt_once(engine) -> None:
    with engine.exclusive():
        pass
    prompt = prompts(1, 80)[0]
    group = [GenerationRequest(prompt, SamplingParams(temperature=0.9, max_tokens=8, seed=seed)) for seed in range(8)]
    together = engine.generate_batch(group)
    assert [completion.cached_tokens for completion in together] == [0] + [len(prompt) - 1] * 7
    for request, got in zip(group, together, strict=True):
        assert got.logprobs == pytest.approx(full_logprobs(engine, prompt, got.token_ids, request.sampling), abs=1e-4)


def test_prefix_store_is_bounded_and_forgets_the_least_recently_used() -> None:
    store = PrefixStore(max_tokens=25)
    tokens = {name: np.array([ord(name)] * 10) for name in "abc"}
    for name in "ab":
        store.put(name, Prefix(tokens[name], torch.zeros(1)))
    assert store.find(np.array([97] * 5))[0] == 5  # a is used
    store.put("c", Prefix(tokens["c"], torch.zeros(1)))
    assert [store.find(tokens[name])[0] for name in "abc"] == [10, 0, 10]
    assert store.tokens == 20
    store.put("a", Prefix(np.arange(30), torch.zeros(1)))  # more than the whole store
    assert store.tokens == 10
    assert shared_length(np.array([1, 2, 3]), np.array([1, 2])) == 2


def test_weights_changed_in_place_take_effect() -> None:
    with GenerationEngine(tiny_model(seed=0), max_model_len=CONTEXT) as engine:
        asked = [GenerationRequest(prompts(1, 40)[0], SamplingParams(temperature=0.0, max_tokens=12), session="s")]
        before = engine.generate_batch(asked)
        with engine.exclusive() as model:
            model.load_state_dict(tiny_model(seed=1).state_dict())
        after = engine.generate_batch(asked)
        with GenerationEngine(tiny_model(seed=1), max_model_len=CONTEXT) as other:
            assert after == other.generate_batch(asked)
        assert after[0].token_ids != before[0].token_ids
        assert all(p.requires_grad and not p.is_inference() for p in engine.model.parameters())


async def test_thirty_two_concurrent_requests(engine) -> None:
    asked = requests(32)
    got = await asyncio.gather(*(engine.generate(r.token_ids, r.sampling) for r in asked))
    expected = engine.generate_batch(asked)
    assert [c.token_ids for c in got] == [c.token_ids for c in expected]


async def test_cancelled_requests_leave_the_others_alone(engine) -> None:
    long = SamplingParams(temperature=0.8, max_tokens=400, seed=1)
    doomed = [asyncio.create_task(engine.generate(p, long)) for p in prompts(6)]
    asked = requests(6)
    kept = [asyncio.create_task(engine.generate(r.token_ids, r.sampling)) for r in asked]
    await asyncio.sleep(0.02)
    for task in doomed:
        task.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*doomed, return_exceptions=True))
    got = await asyncio.gather(*kept)
    assert [c.token_ids for c in got] == [c.token_ids for c in engine.generate_batch(asked)]
    assert not engine._live


async def test_a_full_queue_refuses() -> None:
    with GenerationEngine(tiny_model(), max_model_len=CONTEXT, max_rows=1, max_queue=2) as engine, engine.exclusive():
        request = requests(1)[0]
        for _ in range(2):
            engine.submit(request)
        with pytest.raises(QueueFullError, match="2 requests wait already, at most 2 may"):
            engine.submit(request)


def test_a_closed_engine_fails_what_is_unfinished_and_refuses_more() -> None:
    engine = GenerationEngine(tiny_model(), max_model_len=CONTEXT)
    futures = [engine.submit(r) for r in requests(20, max_tokens=480)]
    engine.close()
    assert all(isinstance(future.exception(), GenerationError) for future in futures)
    with pytest.raises(GenerationError, match="closed"):
        engine.submit(requests(1)[0])


def test_broken_weights_and_faults_are_errors_of_the_request_and_the_engine_goes_on() -> None:
    with GenerationEngine(tiny_model(), max_model_len=CONTEXT) as engine:
        with engine.exclusive() as model:
            whole = {name: value.clone() for name, value in model.state_dict().items()}
            model.get_output_embeddings().weight.data.fill_(math.nan)
        with pytest.raises(GenerationError, match="not finite"):
            engine.submit(requests(1)[0]).result()
        with engine.exclusive() as model:
            model.load_state_dict(whole)
            norm = model.model.norm.weight.data
            model.model.norm.weight.data = norm[:-1]
        with pytest.raises(GenerationError, match="RuntimeError"):
            engine.generate_batch(requests(20))
        with engine.exclusive() as model:
            model.model.norm.weight.data = norm
        assert len(engine.generate_batch(requests(20))) == 20


def test_nan_in_the_cache_does_not_outlive_the_weights_that_made_it() -> None:
    with GenerationEngine(tiny_model(), max_model_len=CONTEXT, prefill_tokens=1) as engine:
        expected = [completion.token_ids for completion in engine.generate_batch(requests(6))]
        with engine.exclusive() as model:
            whole = {name: value.clone() for name, value in model.state_dict().items()}
            for parameter in model.parameters():
                parameter.data.fill_(math.nan)
        for future in [engine.submit(request) for request in requests(6)[::-1]]:
            assert isinstance(future.exception(), GenerationError)
        with engine.exclusive() as model:
            model.load_state_dict(whole)
        assert [completion.token_ids for completion in engine.generate_batch(requests(6))] == expected


def test_sliding_window_models_are_refused() -> None:
    model = tiny_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        GenerationEngine(model)
