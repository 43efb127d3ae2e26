"""The figures of a report: which numbers each shows, its note, and the table of those numbers.

In: `Content`. Out: `Figure`s in the order of the page. Every number is a `Metric`, a `Series` or a `Comparison`, or a
plain count of what the records hold; forms are `charts.py`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from glyph.evaluation.compare import Comparison
from glyph.evaluation.metrics import LABELS, Metric
from glyph.evaluation.predicates import calls_spent
from glyph.protocol import StopReason
from glyph.report.charts import Bar, Curve, Row, curves, rows
from glyph.report.count_charts import histogram, matrix, stacked
from glyph.report.curves import SMOOTHING, Series
from glyph.report.data import Column, pair_name
from glyph.report.format import UNDEFINED, format_interval, format_metric, format_value
from glyph.report.svg import Canvas
from glyph.report.training import EVALUATION_CURVES, TRAINING_CURVES, Content

Colours = dict[str, int]
TIME_PARTS = {"generation": 2, "environment": 3, "training": 4, "other": 5}
"""The parts of a step's seconds and the colours they have: none that an arm has first."""


@dataclass(frozen=True)
class Figure:
    """A figure with its numbers. `name` is its file's and its anchor's; `section` where on the page it stands."""

    name: str
    section: str
    canvas: Canvas
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def build_figures(content: Content) -> list[Figure]:
    """Every figure that has something to show."""
    return [
        *_learning(content),
        *_outcomes(content.shown, content.colours()),
        *_predictions(content.shown),
        *_gates(content.shown, content.colours()),
        *_paired(content.report.comparisons),
        *_times(content),
    ]


def _learning(content: Content) -> Iterator[Figure]:
    """Evaluations before training curves, stage by stage; the stage and split are named where there are several."""
    stages, colours = {group.stage for group in content.groups}, content.colours()
    splits = {split for group in content.groups for split in group.splits}
    for key, several in content.curves.items():
        stage, kind, *rest = key.split("/")
        where = [stage.upper()] if len(stages) > 1 else []
        if kind == "evaluation":
            title, subtitle = EVALUATION_CURVES[rest[1]], ""
            where += [rest[0]] if len(splits) > 1 else []
            note = f"Evaluation on {rest[0]}. {_band_note(several)}"
        else:
            title, unit = TRAINING_CURVES[rest[0]]
            subtitle = "" if unit == "share" else unit
            note = f"Moving mean over {SMOOTHING} steps; the faintest lines are the steps as they were. "
            note += _band_note(several)
        name = "_".join([kind, rest[-1], *(part.lower() for part in where)])
        title = f"{title} ({', '.join(where)})" if where else title
        section = "learning" if rest[-1] in (*EVALUATION_CURVES, "reward_mean") else "optimisation"
        yield _curve_figure(name, section, title, subtitle, several, note, colours)


def _band_note(several: Sequence[Series]) -> str:
    counts = {len(series.seeds) for series in several}
    if counts == {1}:
        return "One seed; bands, where there are any, are 95% intervals over tasks."
    seeds = " or ".join(map(str, sorted(counts)))
    return f"Thin lines: seeds; thick: their mean; bands: 95% t intervals over {seeds} seeds, which cover the seed."


def _curve_figure(
    name: str, section: str, title: str, subtitle: str, several: Sequence[Series], note: str, colours: Colours
) -> Figure:
    lines = [
        Curve(
            name=series.group,
            seeds=series.by_seed if len(series.seeds) > 1 else (),
            mean=series.mean_line,
            band=tuple(
                (step, mean.interval.low, mean.interval.high)
                for step, mean in zip(series.steps, series.means, strict=True)
                if mean.interval
            ),
            raw=series.raw,
            colour=colours[series.group],
        )
        for series in several
    ]
    unit = several[0].unit
    table = [row for series in several for row in _series_rows(series, bool(series.raw))]
    each = "each seed" + (" (not smoothed)" if several[0].raw else "")
    headings = ("group", "step", "mean", "95% interval", "seeds", each)
    return Figure(name, section, curves(title, subtitle, lines, unit), note, headings, tuple(table))


def _series_rows(series: Series, smooth: bool) -> Iterator[tuple[str, ...]]:
    tables = [dict(line) for line in (series.raw if smooth else series.by_seed)]
    for step, mean in zip(series.steps, series.means, strict=True):
        each = ", ".join(_value(table.get(step), series.unit) for table in tables)
        interval = mean.interval
        ends = f"[{_value(interval.low, series.unit)}, {_value(interval.high, series.unit)}]" if interval else UNDEFINED
        yield series.group, str(step), _value(mean.mean, series.unit), ends, str(mean.n), each


def _value(value: float | None, unit: str) -> str:
    if value is None or unit in ("share", "difference"):
        return format_value(value, unit)
    return f"{value:.4g}"


def _bar(metric: Metric, series: int) -> Bar:
    interval = metric.interval
    text = f"{format_value(metric.value, metric.unit)} n={metric.denominator:g}"
    return Bar(series, metric.value, interval.low if interval else None, interval.high if interval else None, text)


def _metric_figure(
    name: str,
    section: str,
    title: str,
    subtitle: str,
    columns: Sequence[Column],
    colours: Colours,
    metrics: Sequence[tuple[str, str]],
) -> Figure:
    """A row a metric (label and name), a bar a column."""
    content = [
        Row(label, tuple(_bar(column.metrics[metric], colours[column.name]) for column in columns))
        for label, metric in metrics
    ]
    table = tuple((label, *(format_metric(each.metrics[metric]) for each in columns)) for label, metric in metrics)
    canvas = rows(title, subtitle, content, [(column.name, colours[column.name]) for column in columns])
    note = "95% intervals over tasks; n is the denominator."
    return Figure(name, section, canvas, note, ("metric", *(column.name for column in columns)), table)


def _outcomes(columns: Sequence[Column], colours: Colours) -> Iterator[Figure]:
    if not columns:
        return
    metrics = [("pass@1", "pass_at_1"), ("first patch", "first_patch"), ("recovery", "recovery")]
    subtitle = "recovery: solved among those with a failed visible test"
    yield _metric_figure("outcome", "outcome", "Outcome", subtitle, columns, colours, metrics)
    yield from _tools(columns, colours)
    stops = [(reason.value.replace("_", " "), f"stop_{reason.value}") for reason in StopReason]
    yield _metric_figure("stop_reasons", "outcome", "Stop reasons", "share of rollouts", columns, colours, stops)


def _predictions(columns: Sequence[Column]) -> Iterator[Figure]:
    predicting = [column for column in columns if column.confusion.total]
    for place, column in enumerate(predicting, 1):
        content = column.confusion
        table = tuple((row, *map(str, counts)) for row, counts in zip(content.rows, content.counts, strict=True))
        subtitle = "verified (rows) by predicted: counts, shares of the row"
        drawn = matrix(f"Predictions, {column.name}", subtitle, content)
        note = "Right predictions are framed. The last column holds turns without a readable label."
        name = "confusion" + (f"_{place}" if len(predicting) > 1 else "")
        yield Figure(name, "prediction", drawn, note, ("verified", *content.columns), table)
        yield _by_class(column, "precision_recall" + (f"_{place}" if len(predicting) > 1 else ""))


def _by_class(column: Column, name: str) -> Figure:
    """Precision and recall of every label that occurs or was predicted, against how often it is true."""
    said = [label.value for label in LABELS if column.metrics[f"f1_{label.value}"].denominator]
    parts = ("precision", "recall")
    content = tuple(
        Row(
            label,
            tuple(_bar(column.metrics[f"{part}_{label}"], place) for place, part in enumerate(parts, 2)),
            column.metrics[f"base_rate_{label}"].value,
        )
        for label in said
    )
    table = tuple(
        (label, *(format_metric(column.metrics[f"{part}_{label}"]) for part in ("base_rate", *parts, "f1")))
        for label in said
    )
    subtitle = "grey: base rate, the precision of predicting this label always"
    series = [(part, place) for place, part in enumerate(parts, 2)]
    canvas = rows(f"Precision and recall, {column.name}", subtitle, content, series)
    note = "A precision says something only where it exceeds the base rate. 95% intervals over tasks."
    return Figure(name, "prediction", canvas, note, ("label", "base rate", *parts, "F1"), table)


def _gates(columns: Sequence[Column], colours: Colours) -> Iterator[Figure]:
    gated = [column for column in columns if column.metrics["never_revised_share"].denominator]
    if gated:
        names = [
            (f"{side.replace('_', ' ')}: {what}", f"{side}_{part}")
            for part, what in (("share", "share"), ("pass", "solved"), ("hit_cap", "at the cap"))
            for side in ("never_revised", "revised")
        ]
        subtitle = "rollouts that chose REVISE at least once, and the others; harder tasks are revised more"
        yield _metric_figure("revised_split", "gate", "Never revised and revised", subtitle, gated, colours, names)
        rejections = [
            ("bad patches rejected", "bad_patch_rejection"),
            ("good patches rejected", "good_patch_rejection"),
            ("decisions overridden", "overridden_targets"),
        ]
        yield _metric_figure("gate", "gate", "The gate", "share of prediction targets", gated, colours, rejections)


def _tools(columns: Sequence[Column], colours: Colours) -> Iterator[Figure]:
    counts = [
        (column.name, colours[column.name], dict(Counter(calls_spent(rollout.record) for rollout in column.rollouts)))
        for column in columns
        if column.rollouts
    ]
    if not counts:
        return
    caps = {rollout.record.budget for column in columns for rollout in column.rollouts}
    highest = max(max(bars) for _, _, bars in counts)
    table = tuple((str(n), *(str(bars.get(n, 0)) for _, _, bars in counts)) for n in range(highest + 1))
    canvas = histogram("Tool calls", "share of rollouts", counts, sorted(caps), "budget spent by tool calls")
    note = "What the visible tool calls of a rollout took from its budget; the dashed line is the cap."
    yield Figure("tool_calls", "outcome", canvas, note, ("spent", *(name for name, *_ in counts)), table)


def _paired(comparisons: Sequence[Comparison]) -> Iterator[Figure]:
    if not comparisons:
        return
    content = [Row(_arrow(each), (_difference_bar(each),)) for each in comparisons]
    bars = [row.bars[0] for row in content]
    ends = [abs(end) for bar in bars for end in (bar.value, bar.low, bar.high) if end is not None]
    reach = min(1.0, max([0.1, *ends]) * 1.08)
    title, subtitle = "Paired differences of pass@1", "second minus first, on the same tasks"
    canvas = rows(title, subtitle, content, [], "difference", (-reach, reach))
    table = tuple(
        (
            pair_name(each),
            str(each.tasks),
            format_value(each.difference, "difference"),
            format_interval(each.interval, "difference") or UNDEFINED,
            each.no_mcnemar or "",
        )
        for each in comparisons
    )
    note = (
        "95% bootstrap intervals over tasks, both outcomes of a task drawn together. They do not cover the training "
        "seed; the rows of single seeds show how far it moves the result."
    )
    headings = ("pair", "tasks", "difference", "95% interval", "why no McNemar test")
    yield Figure("paired", "paired", canvas, note, headings, table)


def _arrow(comparison: Comparison) -> str:
    return f"{comparison.first} → {comparison.second}"


def _difference_bar(comparison: Comparison) -> Bar:
    interval = comparison.interval
    text = f"{format_value(comparison.difference, 'difference')} n={comparison.tasks}"
    low, high = (interval.low, interval.high) if interval else (None, None)
    return Bar(4, comparison.difference, low, high, text)


def _times(content: Content) -> Iterator[Figure]:
    bars = [
        (group.name, _median_seconds([line.seconds for run in group.runs for line in run.training]))
        for group in content.groups
    ]
    known = [(name, parts) for name, parts in bars if parts]
    if not known:
        return
    used = {part: colour for part, colour in TIME_PARTS.items() if any(part in parts for _, parts in known)}
    canvas = stacked("Time of a training step", "seconds, medians over the steps of all seeds", known, used)
    table = tuple((name, *(_seconds(parts.get(part)) for part in used)) for name, parts in known)
    note = "Medians of the parts; their sum need not be the median step."
    yield Figure("step_time", "time", canvas, note, ("group", *used), table)


def _median_seconds(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each part over the steps; "other" is what a step's total has beyond its parts."""
    named = [part for part in TIME_PARTS if part != "other" and any(part in step for step in steps)]
    found = {part: median(step.get(part, 0.0) for step in steps) for part in named}
    rest = [step["total"] - sum(step.get(part, 0.0) for part in named) for step in steps if "total" in step]
    if rest and median(rest) > 0:
        found["other"] = median(rest)
    return found


def _seconds(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.3f}"
