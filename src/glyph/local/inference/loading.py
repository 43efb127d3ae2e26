"""From a model folder or hub id to a tokenizer and a model that the engine can run."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from glyph.chat import prepare_tokenizer
from glyph.local.inference.attention import use_grouped_attention


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub id, with our chat template and `<|im_end|>` as EOS.

    Raises:
        ValueError: no such folder, a folder without a tokenizer, or a hub that cannot be reached.
        TokenizerError: the tokenizer lacks the ChatML tokens.
    """
    folder = Path(name)
    if folder.is_dir() and not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{name}: the folder holds no tokenizer.json; give a Hugging Face model folder")
    if not folder.is_dir() and str(name).startswith(("/", "./", "../", "~")):
        raise ValueError(f"{name}: no such model folder")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{name}: no tokenizer to be had from that folder or the hub: {first}") from error
    return prepare_tokenizer(tokenizer, set_eos=True)


def require_device(device: str) -> None:
    """Raises: ValueError for a device that is unknown or not here."""
    if device not in ("auto", "cpu") and not device.startswith("cuda"):
        raise ValueError(f"device {device!r}: expected auto, cpu or cuda")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r}: there is no CUDA device here")


def expect_many_shapes() -> None:
    """Choose attention kernels that need no plan for each new shape: cuDNN's take tens of milliseconds for one.

    Prompts and micro-batches have a shape of their own nearly every time.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def load_model(model_dir: str | Path, device: str = "auto", dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Load a causal language model for generation: float32 on a CPU, where bf16 is slow, else in `dtype`.

    Raises:
        ValueError: as `read_model`.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    expect_many_shapes()
    model: Any = read_model(model_dir, torch.float32 if device == "cpu" else dtype)
    return use_grouped_attention(model.to(device))


def read_model(name: str | Path, dtype: torch.dtype) -> PreTrainedModel:
    """The causal language model of a folder or hub id, on the CPU.

    Raises:
        ValueError: no weights there, or none that can be read or fit the folder's config.json.
    """
    try:
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation="sdpa")
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{name}: no model to be had from there: {str(error).strip().splitlines()[0]}") from error


def require_full_attention(model: PreTrainedModel) -> None:
    """Refuse models with sliding-window or linear attention: the row cache keeps every token. Raises: ValueError."""
    kinds = set(getattr(model.config, "layer_types", None) or [])
    if kinds - {"full_attention"}:
        raise ValueError(f"only full attention is supported, got {sorted(kinds)} in {type(model).__name__}")
