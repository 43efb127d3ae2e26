"""Loss curves as an SVG file of its own, light or dark as the reader's system is. No plotting library."""

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, MARGIN = 640, 320, 48
SERIES = (
    ("training", "asked", "training, asked", "#2f6fdf", ""),
    ("evaluation", "asked", "held-out programs, asked", "#d9531e", ""),
    ("training", "given", "training, given", "#2f6fdf", "4 3"),
    ("evaluation", "given", "held-out programs, given", "#d9531e", "4 3"),
)
_STYLE = "text{font:12px sans-serif;fill:#444}@media(prefers-color-scheme:dark){text{fill:#ccc}}"


def curves_svg(curves: Mapping[str, Any]) -> str:
    """Loss in nats (from 0) over tokens seen; `curves` is what `curves.json` holds."""
    most = max(point["tokens"] for kind in ("training", "evaluation") for point in curves[kind]) or 1
    top = 1.05 * max(point[key] for kind, key, *_ in SERIES for point in curves[kind] if point["step"] > 0)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"><style>{_STYLE}</style>',
        f'<text x="{MARGIN}" y="20">{curves["size"]}: {curves["parameters"] / 1e6:.2f}M parameters, loss in nats '
        f"over {most / 1e6:.0f}M tokens</text>",
        f'<path d="M{MARGIN},32V{HEIGHT - MARGIN}H{WIDTH - 16}" fill="none" stroke="#888"/>',
    ]
    for tick in range(5):
        value = top * tick / 4
        lines.append(f'<text x="8" y="{_y(value, top) + 4:.0f}">{value:.2f}</text>')
    for place, (kind, key, label, colour, dash) in enumerate(SERIES):
        points = [(p["tokens"] / most, p[key]) for p in curves[kind] if p["step"] > 0]
        lines.append(_polyline(points, top, colour, dash))
        x, y = MARGIN + 150 * place, HEIGHT - 14
        lines.append(f'<path d="M{x},{y - 4}h16" stroke="{colour}" stroke-dasharray="{dash}" stroke-width="2"/>')
        lines.append(f'<text x="{x + 20}" y="{y}" font-size="10">{label}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _polyline(points: Sequence[tuple[float, float]], top: float, colour: str, dash: str) -> str:
    """Points are (share of the tokens, loss)."""
    places = " ".join(f"{MARGIN + x * (WIDTH - MARGIN - 16):.1f},{_y(y, top):.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dash}"/>'


def _y(value: float, top: float) -> float:
    return HEIGHT - MARGIN - min(value / top, 1.0) * (HEIGHT - MARGIN - 32)
