"""Opt-in mirrors of a run's metrics: Weights & Biases and TensorBoard, both extras, loaded only when asked for.

They get the lines that metrics.jsonl gets; numbers only, nested names joined: `train/seconds/generation`.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

TRACKERS = ("wandb", "tensorboard")


class TrackerError(RuntimeError):
    """A tracker is unknown, or its extra is not installed."""


class Tracker(Protocol):
    """Takes the lines of metrics.jsonl as they are written."""

    def log(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def open_trackers(
    names: Sequence[str],
    folder: Path,
    run_id: str,
    config: Mapping[str, Any],
    project: str = "glyph",
    first_step: int = 0,
) -> list[Tracker]:
    """The named trackers of the run in `folder`. A resumed run keeps its `run_id` and says its `first_step`.

    Raises: TrackerError.
    """
    for name in names:
        if name not in TRACKERS:
            raise TrackerError(f"tracker {name!r}: expected {' or '.join(TRACKERS)}")
    opened: list[Tracker] = []
    for name in names:
        if name == "wandb":
            opened.append(WandbTracker(folder, run_id, config, project))
        else:
            opened.append(TensorBoardTracker(folder, first_step))
    return opened


def flatten(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a metrics line by full name, after its kind and, for an evaluation, its split.

    {"kind": "train", "step": 3, "seconds": {"total": 2.5}, "entropy": None} → {"train/seconds/total": 2.5}
    """
    prefix = "/".join(str(line[key]) for key in ("kind", "split") if line.get(key) is not None)
    rest = {key: value for key, value in line.items() if key not in ("kind", "split", "step", "non_finite")}
    return dict(_numbers(prefix, rest))


class WandbTracker:
    def __init__(self, folder: Path, run_id: str, config: Mapping[str, Any], project: str = "glyph") -> None:
        wandb = _require("wandb", "wandb")
        self._run = wandb.init(
            project=project, name=folder.name, id=run_id, dir=str(folder), config=dict(config), resume="allow"
        )
        # a step of our own: W&B's must never go down, and would drop what a resumed run computes again
        self._run.define_metric("*", step_metric="step")

    def log(self, line: Mapping[str, Any]) -> None:
        self._run.log({"step": line["step"], **flatten(line)})

    def close(self) -> None:
        self._run.finish()


class TensorBoardTracker:
    def __init__(self, folder: Path, first_step: int = 0) -> None:
        _require("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step or None)

    def log(self, line: Mapping[str, Any]) -> None:
        for name, value in flatten(line).items():
            self._writer.add_scalar(name, value, line["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _numbers(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(f"{prefix}/{key}" if prefix else str(key), part)
    elif isinstance(value, int | float):
        yield prefix, value


def _require(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TrackerError(f'{module} is not installed; pip install "glyph[{extra}]"') from error
