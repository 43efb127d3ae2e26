"""The content of a report, before it has a form: columns of metrics, comparisons, one example rollout a column.

In: trace files. Out: a `Report`, which the terminal tables, `report.json`, `report.md` and the page all print.
No metric is computed here: that is `evaluation/`. What is made of training runs is `training.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from glyph.evaluation.compare import Comparison, compare
from glyph.evaluation.definitions import DEFINITIONS
from glyph.evaluation.metrics import ConfusionMatrix, Metric, compute_all, confusion
from glyph.evaluation.predicates import Rollout, failed_visible_test, has_revised, is_solved
from glyph.evaluation.statistics import holm
from glyph.evaluation.traces import BadLine, Trace, TraceFile

REPORT_SCHEMA_VERSION = 1
MAX_COMPARED_COLUMNS = 4
MAX_ERROR_LENGTH = 300


@dataclass(frozen=True)
class Column:
    """The rollouts of one arm in one file, and their metrics. `errors` rollouts are in no denominator.

    A column of several seeds pools their files: `source` is the first, `more_sources` the others.
    `commonest_error` is the text that most of those errors share, on one line, and how many do; None without errors.
    """

    name: str
    source: Path
    arm: str | None
    variants: tuple[str, ...]
    splits: tuple[str, ...]
    models: tuple[str, ...]
    tasks: int
    rollouts: tuple[Rollout, ...]
    errors: int
    commonest_error: tuple[str, int] | None
    skipped: tuple[BadLine, ...]
    metrics: dict[str, Metric]
    confusion: ConfusionMatrix
    confusion_published: ConfusionMatrix
    example: Trace | None
    more_sources: tuple[Path, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": str(self.source),
            "more_sources": [str(path) for path in self.more_sources],
            "arm": self.arm,
            "variants": self.variants,
            "splits": self.splits,
            "models": self.models,
            "tasks": self.tasks,
            "rollouts": len(self.rollouts),
            "errors": self.errors,
            "commonest_error": dict(zip(("text", "count"), self.commonest_error or (), strict=False)) or None,
            "skipped_lines": [{"line": bad.line, "reason": bad.reason} for bad in self.skipped],
            "metrics": {name: metric.to_dict() for name, metric in self.metrics.items()},
            "confusion": self.confusion.to_dict(),
            "confusion_published_label": self.confusion_published.to_dict(),
        }


@dataclass(frozen=True)
class Report:
    """`holm_p` are the exact McNemar p values of `comparisons`, corrected over that family; by "first vs second".

    `training` is what `training.py` adds for runs of the engine, for the JSON form. `notes` are what a reader has to
    know of the files.
    """

    title: str
    columns: tuple[Column, ...]
    comparisons: tuple[Comparison, ...] = ()
    holm_p: dict[str, float] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": REPORT_SCHEMA_VERSION,
            "title": self.title,
            "manifest": dict(self.manifest),
            "notes": self.notes,
            **({"training": dict(self.training)} if self.training else {}),
            "columns": [column.to_dict() for column in self.columns],
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "holm_p": self.holm_p,
            "definitions": {
                name: {"numerator": definition.numerator, "denominator": definition.denominator}
                for name, definition in DEFINITIONS.items()
            },
        }


def build_report(
    files: Sequence[TraceFile], title: str = "Rollouts", manifest: Mapping[str, Any] | None = None
) -> Report:
    """Measure every arm of every file, and compare the columns pairwise where they share tasks."""
    columns = [column for file in files for column in columns_of(file)]
    names = _distinct_names(columns)
    columns = [Column(**{**column.__dict__, "name": name}) for column, name in zip(columns, names, strict=True)]
    comparisons = _compare_columns(columns) if len(columns) <= MAX_COMPARED_COLUMNS else ()
    family = {pair_name(c): c.mcnemar.p_exact for c in comparisons if c.mcnemar}
    return Report(title, tuple(columns), comparisons, holm(family), manifest or {})


def columns_of(file: TraceFile) -> list[Column]:
    """One column an arm. An error that does not tell its arm belongs to the first."""
    named = sorted({trace.arm for trace in file.traces if trace.arm is not None})
    arms: list[str | None] = [*named] if named else [None]
    columns = []
    for index, arm in enumerate(arms):
        traces = [trace for trace in file.traces if trace.arm == arm or (trace.arm is None and not index)]
        columns.append(make_column(arm_title(arm), (file.path,), arm, traces, file.skipped))
    return columns


def make_column(
    name: str, sources: Sequence[Path], arm: str | None, traces: Sequence[Trace], skipped: tuple[BadLine, ...] = ()
) -> Column:
    """Measure the rollouts of one arm, pooled over one or several files."""
    rollouts = rollouts_of(traces)
    return Column(
        name=name,
        source=sources[0],
        arm=arm,
        variants=tuple(sorted({rollout.record.variant for rollout in rollouts})),
        splits=tuple(sorted({trace.split for trace in traces if trace.split})),
        models=tuple(sorted({trace.model for trace in traces if trace.model})),
        tasks=len({rollout.record.task_id for rollout in rollouts}),
        rollouts=rollouts,
        errors=sum(trace.error is not None for trace in traces),
        commonest_error=_commonest_error(traces),
        skipped=skipped,
        metrics=compute_all(rollouts),
        confusion=confusion(rollouts),
        confusion_published=confusion(rollouts, published=True),
        example=choose_example(traces),
        more_sources=tuple(sources[1:]),
    )


def rollouts_of(traces: Sequence[Trace]) -> tuple[Rollout, ...]:
    """What the metrics count: the rollouts that no environment fault ended."""
    return tuple(Rollout(trace.scored, trace.test_code) for trace in traces if trace.scored is not None)


def _commonest_error(traces: Sequence[Trace]) -> tuple[str, int] | None:
    errors = Counter(" ".join(trace.error.split())[:MAX_ERROR_LENGTH] for trace in traces if trace.error is not None)
    return next(iter(errors.most_common(1)), None)


def arm_title(arm: str | None) -> str:
    if arm is None:
        return "Arm ?"
    return f"Arm {arm.upper()}" if len(arm) == 1 else arm


def _distinct_names(columns: Sequence[Column]) -> list[str]:
    """Arm names alone where they differ; with the variant, the folder, the file where they do not."""
    plain = [column.name for column in columns]
    varied = [f"{column.name} {'+'.join(column.variants)}".strip() for column in columns]
    placed = [f"{column.name} {column.source.resolve().parent.name}" for column in columns]
    filed = [f"{column.name} {column.source.parent.name}/{column.source.name}" for column in columns]
    for names in (plain, varied, placed, filed):
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({index})" for index, name in enumerate(filed, 1)]


def choose_example(traces: Sequence[Trace]) -> Trace | None:
    """The most telling rollout: solved after a revision or a failed test if there is one, else solved, else any."""

    def rank(trace: Trace) -> int:
        record = trace.scored
        if record is None:
            return 3
        if not is_solved(record):
            return 2
        return 0 if has_revised(record) or failed_visible_test(record) else 1

    return min(traces, key=rank, default=None)


def _compare_columns(columns: Sequence[Column]) -> tuple[Comparison, ...]:
    comparisons = []
    for first, second in combinations(columns, 2):
        tasks = [{rollout.record.task_id for rollout in column.rollouts} for column in (first, second)]
        if tasks[0] & tasks[1]:
            comparisons.append(compare(first.rollouts, second.rollouts, (first.name, second.name)))
    return tuple(comparisons)


def pair_name(comparison: Comparison) -> str:
    return f"{comparison.first} vs {comparison.second}"
