"""Every figure in the README and in docs/performance.md comes from a file in the repository."""

import json
from pathlib import Path

from benchmarks.environment import render

ROOT = Path(__file__).parents[1]
FIGURES = json.loads((ROOT / "docs" / "figures" / "environment.json").read_text())


def test_the_tables_of_performance_are_rendered_from_the_figures() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    shown = page.partition("<!-- environment -->")[2].partition("<!-- end -->")[0]
    assert shown.strip() == render(FIGURES).strip()


def test_the_readme_quotes_the_figures() -> None:
    readme = (ROOT / "README.md").read_text()
    rates = FIGURES["rollouts_per_second"]
    for way, label in (
        ("glyph, eval", "rollouts a second through Verifiers' `eval`, 16 at once, Arm A / B"),
        ("openai in every rollout, eval", "the same with a program that imports `openai` in every rollout"),
    ):
        assert f"| {label} | {rates[way]['a@16']:.1f} / {rates[way]['b@16']:.1f} |" in readme
    assert (
        f"| a test of a candidate in its own namespaces | {FIGURES['test_ms']['namespaces']['median_ms']:.1f} ms |"
        in readme
    )


def test_the_environment_is_as_fast_beside_the_comparison_as_the_readme_implies() -> None:
    baseline = FIGURES["rollouts_per_second"]["openai in every rollout, eval"]
    for arm in "ab":
        assert FIGURES["rollouts_per_second"]["glyph, eval"][f"{arm}@16"] >= 10 * baseline[f"{arm}@16"]
        assert FIGURES["rollouts_per_second"]["glyph, in-process client"][f"{arm}@16"] >= 25 * baseline[f"{arm}@16"]
