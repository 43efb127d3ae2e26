"""SVG by hand: a canvas that escapes what it is given, scales with round ticks, the width of a text.

Knows nothing of runs or metrics; `charts.py` draws with it. Colours are classes of `theme.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from glyph.report.rollout import printable
from glyph.report.theme import standalone_css

FONT_SIZE = 13.0
SMALL = 11.5
TITLE_SIZE = 14.0
WIDTH = 400.0
BOLD = 1.1
_NARROW, _WIDE, _SIGNS = frozenset("ijlIftr.,:;|'!()[]/- "), frozenset("mwMW@%—"), frozenset("=+<>→±")

Point = tuple[float, float]


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """An estimate of a text's width in pixels: that of a wide sans-serif, by kinds of letters."""
    return size * sum(map(_em, text))


def _em(char: str) -> float:
    if char in _NARROW:
        return 0.39
    if char in _WIDE:
        return 0.95
    return 0.84 if char in _SIGNS else 0.72 if char.isupper() or ord(char) > 0x2E80 else 0.62


def shorten(text: str, width: float, size: float = FONT_SIZE) -> str:
    """The text, or its beginning and an ellipsis where it is wider than `width`."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def wrap(text: str, width: float, size: float = FONT_SIZE) -> list[str]:
    """The text in lines of at most `width`, broken at spaces; a single longer word is shortened."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(shorten(word, width, size))
    return lines or [""]


class Canvas:
    """A drawing that grows downwards; its height is settled when it is rendered."""

    def __init__(self, title: str, description: str, width: float = WIDTH) -> None:
        self.title, self.description, self.width, self.height = title, description, width, 0.0
        self._parts: list[str] = []

    def add(self, tag: str, classes: str, tip: str | None = None, **attributes: float | str) -> None:
        """One element; `tip` is what a pointer shows, underscores in names are hyphens."""
        written = "".join(
            f" {name.replace('_', '-')}={quoteattr(value if isinstance(value, str) else number(value))}"
            for name, value in attributes.items()
        )
        head = f"<{tag} class={quoteattr(classes)}{written}"
        self._parts.append(f"{head}/>" if tip is None else f"{head}><title>{_clean(tip)}</title></{tag}>")

    def text(self, x: float, y: float, content: str, classes: str = "", anchor: str = "start", turn: float = 0) -> None:
        """Text with its baseline at y; `turn` in degrees around its start."""
        turned = f' transform="rotate({number(turn)} {number(x)} {number(y)})"' if turn else ""
        named = f" class={quoteattr(classes)}" if classes else ""
        place = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"'
        self._parts.append(f"<text{named} {place}{turned}>{_clean(content)}</text>")

    def path(self, points: Sequence[Point], classes: str, closed: bool = False) -> None:
        if len(points) > 1:
            way = "M" + "L".join(f"{number(x)},{number(y)}" for x, y in points) + ("Z" if closed else "")
            self.add("path", classes, d=way)

    def line(self, x1: float, y1: float, x2: float, y2: float, classes: str) -> None:
        self.add("line", classes, x1=x1, y1=y1, x2=x2, y2=y2)

    def rect(self, x: float, y: float, width: float, height: float, classes: str, tip: str | None = None) -> None:
        self.add("rect", classes, tip, x=x, y=y, width=width, height=height)

    def take(self, other: "Canvas") -> None:
        """Draw everything of another canvas over what is here."""
        self._parts += other._parts

    def render(self, name: str, standalone: bool) -> str:
        """The SVG; `name` makes its ids unique in a page. A standalone one brings its style and background."""
        size = f'viewBox="0 0 {number(self.width)} {number(self.height)}"'
        if standalone:
            size += f' width="{number(self.width)}" height="{number(self.height)}"'
        labels = f'role="img" aria-labelledby="{name}-title {name}-description"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="figure" {size} {labels}>'
        about = f'<title id="{name}-title">{_clean(self.title)}</title>'
        about += f'<desc id="{name}-description">{_clean(self.description)}</desc>'
        style = f"<style>{standalone_css()}</style>" if standalone else ""
        ground = '<rect class="background" width="100%" height="100%"/>' if standalone else ""
        return head + about + style + ground + "".join(self._parts) + "</svg>"


def _clean(text: str) -> str:
    return escape(printable(text))


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Scale:
    """A linear map from values to pixels, and the values that get a tick."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside stay at the edge."""
        within = min(max(value, self.low), self.high)
        return self.start + (within - self.low) / (self.high - self.low) * (self.end - self.start)


def scale(
    low: float, high: float, start: float, end: float, ticks: int = 5, whole: bool = False, snug: bool = False
) -> Scale:
    """A scale over [low, high] widened to round ticks (about `ticks` of them); `snug` keeps the given ends."""
    if not high > low:
        low, high = (low - 0.5, low + 0.5) if not whole else (low, low + 1)
    step = _round_step((high - low) / max(1, ticks), whole)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = tuple(index * step for index in range(first, last + 1))
    if snug:
        return Scale(low, high, start, end, tuple(mark for mark in marks if low - 1e-9 <= mark <= high + 1e-9))
    return Scale(marks[0], marks[-1], start, end, marks)


def _round_step(rough: float, whole: bool) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `rough`; whole numbers if asked."""
    power = 10 ** math.floor(math.log10(rough))
    choices = [factor * unit for unit in (power, 10 * power) for factor in (1, 2, 2.5, 5)]
    if whole:
        choices = [choice for choice in choices if choice >= 1 and float(choice).is_integer()] or [1.0]
    return next(choice for choice in choices if choice >= rough * (1 - 1e-9) or choice == choices[-1])


def tick_text(value: float, unit: str, step: float) -> str:
    """A tick's label: percent for shares, percentage points for differences, else as few digits as tell ticks apart."""
    if unit in ("share", "difference"):
        sign = "+" if unit == "difference" and value > 1e-12 else ""
        return f"{sign}{100 * value + 0.0:.{_digits(100 * step)}f}" + ("%" if unit == "share" else " pp")
    if abs(value) < 1e-12:
        return "0"
    if abs(step) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.{_digits(step)}f}"


def _digits(step: float) -> int:
    """The decimals that tell multiples of a step apart: 0 for 5, 1 for 0.5 and 2.5, 2 for 0.25."""
    return next((digits for digits in range(9) if abs(step * 10**digits - round(step * 10**digits)) < 1e-6), 9)
