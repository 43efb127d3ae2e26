"""The forms of a figure for counts: a histogram, a confusion matrix, stacked bars. Curves and rows are `charts.py`."""

from collections.abc import Sequence

from glyph.evaluation.metrics import ConfusionMatrix
from glyph.report.format import UNDEFINED, format_value
from glyph.report.frame import MARGIN, PLOT_HEIGHT, start
from glyph.report.svg import SMALL, Canvas, scale, shorten, text_width, tick_text
from glyph.report.theme import series_class

CELL_HEIGHT = 38.0


def histogram(
    title: str, subtitle: str, counts: Sequence[tuple[str, int, dict[int, int]]], caps: Sequence[int], x_title: str
) -> Canvas:
    """Shares of rollouts by a small whole number, bars side by side; a dashed line behind the last value of a cap."""
    canvas = start(title, subtitle, _histogram_described(counts), [(name, colour) for name, colour, _ in counts])
    top = canvas.height + 20
    bottom = top + PLOT_HEIGHT - 14
    highest = max([*caps, *(value for _, _, bars in counts for value in bars)], default=1)
    shares = [(name, colour, _shares(bars)) for name, colour, bars in counts]
    y_of = scale(0, max([0.1, *(s for _, _, bars in shares for s in bars.values())]), bottom, top, 4)
    left = MARGIN + text_width("100%") + 6
    slot = (canvas.width - MARGIN - left - 8) / (highest + 1)
    for tick in y_of.ticks:
        canvas.line(left, y_of(tick), canvas.width - MARGIN, y_of(tick), "grid")
        canvas.text(left - 6, y_of(tick) + 4.5, tick_text(tick, "share", y_of.ticks[1]), "quiet", "end")
    thick = slot * 0.8 / max(1, len(shares))
    for place, (name, colour, bars) in enumerate(shares):
        for value, share in bars.items():
            tip = f"{name}, {value}: {counts[place][2][value]} rollouts ({format_value(share, 'share')})"
            x = left + slot * (value + 0.1) + place * thick
            canvas.rect(x, y_of(share), max(0.5, thick - 1), bottom - y_of(share), f"fill-{series_class(colour)}", tip)
    canvas.line(left, bottom, canvas.width - MARGIN, bottom, "axis")
    every = 1 + int((highest + 1) * 22 // (canvas.width - left))
    for value in range(0, highest + 1, every):
        canvas.text(left + slot * (value + 0.5), bottom + 17, str(value), "quiet", "middle")
    for cap in sorted(set(caps)):
        x = left + slot * (cap + 1)
        canvas.line(x, top - 6, x, bottom, "cap")
        canvas.text(x, top - 10, f"budget {cap}", "small", "end")
    canvas.text((left + canvas.width - MARGIN) / 2, bottom + 34, x_title, "quiet small", "middle")
    canvas.height = bottom + 44
    return canvas


def _shares(bars: dict[int, int]) -> dict[int, float]:
    total = sum(bars.values())
    return {value: count / total for value, count in sorted(bars.items()) if count}


def _histogram_described(counts: Sequence[tuple[str, int, dict[int, int]]]) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{count} at {value}" for value, count in sorted(bars.items()))
        for name, _, bars in counts
    )


def matrix(title: str, subtitle: str, content: ConfusionMatrix) -> Canvas:
    """Counts with row shares; the darker, the larger the row's share. Right predictions have a frame."""
    canvas = start(title, subtitle, _matrix_described(content), [])
    left = MARGIN + max(text_width(name, SMALL) for name in content.rows) + 8
    lengths = [text_width(name, SMALL) for name in content.columns]
    room = canvas.width - left - 4
    leaning = min((room - 0.65 * length) / (place + 0.4) for place, length in enumerate(lengths))
    wide = min(room / len(lengths), leaning)
    top = canvas.height + max(lengths) * 0.77 + 12
    for place, name in enumerate(content.columns):
        canvas.text(left + wide * (place + 0.4), top - 7, name, "small", turn=-50)
    for row, (name, counts) in enumerate(zip(content.rows, content.counts, strict=True)):
        y, total = top + row * CELL_HEIGHT, sum(counts)
        canvas.text(left - 8, y + CELL_HEIGHT / 2 + 4, name, "small", "end")
        for place, count in enumerate(counts):
            tip = f"verified {name}, predicted {content.columns[place]}: {count} of {total}"
            _cell(canvas, left + wide * place, y, wide, count, total, place == row, tip)
    canvas.height = top + CELL_HEIGHT * len(content.rows) + 12
    return canvas


def _cell(canvas: Canvas, x: float, y: float, wide: float, count: int, total: int, right: bool, tip: str) -> None:
    tall, middle = CELL_HEIGHT - 2, x + wide / 2
    if count:
        place = {"x": x + 1, "y": y + 1, "width": wide - 2, "height": tall}
        canvas.add("rect", "heat", tip, **place, fill_opacity=0.62 * count / total)
    canvas.rect(x + 1, y + 1, wide - 2, tall, "right" if right else "cell")
    if count:
        canvas.text(middle, y + 17, str(count), "small", "middle")
        canvas.text(middle, y + 31, f"{100 * count / total:.0f}%", "small", "middle")
    else:
        canvas.text(middle, y + 24, "0" if total else UNDEFINED, "quiet small", "middle")


def _matrix_described(content: ConfusionMatrix) -> str:
    return "; ".join(
        f"verified {row}: " + ", ".join(f"{n} {said}" for said, n in zip(content.columns, counts, strict=True) if n)
        for row, counts in zip(content.rows, content.counts, strict=True)
        if sum(counts)
    )


def stacked(title: str, subtitle: str, bars: Sequence[tuple[str, dict[str, float]]], colours: dict[str, int]) -> Canvas:
    """One bar a name, its parts in seconds one after another; the total stands at its end."""
    said = "; ".join(f"{name}: " + ", ".join(f"{part} {s:.2f} s" for part, s in parts.items()) for name, parts in bars)
    canvas = start(title, subtitle, said, list(colours.items()))
    longest = max((sum(parts.values()) for _, parts in bars), default=1.0) or 1.0
    x_of = scale(0, longest, MARGIN, canvas.width - MARGIN - 62, 4, snug=True)
    y = canvas.height + 6
    for name, parts in bars:
        canvas.text(MARGIN, y + 13, shorten(name, canvas.width - 2 * MARGIN))
        y, x = y + 19, MARGIN
        for part, seconds in parts.items():
            width = x_of(seconds) - MARGIN
            tip = f"{name}, {part}: {seconds:.2f} s"
            canvas.rect(x, y, max(0.0, width - 1), 20, f"fill-{series_class(colours[part])}", tip)
            x += width
        canvas.text(x + 7, y + 14.5, f"{sum(parts.values()):.2f} s", "small")
        y += 32
    canvas.height = y + 2
    return canvas
