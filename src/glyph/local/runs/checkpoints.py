"""Checkpoints of a training run: written whole or not at all, checked by digest; their run deletes one only when a
newer one stands.

    checkpoints/step_000010/
      config.json  generation_config.json  tokenizer files     a Hugging Face model folder; `<|im_end|>` is the EOS
      model.safetensors       weights, by default in the model's own dtype, which is what an exact resume needs
      training.pt             what the trainer gives: optimiser, schedule, random states; tensors and plain data
      state.json              written last: schema, step, what the loop gives (data cursor, ...), a sha256 per file

A checkpoint is made under a hidden name, synced, then renamed: under a valid name it is complete, at any kill.
Before one is deleted it gets a hidden name again. What dead processes left under hidden names goes at the next save
or search. What is saved, and when, is the trainer's business.
"""

import hashlib
import json
import logging
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glyph.local.runs.checkpoint_folders import (
    STATE,
    TRAINING,
    WEIGHTS,
    checkpoint_folder,
    checkpoint_step,
    checkpoints,
)
from glyph.local.runs.durable import FileLock, sync, sync_all
from glyph.local.runs.model_folder import (
    CheckpointError,
    model_digest,
    named_tensors,
    restore_model,
    sha256,
    text_files,
)

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "checkpoints",
    "latest_checkpoint",
    "load_checkpoint",
    "model_digest",
    "restore_model",
    "save_checkpoint",
]

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
_HIDDEN = (".partial", ".deleted")
_LOCK = ".lock"
_LOCK_SECONDS = 60.0
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Checkpoint:
    """What an intact checkpoint holds beside the model folder: tensors of `training` are on the CPU."""

    step: int
    state: dict[str, Any]
    training: dict[str, Any]
    folder: Path


def save_checkpoint(
    root: Path,
    step: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    training: Mapping[str, Any],
    state: Mapping[str, Any],
    keep_last: int = 2,
    keep_every: int = 0,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write `root/step_NNNNNN`, then delete older ones beyond `keep_last` (0 keeps all); returns its folder.

    Of those, one whose step is a multiple of `keep_every` stays (0: none does).
    `training` is restored with `weights_only`: tensors and plain data. `state` is JSON. `dtype` None is the model's.
    The step may stand there already: the same content again changes nothing, a damaged folder is replaced.

    Raises:
        CheckpointError: `training` or `state` cannot be restored, the step stands there with other content, another
            process is saving, or the disk refuses; then nothing of the new one is left, and older ones are as before.
        TokenizerError: the tokenizer does not end its turns with `<|im_end|>`.
    """
    if step < 0:
        raise CheckpointError(f"step {step}: expected 0 or more")
    _require_restorable("training", training)
    _require_json(state)
    target = checkpoint_folder(root, step)
    tensors = {name: tensor.to(dtype or tensor.dtype).cpu().contiguous() for name, tensor in named_tensors(model)}
    texts: dict[str, bytes] = {}
    try:
        texts |= text_files(model, tokenizer, dtype)
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root):
            _remove_leftovers(root)
            with _partial_folder(target) as partial:
                _write(partial, step, tensors, texts, dict(training), dict(state))
                _publish(partial, target)
            _prune(root, step, keep_last, keep_every)
    except (OSError, SafetensorError, _WriteError) as error:
        needed = _tensor_bytes(tensors) + _tensor_bytes(training) + sum(map(len, texts.values()))
        raise CheckpointError(_refusal(target, needed, error)) from error
    return target


def latest_checkpoint(root: Path) -> Path | None:
    """The newest intact checkpoint, None where there is none; each damaged one on the way is named in a warning."""
    _remove_dead_leftovers(root)
    for folder in reversed(checkpoints(root)):
        try:
            _read_intact(folder)
        except CheckpointError as error:
            logger.warning("%s; the checkpoint before it is used", error)
            continue
        return folder
    return None


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read what a checkpoint holds beside the weights, after checking all its files (hashing takes 1 s per GB).

    Raises: CheckpointError.
    """
    body = _read_intact(folder)
    training = torch.load(folder / TRAINING, map_location="cpu", weights_only=True)
    return Checkpoint(body["step"], body["state"], training, folder)


class _WriteError(Exception):
    """PyTorch's writer failed: it reports a full disk as an internal fault of its own."""


def _require_restorable(where: str, value: Any) -> None:
    """Refuse at once what `torch.load(weights_only=True)` would refuse when the run is to be resumed."""
    if isinstance(value, Tensor) or type(value) in _PLAIN:
        return
    if type(value) in (dict, OrderedDict):
        for key, part in value.items():
            _require_restorable(f"{where}, a key", key)
            _require_restorable(f"{where}[{key!r}]", part)
    elif type(value) in (list, tuple):
        for index, part in enumerate(value):
            _require_restorable(f"{where}[{index}]", part)
    else:
        raise CheckpointError(f"{where}: expected a tensor or plain data, got {type(value).__name__}")


def _require_json(state: Mapping[str, Any]) -> None:
    """Refuse a state that does not come back from JSON as it went: tuples, keys that are no strings, NaN."""
    try:
        same = json.loads(json.dumps(dict(state), allow_nan=False)) == dict(state)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"state: no JSON: {error}") from error
    if not same:
        raise CheckpointError("state: a tuple or a key that is no string would come back from JSON as something else")


def _write(
    folder: Path,
    step: int,
    tensors: dict[str, Tensor],
    texts: Mapping[str, bytes],
    training: dict[str, Any],
    state: dict[str, Any],
) -> None:
    """All files of a checkpoint, state.json last."""
    for name, content in texts.items():
        (folder / name).write_bytes(content)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    try:
        torch.save(training, folder / TRAINING)
    except RuntimeError as error:
        raise _WriteError(f"{TRAINING}: {str(error).splitlines()[0]}") from error
    files = sorted(path.name for path in folder.iterdir())
    digests = {name: sha256(folder / name) for name in files}
    body = {"schema_version": SCHEMA_VERSION, "step": step, "state": state, "digests": digests}
    (folder / STATE).write_text(json.dumps({**body, "digest": _body_digest(body)}, indent=1) + "\n", encoding="utf-8")
    sync_all([*(folder / name for name in files), folder / STATE])
    sync(folder)


def _publish(partial: Path, target: Path) -> None:
    """Give a complete folder its name, unless the very same checkpoint has it already."""
    if target.exists():
        try:
            standing = _read_intact(target)
        except CheckpointError as error:
            logger.warning("%s; it is replaced", error)
            _delete(target)
        else:
            if standing != _read_intact(partial):
                raise CheckpointError(f"{target}: stands there with other content; nothing is overwritten")
            return
    os.rename(partial, target)
    sync(target.parent)


def _prune(root: Path, step: int, keep_last: int, keep_every: int) -> None:
    """Delete those before `step`, which is known to be good, beyond `keep_last`; later ones are not ours to judge."""
    earlier = [folder for folder in checkpoints(root) if checkpoint_step(folder) < step]
    for folder in earlier[: max(0, len(earlier) - keep_last + 1)] if keep_last > 0 else []:
        if keep_every > 0 and checkpoint_step(folder) % keep_every == 0:
            continue
        try:
            _delete(folder)
        except OSError as error:
            logger.warning("%s: cannot be deleted: %s", folder, error.strerror or error)


def _delete(folder: Path) -> None:
    """Take the valid name away first, so that no half of a checkpoint ever has one."""
    hidden = folder.with_name(f".{folder.name}.{os.getpid()}.deleted")
    os.rename(folder, hidden)
    sync(folder.parent)
    shutil.rmtree(hidden)


@contextmanager
def _partial_folder(target: Path) -> Iterator[Path]:
    """A hidden folder beside the target, gone at the end unless it was renamed."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """No two processes save into one folder at a time, and a hidden name seen without the lock held is dead."""
    lock = FileLock(root / _LOCK)
    if not lock.acquire(_LOCK_SECONDS):
        raise CheckpointError(f"{root}: {lock.holder()} has been saving here for {_LOCK_SECONDS:.0f} s")
    try:
        yield
    finally:
        lock.release()


def _leftovers(root: Path) -> list[Path]:
    return [path for path in root.glob(".step_*") if path.suffix in _HIDDEN]


def _remove_leftovers(root: Path) -> None:
    for path in _leftovers(root):
        shutil.rmtree(path, ignore_errors=True)


def _remove_dead_leftovers(root: Path) -> None:
    """As `_remove_leftovers`, for a reader: not while another process saves, nor in a folder that is only readable."""
    if not _leftovers(root):
        return
    lock = FileLock(root / _LOCK)
    try:
        if lock.acquire():
            _remove_leftovers(root)
    except OSError:
        logger.debug("%s: leftovers stay: the folder cannot be written", root)
    finally:
        lock.release()


def _read_intact(folder: Path) -> dict[str, Any]:
    """The content of state.json, all digests having been checked. Raises: CheckpointError."""
    path = folder / STATE
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        digest, version = body.pop("digest"), body["schema_version"]
        expected: dict[str, str] = body["digests"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path}: unreadable ({type(error).__name__}): the checkpoint is damaged") from error
    if digest != _body_digest(body):
        raise CheckpointError(f"{path}: does not match its own digest: the checkpoint is damaged")
    if version != SCHEMA_VERSION:
        raise CheckpointError(f"{path}: schema_version {version}, this code reads {SCHEMA_VERSION}")
    for name, wanted in expected.items():
        try:
            found = sha256(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name}: {error.strerror}: the checkpoint is damaged") from error
        if found != wanted:
            raise CheckpointError(f"{folder / name}: sha256 {found[:12]}…, expected {wanted[:12]}…: it is damaged")
    return body


def _refusal(target: Path, needed: int, error: Exception) -> str:
    """What was to be written, how many bytes, how much room there is, and what can still be relied on."""
    root = target.parent
    try:
        free = f"{shutil.disk_usage(root).free:,}"
    except OSError:
        free = "unknown"
    standing = [folder for folder in checkpoints(root) if folder != target]
    before = f"{standing[-1]} stands as it was" if standing else "there is no earlier one"
    reason = getattr(error, "strerror", None) or error
    return f"{target}: cannot be written: {reason}; bytes needed: about {needed:,}, free: {free}; {before}"


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        value = [*value.values()]
    return sum(map(_tensor_bytes, value)) if isinstance(value, list | tuple) else 0


def _body_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
