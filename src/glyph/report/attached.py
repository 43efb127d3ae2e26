"""Evaluations made after training, in folders of their own, given back to the runs whose models they played.

In: runs and trace files. Out: the runs with those evaluations among their own, and the files that belong to none.
A file belongs to the run that the `model_folder` of the manifest beside it lies in: by its path, or, where both were
moved together, by the name of the run's folder next to it. One of another variant than the rest stays a file.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from glyph.evaluation.metrics import compute_all
from glyph.evaluation.traces import TraceFile
from glyph.report.data import rollouts_of
from glyph.report.runs import EvaluationLine, StoredMetric, TrainingRun
from glyph.variants import STANDARD

_STEP = re.compile(r"step_(\d+)")


def attach_evaluations(
    runs: Sequence[TrainingRun], files: Sequence[TraceFile]
) -> tuple[list[TrainingRun], list[TraceFile]]:
    """Runs in their order with what was attached, and the other files. A second one of a split stays a file."""
    found, rest = list(runs), []
    for file in files:
        model = _model_folder(file.path.parent)
        place = _run_of(found, file, model) if model is not None else None
        line = _line(found[place], file, model) if place is not None and model is not None else None
        if place is None or line is None:
            rest.append(file)
        else:
            lines = sorted((*found[place].evaluations, line), key=lambda each: each.step)
            found[place] = replace(found[place], evaluations=tuple(lines))
    return found, rest


def _model_folder(folder: Path) -> Path | None:
    with suppress(OSError, ValueError):
        facts: Any = json.loads((folder / "manifest.json").read_text("utf-8"))
        if isinstance(facts, dict) and isinstance(facts.get("model_folder"), str):
            return Path(facts["model_folder"])
    return None


def _run_of(runs: Sequence[TrainingRun], file: TraceFile, model: Path) -> int | None:
    arms = {trace.arm for trace in file.traces if trace.arm is not None}
    variants = {trace.record.variant for trace in file.traces if trace.record is not None}
    if len(arms) != 1 or not variants <= {STANDARD.name}:
        return None
    alike = [(place, run) for place, run in enumerate(runs) if {run.manifest.arm} == arms]
    within = [place for place, run in alike if model.resolve().is_relative_to(run.folder.resolve())]
    beside = file.path.resolve().parent.parent
    named = [
        place
        for place, run in alike
        if run.folder.resolve().parent == beside and run.name in model.parts and not model.exists()
    ]
    found = within or named
    return found[0] if len(found) == 1 else None


def _line(run: TrainingRun, file: TraceFile, model: Path) -> EvaluationLine | None:
    """The line that the run would have written; None where it has one of this split and step."""
    numbers = [int(match[1]) for part in model.parts if (match := _STEP.fullmatch(part))]
    step = numbers[-1] if numbers else run.training[-1].step if run.training else 0
    split = next((trace.split for trace in file.traces if trace.split), "?")
    if any((line.split, line.step) == (split, step) for line in run.evaluations):
        return None
    rollouts = rollouts_of(file.traces)
    metrics = {name: StoredMetric.model_validate(metric.to_dict()) for name, metric in compute_all(rollouts).items()}
    return EvaluationLine(
        kind="evaluation",
        step=step,
        split=split,
        n=len(rollouts),
        errors=sum(trace.error is not None for trace in file.traces),
        metrics=metrics,
        traces=os.path.relpath(file.path.resolve(), run.folder.resolve()),
    )
