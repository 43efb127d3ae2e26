"""A start model whose every part ends a turn with `<|im_end|>`: a base model's folder in, another folder out.

Three places say where a text ends: the tokenizer (renderers, PRIME-RL and our engine take their stop ids from it),
config.json, and generation_config.json (vLLM and `generate` stop at what it names). Here all three agree, and the chat
template is in the tokenizer; whatever is trained from the folder and saved keeps them. The weights are the same files:
linked where the disk allows it, else copied; no tensor is read.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from glyph.chat import TURN_END, ParityError, chat_template, check_parity, prepare_tokenizer
from glyph.local.runs.model_folder import sha256
from glyph.protocol import Arm
from glyph.tasks.demonstrations import sample_conversation
from glyph.versions import manifest

RECORD = "glyph_base.json"
CONFIGS = ("config.json", "generation_config.json")
CARRIED = ("*.safetensors", "*.safetensors.index.json", "LICENSE*", "NOTICE*")
"""What is taken over as it is; the tokenizer's files are written anew, and weights of other formats stay behind."""

Row = dict[str, Any]
Track = Callable[[list[Path]], Iterable[Path]]


def make_base(model: Path, output: Path, track: Track = iter) -> Row:
    """Write the folder `output`, whole or not at all, and return the record that is in it; `track` shows progress.

    Raises:
        ValueError: the folder is no model of ours to make, or `output` exists already.
        TokenizerError: `<|im_start|>` or `<|im_end|>` is not one token.
        OSError: it cannot be written; nothing is left.
    """
    if output.exists():
        raise ValueError(f"{output} exists already: give another OUT, or remove it")
    tokenizer = _load_tokenizer(model)
    carried = sorted({path for pattern in CARRIED for path in model.glob(pattern)})
    if not any(path.suffix == ".safetensors" for path in carried):
        raise ValueError(f"{model} holds no *.safetensors; give a folder with weights in that format")
    before = {"tokenizer": _facts(tokenizer)}
    prepare_tokenizer(tokenizer, set_eos=True)
    configs = {name: _read_config(model, name) for name in CONFIGS}
    partial = output.with_name(output.name + ".partial")
    try:
        partial.mkdir(parents=True)
        tokenizer.save_pretrained(partial)
        before |= _write_configs(configs, tokenizer, partial)
        for path in track(carried):
            _carry(path.resolve(), partial / path.name)
        record = _record(model, partial, before, tokenizer)
        os.replace(partial, output)
    except FileExistsError as error:
        raise ValueError(f"{partial} is left from a run that was killed: remove it, and run this again") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return record


def _load_tokenizer(model: Path) -> PreTrainedTokenizerBase:
    if not model.is_dir():
        raise ValueError(
            f"{model}: no such model folder; fetch one: python -m glyph.local.hub HUB_ID prints its folder"
        )
    if not any((model / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise ValueError(f"{model} holds no tokenizer (tokenizer.json); give a whole Hugging Face model folder")
    return AutoTokenizer.from_pretrained(model)


def _facts(tokenizer: PreTrainedTokenizerBase) -> Row:
    template = tokenizer.chat_template
    digest = hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else None
    return {"eos_token": tokenizer.eos_token, "eos_token_id": tokenizer.eos_token_id, "chat_template_sha256": digest}


def _read_config(model: Path, name: str) -> Row:
    """One of a model's JSON files; an absent generation_config.json is empty.

    Raises: ValueError: no config.json, or no JSON object.
    """
    path = model / name
    if not path.is_file() and name != "config.json":
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(read).__name__}")
    return read


def _write_configs(configs: dict[str, Row], tokenizer: PreTrainedTokenizerBase, folder: Path) -> Row:
    """Write both with the tokenizer's EOS, all else as it was; returns what EOS each had."""
    before = {}
    for name, config in configs.items():
        before[name] = {"eos_token_id": config.get("eos_token_id")}
        written = {**config, "eos_token_id": tokenizer.eos_token_id}
        (folder / name).write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return before


def _carry(source: Path, target: Path) -> None:
    """Link a file, or copy it where the file system links nothing."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
            raise
        shutil.copyfile(source, target)


def _record(model: Path, folder: Path, before: Row, tokenizer: PreTrainedTokenizerBase) -> Row:
    """Write what was made of what."""
    eos = {"eos_token_id": tokenizer.eos_token_id}
    after = {"tokenizer": _facts(tokenizer), **dict.fromkeys(CONFIGS, eos)}
    files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    record = manifest(made_from=str(model), before=before, after=after, sha256=files)
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return record


def check_saved(folder: Path) -> dict[Arm, int]:
    """Prove that PRIME-RL and vLLM can use a model folder as it is saved; returns how many tokens agreed on every path.

    Nothing is set in memory: one EOS and our template in the files, then the tokenizer as Transformers loads it and the
    renderer of configs/paper.

    Raises:
        ParityError: an EOS or the template is another one, or two paths give different ids.
        ValueError: the folder has no tokenizer, or no config.json.
    """
    from renderers import DefaultRendererConfig

    if faults := list(eos_faults(folder)):
        raise ParityError(f"{folder}: {'; '.join(faults)}; a folder without these: glyph make-base {folder} OUT")
    tokenizer = _load_tokenizer(folder)
    return {arm: check_parity(tokenizer, sample_conversation(arm), DefaultRendererConfig()) for arm in Arm}


def eos_faults(folder: Path) -> Iterator[str]:
    """Where a model folder does not end its turns with its tokenizer's `<|im_end|>`, or lacks the chat template.

    Raises: ValueError: the folder has no tokenizer, or no config.json.
    """
    tokenizer = _load_tokenizer(folder)
    end = tokenizer.convert_tokens_to_ids(TURN_END)
    found = {"tokenizer": tokenizer.eos_token_id}
    found |= {name: _read_config(folder, name).get("eos_token_id") for name in CONFIGS}
    for name, eos in found.items():
        if eos != end:
            yield f"{name}: the EOS is {eos}, expected {end} ({TURN_END})"
    if tokenizer.chat_template != chat_template():
        yield "tokenizer: the chat template is not ours"
