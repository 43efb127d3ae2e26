"""From rollouts to metrics: values, pooled over a file, with their 95% intervals.

In: `Rollout`s (typed records and test codes). Out: one `Metric` a definition, pass@k, macro-F1, the gate's
discrimination, confusion matrices; and `rollout_metrics`, the same counts for a single rollout. An undefined
metric (denominator 0) has the value None. What each metric counts is `definitions.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from glyph.evaluation.definitions import DEFINITIONS, Definition, Exposure
from glyph.evaluation.predicates import Rollout, is_solved
from glyph.evaluation.statistics import Array, Interval, cluster_bootstrap, pass_at_k, ratio, wilson_interval
from glyph.protocol import Label
from glyph.records import PredictionTarget, RolloutRecord

LABELS = tuple(Label)
NO_LABEL = "none"

DERIVED = {
    "macro_f1_true_classes": "macro-F1, classes in truth",
    "macro_f1_true_or_predicted_classes": "macro-F1, classes in truth or predicted",
    "gate_discrimination": "gate discrimination",
}
"""The metrics that are no single ratio of counts. pass@k is named by its k: `pass_at_K`."""


@dataclass(frozen=True)
class Metric:
    """One value with what it is made of. `value` and `interval` are None where they are undefined.

    `denominator` is the n to print; `numerator` is None where the value is no ratio. `tasks` is how many tasks
    the denominator comes from: the clusters of the bootstrap. Shares, scores and differences lie within 0 and 1
    (-1 and 1).
    """

    name: str
    title: str
    section: str
    unit: str
    numerator: float | None
    denominator: float
    value: float | None
    interval: Interval | None
    tasks: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Tasks = list[list[Rollout]]
"""The rollouts grouped by task, in order of first appearance."""


def group_by_task(rollouts: Iterable[Rollout]) -> Tasks:
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.record.task_id, []).append(rollout)
    return list(groups.values())


def compute(name: str, rollouts: Sequence[Rollout]) -> Metric:
    """One metric of the table, by name."""
    return _compute(DEFINITIONS[name], group_by_task(rollouts))


def compute_all(rollouts: Sequence[Rollout]) -> dict[str, Metric]:
    """Every metric under its name, in the order of the report."""
    tasks = group_by_task(rollouts)
    metrics = {name: _compute(definition, tasks) for name, definition in DEFINITIONS.items()}
    for metric in (*macro_f1(rollouts), gate_discrimination(rollouts)):
        metrics[metric.name] = metric
    return metrics


def _compute(definition: Definition, tasks: Tasks) -> Metric:
    sums = _task_sums(tasks, definition.count, 2)
    trials = definition.unit == "share" and bool(np.all(sums[:, 1] <= 1))
    if definition.per_task:
        present = sums[:, 1] > 0
        sums[present] /= sums[present, 1:]
    numerator, denominator = (float(total) for total in sums.sum(axis=0))
    return Metric(
        definition.name,
        definition.title,
        definition.section,
        definition.unit,
        numerator,
        denominator,
        numerator / denominator if denominator else None,
        ratio_interval(sums, definition.unit == "share", trials),
        int(np.count_nonzero(sums[:, 1])),
    )


def _task_sums(tasks: Tasks, count: Callable[[Rollout], Sequence[float]], width: int) -> Array:
    """What the rollouts of each task add up to (tasks × width)."""
    rows = [[sum(column) for column in zip(*map(count, samples), strict=True)] for samples in tasks]
    return np.array(rows, dtype=np.float64).reshape(len(tasks), width)


def ratio_interval(sums: Array, is_share: bool, independent: bool) -> Interval | None:
    """The interval of a pooled ratio, from numerator and denominator of each task (tasks × 2).

    A share to which no task adds more than one unit (`independent` trials) gets Wilson's. Anything else is
    bootstrapped over tasks. A share of 0 or 1 leaves the bootstrap without spread: Wilson again, with only as many
    trials as there are tasks. None where fewer than two tasks contribute to a bootstrap, or all resamples agree.
    """
    numerator, denominator = sums.sum(axis=0)
    contributing = int(np.count_nonzero(sums[:, 1]))
    if is_share and independent:
        return wilson_interval(float(numerator), float(denominator))
    if is_share and contributing and numerator in (0, denominator):
        return wilson_interval(contributing if numerator else 0, contributing, method="wilson-over-tasks")
    return cluster_bootstrap(sums, ratio) if contributing > 1 else None


def pass_at_k_metric(rollouts: Sequence[Rollout], k: int) -> Metric:
    """pass@k: the mean of the unbiased estimate over the tasks with at least `k` scored samples.

    For k = 1 this is `pass_at_1`. Source: Chen et al. 2021.
    """
    estimates = []
    tasks_of = group_by_task(rollouts)
    for samples in tasks_of:
        estimate = pass_at_k(len(samples), sum(is_solved(rollout.record) for rollout in samples), k)
        if estimate is not None:
            estimates.append((estimate, 1.0))
    sums = np.array(estimates, dtype=np.float64).reshape(-1, 2)
    total, tasks = float(sums[:, 0].sum()), len(estimates)
    value = total / tasks if tasks else None
    interval = ratio_interval(sums, is_share=True, independent=all(len(samples) == 1 for samples in tasks_of))
    return Metric(f"pass_at_{k}", f"pass@{k}", "Outcome", "share", total, tasks, value, interval, tasks)


def macro_f1(rollouts: Sequence[Rollout]) -> tuple[Metric, Metric]:
    """The mean F1 over classes under both conventions, F1 = 2·TP / (predicted + support).

    The first averages over the classes that occur as verified labels. The second averages also over classes that
    were only predicted, whose recall is undefined: their F1 counts as 0. A class never predicted has F1 0 in both.
    """
    sums = _task_sums(group_by_task(rollouts), _class_counts, 3 * len(LABELS))
    targets = _task_sums(group_by_task(rollouts), lambda r: [len(r.record.targets)], 1)
    metrics = []
    for name, statistic in (
        ("macro_f1_true_classes", _macro_over_truth),
        ("macro_f1_true_or_predicted_classes", _macro_over_union),
    ):
        value = float(statistic(sums.sum(axis=0, keepdims=True))[0])
        defined = not np.isnan(value)
        metrics.append(
            Metric(
                name,
                DERIVED[name],
                "Prediction",
                "score",
                None,
                float(targets.sum()),
                value if defined else None,
                cluster_bootstrap(sums, statistic) if defined else None,
                int(np.count_nonzero(targets)),
            )
        )
    return metrics[0], metrics[1]


def _class_counts(rollout: Rollout) -> list[float]:
    """True positives, predictions and support of each label: three blocks, each in the order of `LABELS`."""
    targets = rollout.record.targets
    return [
        *(float(sum(t.label is label and t.verified_label is label for t in targets)) for label in LABELS),
        *(float(sum(t.label is label for t in targets)) for label in LABELS),
        *(float(sum(t.verified_label is label for t in targets)) for label in LABELS),
    ]


def _macro_over_truth(sums: Array) -> Array:
    return _macro(sums, sums[:, 2 * len(LABELS) :] > 0)


def _macro_over_union(sums: Array) -> Array:
    return _macro(sums, sums[:, len(LABELS) : 2 * len(LABELS)] + sums[:, 2 * len(LABELS) :] > 0)


def _macro(sums: Array, included: Any) -> Array:
    true_positives, predicted, support = np.split(sums, 3, axis=1)
    scores = 2 * true_positives / np.maximum(predicted + support, 1)
    return ratio(np.column_stack([(scores * included).sum(axis=1), included.sum(axis=1)]))


def gate_discrimination(rollouts: Sequence[Rollout]) -> Metric:
    """Bad-patch rejection minus good-patch rejection: 0 for a gate that ignores the candidate, 1 for a perfect one."""
    bad, good = DEFINITIONS["bad_patch_rejection"], DEFINITIONS["good_patch_rejection"]
    sums = _task_sums(group_by_task(rollouts), lambda r: [*bad.count(r), *good.count(r)], 4)
    difference = float(_rejection_difference(sums.sum(axis=0, keepdims=True))[0])
    defined = not np.isnan(difference)
    decided = sums[:, 1] + sums[:, 3]
    return Metric(
        "gate_discrimination",
        DERIVED["gate_discrimination"],
        "Gate",
        "difference",
        None,
        float(decided.sum()),
        difference if defined else None,
        cluster_bootstrap(sums, _rejection_difference) if defined else None,
        int(np.count_nonzero(decided)),
    )


def _rejection_difference(sums: Array) -> Array:
    return ratio(sums[:, :2]) - ratio(sums[:, 2:])


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts of prediction targets: one row a verified label, one column a sampled label; the last column is none."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> int:
        return sum(map(sum, self.counts))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def confusion(rollouts: Iterable[Rollout], published: bool = False) -> ConfusionMatrix:
    """The confusion matrix under our verified labels, or under what the published study's rule would have said."""
    targets = [target for rollout in rollouts for target in rollout.record.targets]

    def truth(target: PredictionTarget) -> Label:
        return target.published_label if published else target.verified_label

    counts = tuple(
        tuple(sum(truth(t) is row and t.label is column for t in targets) for column in (*LABELS, None))
        for row in LABELS
    )
    names = tuple(label.value for label in LABELS)
    return ConfusionMatrix(names, (*names, NO_LABEL), counts)


def rollout_metrics(record: RolloutRecord, test_code: str | None) -> dict[str, float]:
    """What one rollout adds to each metric, for the metrics hook of a taskset; undefined ones are left out.

    A metric with at most one unit a rollout stands under its name (pass@1 as `solved`), so the mean over the
    rollouts that have the key is the metric. One over calls or prediction targets would not survive averaging of
    ratios: it stands as `NAME_numerator` and `NAME_denominator`, whose sums (or means) give the metric.
    """
    rollout = Rollout(record, test_code)
    values: dict[str, float] = {}
    for definition in DEFINITIONS.values():
        numerator, denominator = definition.count(rollout) if definition.exposure is not Exposure.NONE else (0, 0)
        if denominator and definition.exposure is Exposure.COUNTS:
            values[f"{definition.name}_numerator"] = numerator
            values[f"{definition.name}_denominator"] = denominator
        elif denominator:
            values[definition.rollout_key or definition.name] = numerator / denominator
    return values
