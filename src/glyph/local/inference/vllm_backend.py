"""A stepped generator over vLLM's engine in this process (an optional extra, one CUDA GPU), and pushing weights to it.

Token ids and sampling parameters go in; sampled ids, with the stop token if one was drawn, and the log-probs of the
very distribution sampled from come out, as from `EngineCore`. vLLM schedules: rows join and leave between steps, and
prefixes are shared by its cache of blocks. It samples in bfloat16 from its own copy of the weights, in its own
memory; a trainer in the same process pushes its weights with `load_weights_from`, and each push is verified.

vLLM's engine changes its process; what concerns a trainer is undone here. It runs on a stream of its own, waits for
the trainer's and is waited for; the global random states and the float32 matmul precision are restored once it is
built. `memory_share` is a share of the whole GPU and must be free at that time; what others hold does not count
towards it. Still changed: the environment (VLLM_…), and `torch.distributed`, which has a group of one process.

A seed fixes the random numbers of a request, not its tokens: the logits depend on which rows share a step. The text,
chat, the server and quantised or parallel models are not done here.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import isfinite
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from glyph.local.inference.requests import Completion, GenerationError, GenerationRequest, PromptTooLongError
from glyph.local.inference.sampling import SamplingParams
from glyph.local.inference.weights import WeightsError

PREFILL_TOKENS = 8192
"""Tokens of one step of vLLM, prompts and draws together."""
LOWEST_TEMPERATURE = 0.01
"""vLLM would raise a lower one to this without an error."""
ENVIRONMENT = {
    "VLLM_HOST_IP": "127.0.0.1",  # else it looks for the address of a network
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it cannot give the log-probs of the processed distribution
}
"""Set unless the user has set them."""

Outcome = Completion | GenerationError


class MissingExtraError(ValueError):
    """vLLM is not installed, or cannot be imported."""


class VllmGenerator:
    """A `WeightedGenerator`: `folder` is the model folder or hub id, `max_rows` sequences are live at once.

    Raises:
        MissingExtraError: no vLLM.
        ValueError: too little free memory, or a model that vLLM does not take.
    """

    def __init__(self, folder: str, *, max_model_len: int, max_rows: int, memory_share: float, seed: int) -> None:
        self._vllm = _import_vllm()
        self._stream = torch.cuda.Stream() if torch.cuda.is_available() else None
        self._tickets = count()
        self._live: set[int] = set()
        positions = getattr(AutoConfig.from_pretrained(folder), "max_position_embeddings", None) or max_model_len
        self.max_model_len = min(max_model_len, positions)
        arguments = self._vllm.EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=seed,
            max_model_len=self.max_model_len,
            max_num_seqs=max_rows,
            max_num_batched_tokens=max(PREFILL_TOKENS, max_rows),
            gpu_memory_utilization=memory_share,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",  # no sampling defaults of the folder's
            distributed_executor_backend="uni",
            tensor_parallel_size=1,
            disable_log_stats=True,
        )
        _require_memory(memory_share)
        with _process_state_kept(), self._on_stream():
            self._engine = self._vllm.LLMEngine.from_engine_args(arguments)
        if not hasattr(self._engine, "model_executor"):
            raise RuntimeError(
                "vLLM started another process; VLLM_ENABLE_V1_MULTIPROCESSING must be 0 before its import"
            )
        self._model: Any = self._engine.apply_model(lambda model: model)[0]
        self.vocabulary = int(self._engine.model_config.get_vocab_size())

    def submit(self, request: GenerationRequest) -> int:
        """Queue a request and return its ticket; tickets ascend.

        Raises: PromptTooLongError, ValueError (an empty prompt, an id outside the vocabulary, a temperature that vLLM
        does not sample at: above 2, or above 0 and below 0.01).
        """
        prompt = list(request.token_ids)
        self._check(prompt, request.sampling)
        ticket = next(self._tickets)
        params = self._params(request.sampling, self.max_model_len - len(prompt))
        self._engine.add_request(str(ticket), self._vllm.tokens_input(prompt), params)
        self._live.add(ticket)
        return ticket

    def _check(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        if not prompt:
            raise ValueError("the prompt is empty: at least one token is needed")
        if min(prompt) < 0 or max(prompt) >= self.vocabulary:
            raise ValueError(f"a token id lies outside the vocabulary of {self.vocabulary}")
        if len(prompt) >= self.max_model_len:
            raise PromptTooLongError(
                f"This model's maximum context length is {self.max_model_len} tokens; the prompt has "
                f"{len(prompt)}, which leaves no room for a completion."
            )
        if 0 < sampling.temperature < LOWEST_TEMPERATURE:
            raise ValueError(f"vLLM samples at temperatures from {LOWEST_TEMPERATURE}, got {sampling.temperature}")

    def _params(self, sampling: SamplingParams, room: int) -> Any:
        """vLLM's parameters for ours; `room` is what the context leaves for a completion."""
        return self._vllm.SamplingParams(
            temperature=sampling.temperature,
            top_k=max(sampling.top_k, 0),
            top_p=sampling.top_p,
            max_tokens=min(sampling.max_tokens or room, room),
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # only the request says what stops it
            seed=None if sampling.seed is None else sampling.seed % 2**63,  # it keeps them as signed 64-bit numbers
            logprobs=0,  # that of the drawn token alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._vllm.RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )

    @property
    def busy(self) -> bool:
        return bool(self._live)

    def step(self) -> list[tuple[int, Outcome]]:
        """Let vLLM do one step; return what ended in it, tickets ascending.

        vLLM schedules a step ahead, so that the first one after a pause ends nothing. A fault of a step is the
        outcome of every live request.
        """
        if not self._live:
            return []
        try:
            with self._on_stream():
                outputs = self._engine.step()
        except Exception as error:
            return self._fail_all(error)
        ended = [(int(output.request_id), _outcome(output)) for output in outputs if output.finished]
        self._live.difference_update(ticket for ticket, _ in ended)
        if self._live and not self._engine.has_unfinished_requests():
            ended += self._fail_all(RuntimeError("vLLM has lost the request"))
        return sorted(ended, key=lambda pair: pair[0])

    def _fail_all(self, error: Exception) -> list[tuple[int, Outcome]]:
        tickets, self._live = sorted(self._live), set()
        failure = GenerationError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        self._engine.abort_request([str(ticket) for ticket in tickets])
        return [(ticket, failure) for ticket in tickets]

    @contextmanager
    def updating(self) -> Iterator[nn.Module]:
        """Yield vLLM's model, to change its weights in place; kept prefixes, which the old ones made, are forgotten.

        Live requests go on with the new weights: the keys and values of their tokens are computed again.
        """
        with self._on_stream():
            try:
                yield self._model
            finally:
                if not self._engine.reset_prefix_cache(reset_running_requests=self.busy):
                    raise RuntimeError("vLLM did not forget the prefixes that older weights made")

    def load_weights_from(self, source: PreTrainedModel) -> None:
        """Take over a trainer's weights, in bfloat16, and check that each has arrived.

        Raises: WeightsError that names the tensors which differ, or names or shapes that do not align.
        """
        with self.updating() as model:
            push_weights(source, model)

    def close(self) -> None:
        """Give the memory back; nothing else may be called afterwards."""
        self._engine.engine_core.shutdown()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Work on vLLM's stream, after what was queued before, and before what will be queued."""
        if self._stream is None:
            yield
            return
        outer = torch.cuda.current_stream()
        self._stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outer.wait_stream(self._stream)


def _import_vllm() -> Any:
    """The names of vLLM that are used here. Raises: MissingExtraError."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.sampling_params import SamplingParams as VllmSamplingParams
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "vllm"
        what = "vllm is not installed" if missing else f"vllm cannot be imported ({error})"
        raise MissingExtraError(
            f"generation.backend 'vllm': {what}; pip install \"glyph[vllm]\", or take generation.backend=engine"
        ) from error
    return SimpleNamespace(
        EngineArgs=EngineArgs,
        LLMEngine=LLMEngine,
        RequestOutputKind=RequestOutputKind,
        SamplingParams=VllmSamplingParams,
        tokens_input=tokens_input,
    )


def _require_memory(share: float) -> None:
    """Raises: ValueError if less than this share of the GPU is free."""
    if not torch.cuda.is_available():
        return  # vLLM says itself that it finds no GPU
    torch.cuda.empty_cache()
    free, total = (amount / 2**30 for amount in torch.cuda.mem_get_info())
    if free < share * total:
        raise ValueError(
            f"generation.vllm_memory_share={share}: vLLM would take {share * total:.1f} GiB, but of the GPU's "
            f"{total:.1f} GiB only {free:.1f} are free; take a smaller share"
        )


@contextmanager
def _process_state_kept() -> Iterator[None]:
    """Restore what vLLM sets for the whole process while it is built: random states, matmul precision."""
    python, numpy, precision = random.getstate(), np.random.get_state(), torch.get_float32_matmul_precision()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_float32_matmul_precision(precision)


def _outcome(output: Any) -> Outcome:
    """What a finished `RequestOutput` of vLLM means here."""
    answer = output.outputs[0]
    if answer.finish_reason not in ("stop", "length"):
        return GenerationError(f"vLLM ended the request: {answer.finish_reason}")
    token_ids, logprobs = list(answer.token_ids), list(answer.logprobs.logprobs)
    if len(logprobs) != len(token_ids):
        return GenerationError(f"vLLM gave {len(logprobs)} log-probs for {len(token_ids)} tokens")
    if not all(map(isfinite, logprobs)):
        return GenerationError("the model's logits are not finite")
    return Completion(token_ids, logprobs, answer.finish_reason, output.num_cached_tokens or 0)


# Weights.

Place = tuple[str, Tensor, Tensor]
"""A parameter's name in the trained model, its value, and the part of vLLM's memory where it belongs."""


@torch.inference_mode()
def push_weights(source: nn.Module, target: nn.Module) -> None:
    """Load every parameter of `source` into vLLM's `target`, cast to its dtype, and read it back.

    vLLM packs projections (q, k and v; gate and up) into one tensor and pads the vocabulary with zeros. What is
    compared is the memory that `target` had before, which its CUDA graphs read.

    Raises: WeightsError that names the tensors; where names or shapes do not align nothing is changed.
    """
    places, padding = _places(source, target)
    target.load_weights((name, value) for name, value, _ in places)  # type: ignore[operator]
    zero = torch.zeros(())
    checked = [*places, *((f"{name} (padding)", zero, rows) for name, rows in padding)]
    differing = torch.stack([(kept != value.to(kept.dtype)).any() for _, value, kept in checked]).tolist()
    wrong = [name for (name, _, _), differs in zip(checked, differing, strict=True) if differs]
    if wrong:
        raise WeightsError(f"{len(wrong)} of {len(checked)} weights did not arrive in vLLM as sent: {wrong[:5]}")


def _places(source: nn.Module, target: nn.Module) -> tuple[list[Place], list[tuple[str, Tensor]]]:
    """Where each parameter of `source` belongs in `target`, and the rows there that pad. Raises: WeightsError.

    Shared parameters, as the head of tied embeddings, stand under each of their names: a trained head that is not
    shared is compared with vLLM's shared one too, and then differs.
    """
    packed: dict[str, list[str]] = getattr(target, "packed_modules_mapping", {})
    whole_of = {part: (whole, at) for whole, parts in packed.items() for at, part in enumerate(parts)}
    held = dict(target.named_parameters(remove_duplicate=False))
    groups: dict[str, list[tuple[int, str, Tensor]]] = {}
    for name, parameter in source.named_parameters(remove_duplicate=False):
        *path, module, kind = name.split(".")
        whole, at = whole_of.get(module, (module, 0))
        groups.setdefault(".".join([*path, whole, kind]), []).append((at, name, parameter.detach()))
    if groups.keys() != held.keys():
        missing, unknown = sorted(held.keys() - groups.keys()), sorted(groups.keys() - held.keys())
        raise WeightsError(f"weights must align: missing {missing[:5]}, unknown to vLLM {unknown[:5]}")
    places: list[Place] = []
    padding: list[tuple[str, Tensor]] = []
    for whole, group in groups.items():
        memory, row = held[whole].detach(), 0
        for _, name, value in sorted(group, key=lambda part: part[0]):
            kept = memory[row : row + len(value)]
            if kept.shape != value.shape:
                got, expected = tuple(value.shape), tuple(kept.shape)
                raise WeightsError(f"weights must align: {name} has shape {got}, vLLM has {expected} left for it")
            places.append((name, value, kept))
            row += len(value)
        if row < len(memory):
            padding.append((whole, memory[row:]))
    return places, padding
