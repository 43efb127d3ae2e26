"""Decode steps over static buffers and buckets, with a stand-in for the capture that runs on a CPU."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from glyph.local.inference import forward
from glyph.local.inference.cuda_graphs import bucket
from glyph.local.inference.engine import EngineCore
from glyph.local.inference.requests import Completion, GenerationError, GenerationRequest
from glyph.local.inference.sampling import SamplingParams
from tests.tiny_model import CONTEXT, tiny_model

torch.set_num_threads(1)


def direct(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """As a graph does: runs on what the buffers hold at each call and refills one output tensor."""
    output = function().clone()
    return lambda: output.copy_(function())


def eager(model=None, **options) -> EngineCore:
    return EngineCore(model or tiny_model(), max_model_len=CONTEXT, **options)


def graphed(model=None, **options) -> EngineCore:
    return eager(model, cuda_graphs=True, capture=direct, **options)


def biased_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=400, num_hidden_layers=2, initializer_range=0.15, **shape))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model.eval()


def requests(count: int, length: int = 12, **sampling) -> list[GenerationRequest]:
    options = {"temperature": 0.8, "top_k": 20, "max_tokens": 16, **sampling}
    prompts = np.random.default_rng(count).integers(3, 390, size=(count, length + count))
    return [
        GenerationRequest(row[: length + i].tolist(), SamplingParams(seed=i, **options))
        for i, row in enumerate(prompts)
    ]


def run(core: EngineCore, asked: list[GenerationRequest]) -> list[Completion | GenerationError]:
    ended: dict[int, Completion | GenerationError] = {}
    tickets = [core.submit(request) for request in asked]
    while core.busy:
        ended.update(core.step())
    return [ended[ticket] for ticket in tickets]


def assert_alike(got: list, expected: list) -> None:
    assert [completion.token_ids for completion in got] == [completion.token_ids for completion in expected]
    for one, other in zip(got, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_buckets() -> None:
    assert [bucket(number, 8) for number in (1, 8, 9, 16, 17, 200)] == [8, 8, 16, 16, 32, 256]
    assert [bucket(number, 256) for number in (256, 257, 4096)] == [256, 512, 4096]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_k": 0, "top_p": 0.8}])
def test_rows_that_come_and_go_get_what_the_eager_step_gives(sampling) -> None:
    asked = requests(30, **sampling)
    core = graphed(max_rows=12)
    assert_alike(run(core, asked), run(eager(max_rows=12), asked))
    assert core.graphs is not None
    assert core.graphs.captured == [(16, 256), (8, 256)]  # twelve rows first, the last few at the end


def test_projections_side_by_side_compute_the_same_with_biases() -> None:
    asked = requests(6)
    got = run(graphed(biased_model()), asked)
    assert_alike(got, run(eager(biased_model()), asked))
    without = biased_model()
    for name, parameter in without.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    assert got[0].token_ids != run(eager(without), asked)[0].token_ids  # the biases matter


def test_the_cache_is_as_long_as_the_context_and_no_longer() -> None:
    asked = requests(2, length=CONTEXT - 200, max_tokens=None, temperature=0.0)
    core = graphed()
    got = run(core, asked)
    assert [len(completion.token_ids) for completion in got] == [200, 199]
    assert core.graphs is not None
    assert core.graphs.captured == [(8, 512)]
    assert_alike(got, run(eager(), asked))


def test_new_weights_reach_the_graphs_where_the_old_ones_lay() -> None:
    core, asked = graphed(), requests(5)
    run(core, asked)
    memory = {name: parameter.data_ptr() for name, parameter in core.model.named_parameters()}
    core.load_weights_from(tiny_model(seed=1))
    assert {name: parameter.data_ptr() for name, parameter in core.model.named_parameters()} == memory
    assert_alike(run(core, asked), run(eager(tiny_model(seed=1)), asked))


def test_parked_rows_do_no_harm_even_after_a_row_that_was_not_finite() -> None:
    poison = 399
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = math.nan
    asked = requests(5)
    poisoned = [*asked[:2], GenerationRequest([poison] * 30, SamplingParams(seed=9, max_tokens=8)), *asked[2:]]
    core = graphed(model)
    for _ in range(2):
        got = run(core, poisoned)
        assert isinstance(got.pop(2), GenerationError)
        assert_alike(got, run(eager(), asked))


def test_graphs_are_refused_where_they_cannot_be(monkeypatch) -> None:
    with pytest.raises(ValueError, match="CUDA graphs need a CUDA device, the model is on cpu"):
        eager(cuda_graphs=True)
    monkeypatch.setattr(forward, "LEAN_MODELS", {"llama"})
    with pytest.raises(ValueError, match="need a Llama, Qwen2 or Qwen3 model, got Qwen3ForCausalLM"):
        graphed()
