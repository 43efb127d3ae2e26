"""Every figure in the README and in docs/performance.md comes from a file in the repository."""

import json
from pathlib import Path

import pytest

from benchmarks.document import PAGE, RENDER, shown, tables_of

ROOT = Path(__file__).parents[1]
FIGURES = json.loads((ROOT / "docs" / "figures" / "environment.json").read_text())
ENGINE = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "figures").glob("engine_*.json"))}


def test_the_tables_of_performance_are_rendered_from_the_figures() -> None:
    tables = {name: tables_of(name) for name in RENDER}
    assert {name for name, table in tables.items() if table} >= {"environment", "engine_cpu"}
    assert shown(PAGE.read_text()) == tables  # if not: python -m benchmarks.document
    assert set(ENGINE) <= set(RENDER)


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


@pytest.mark.parametrize("name", ENGINE)
def test_a_comparison_of_the_engine_compares_the_same(name: str) -> None:
    figures = ENGINE[name]
    assert not figures["quick"]
    trl = figures["trainer"]["trl"]
    if trl:
        assert trl["grad_norm"] == pytest.approx(trl["engine_grad_norm"], rel=0.02)  # bfloat16 on a GPU
    labels = figures["labels"]
    assert labels["labels"] > 0
    assert labels["without"]["input_tokens"] < labels["shared"]["input_tokens"] < labels["separate"]["input_tokens"]


@pytest.mark.parametrize("name", ENGINE)
def test_label_samples_that_share_cost_next_to_nothing(name: str) -> None:
    """The requirement: at most 1.05 times the tokens, and the time, of the same step without cross-entropy."""
    labels = ENGINE[name]["labels"]
    assert labels["shared"]["input_tokens"] <= 1.05 * labels["without"]["input_tokens"]
    assert labels["shared"]["padded_tokens"] <= 1.05 * labels["without"]["padded_tokens"]
    assert labels["shared"]["seconds_over_without"] <= 1.05
