"""From a model folder to a model that the engine can run."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from glyph.local.attention import use_grouped_attention


def load_model(model_dir: str | Path, device: str = "auto") -> PreTrainedModel:
    """Load a causal language model for generation: float32 on a CPU, where bf16 is slow, else bfloat16."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="sdpa")
    return use_grouped_attention(model.to(device))


def require_full_attention(model: PreTrainedModel) -> None:
    """Refuse models with sliding-window or linear attention: the row cache keeps every token. Raises: ValueError."""
    kinds = set(getattr(model.config, "layer_types", None) or [])
    if kinds - {"full_attention"}:
        raise ValueError(f"only full attention is supported, got {sorted(kinds)} in {type(model).__name__}")
