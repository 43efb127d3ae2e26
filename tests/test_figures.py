"""Every figure in the README and in docs/performance.md comes from a file in the repository."""

import json
import re
from pathlib import Path
from statistics import fmean, median

import pytest

from benchmarks.document import DOCS, PAGES, shown, tables_of
from glyph.evaluation.traces import read_traces

ROOT = Path(__file__).parents[1]
FIGURES = json.loads((ROOT / "docs" / "figures" / "environment.json").read_text())
ENGINE = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "figures").glob("engine_*.json"))}


def test_the_tables_of_performance_are_rendered_from_the_figures() -> None:
    tables = {name: tables_of(name) for name in PAGES["performance.md"]}
    assert {name for name, table in tables.items() if table} >= {"environment", "engine_cpu"}
    assert shown((DOCS / "performance.md").read_text()) == tables  # if not: python -m benchmarks.document
    assert set(ENGINE) <= set(tables)


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


MINI = ROOT / "RESULTS_PUBLISHED" / "mini"


def pass_at_1(stage: str, arm: str) -> list[float]:
    """Of the three seeds, from the stored rollouts."""
    values = []
    for seed in (42, 43, 44):
        traces = read_traces(MINI / f"test-{stage}-{arm}-seed{seed}").traces
        assert len(traces) == 500
        assert all(trace.error is None for trace in traces)
        values.append(fmean(trace.record.reward for trace in traces if trace.record))
    return values


def test_the_readme_quotes_the_mini_runs() -> None:
    readme = (ROOT / "README.md").read_text()
    for arm in "ab":
        sft, rl = pass_at_1("sft", arm), pass_at_1("rl", arm)
        gain = 100 * (fmean(rl) - fmean(sft))
        assert f"| Arm {arm.upper()} | {fmean(sft):.1%} | {fmean(rl):.1%} | {gain:+.1f} pp [" in readme
        by_seed = ", ".join(f"{100 * (after - before):+.1f}" for before, after in zip(sft, rl, strict=True))
        assert f"{arm.upper()}: {by_seed}" in readme
        assert all(after > before for before, after in zip(sft, rl, strict=True))


def test_the_readme_quotes_the_intervals_and_first_patches_of_the_report() -> None:
    readme, report = (ROOT / "README.md").read_text(), (MINI / "report" / "report.md").read_text()
    quoted = re.findall(r"[+-]\d+\.\d pp \[[+-]\d+\.\d, [+-]\d+\.\d\]", readme[: readme.index("## One rollout")])
    assert len(quoted) == 4
    for interval in quoted:
        assert interval in report, interval
    for share in re.findall(r"\((\d\d\.\d%) → (\d\d\.\d%), (\d\d\.\d%) → (\d\d\.\d%)\)", readme)[0]:
        assert share in report


def test_the_document_of_the_engine_quotes_the_gpu_runs() -> None:
    document = (ROOT / "docs" / "engine.md").read_text()
    for arm in "ab":
        lines = (ROOT / "RESULTS_PUBLISHED" / "small_proof" / f"rl-{arm}" / "metrics.jsonl").read_text().splitlines()
        steps = [line for line in map(json.loads, lines) if line["kind"] == "train"]
        assert len(steps) == 20
        taken = [step for step in steps if step["skipped"] is None]
        parts = [median(step["seconds"][part] for step in steps) for part in ("generation", "environment", "total")]
        parts.insert(2, median(step["seconds"]["training"] for step in taken))
        row = " | ".join(f"{part:.2f}" for part in parts)
        assert f"| Arm {arm.upper()} | {row} | {len(taken)} |" in document


def test_the_base_model_is_as_small_as_it_must_be() -> None:
    folder = ROOT / "models" / "mini"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 12_000_000
    made = json.loads((folder / "pretraining.json").read_text())
    assert 1_000_000 <= made["parameters"] <= 5_000_000
    assert f"{made['parameters']:,} parameters" in (folder / "README.md").read_text()
