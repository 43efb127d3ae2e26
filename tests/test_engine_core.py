"""The synchronous core: the same calls give the same bits, and one request's fault is not another's."""

import math

import pytest
import torch

from glyph.local.inference import forward
from glyph.local.inference.attention import use_grouped_attention
from glyph.local.inference.engine import EngineCore
from glyph.local.inference.requests import (
    Completion,
    GenerationError,
    GenerationRequest,
    PromptTooLongError,
    SteppedGenerator,
)
from glyph.local.inference.sampling import SamplingParams
from glyph.local.inference.weights import WeightsError
from tests.tiny_model import CONTEXT, tiny_model

torch.set_num_threads(1)


def core(seed: int = 0, **options) -> EngineCore:
    return EngineCore(use_grouped_attention(tiny_model(seed=seed)), max_model_len=CONTEXT, **options)


def requests(count: int, **sampling) -> list[GenerationRequest]:
    """Groups of three that share a prompt of 30 tokens, told apart by their seeds."""
    options = {"temperature": 0.9, "top_k": 20, "max_tokens": 12, **sampling}
    return [
        GenerationRequest(
            [3 + (7 * (i // 3) + j) % 380 for j in range(30)], SamplingParams(seed=i, **options), f"talk {i}"
        )
        for i in range(count)
    ]


def drain(engine: SteppedGenerator) -> dict[int, Completion | GenerationError]:
    ended: dict[int, Completion | GenerationError] = {}
    while engine.busy:
        ended.update(engine.step())
    return ended


def talk(engine: SteppedGenerator) -> list[list[tuple[int, Completion | GenerationError]]]:
    """Two turns of six conversations that start three steps apart: what each step returned."""
    asked = requests(6)
    first_turns: dict[int, GenerationRequest] = {}
    log = []
    while asked or engine.busy:
        if asked and len(log) % 3 == 0:
            request = asked.pop(0)
            first_turns[engine.submit(request)] = request
        ended = engine.step()
        log.append(ended)
        for ticket, completion in ended:
            assert isinstance(completion, Completion)
            if before := first_turns.get(ticket):
                longer = [*before.token_ids, *completion.token_ids, 5, 6, 7]
                engine.submit(GenerationRequest(longer, before.sampling, before.session))
    return log


def outcomes(log) -> list[Completion]:
    return [completion for ended in log for _, completion in ended]


def test_the_same_calls_give_the_same_bits_in_two_fresh_cores() -> None:
    log = talk(core())
    assert log == talk(core())
    assert len(outcomes(log)) == 12
    assert sum(completion.cached_tokens == 41 for completion in outcomes(log)) == 6  # 30 + 12 tokens but the last


def test_an_update_leaves_no_trace_of_earlier_steps() -> None:
    fresh, used = core(), core()
    drain_after = [used.submit(request) for request in requests(9, max_tokens=200)]
    assert len(drain(used)) == len(drain_after)
    with used.updating() as model:
        model.load_state_dict(model.state_dict())
    first = [[completion for _, completion in ended] for ended in talk(fresh)]
    assert [[completion for _, completion in ended] for ended in talk(used)] == first


def test_an_update_amid_live_rows_lets_them_go_on() -> None:
    broken, whole = core(), core()
    for engine in (broken, whole):
        for request in requests(4):
            engine.submit(request)
        engine.step()
    with broken.updating():
        pass
    assert drain(broken) == drain(whole)


def test_outcomes_come_by_ticket_in_the_step_in_which_they_end() -> None:
    engine = core(max_rows=3)
    asked = requests(5, max_tokens=4)
    tickets = [engine.submit(request) for request in asked]
    assert tickets == [0, 1, 2, 3, 4]
    # The prefill of a group's first member (0, 3) draws a token of its own, so that its four tokens take three steps.
    # 3 takes the room of 0 after the third step, 4 that of 1 after the fourth, and then has nothing to prefill either.
    assert [[ticket for ticket, _ in engine.step()] for _ in range(9)] == [
        [], [], [0], [1, 2], [], [3], [], [4], []
    ]  # fmt: skip
    assert (engine.busy, engine.waiting) == (False, 0)


def test_newcomers_wait_for_the_prefill_interval_and_share_a_pass() -> None:
    alone, together = core(), core(prefill_interval=4)
    for engine, passes in ((alone, 3), (together, 2)):
        for prompt in ([5] * 40, [6] * 40, [7] * 40):
            engine.submit(GenerationRequest(prompt, SamplingParams(temperature=0.0, max_tokens=12)))
            engine.step()
        got = drain(engine)
        assert engine.prefill_passes == passes
        assert [len(got[ticket].token_ids) for ticket in range(3)] == [12, 12, 12]
    assert together.steps == alone.steps + 2  # the last of three came in the third step and joined in the fifth


def test_weights_are_taken_from_another_model_and_named_where_they_do_not_fit() -> None:
    engine, other = core(seed=0), core(seed=1)
    request = requests(1, temperature=0.0)[0]
    engine.submit(request)
    before = drain(engine)[0]
    place = engine.model.model.norm.weight.data_ptr()
    engine.load_weights_from(other.model.double())
    other.model.float()
    assert engine.model.model.norm.weight.data_ptr() == place
    assert engine.model.dtype == torch.float32
    engine.submit(request)
    other.submit(request)
    after = drain(engine)[1]
    assert after == drain(other)[0]
    assert after.token_ids != before.token_ids
    with pytest.raises(WeightsError, match=r"missing \['model.layers.0.self_attn.k_norm.weight'"):
        engine.load_weights_from(tiny_model("llama"))
    wide = tiny_model()
    wide.model.norm.weight.data = torch.ones(49)
    with pytest.raises(WeightsError, match=r"model.norm.weight has shape \(49,\), expected \(48,\)"):
        engine.load_weights_from(wide)


def test_weights_of_the_same_module_are_not_copied_but_old_prefixes_go() -> None:
    engine = core()
    request = requests(1)[0]
    engine.submit(request)
    drain(engine)
    engine.load_weights_from(engine.model)
    engine.submit(request)
    assert drain(engine)[1].cached_tokens == 0


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_the_lean_forward_pass_is_that_of_transformers(architecture, monkeypatch) -> None:
    lean = EngineCore(tiny_model(architecture), max_model_len=CONTEXT)
    monkeypatch.setattr(forward, "LEAN_MODELS", set())
    plain = EngineCore(tiny_model(architecture), max_model_len=CONTEXT)
    for request in requests(6, max_tokens=20):
        lean.submit(request)
        plain.submit(request)
    got, expected = drain(lean), drain(plain)
    for ticket in range(6):
        assert got[ticket].token_ids == expected[ticket].token_ids
        assert got[ticket].logprobs == pytest.approx(expected[ticket].logprobs, abs=1e-5)


def test_a_cancelled_request_is_never_returned() -> None:
    engine = core(max_rows=2)
    tickets = [engine.submit(request) for request in requests(4)]
    engine.step()
    engine.cancel(tickets[0])
    engine.cancel(tickets[3])
    assert sorted(drain(engine)) == [1, 2]
    engine.cancel(tickets[1])


def test_a_row_with_logits_that_are_not_finite_fails_alone() -> None:
    engine, plain = core(), core()
    poison = 399
    with torch.no_grad():
        engine.model.get_input_embeddings().weight[poison] = math.nan
    asked = requests(4)
    asked[1] = GenerationRequest([poison] * 20, SamplingParams(seed=1, max_tokens=12), "poisoned")
    for request in asked:
        engine.submit(request)
        plain.submit(request)
    got, expected = drain(engine), drain(plain)
    assert isinstance(got[1], GenerationError)
    assert "not finite" in str(got[1])
    for ticket in (0, 2, 3):
        assert got[ticket].token_ids == expected[ticket].token_ids
        assert got[ticket].logprobs == pytest.approx(expected[ticket].logprobs, abs=1e-4)


def test_a_fault_of_the_forward_pass_is_the_outcome_of_every_live_request() -> None:
    engine = core(max_rows=2)
    for request in requests(3):
        engine.submit(request)
    with engine.updating() as model:
        norm = model.model.norm.weight.data
        model.model.norm.weight.data = norm[:-1]
    assert [(ticket, "RuntimeError" in str(outcome)) for ticket, outcome in engine.step()] == [(0, True), (1, True)]
    with engine.updating() as model:
        model.model.norm.weight.data = norm
    assert isinstance(drain(engine)[2], Completion)


def test_bad_requests_are_refused_at_once() -> None:
    engine = core()
    with pytest.raises(PromptTooLongError, match="512 tokens; the prompt has 512"):
        engine.submit(GenerationRequest([5] * CONTEXT, SamplingParams()))
    with pytest.raises(ValueError, match="empty"):
        engine.submit(GenerationRequest([], SamplingParams()))
    for token in (-1, engine.vocabulary):
        with pytest.raises(ValueError, match="vocabulary"):
            engine.submit(GenerationRequest([3, token], SamplingParams()))
    assert not engine.busy
