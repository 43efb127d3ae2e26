"""What every figure begins with: its title, a line on what it shows, and the legend."""

from collections.abc import Sequence

from glyph.report.svg import BOLD, SMALL, TITLE_SIZE, Canvas, shorten, text_width, wrap
from glyph.report.theme import series_class

MARGIN = 14.0
PLOT_HEIGHT = 190.0


def start(title: str, subtitle: str, description: str, series: Sequence[tuple[str, int]]) -> Canvas:
    """A canvas with title, subtitle and legend; its height is where the plot begins."""
    canvas = Canvas(title, description)
    y = 8.0
    for line in wrap(title, canvas.width - 2 * MARGIN, TITLE_SIZE * BOLD):
        y += 17
        canvas.text(MARGIN, y, line, "title")
    for line in wrap(subtitle, canvas.width - 2 * MARGIN, SMALL) if subtitle else ():
        y += 15
        canvas.text(MARGIN, y, line, "quiet small")
    canvas.height = _legend(canvas, y + 8, series)
    return canvas


def _legend(canvas: Canvas, y: float, series: Sequence[tuple[str, int]]) -> float:
    """Swatches with names, wrapped to the width; returns the y below. A single series needs none."""
    if len(series) < 2:
        return y
    x = MARGIN
    y += 14
    for name, colour in series:
        name = shorten(name, canvas.width - 2 * MARGIN - 18)
        if x > MARGIN and x + 18 + text_width(name) > canvas.width - MARGIN:
            x, y = MARGIN, y + 18
        canvas.rect(x, y - 9, 11, 11, f"fill-{series_class(colour)}")
        canvas.text(x + 17, y, name)
        x += 17 + text_width(name) + 16
    return y + 8
