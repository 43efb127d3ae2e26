"""The drawing of figures: round ticks, labels within the canvas, text that cannot break the file."""

import re
from xml.etree import ElementTree

import pytest

from glyph.evaluation.metrics import ConfusionMatrix
from glyph.report.charts import Bar, Curve, Row, curves, rows
from glyph.report.count_charts import histogram, matrix, stacked
from glyph.report.svg import FONT_SIZE, SMALL, Canvas, scale, shorten, text_width, tick_text, wrap

SVG = "{http://www.w3.org/2000/svg}"
LONG = "an arm with a name that is far too long to stand in a legend on one line, step 1200, validation"


@pytest.mark.parametrize(
    ("low", "high", "whole", "ticks"),
    [
        (0, 0.43, False, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.03, 0.02, False, [-0.03, -0.02, -0.01, 0, 0.01, 0.02]),
        (0, 3, True, [0, 1, 2, 3]),
        (0, 37, True, [0, 10, 20, 30, 40]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(low: float, high: float, whole: bool, ticks: list[float]) -> None:
    made = scale(low, high, 0, 100, 5, whole)
    assert made.ticks == pytest.approx(ticks)
    assert made(made.low) == 0
    assert made(made.high) == 100


def test_a_snug_scale_keeps_its_ends_and_clamps() -> None:
    made = scale(1, 37, 10, 46, 5, whole=True, snug=True)
    assert (made(1), made(37), made(99)) == (10, 46, 46)
    assert made.ticks == (10, 20, 30)


def test_a_single_value_still_has_a_scale() -> None:
    made = scale(3, 3, 0, 100)
    assert made.low < 3 < made.high
    assert scale(3, 3, 0, 100, whole=True)(3) == 0


@pytest.mark.parametrize(
    ("value", "unit", "step", "text"),
    [
        (0.4, "share", 0.2, "40%"),
        (0.025, "share", 0.025, "2.5%"),
        (-0.5, "difference", 0.5, "-50 pp"),
        (0.1 * 3, "difference", 0.1, "+30 pp"),
        (0.0, "difference", 0.1, "0 pp"),
        (2.5, "loss", 2.5, "2.5"),
        (0.75, "loss", 0.25, "0.75"),
        (2e-5, "loss", 1e-5, "2e-5"),
        (1200.0, "tokens a second", 200, "1200"),
        (1e-17, "loss", 0.1, "0"),
    ],
)
def test_tick_labels(value: float, unit: str, step: float, text: str) -> None:
    assert tick_text(value, unit, step) == text


def test_text_is_wrapped_and_shortened_to_a_width() -> None:
    lines = wrap(LONG, 200)
    assert " ".join(lines) == LONG
    assert max(map(text_width, lines)) <= 200
    assert shorten("W" * 50, 100).endswith("…")
    assert text_width(shorten("W" * 50, 100)) <= 100
    assert wrap("", 100) == [""]


def parsed(canvas: Canvas) -> ElementTree.Element:
    return ElementTree.fromstring(canvas.render("figure", standalone=True))


def boxes(svg: ElementTree.Element) -> list[tuple[str, float, float, float]]:
    """Text, left and right end and baseline of each label that is not turned."""
    found = []
    for text in svg.iter(f"{SVG}text"):
        if "transform" in text.attrib:
            continue
        classes = text.get("class", "")
        width = text_width(text.text or "", 14 if "title" in classes else SMALL if "small" in classes else FONT_SIZE)
        x = float(text.attrib["x"]) - {"start": 0, "middle": width / 2, "end": width}[text.attrib["text-anchor"]]
        found.append((text.text or "", x, x + width, float(text.attrib["y"])))
    return found


def figures() -> dict[str, Canvas]:
    two = [
        Curve(name, ((((0, 0.1), (20, 0.5)),) * 2), ((0, 0.1), (10, None), (20, 0.5)), ((0, 0.0, 0.3),), (), place)
        for place, name in enumerate((LONG, "Arm B"))
    ]
    labels = ("PASS", "ASSERTION_FAILURE", "RUNTIME_ERROR")
    bars = (Bar(0, 0.5, 0.2, 0.8, "50.0% n=12345"), Bar(1, None, None, None, "– n=0"))
    content = [Row("pass@1", bars, 0.4), Row("first patch", bars)]
    counts = ((1000, 0, 2, 3), (0,) * 4, (1, 1, 1, 1))
    parts = {"generation": 2.0, "training": 0.1}
    return {
        "curves": curves("pass@1", "", two, "share"),
        "tiny": curves("label loss", "nats", two[1:], "loss"),
        "rows": rows("Outcome", LONG, content, [(LONG, 0), ("Arm B", 1)]),
        "long rows": rows("Split", "", [Row(LONG, bars)], [], "difference", (-0.12, 0.12)),
        "histogram": histogram("Calls", "share", [("Arm A", 0, {2: 5, 8: 5}), ("Arm B", 1, {24: 1})], [8, 24], "calls"),
        "matrix": matrix(LONG, "verified", ConfusionMatrix(labels, (*labels, "none"), counts)),
        "stacked": stacked("Time", "", [(LONG, parts)], dict(zip(parts, (2, 4), strict=True))),
    }  # fmt: skip


@pytest.mark.parametrize("name", figures())
def test_no_label_is_clipped_and_none_overlaps_another(name: str) -> None:
    canvas = figures()[name]
    placed = boxes(parsed(canvas))
    assert placed
    for text, left, right, y in placed:
        assert left >= 0, text
        assert right <= canvas.width + 1, text
        assert 8 <= y <= canvas.height - 2, text
    for i, (text, left, right, y) in enumerate(placed):
        for other, from_, to, at in placed[i + 1 :]:
            assert abs(y - at) >= 10 or right <= from_ + 0.5 or to <= left + 0.5, f"{text!r} on {other!r}"


def test_an_undefined_value_is_a_gap_and_a_dash() -> None:
    drawn = figures()
    means = [path for path in parsed(drawn["curves"]).iter(f"{SVG}path") if path.attrib["class"].startswith("mean")]
    assert means == []  # two single points without a line between them
    assert "– n=0" in [text for text, *_ in boxes(parsed(drawn["rows"]))]
    empty = [text for text, *_ in boxes(parsed(drawn["matrix"]))]
    assert empty.count("–") == 4  # the row of a label that never was the truth
    assert empty.count("0") == 1
    assert "100%" in empty


def test_bars_and_points_stand_where_their_values_are() -> None:
    svg = parsed(rows("Outcome", "", [Row("x", (Bar(0, 0.25, 0.0, 1.0, ""),))], []))
    (dot,) = svg.iter(f"{SVG}circle")
    whisker = next(line for line in svg.iter(f"{SVG}line") if line.attrib["class"].startswith("whisker"))
    start, end = float(whisker.attrib["x1"]), float(whisker.attrib["x2"])
    assert float(dot.attrib["cx"]) == pytest.approx(start + (end - start) / 4, abs=0.02)


def test_a_cap_stands_right_of_its_bar() -> None:
    svg = parsed(histogram("Calls", "", [("A", 0, {8: 1})], [8], "calls"))
    cap = next(line for line in svg.iter(f"{SVG}line") if line.attrib["class"] == "cap")
    bar = next(rect for rect in svg.iter(f"{SVG}rect") if rect.attrib["class"] == "fill-1")
    assert float(bar.attrib["x"]) + float(bar.attrib["width"]) <= float(cap.attrib["x1"])


def test_a_figure_alone_has_both_themes_a_ground_and_a_description() -> None:
    text = figures()["curves"].render("it", standalone=True)
    assert "@media (prefers-color-scheme: dark)" in text
    assert "var(--" not in text
    assert re.search(r'aria-labelledby="it-title it-description"', text)
    assert "background" in text
    svg = ElementTree.fromstring(text)
    assert svg.find(f"{SVG}title").text == "pass@1"  # type: ignore[union-attr]
    assert "from 10.0% to 50.0%" in (svg.find(f"{SVG}desc").text or "")  # type: ignore[union-attr]
    assert "<style" not in figures()["curves"].render("it", standalone=False)


HOSTILE = "</svg><script>alert(1)</script> \x00\x1b[2J \ud800 \u202e & \" ' ]]>"


def test_hostile_names_stay_text() -> None:
    canvas = rows(HOSTILE, HOSTILE, [Row(HOSTILE, (Bar(0, 0.5, 0.4, 0.6, HOSTILE),))], [(HOSTILE, 0), ("b", 1)])
    text = canvas.render("x", standalone=True)
    ElementTree.fromstring(text.encode("utf-8"))
    assert "<script" not in text
    assert "\u202e" not in text
    assert "\\x00" in text
