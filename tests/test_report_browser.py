"""The page in a real browser: themes, a phone's width, the keyboard, and not one request or console error.

Needs a Chromium: `CHROMIUM=/path/to/it`, or one on PATH (Debian and Ubuntu: the package `chromium`).
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from glyph.report.page import write_page
from glyph.report.runs import read_run
from glyph.report.training import build_content
from tests.browser import Tab, browser_tab, find_browser
from tests.run_folders import write_run

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: set CHROMIUM or put one on PATH")

CLIPPED = """
[...document.querySelectorAll("svg.figure")].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()])
    .filter(([, box]) => box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1
      || box.top < frame.top - 1)
    .map(([content]) => svg.parentElement.id + ": " + content);
})
"""
OVERLAPPING = """
[...document.querySelectorAll("svg.figure")].flatMap((svg) => {
  const labels = [...svg.querySelectorAll("text:not([transform])")];
  const boxes = labels.map((label) => [label.textContent, label.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.35 * a.height)
    .map(([other]) => svg.parentElement.id + ": " + one + " / " + other));
})
"""
CONTRAST = """
(() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.documentElement), named = (name) => light(style.getPropertyValue(name));
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const on = (text, grounds) => grounds.map((ground) => [text + " on " + ground, ratio(named(text), named(ground))]);
  return Object.fromEntries([...on("--ink", ["--surface", "--page", "--up", "--down", "--flat", "--ce"]),
    ...on("--quiet", ["--surface", "--page"]), ...on("--link", ["--surface", "--page"])]);
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    for arm in "ab":
        for seed in (0, 1):
            write_run(folder / f"{arm}{seed}", arm, seed, steps=12, every=4, tasks=12)
    content = build_content([read_run(path) for path in sorted(folder.iterdir())], [], "Training runs", {})
    return write_page(content, folder / "report")[0]


@pytest_asyncio.fixture
async def tab() -> AsyncIterator[Tab]:
    assert BROWSER is not None
    async with browser_tab(BROWSER) as opened:
        yield opened


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (375, False), (375, True)])
async def test_the_page_fits_is_readable_and_asks_for_nothing(tab: Tab, page: Path, width: int, dark: bool) -> None:
    await tab.open(page, width, dark=dark)
    assert await tab.run("document.documentElement.scrollWidth") <= width
    assert await tab.run("document.body.scrollWidth") <= width
    assert await tab.run(CLIPPED) == []
    assert await tab.run(OVERLAPPING) == []
    for pair, ratio in (await tab.run(CONTRAST)).items():
        assert ratio >= 4.5, f"{pair}: {ratio:.2f}"
    smallest = "Math.min(...[...document.querySelectorAll('svg.figure')].map((s) => 11.5 * s.clientWidth / 400))"
    assert await tab.run(smallest) >= 9
    assert tab.requests == [page.as_uri()]
    assert tab.faults == []


async def test_the_theme_can_be_switched_and_reaches_the_figures(tab: Tab, page: Path) -> None:
    await tab.open(page)
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('svg.figure text')).fill"
    button = "document.getElementById('theme')"
    light = await tab.run(ground), await tab.run(ink)
    for expected in ("light", "dark"):
        await tab.run(f"{button}.click()")
        assert await tab.run(f"{button}.textContent") == f"Theme: {expected}"
    dark = await tab.run(ground), await tab.run(ink)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    await tab.run(f"{button}.click()")
    assert (await tab.run(ground), await tab.run(ink)) == light


async def test_the_viewer_is_used_by_keyboard(tab: Tab, page: Path) -> None:
    await tab.open(page)
    count = len(json.loads(await tab.run("document.getElementById('exhibits').textContent")))
    number = "parseInt(document.getElementById('heading').textContent)"
    await tab.run("document.getElementById('viewer').focus()")
    first = await tab.run(number)
    await tab.press("ArrowRight")
    assert await tab.run(number) == first + 1
    await tab.press("ArrowLeft")
    assert await tab.run(number) == first
    await tab.press("End")
    assert await tab.run(number) == count
    await tab.press("ArrowRight")
    assert await tab.run(number) == 1
    await tab.press("Home")
    await tab.press("ArrowLeft")
    assert await tab.run(number) == count
    assert await tab.run("document.getElementById('choice').value") == str(count - 1)


async def test_tokens_are_coloured_by_role_and_counted(tab: Tab, page: Path) -> None:
    """The first shown rollout has label branches; counts in the legend are those of its data."""
    await tab.open(page)
    shown = await tab.run("document.getElementById('choice').value")
    data = json.loads(await tab.run("document.getElementById('exhibits').textContent"))[int(shown)]
    assert data["targets"]
    trained = sum(kind for target in data["targets"] for _, kind in target["tokens"])
    counts = {role: data["roles"].count(role) for role in "rmuc"} | {"e": trained}
    said = await tab.run("[...document.querySelectorAll('#roles li')].map((l) => [l.dataset.role, l.textContent])")
    assert {role: int(text.rsplit(" ", 1)[1]) for role, text in said} == counts
    drawn = "[...'rmuce'].map((r) => document.querySelectorAll('#tokens .t-' + r).length)"
    assert await tab.run(drawn) == [counts[role] for role in "rmuce"]
    text = await tab.run("document.getElementById('tokens').textContent.replaceAll('↵', '')")
    assert "".join(data["tokens"][-20:]) in text
    before = "document.querySelector('#tokens .branch').previousElementSibling.textContent"
    assert await tab.run(before) == "<PREDICTION>"
    assert await tab.run("document.querySelector('#tokens .branch').nextElementSibling.className") == "t-m"
    backgrounds = await tab.run(
        "['.t-r', '.t-e', '.t-c'].map((c) => getComputedStyle(document.querySelector('#tokens ' + c)).backgroundColor)"
    )
    assert len(set(backgrounds)) == 3


async def test_the_sign_of_the_advantage_tints_trained_tokens(tab: Tab, page: Path) -> None:
    await tab.open(page)
    data = json.loads(await tab.run("document.getElementById('exhibits').textContent"))
    found = {}
    for index, exhibit in enumerate(data):
        if exhibit.get("advantage"):
            found.setdefault(exhibit["advantage"] > 0, index)
    tints = []
    for index in (found[True], found[False]):
        await tab.run(f"choice.value = '{index}'; choice.dispatchEvent(new Event('change'))")
        tints.append(await tab.run("getComputedStyle(document.querySelector('#tokens .t-r')).backgroundColor"))
    assert tints[0] != tints[1]


async def test_a_figure_stands_alone_in_both_themes(tab: Tab, page: Path) -> None:
    figure = page.parent / "figures" / "evaluation_pass_at_1.svg"
    fills = []
    for dark in (False, True):
        await tab.open(figure, dark=dark)
        fills.append(await tab.run("getComputedStyle(document.querySelector('.background')).fill"))
    assert fills == ["rgb(255, 255, 255)", "rgb(29, 29, 28)"]
    assert tab.faults == []
