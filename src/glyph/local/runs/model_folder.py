"""A Hugging Face model folder of ours: its files as bytes, its weights in and out of a model, its digest.

The weights are one model.safetensors, tied ones stored once, by default in the model's own dtype; configs and
tokenizer say that `<|im_end|>` ends a text. Writing the folder safely is the part of `checkpoints.py`.
"""

import copy
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from glyph.chat import prepare_tokenizer
from glyph.local.runs.checkpoint_folders import WEIGHTS


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, is damaged, or does not fit the model."""


@torch.no_grad()
def restore_model(folder: Path, model: PreTrainedModel) -> None:
    """Copy a model folder's weights into a model, bit for bit; nothing is changed unless all of them fit.

    Raises: CheckpointError: no readable weights; a name, a shape, or a dtype that the model's cannot hold exactly.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: no readable weights: {error}") from error
    wanted = dict(named_tensors(model))
    for faults, what in ((wanted.keys() - saved, "lacks"), (saved.keys() - wanted, "holds, unknown to the model,")):
        if faults:
            raise CheckpointError(f"{path}: {what} {', '.join(sorted(faults)[:3])} ({len(faults)} in all)")
    for name, tensor in wanted.items():
        if saved[name].shape != tensor.shape:
            got, expected = tuple(saved[name].shape), tuple(tensor.shape)
            raise CheckpointError(f"{path}: {name}: shapes must agree: got {got}, the model has {expected}")
        if torch.promote_types(saved[name].dtype, tensor.dtype) != tensor.dtype:
            raise CheckpointError(f"{path}: {name}: {saved[name].dtype} does not fit into the model's {tensor.dtype}")
    for name, tensor in wanted.items():
        tensor.copy_(saved[name])


def model_digest(folder: Path) -> str:
    """The sha256 of a model folder's weights, in hex. Raises: CheckpointError."""
    try:
        return sha256(folder / WEIGHTS)
    except OSError as error:
        raise CheckpointError(f"{folder / WEIGHTS}: {error.strerror or error}") from error


def named_tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Parameters and saved buffers, tied weights once and under their first name, as transformers stores them."""
    yield from ((name, parameter.detach()) for name, parameter in model.named_parameters())
    kept = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in kept)


def text_files(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype | None = None
) -> dict[str, bytes]:
    """All files but the weights, by name: tokenizer, config.json, generation_config.json. Raises: TokenizerError."""
    prepare_tokenizer(tokenizer)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = copy.deepcopy(model.config)
    config.update({**ends, "architectures": [type(model).__name__], "dtype": dtype or model.dtype})
    generation = copy.deepcopy(model.generation_config) or GenerationConfig()
    generation.update(**ends)
    files = {"config.json": config.to_json_string(), "generation_config.json": generation.to_json_string()}
    return {**_tokenizer_files(tokenizer), **{name: text.encode() for name, text in files.items()}}


_tokenizers: WeakKeyDictionary[PreTrainedTokenizerBase, dict[str, bytes]] = WeakKeyDictionary()


def _tokenizer_files(tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """The files of a tokenizer, made once for each: a large vocabulary takes a second, and training changes none."""
    if tokenizer not in _tokenizers:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            _tokenizers[tokenizer] = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    return _tokenizers[tokenizer]


def sha256(path: Path) -> str:
    """In hex. Raises: OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
