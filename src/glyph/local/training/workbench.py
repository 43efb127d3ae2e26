"""What both training loops stand on: the model in float32, its tokenizer, the trainer; and how a run stops.

    a config → `load_workbench` → model, tokenizer, trainer → a loop (sft.py, rl.py) → checkpoints of the run's folder

A loop ends after its last step, or after the step in which Ctrl-C or SIGTERM came (`StopRequest`), always with a
checkpoint. `Watch` is how it tells a person what it does; it owns no numbers.
"""

import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glyph.config import Config, RlConfig
from glyph.local.inference.backends import prepare_device
from glyph.local.inference.loading import load_tokenizer, read_model
from glyph.local.runs.checkpoints import (
    Checkpoint,
    checkpoints,
    latest_checkpoint,
    load_checkpoint,
    restore_model,
    save_checkpoint,
)
from glyph.local.runs.run_folder import RunFolder
from glyph.local.runs.run_manifest import read_manifest
from glyph.local.training.losses import PolicyLossOptions
from glyph.local.training.optimiser import OptimiserOptions, Schedule
from glyph.local.training.trainer import MemoryOptions, Trainer
from glyph.protocol import Arm
from glyph.tasks.prompts import DEFAULT_PROMPTS, Wording, load_wording
from glyph.tasks.validation import data_facts, data_manifest
from glyph.variants import STANDARD, parse_variant

logger = logging.getLogger(__name__)


class Watch(Protocol):
    """Who looks on: gets every metrics line, and is told what is being waited for."""

    def update(self, line: Mapping[str, Any]) -> None: ...

    def waiting(self, what: Any) -> AbstractContextManager[None]:
        """For as long as the context lasts; `what` is a text, or a function that gives the text of the moment."""
        ...


class RunStopped(Exception):
    """The run was asked to stop, and has saved what it had."""


class RunFailedError(RuntimeError):
    """The run cannot go on; what it had is saved."""


class StopRequest:
    """Ctrl-C or SIGTERM, once: finish the step and save. A second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Catch the signals while the context lasts (in the main thread; elsewhere nothing is caught)."""
        before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, self._note)
        except ValueError:  # not the main thread
            pass
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        logger.warning("stopping: this step is finished and saved first (Ctrl-C again stops at once)")


@dataclass
class Workbench:
    """A model being trained, and what belongs to it. `source` is the folder or hub id that it was loaded from."""

    config: Config
    source: str
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    trainer: Trainer
    wording: Wording

    def save(self, folder: RunFolder, step: int, state: Mapping[str, Any] | None = None) -> Path:
        """A checkpoint after `step` steps. Raises: CheckpointError."""
        return save_checkpoint(
            folder.checkpoints,
            step,
            self.model,
            self.tokenizer,
            {"trainer": self.trainer.state_dict()},
            dict(state or {}),
            self.config.checkpoints.keep_last,
            self.config.checkpoints.keep_every,
        )

    def restore(self, folder: RunFolder) -> Checkpoint | None:
        """Go back to the newest intact checkpoint of a run; None where there is none: then it begins anew.

        What the folder holds of later steps is set aside (`RunFolder.truncate_after`).
        """
        found = latest_checkpoint(folder.checkpoints)
        if found is None:
            folder.truncate_after(0)
            return None
        checkpoint = load_checkpoint(found)
        restore_model(found, self.model)
        self.trainer.load_state_dict(checkpoint.training["trainer"])
        folder.truncate_after(checkpoint.step)
        return checkpoint


def load_workbench(config: Config, total_steps: int, loss: PolicyLossOptions | None = None) -> Workbench:
    """Load model and tokenizer of a config and make their trainer.

    Raises:
        ValueError: no such model, a device that is not here or not for this scale.
    """
    device = prepare_device(config)
    source = model_folder(config.model)
    tokenizer = load_tokenizer(source)
    model: Any = read_model(source, torch.float32)
    memory = MemoryOptions(
        tokens_per_micro_batch=config.memory.tokens_per_micro_batch,
        gradient_checkpointing=config.memory.gradient_checkpointing,
        logits_chunk=config.memory.logits_chunk,
        bfloat16=config.dtype == "bfloat16",
        fill_rows=config.stage == "sft",
    )
    wording = wording_of(config)
    trainer = Trainer(model.to(device), _optimiser_options(config, total_steps), loss, memory)
    return Workbench(config, source, tokenizer, trainer.model, trainer, wording)


def wording_of(config: Config) -> Wording:
    """The wording of the run, which must be that of the data, as must be the grammar. Raises: ValueError."""
    prompts = config.prompts or DEFAULT_PROMPTS
    wording = load_wording(prompts)
    prepared = data_facts(config.data).get("wording_digest")
    if prepared not in (None, wording.digest):
        raise ValueError(
            f"{config.data} was prepared with another wording than {prompts}; prepare it anew: "
            f"python -m data.prepare --output {config.data} --prompts {prompts}"
        )
    _require_same_grammar(config)
    return wording


def _require_same_grammar(config: Config) -> None:
    """Refuse rollouts of another grammar than the data's SFT traces have shown. Raises: ValueError."""
    if not isinstance(config, RlConfig) or config.arm is not Arm.PREDICTIVE:
        return  # SFT takes what the data show; Arm A predicts nothing
    manifest = data_manifest(config.data)
    if manifest is None:
        return
    prepared = manifest.get("variant", STANDARD.name)
    detail = parse_variant(prepared).detail
    if config.rules().variant.detail is not detail:
        raise ValueError(
            f"{config.data} was prepared with variant {prepared}, but environment.variant is "
            f"{config.rules().variant.name}: predictions must say as much in both; prepare it anew with --variant, or "
            f"give {'no detailed_prediction' if detail is None else f'environment.variant={prepared!r}'}"
        )


def model_folder(name: str) -> str:
    """The folder of a model: of a run, that of its newest checkpoint; anything else as it is.

    A checkpoint under its name is complete; its digests are not checked here, for half a billion weights take seconds.
    """
    path = Path(name)
    if name.startswith(("/", "./", "../", "~")) and not path.is_dir():
        raise ValueError(f"{name}: no such model folder")
    if not (path / "checkpoints").is_dir():
        return name
    found = checkpoints(path / "checkpoints")
    if not found:
        raise ValueError(f"{name}: the run has no checkpoint yet; go on with it first: glyph resume {name}")
    if (status := read_manifest(path)["status"]) != "finished":
        raise ValueError(
            f"{name}: the run is {status}; go on with it first: glyph resume {name}, or name a checkpoint: {found[-1]}"
        )
    return str(found[-1])


def _optimiser_options(config: Config, total_steps: int) -> OptimiserOptions:
    of = config.optimiser
    return OptimiserOptions(
        learning_rate=of.learning_rate,
        weight_decay=of.weight_decay,
        betas=of.betas,
        epsilon=of.epsilon,
        max_grad_norm=of.max_grad_norm,
        schedule=Schedule(of.schedule),
        warmup_steps=of.warmup_steps,
        total_steps=total_steps,
    )


def due(step: int, every: int, last: int) -> bool:
    """Whether something that happens every `every` steps (0: only at the end) happens after this one."""
    return step == last or bool(every and step and step % every == 0)
