"""How numbers are written: one rule for the terminal and for Markdown. Undefined is an en dash beside its n."""

from glyph.evaluation.metrics import Metric
from glyph.evaluation.statistics import Interval

UNDEFINED = "–"
MARKS = {"wilson": "", "wilson-over-tasks": "‡", "cluster-bootstrap": "†", "paired-bootstrap": "†", "t-over-seeds": "§"}
LEGEND = (
    "value [95% interval] n = the denominator; – undefined. "
    "Intervals: Wilson; † bootstrap over tasks; ‡ Wilson with one trial a task."
)


def counted(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_metric(metric: Metric) -> str:
    """`56.4% [52.0, 60.7] n=500`, the method marked after the bracket; no brackets where there is no interval."""
    parts = [format_value(metric.value, metric.unit), format_interval(metric.interval, metric.unit)]
    return " ".join([*filter(None, parts), f"n={metric.denominator:g}"])


def format_value(value: float | None, unit: str) -> str:
    """Shares as percentages, differences as percentage points with their sign, scores with three digits."""
    if value is None:
        return UNDEFINED
    if unit == "share":
        return f"{100 * value:.1f}%"
    if unit == "difference":
        return f"{100 * value:+.1f} pp"
    if unit == "score":
        return f"{value:.3f}"
    return f"{value:.0f}" if unit == "tokens" else f"{value:.2f}"


def format_interval(interval: Interval | None, unit: str) -> str:
    if interval is None:
        return ""
    low, high = (format_value(end, unit).removesuffix(" pp").removesuffix("%") for end in (interval.low, interval.high))
    return f"[{low}, {high}]{MARKS[interval.method]}"


def format_p(p: float | None) -> str:
    if p is None:
        return UNDEFINED
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"
