"""The forms of a figure for values with intervals: learning curves and rows. Counts are `count_charts.py`.

In: plain numbers with names and units. Out: a `Canvas`. What is drawn, and from which runs, is `figures.py`.
A value of None is undefined: a gap in a curve, an en dash in a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from glyph.report.format import format_value
from glyph.report.frame import MARGIN, PLOT_HEIGHT, start
from glyph.report.svg import SMALL, Canvas, Point, Scale, scale, text_width, tick_text, wrap
from glyph.report.theme import series_class

ROW_HEIGHT = 19.0
Xy = Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Curve:
    """The line of one group: `seeds` thin, `raw` thinner still (unsmoothed), `mean` thick, `band` (x, low, high)."""

    name: str
    seeds: tuple[Xy, ...]
    mean: Xy
    band: tuple[tuple[float, float, float], ...] = ()
    raw: tuple[Xy, ...] = ()
    colour: int = 0


@dataclass(frozen=True)
class Bar:
    """A value with its interval in a row of `rows`; `text` stands at the right."""

    series: int
    value: float | None
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Row:
    """A label, the bars under it, and the reference value (a base rate) drawn behind them."""

    label: str
    bars: tuple[Bar, ...]
    reference: float | None = None


def curves(title: str, subtitle: str, lines: Sequence[Curve], unit: str, x_title: str = "step") -> Canvas:
    """Learning curves over steps. Shares begin at 0 and end at 1 at most; other units take the range they need."""
    canvas = start(title, subtitle, _described(title, lines, unit), [(line.name, line.colour) for line in lines])
    xs = [x for line in lines for each in (*line.seeds, line.mean) for x, _ in each]
    top = canvas.height + 6
    bottom = top + PLOT_HEIGHT
    y_of = _value_scale(lines, unit, bottom, top)
    step = y_of.ticks[1] - y_of.ticks[0]
    labels = [tick_text(tick, unit, step) for tick in y_of.ticks]
    left = MARGIN + max(map(text_width, labels)) + 6
    x_of = scale(min(xs), max(xs), left + 6, canvas.width - MARGIN - 8, 5, whole=True, snug=True)
    for tick, label in zip(y_of.ticks, labels, strict=True):
        canvas.line(left, y_of(tick), canvas.width - MARGIN, y_of(tick), "grid")
        canvas.text(left - 6, y_of(tick) + 4.5, label, "quiet", "end")
    _step_axis(canvas, x_of, left, bottom, x_title)
    for line in lines:
        _draw_curve(canvas, line, x_of, y_of, unit)
    canvas.height = bottom + 42
    return canvas


def _described(title: str, lines: Sequence[Curve], unit: str) -> str:
    ends = []
    for line in lines:
        known = [value for _, value in line.mean if value is not None]
        if known:
            ends.append(f"{line.name} from {format_value(known[0], unit)} to {format_value(known[-1], unit)}")
    return f"{title}: " + ("; ".join(ends) or "no value is defined")


def _value_scale(lines: Sequence[Curve], unit: str, bottom: float, top: float) -> Scale:
    """A step more than a few intervals would need is no loss; a band that leaves the figure would be one."""
    means = [y for line in lines for each in (*line.seeds, *line.raw, line.mean) for _, y in each if y is not None]
    bands = [end for line in lines for _, *ends in line.band for end in ends]
    values = [*means, *bands] or [0.0, 1.0]
    low, high = min(values), max(values)
    if unit == "share":
        return scale(0.0, min(1.0, max(high, 0.1)), bottom, top, 5)
    if low >= 0 and low < high / 3:
        low = 0.0
    return scale(low, high, bottom, top, 5)


def _step_axis(canvas: Canvas, x_of: Scale, left: float, bottom: float, title: str) -> None:
    canvas.line(left, bottom, canvas.width - MARGIN, bottom, "axis")
    for tick in x_of.ticks:
        canvas.line(x_of(tick), bottom, x_of(tick), bottom + 4, "axis")
        canvas.text(x_of(tick), bottom + 18, f"{tick:.0f}", "quiet", "middle")
    canvas.text((left + canvas.width - MARGIN) / 2, bottom + 34, title, "quiet small", "middle")


def _draw_curve(canvas: Canvas, line: Curve, x_of: Scale, y_of: Scale, unit: str) -> None:
    colour = series_class(line.colour)
    if line.band:
        edge = [(x_of(x), y_of(high)) for x, _, high in line.band]
        edge += [(x_of(x), y_of(low)) for x, low, _ in reversed(line.band)]
        if len(line.band) == 1:  # a single step has no area: a whisker
            canvas.line(*edge[0], *edge[1], f"whisker line-{colour}")
        canvas.path(edge, f"band fill-{colour}", closed=True)
    for classes, several in (("raw", line.raw), ("seed", line.seeds)):
        for each in several:
            for piece in _pieces(each, x_of, y_of):
                canvas.path(piece, f"{classes} line-{colour}")
    for piece in _pieces(line.mean, x_of, y_of):
        canvas.path(piece, f"mean line-{colour}")
    known = [(x, y) for x, y in line.mean if y is not None]
    for x, y in known if len(known) <= 15 else ():
        tip = f"{line.name}, step {x:g}: {format_value(y, unit)}"
        canvas.add("circle", f"fill-{colour}", tip, cx=x_of(x), cy=y_of(y), r=3.6)


def _pieces(line: Xy, x_of: Scale, y_of: Scale) -> list[list[Point]]:
    """The defined stretches of a line, in pixels."""
    pieces: list[list[Point]] = [[]]
    for x, y in line:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x_of(x), y_of(y)))
    return pieces


def rows(
    title: str,
    subtitle: str,
    content: Sequence[Row],
    series: Sequence[tuple[str, int]],
    unit: str = "share",
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Canvas:
    """A dot with its interval for each bar of each row; long labels stand above their row."""
    canvas = start(title, subtitle, _rows_described(content), series)
    widest = max((text_width(row.label) for row in content), default=0.0)
    above = widest > 130
    left = MARGIN + (0 if above else widest + 10) + 6
    values = max((text_width(bar.text, SMALL) for row in content for bar in row.bars), default=0.0)
    x_of = scale(*bounds, left, canvas.width - MARGIN - values - 14, 4, snug=True)
    y = canvas.height + 4
    for row in content:
        y = _draw_row(canvas, row, x_of, y, above)
    _tick_row(canvas, x_of, y + 13, unit)
    canvas.height = y + 24
    return canvas


def _draw_row(canvas: Canvas, row: Row, x_of: Scale, y: float, above: bool) -> float:
    """A row's label beside or above its bars, with their piece of the grid behind them; returns the y below."""
    if above:
        for line in wrap(row.label, canvas.width - 2 * MARGIN):
            canvas.text(MARGIN, y + 15, line)
            y += 17
    else:
        canvas.text(MARGIN, y + (len(row.bars) * ROW_HEIGHT) / 2 + 9.5, row.label)
    tall = len(row.bars) * ROW_HEIGHT + 8
    for tick in x_of.ticks:
        canvas.line(x_of(tick), y + (3 if above else 0), x_of(tick), y + tall, "axis" if tick == 0 else "grid")
    y += 4
    if row.reference is not None:
        canvas.rect(x_of(0), y + 1, x_of(row.reference) - x_of(0), tall - 10, "reference")
    for bar in row.bars:
        middle, colour = y + ROW_HEIGHT / 2, series_class(bar.series)
        if bar.low is not None and bar.high is not None:
            canvas.line(x_of(bar.low), middle, x_of(bar.high), middle, f"whisker line-{colour}")
        if bar.value is not None:
            tip = f"{row.label}: {bar.text}"
            canvas.add("circle", f"fill-{colour}", tip, cx=x_of(bar.value), cy=middle, r=4.6)
        canvas.text(canvas.width - MARGIN, middle + 4, bar.text, "quiet small" if bar.value is None else "small", "end")
        y += ROW_HEIGHT
    return y + 4


def _tick_row(canvas: Canvas, x_of: Scale, y: float, unit: str) -> None:
    step = x_of.ticks[1] - x_of.ticks[0] if len(x_of.ticks) > 1 else 1.0
    labels = [(tick, tick_text(tick, unit, step)) for tick in x_of.ticks]
    room = (x_of(labels[1][0]) - x_of(labels[0][0])) if len(labels) > 1 else canvas.width
    every = 1 if max((text_width(label, SMALL) for _, label in labels), default=0) + 6 < room else 2
    for tick, label in labels[::every]:
        canvas.text(x_of(tick), y, label, "quiet small", "middle")


def _rows_described(content: Sequence[Row]) -> str:
    return "; ".join(f"{row.label}: {', '.join(bar.text for bar in row.bars)}" for row in content)
