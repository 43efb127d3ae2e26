"""vLLM behind our protocol, with a stand-in for vLLM: its API as used here, a scripted engine, packed weights."""

import os
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from glyph.local.inference.requests import Completion, GenerationError, GenerationRequest, PromptTooLongError
from glyph.local.inference.sampling import SamplingParams
from glyph.local.inference.vllm_backend import MissingExtraError, VllmGenerator, push_weights
from glyph.local.inference.weights import WeightsError
from tests.tiny_model import CONTEXT, save_tiny_model, tiny_model

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


class PackedModel(nn.Module):
    """The weights of a transformers model as vLLM holds them: bfloat16, packed, the vocabulary padded to 64s.

    `swap` makes it mistake k for v, `replace` gives its norms new memory, `deaf` loads nothing.
    """

    packed_modules_mapping = PACKED

    def __init__(self, like: PreTrainedModel) -> None:
        super().__init__()
        self.swap = self.replace = self.deaf = False
        self.tied = bool(like.config.tie_word_embeddings)
        sizes: dict[str, list[int]] = {}
        for name, value in like.named_parameters():
            whole = self.whole(name)[0]
            rows = -(-len(value) // 64) * 64 if "embed" in name or "lm_head" in name else len(value)
            sizes.setdefault(whole, [0, *value.shape[1:]])[0] += rows
        for name, size in sizes.items():
            self._put(name, nn.Parameter(torch.zeros(size, dtype=torch.bfloat16), requires_grad=False))
        if self.tied:
            self.lm_head = self.get_submodule("model.embed_tokens")

    @staticmethod
    def whole(name: str) -> tuple[str, int]:
        for whole, parts in PACKED.items():
            for at, part in enumerate(parts):
                if part in name:
                    return name.replace(part, whole), at
        return name, 0

    def _put(self, name: str, value: nn.Parameter) -> None:
        module: nn.Module = self
        *path, last = name.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        module.register_parameter(last, value)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        held = dict(self.named_parameters(remove_duplicate=False))
        fed: dict[str, dict[int, torch.Tensor]] = {}
        for name, value in weights:
            if not (self.deaf or (self.tied and name.startswith("lm_head"))):
                whole, at = self.whole(name)
                fed.setdefault(whole, {})[3 - at if self.swap and "qkv" in whole and at else at] = value
        for whole, parts in fed.items():
            if self.replace and "norm" in whole:
                self._put(whole, nn.Parameter(held[whole].clone(), requires_grad=False))
                held[whole] = self.get_parameter(whole)
            value = torch.cat([parts[at] for at in sorted(parts)])
            held[whole].data[: len(value)].copy_(value)


# The stand-in for vLLM.


class OutputKind(Enum):
    FINAL_ONLY = 2


@dataclass
class FakeParams:
    """vLLM's `SamplingParams`: those of its fields that matter."""

    temperature: float
    top_k: int
    top_p: float
    max_tokens: int
    stop_token_ids: list[int]
    ignore_eos: bool
    seed: int | None
    logprobs: int
    flat_logprobs: bool
    detokenize: bool
    output_kind: OutputKind
    skip_clone: bool


@dataclass
class FakeRequest:
    name: str
    prompt: list[int]
    params: FakeParams
    drawn: list[int] = field(default_factory=list)

    def output(self, reason: str | None, logprobs: list[float]) -> SimpleNamespace:
        answer = SimpleNamespace(
            token_ids=self.drawn, logprobs=SimpleNamespace(logprobs=logprobs), finish_reason=reason
        )
        return SimpleNamespace(request_id=self.name, outputs=[answer], finished=bool(reason), num_cached_tokens=None)


class FakeEngine:
    """Counts up: each token is the one before, plus 1; the i-th has log-prob −i/4. `fault` breaks the next step."""

    def __init__(self, arguments: SimpleNamespace) -> None:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)  # as vLLM does
        torch.set_float32_matmul_precision("high")
        self.arguments = arguments
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 400)
        self.model_executor = object()
        self.model = PackedModel(tiny_model())
        self.requests: dict[str, FakeRequest] = {}
        self.fault: Exception | None = None
        self.reason: str | None = None
        self.logprob = -0.25
        self.resets: list[bool] = []

    @classmethod
    def from_engine_args(cls, arguments: SimpleNamespace) -> "FakeEngine":
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        return cls(arguments)

    def apply_model(self, work: Any) -> list[Any]:
        return [work(self.model)]

    def add_request(self, name: str, prompt: dict[str, Any], params: FakeParams) -> None:
        if params.temperature > 2:
            raise ValueError(f"temperature must be in [0, 2], got {params.temperature}")
        self.requests[name] = FakeRequest(name, prompt["prompt_token_ids"], params)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[SimpleNamespace]:
        if self.fault:
            fault, self.fault = self.fault, None
            raise fault
        return list(self._outputs())[::-1]

    def _outputs(self) -> Iterator[SimpleNamespace]:
        for request in list(self.requests.values()):
            request.drawn.append((request.drawn or request.prompt)[-1] + 1)
            full = len(request.drawn) == request.params.max_tokens
            stopped = request.drawn[-1] in request.params.stop_token_ids
            reason = self.reason or ("stop" if stopped else "length" if full else None)
            if reason:
                del self.requests[request.name]
            yield request.output(reason, [self.logprob * (i + 1) for i in range(len(request.drawn))])

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.requests.pop(name, None)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        self.resets.append(reset_running_requests)
        return reset_running_requests or not self.requests


def install(monkeypatch: pytest.MonkeyPatch, **names: dict[str, Any]) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    for name, content in names.items():
        module = ModuleType(name.replace("__", "."))
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VllmGenerator:
    install(
        monkeypatch,
        vllm={},
        vllm__engine={},
        vllm__engine__arg_utils={"EngineArgs": SimpleNamespace},
        vllm__inputs={"tokens_input": lambda ids: {"type": "token", "prompt_token_ids": ids}},
        vllm__sampling_params={"RequestOutputKind": OutputKind, "SamplingParams": FakeParams},
        vllm__v1={},
        vllm__v1__engine={},
        vllm__v1__engine__llm_engine={"LLMEngine": FakeEngine},
    )
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    return VllmGenerator(str(save_tiny_model(tmp_path)), max_model_len=4096, max_rows=7, memory_share=0.3, seed=5)


def request(*token_ids: int, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(token_ids, SamplingParams(**sampling))


def drain(generator: VllmGenerator) -> dict[int, Any]:
    results: dict[int, Any] = {}
    while generator.busy:
        results.update(generator.step())
    return results


def engine_of(generator: VllmGenerator) -> FakeEngine:
    return generator._engine


# Generating.


def test_the_engine_is_asked_for_what_the_protocol_promises(generator: VllmGenerator) -> None:
    arguments = engine_of(generator).arguments
    assert generator.max_model_len == CONTEXT == arguments.max_model_len  # the model's positions, fewer than 4096
    assert (arguments.max_num_seqs, arguments.gpu_memory_utilization, arguments.seed) == (7, 0.3, 5)
    assert arguments.logprobs_mode == "processed_logprobs"
    assert (arguments.enable_prefix_caching, arguments.dtype) == (True, "bfloat16")
    assert (arguments.distributed_executor_backend, arguments.tensor_parallel_size) == ("uni", 1)


def test_completions_hold_the_stop_token_and_end_by_ticket(generator: VllmGenerator) -> None:
    tickets = [
        generator.submit(request(10, max_tokens=3)),
        generator.submit(request(20, 21, max_tokens=9, stop_token_ids=(24,))),
        generator.submit(request(30, max_tokens=2)),
    ]
    assert tickets == [0, 1, 2]
    assert generator.busy
    assert generator.step() == []
    assert generator.step() == [(2, Completion([31, 32], [-0.25, -0.5], "length"))]
    assert generator.step() == [
        (0, Completion([11, 12, 13], [-0.25, -0.5, -0.75], "length")),
        (1, Completion([22, 23, 24], [-0.25, -0.5, -0.75], "stop")),
    ]
    assert not generator.busy
    assert generator.step() == []


def test_our_parameters_become_vllms(generator: VllmGenerator) -> None:
    generator.submit(request(1, temperature=0.8, top_k=-1, top_p=0.9, stop_token_ids=(2,), seed=2**64 - 1))
    generator.submit(request(*range(9), temperature=0.0, max_tokens=1000))
    sampled, greedy = (each.params for each in engine_of(generator).requests.values())
    assert (sampled.temperature, sampled.top_k, sampled.top_p, sampled.stop_token_ids) == (0.8, 0, 0.9, [2])
    assert sampled.seed == 2**63 - 1  # vLLM keeps seeds as signed 64-bit numbers
    assert sampled.max_tokens == CONTEXT - 1
    assert (sampled.ignore_eos, sampled.logprobs, sampled.output_kind) == (True, 0, OutputKind.FINAL_ONLY)
    assert (greedy.temperature, greedy.seed, greedy.max_tokens) == (0.0, None, CONTEXT - 9)


def test_what_cannot_be_sampled_is_refused_before_vllm_sees_it(generator: VllmGenerator) -> None:
    with pytest.raises(PromptTooLongError, match="maximum context length is 512 tokens; the prompt has 512"):
        generator.submit(request(*[1] * CONTEXT))
    with pytest.raises(ValueError, match="prompt is empty"):
        generator.submit(request())
    with pytest.raises(ValueError, match="outside the vocabulary of 400"):
        generator.submit(request(400))
    with pytest.raises(ValueError, match=r"from 0\.01, got 0\.005"):
        generator.submit(request(1, temperature=0.005))
    assert not engine_of(generator).requests
    with pytest.raises(ValueError, match=r"in \[0, 2\]"):
        generator.submit(request(1, temperature=3.0))
    assert not generator.busy
    assert generator.submit(request(*[1] * (CONTEXT - 1))) > 0  # just room for one token
    assert [result.finish_reason for result in drain(generator).values()] == ["length"]


def test_a_fault_of_a_step_is_the_outcome_of_every_live_request(generator: VllmGenerator) -> None:
    for _ in range(3):
        generator.submit(request(1, max_tokens=5))
    generator.step()
    engine_of(generator).fault = torch.cuda.OutOfMemoryError("CUDA out of memory")
    results = generator.step()
    assert [ticket for ticket, _ in results] == [0, 1, 2]
    assert all(isinstance(each, GenerationError) and "CUDA out of memory" in str(each) for _, each in results)
    assert not generator.busy
    assert not engine_of(generator).requests
    generator.submit(request(1, max_tokens=1))
    assert drain(generator)[3].token_ids == [2]


def test_an_interrupt_is_no_outcome(generator: VllmGenerator) -> None:
    generator.submit(request(1))
    engine_of(generator).fault = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        generator.step()


def test_ends_that_are_no_completions(generator: VllmGenerator) -> None:
    engine = engine_of(generator)
    generator.submit(request(1, max_tokens=1))
    engine.logprob = float("nan")
    assert "not finite" in str(drain(generator)[0])
    generator.submit(request(1))
    engine.reason = "abort"
    assert "ended the request: abort" in str(drain(generator)[1])
    generator.submit(request(1))
    engine.requests.clear()
    assert "lost the request" in str(drain(generator)[2])


# The process.


def test_building_leaves_random_states_and_precision_as_they_were(generator: VllmGenerator) -> None:
    def state() -> tuple[Any, ...]:
        precision = torch.get_float32_matmul_precision()
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), precision

    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = state()
    VllmGenerator(engine_of(generator).arguments.model, max_model_len=64, max_rows=1, memory_share=0.1, seed=0)
    assert state() == before


def test_an_engine_in_another_process_is_refused(generator: VllmGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = engine_of(generator).arguments.model
    monkeypatch.setattr(FakeEngine, "__setattr__", lambda engine, name, value: None)
    monkeypatch.setattr(FakeEngine, "apply_model", None)
    with pytest.raises(RuntimeError, match="another process"):
        VllmGenerator(folder, max_model_len=64, max_rows=1, memory_share=0.1, seed=0)


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with pytest.raises(MissingExtraError, match=r"pip install \"glyph\[vllm\]\", or take generation.backend=engine"):
        VllmGenerator("nowhere", max_model_len=8, max_rows=1, memory_share=0.1, seed=0)


def test_a_vllm_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, vllm={}, vllm__engine={}, vllm__engine__arg_utils={})
    with pytest.raises(MissingExtraError, match=r"cannot be imported .*EngineArgs"):
        VllmGenerator("nowhere", max_model_len=8, max_rows=1, memory_share=0.1, seed=0)


# Weights.


def test_a_push_arrives_in_place_and_forgets_prefixes(generator: VllmGenerator) -> None:
    engine, trained = engine_of(generator), tiny_model(seed=3)
    memory = {name: value.data_ptr() for name, value in engine.model.named_parameters()}
    generator.load_weights_from(trained)
    held = dict(engine.model.named_parameters())
    assert {name: value.data_ptr() for name, value in held.items()} == memory
    attention = trained.model.layers[1].self_attn
    expected = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).bfloat16()
    assert held["model.layers.1.self_attn.qkv_proj.weight"].equal(expected)
    assert engine.resets == [False]


def test_live_requests_take_a_push_too(generator: VllmGenerator) -> None:
    generator.submit(request(1, max_tokens=2))
    generator.step()
    generator.load_weights_from(tiny_model())
    assert engine_of(generator).resets == [True]
    assert drain(generator)[0].token_ids == [2, 3]


def test_prefixes_that_stay_are_a_fault(generator: VllmGenerator) -> None:
    engine_of(generator).requests["foreign"] = None  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="did not forget the prefixes"), generator.updating():
        pass


UNHEARD = ["model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"]


@pytest.mark.parametrize("name", UNHEARD)
def test_a_weight_that_did_not_arrive_is_named(name: str) -> None:
    source = tiny_model()
    target = PackedModel(source)
    push_weights(source, target)
    with torch.no_grad():
        source.get_parameter(name)[-1, -1] += 1.0
    target.deaf = True
    with pytest.raises(WeightsError, match=rf"1 of \d+ weights did not arrive in vLLM as sent: \['{name}'\]"):
        push_weights(source, target)
    target.deaf = False
    push_weights(source, target)


def test_mistaken_parts_new_memory_and_filled_padding_are_named() -> None:
    source = tiny_model()
    swapped, replaced, padded = (PackedModel(source) for _ in range(3))
    swapped.swap = replaced.replace = True
    with pytest.raises(WeightsError, match=r"4 of \d+ weights did not arrive .*0\.self_attn\.k_proj.*v_proj"):
        push_weights(source, swapped)
    with pytest.raises(WeightsError, match="norm"):  # CUDA graphs would go on reading the old memory
        push_weights(source, replaced)
    padded.get_parameter("model.embed_tokens.weight")[-1] = 1.0
    with pytest.raises(WeightsError, match=r"model\.embed_tokens\.weight \(padding\)"):
        push_weights(source, padded)


def test_a_head_of_its_own_does_not_pass_for_a_tied_one() -> None:
    tied, untied = tiny_model(), tiny_model(seed=1)
    tied.config.tie_word_embeddings = True
    tied.lm_head.weight = tied.model.embed_tokens.weight
    target = PackedModel(tied)
    push_weights(tied, target)
    assert target.get_parameter("lm_head.weight") is target.get_parameter("model.embed_tokens.weight")
    with pytest.raises(WeightsError, match=r"1 of \d+ .*'lm_head\.weight'"):
        push_weights(untied, target)
    own = PackedModel(untied)
    push_weights(tied, own)
    assert own.get_parameter("lm_head.weight").equal(own.get_parameter("model.embed_tokens.weight"))


def test_nan_never_arrives() -> None:
    source = tiny_model()
    with torch.no_grad():
        source.model.norm.weight[0] = float("nan")
    with pytest.raises(WeightsError, match=r"model\.norm\.weight"):
        push_weights(source, PackedModel(source))


def test_other_names_and_shapes_are_refused_before_anything_is_changed() -> None:
    source = tiny_model()
    with pytest.raises(WeightsError, match=r"missing .*k_norm"):
        push_weights(tiny_model("llama"), PackedModel(source))
    target = PackedModel(source)
    with torch.no_grad():
        source.model.norm.weight = nn.Parameter(torch.ones(49))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \(49,\), vLLM has \(48,\)"):
        push_weights(source, target)
    assert not any(value.any() for value in target.parameters())
