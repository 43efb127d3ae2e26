"""The one reader of training runs' folders: manifest, config, metrics.jsonl (or .gz), and where the traces lie.

In: a run folder of the engine. Out: a typed `TrainingRun`. Traces are only located here; evaluations' are read by
`evaluation/traces.py`, the annotated ones of training steps by `tokens.py`.
"""

import gzip
import json
import math
import os
import tomllib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from glyph.evaluation.traces import TRACE_FILE_NAMES, TraceError

METRICS, MANIFEST, CONFIG = "metrics.jsonl", "manifest.json", "config.toml"


class RunError(TraceError):
    """A run folder cannot be read; the message says where and why."""


def _finite(value: Any) -> Any:
    """NaN and infinities, which a diverged step may hold, are undefined."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _split_seconds(value: Any) -> Any:
    """The seconds of an SFT step are one number: all of it is training."""
    return {"training": value, "total": value} if isinstance(value, int | float) else value


Number = Annotated[float | None, BeforeValidator(_finite)]


class StoredInterval(BaseModel):
    low: float
    high: float
    method: str


class StoredMetric(BaseModel):
    """A metric of `evaluation.metrics` as its `to_dict` wrote it; other fields are left alone."""

    value: Number = None
    numerator: Number = None
    denominator: float = 0.0
    interval: StoredInterval | None = None


class TrainLine(BaseModel):
    """One step of SFT or RL. What a stage does not have is None."""

    kind: Literal["train"]
    step: int
    reward_mean: Number = None
    reward_n: int | None = None
    loss: Number = None
    policy_loss: Number = None
    label_loss: Number = None
    ce_nll: Number = None
    ce_tokens: int | None = None
    grad_norm: Number = None
    learning_rate: Number = None
    entropy: Number = None
    mismatch_kl: Number = None
    kept_share: Number = None
    tool_calls_mean: Number = None
    tokens_per_second: Number = None
    groups_mixed: int | None = None
    groups_uniform: int | None = None
    seconds: Annotated[dict[str, float], BeforeValidator(_split_seconds)] = Field(default_factory=dict)
    metrics: dict[str, StoredMetric] = Field(default_factory=dict)


class EvaluationLine(BaseModel):
    """One evaluation: `n` scored rollouts of a split, every metric by its name; `traces` relative to the run."""

    kind: Literal["evaluation"]
    step: int
    split: str = "?"
    n: int
    errors: int = 0
    metrics: dict[str, StoredMetric]
    traces: str | None = None


class Manifest(BaseModel):
    """The fields of a run's manifest that the report needs; the whole is kept beside it."""

    stage: str
    arm: str
    scale: str = "?"
    seed: int
    model: str | None = None
    hardware: Any = None
    commit: str = "unknown"
    started: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class TrainingRun:
    """One run as stored. `notes` says what was odd about the folder; `config` is None where there is none."""

    folder: Path
    manifest: Manifest
    facts: dict[str, Any]
    config: dict[str, Any] | None
    config_text: str
    training: tuple[TrainLine, ...]
    evaluations: tuple[EvaluationLine, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that were evaluated, the most often evaluated first."""
        names = [line.split for line in self.evaluations]
        return tuple(sorted(set(names), key=lambda name: (-names.count(name), names.index(name))))

    def of_split(self, split: str) -> tuple[EvaluationLine, ...]:
        return tuple(line for line in self.evaluations if line.split == split)

    def trace_file(self, line: EvaluationLine) -> Path | None:
        """Where the rollouts of an evaluation are stored, None where they are not."""
        if line.traces is not None:
            return Path(os.path.normpath(self.folder / line.traces))
        folder = self.folder / "evaluations" / f"step_{line.step:06d}"
        return next((path for path in sorted(folder.glob("traces.jsonl*")) if path.suffix in (".gz", ".jsonl")), None)

    def step_files(self) -> tuple[tuple[int, Path], ...]:
        """The files of annotated training rollouts by step."""
        paths = sorted((self.folder / "traces").glob("step_*.jsonl*"))
        return tuple((int(path.name.split(".")[0].removeprefix("step_")), path) for path in paths)


def is_run_folder(path: Path) -> bool:
    return metrics_file(path).is_file()


def metrics_file(folder: Path) -> Path:
    """A run's metrics.jsonl, or metrics.jsonl.gz where only that is there, as in published runs."""
    plain, packed = folder / METRICS, folder / f"{METRICS}.gz"
    return packed if packed.is_file() and not plain.is_file() else plain


def has_traces(path: Path) -> bool:
    """Whether a folder holds traces and is no run: an evaluation made after training."""
    return not is_run_folder(path) and any((path / name).is_file() for name in TRACE_FILE_NAMES)


def find_runs(path: Path) -> list[Path]:
    """The run folder itself, or those in a folder of runs; none where it is neither."""
    if is_run_folder(path):
        return [path]
    return sorted(child for child in path.iterdir() if is_run_folder(child)) if path.is_dir() else []


def read_run(folder: Path) -> TrainingRun:
    """Read a run folder.

    Raises:
        RunError: a file is absent or does not have its form; says which line and field.
    """
    facts = _read_object(folder / MANIFEST)
    try:
        manifest = Manifest.model_validate(facts)
    except ValidationError as error:
        raise RunError(f"{folder / MANIFEST}: {first_fault(error)}") from None
    training, evaluations, notes = _read_metrics(metrics_file(folder))
    text, config = _read_config(folder / CONFIG)
    if facts.get("status") not in (None, "finished"):
        notes.append(f"the run's status is {facts['status']}")
    if not training and not evaluations:
        notes.append("no step and no evaluation yet")
    return TrainingRun(folder, manifest, facts, config, text, training, evaluations, tuple(notes))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: absent; this is no complete run folder") from None
    except ValueError as error:
        raise RunError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RunError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data


def _read_config(path: Path) -> tuple[str, dict[str, Any] | None]:
    if not path.is_file():
        return "", None
    try:
        text = path.read_text("utf-8")
        return text, tomllib.loads(text)
    except ValueError as error:
        raise RunError(f"{path}: not TOML: {error}") from None


def _read_metrics(path: Path) -> tuple[tuple[TrainLine, ...], tuple[EvaluationLine, ...], list[str]]:
    """The lines by kind in order of their steps; of a step that stands twice (a resumed run) the later one counts."""
    training: dict[int, TrainLine] = {}
    evaluations: dict[tuple[str, int], EvaluationLine] = {}
    notes: list[str] = []
    repeated = 0
    for where, data in _objects(path, notes):
        try:
            if data.get("kind") == "train":
                train = TrainLine.model_validate(data)
                repeated += train.step in training
                training[train.step] = train
            elif data.get("kind") == "evaluation":
                line = EvaluationLine.model_validate(data)
                repeated += (line.split, line.step) in evaluations
                evaluations[line.split, line.step] = line
        except ValidationError as error:
            raise RunError(f"{where}: {first_fault(error)}") from None
    if repeated:
        notes.append(f"{METRICS}: {repeated} repeated steps, of which the later lines count")
    by_step = sorted(evaluations.values(), key=lambda line: line.step)
    return tuple(training[step] for step in sorted(training)), tuple(by_step), notes


def _objects(path: Path, notes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects with their places. An unfinished last line belongs to a run that lives or was killed."""
    content = path.read_bytes()
    try:
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).split(b"\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RunError(f"{path}: damaged or cut short: {error}") from None
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            data = json.loads(raw)
        except ValueError as error:
            if number == len(lines):
                notes.append(f"{METRICS}: the last line is unfinished and was left out")
                return
            raise RunError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(data, dict):
            raise RunError(f"{path}:{number}: expected a JSON object, got {type(data).__name__}")
        yield f"{path}:{number}", data


def first_fault(error: ValidationError) -> str:
    """The place of the first fault and what stood there, in one line."""
    fault = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}, got {str(fault['input'])[:80]!r}"
