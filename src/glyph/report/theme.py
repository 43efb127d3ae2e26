"""The colours of the page and of its figures, light and dark, and the style rules that use them.

A figure on its own carries the rules with both themes' values; inside the page the rules refer to CSS variables,
so that the page's switch reaches the figures too.
"""

from collections.abc import Callable

SERIES = 6
"""How many series have a colour of their own; further ones begin again."""

LIGHT = {
    "page": "#f7f7f5", "surface": "#ffffff", "ink": "#1b1b1a", "quiet": "#5a5853", "grid": "#e3e2dd",
    "axis": "#8b8983", "heat": "#2a78d6", "s1": "#2a78d6", "s2": "#d2501a", "s3": "#12855f", "s4": "#7a52c7",
    "s5": "#9a6c00", "s6": "#c2417f", "up": "#bcd8f8", "down": "#f9c9b8", "flat": "#dddcd6", "ce": "#d9ccf6",
    "masked": "#7a52c7", "link": "#1c5cab",
}  # fmt: skip
DARK = {
    "page": "#131312", "surface": "#1d1d1c", "ink": "#f1f0ec", "quiet": "#b4b2ab", "grid": "#33322f",
    "axis": "#7d7b75", "heat": "#5a9df0", "s1": "#5a9df0", "s2": "#f0824f", "s3": "#3dbb93", "s4": "#a587ee",
    "s5": "#d6a92f", "s6": "#ea76ac", "up": "#1f4a80", "down": "#7c3418", "flat": "#45443f", "ce": "#4f3a8c",
    "masked": "#a587ee", "link": "#8dbcf5",
}  # fmt: skip

FONT_FAMILY = 'system-ui, -apple-system, "Segoe UI", "Liberation Sans", "DejaVu Sans", sans-serif'


def standalone_css() -> str:
    """The rules of a figure that stands alone: light by default, dark where the reader's system is."""
    return figure_rules(LIGHT.__getitem__) + "@media (prefers-color-scheme: dark){" + _dark_rules() + "}"


def page_css() -> str:
    """Both themes as CSS variables (the system's choice unless `data-theme` says otherwise), and the figures' rules."""
    light, dark = (
        ";".join(f"--{name}:{value}" for name, value in {**theme, "scheme": scheme}.items())
        for theme, scheme in ((LIGHT, "light"), (DARK, "dark"))
    )
    return (
        f":root{{{light};color-scheme:light}}"
        f'@media (prefers-color-scheme: dark){{:root:not([data-theme="light"]){{{dark};color-scheme:dark}}}}'
        f':root[data-theme="dark"]{{{dark};color-scheme:dark}}'
        f"@media print{{:root:root:root{{{light};color-scheme:light}}}}" + figure_rules("var(--{})".format)
    )


def figure_rules(colour: Callable[[str], str]) -> str:
    """The style rules of a figure, with each colour by its name."""
    rules = {
        "text": f"font:13px {FONT_FAMILY};fill:{colour('ink')}",
        ".title": "font-weight:600;font-size:14px",
        ".quiet": f"fill:{colour('quiet')}",
        ".small": "font-size:11.5px",
        ".background": f"fill:{colour('surface')}",
        ".grid": f"stroke:{colour('grid')};stroke-width:1",
        ".axis": f"stroke:{colour('axis')};stroke-width:1",
        ".cap": f"stroke:{colour('ink')};stroke-width:1.5;stroke-dasharray:4 3",
        ".reference": f"fill:{colour('axis')};fill-opacity:.35",
        ".heat": f"fill:{colour('heat')}",
        ".cell": f"fill:none;stroke:{colour('grid')}",
        ".right": f"fill:none;stroke:{colour('ink')};stroke-width:1.5",
        ".band": "fill-opacity:.16;stroke:none",
        ".seed": "stroke-width:1;stroke-opacity:.5;fill:none",
        ".raw": "stroke-width:1;stroke-opacity:.28;fill:none",
        ".mean": "stroke-width:2.4;fill:none;stroke-linejoin:round",
        ".whisker": "stroke-width:2",
    }
    for number in range(1, SERIES + 1):
        rules[f".fill-{number}"] = f"fill:{colour(f's{number}')}"
        rules[f".line-{number}"] = f"stroke:{colour(f's{number}')}"
    return "".join(f".figure {selector}{{{body}}}" for selector, body in rules.items())


def _dark_rules() -> str:
    return figure_rules(DARK.__getitem__)


def series_class(index: int) -> int:
    """The colour number of the series with this index, from 1."""
    return index % SERIES + 1
