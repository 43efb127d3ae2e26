"""Generators for a config: our engine on or beside the trainer's model, or vLLM; and pushing weights to them."""

import copy
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from glyph.config import Config, RlConfig, check_device
from glyph.local.inference.engine import EngineCore
from glyph.local.inference.loading import expect_many_shapes, load_model, require_device
from glyph.local.inference.requests import SteppedGenerator

PREFILL_INTERVAL = 8
"""On a GPU newcomers are admitted every so many steps: an eager prefill costs more than a decode step there."""


class WeightedGenerator(SteppedGenerator, Protocol):
    """A generator that takes the weights of a model being trained."""

    def load_weights_from(self, source: PreTrainedModel) -> None:
        """Sample with these weights from now on; what was kept for older ones is forgotten.

        Raises:
            ValueError: a name or a shape differs.
        """
        ...


def prepare_device(config: Config) -> str:
    """Set torch up for a run and say where it runs: cpu or cuda.

    Raises: ValueError for a device that is not here, or not for this scale.
    """
    device = config.device if config.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    check_device(config, device)
    require_device(device)
    expect_many_shapes()
    if config.threads:
        torch.set_num_threads(config.threads)
    return device


def generator_beside(config: RlConfig, model: PreTrainedModel, folder: str) -> WeightedGenerator:
    """A generator for training: `folder` is where the trainer's model was loaded from.

    On a CPU the engine samples with the trainer's own model. On a GPU it has a copy in the type of the forward pass:
    CUDA graphs need weights that stay in place, and sampling in float32 would cost twice the time.
    """
    if config.generation.backend == "vllm":
        return _vllm(config, folder)
    on_gpu = model.device.type == "cuda"
    own: Any = copy.deepcopy(model) if on_gpu else model
    if on_gpu and config.dtype == "bfloat16":
        own = own.to(torch.bfloat16)
    return _engine(config, own)


def load_generator(config: RlConfig, folder: str) -> SteppedGenerator:
    """A generator with the weights of a model folder or hub id, for evaluation without training."""
    device = prepare_device(config)
    if config.generation.backend == "vllm":
        return _vllm(config, folder)
    return _engine(config, load_model(folder, device, getattr(torch, config.dtype)))


def _engine(config: RlConfig, model: PreTrainedModel) -> EngineCore:
    of, on_gpu = config.generation, model.device.type == "cuda"
    return EngineCore(
        model,
        max_model_len=config.environment.max_context_tokens,
        max_rows=of.max_rows,
        prefill_tokens=of.prefill_tokens,
        prefix_cache_tokens=of.max_rows * config.environment.max_context_tokens,
        prefill_interval=PREFILL_INTERVAL if on_gpu else 1,
        cuda_graphs=of.cuda_graphs and on_gpu,
    )


def _vllm(config: RlConfig, folder: str) -> WeightedGenerator:
    from glyph.local.inference.vllm_backend import VllmGenerator

    return VllmGenerator(
        folder,
        max_model_len=config.environment.max_context_tokens,
        max_rows=config.generation.max_rows,
        memory_share=config.generation.vllm_memory_share,
        seed=config.seed,
    )
