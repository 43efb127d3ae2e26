"""The benchmark of the engine: its arithmetic, what it compares, and one quick run through all of it."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import document
from benchmarks.engine.__main__ import keep_recorded, main
from benchmarks.engine.context import synthetic_sample
from benchmarks.engine.tables import render
from benchmarks.engine.timing import alternate, ratio, seconds_of, significant
from benchmarks.engine.training import trees_of
from glyph.credit import TrainingSample
from glyph.local.training.packing import plant
from glyph.protocol import Label

MINI = str(Path(__file__).parents[1] / "models" / "mini")


def test_the_ways_take_turns_and_the_first_call_of_each_is_not_counted() -> None:
    calls: list[str] = []

    def way(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = alternate({"a": lambda: way("a"), "b": lambda: way("b")}, rounds=3, limit_seconds=60.0)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert results == {"a": [3, 6, 7], "b": [4, 5, 8]}


def test_no_round_begins_after_the_limit_but_one_is_made() -> None:
    assert alternate({"a": lambda: 1}, rounds=5, limit_seconds=0.0) == {"a": [1]}
    calls: list[int] = []
    alternate({"a": lambda: calls.append(1)}, rounds=2, limit_seconds=60.0, warm_up=False)
    assert len(calls) == 2


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == 2.0  # 2, 3, 1: one slow round does not matter
    assert significant(0.0123456) == 0.01235
    assert significant(123456.0) == 123500.0
    assert seconds_of(lambda: None, "cpu") < 1.0


def test_the_three_ways_with_labels_compute_the_tokens_that_they_say() -> None:
    """A branch of 10 tokens of which the last is trained, a label after its first 4, two tokens with their tag."""
    branch = TrainingSample(
        token_ids=tuple(range(10)),
        mask=(False,) * 9 + (True,),
        logprobs=(0.0,) * 10,
        rl_weights=(1.0,) * 10,
        ce_weights=(0.0,) * 10,
        advantage=1.0,
    )
    nothing = (0.0,) * 7
    weights = (0.0,) * 4 + (0.1, 0.1, 0.0)
    label = TrainingSample(
        (0, 1, 2, 3, 90, 91, 92), (False,) * 7, nothing, nothing, weights, label=Label.PASS, shared=4
    )

    def tokens(**ways: bool) -> list[int]:
        return [tree.trunk_tokens + tree.leaf_tokens for tree in trees_of([(branch, label)], **ways)]

    assert tokens(labels=False) == [9]  # the last token is a target, not an input
    assert tokens() == [9 + 1]  # the label's first token predicts its second
    assert tokens(shared=False) == [9, 5]


def test_a_made_up_rollout_samples_its_last_quarter() -> None:
    sample = synthetic_sample(2048, 64, 3)
    assert sample.mask == (False,) * 48 + (True,) * 16
    assert {512 <= i < 1024 for i in sample.token_ids} == {True}
    assert sample.advantage == -0.5
    assert plant([sample])[0].policy_tokens == 16


def test_a_recorded_comparison_outlives_a_run_without_trl(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", {"trainer": {"engine_tokens_per_second": 5.0, "trl": None}}
    assert keep_recorded(new, old) == new
    old.write_text(json.dumps({"trainer": {"engine_tokens_per_second": 3.0, "trl": {"ratio": 2.0}}}))
    assert keep_recorded(new, old) == {"trainer": {"engine_tokens_per_second": 5.0, "trl": {"ratio": 2.0}}}
    measured = {"trainer": {"trl": {"ratio": 1.5}}}
    assert keep_recorded(measured, old) == measured


def test_only_the_tables_that_are_asked_for_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "tables_of", {"one": "| new |", "two": ""}.__getitem__)
    page = "a\n<!-- one -->\n| old |\n<!-- end -->\nb\n<!-- two -->\n| gone |\n<!-- end -->\n"
    assert document.with_tables(page, ["one"]) == page.replace("| old |", "| new |")
    assert document.with_tables(page, ["two"]) == page.replace("| gone |\n", "")
    assert document.shown(page) == {"one": "| old |", "two": "| gone |"}


def test_a_quick_run_measures_everything(tmp_path: Path, tiny_data: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(main)
    output = tmp_path / "figures.json"
    options = ["--model", MINI, "--data", tiny_data, "--arm-a-sft", MINI, "--arm-b-sft", MINI, "--quick"]
    result = CliRunner().invoke(app, [*map(str, options), "--output", str(output)], catch_exceptions=False)
    assert result.exit_code == 0
    figures = json.loads(output.read_text())
    assert figures["quick"] is True
    assert figures["sft"] == {"a": None, "b": None}
    for arm in "ab":
        step = figures["step"][arm]
        parts = sum(step[part] for part in ("generation", "environment", "training", "other"))
        assert parts == pytest.approx(step["total"], rel=1e-2)
    trl = figures["trainer"]["trl"]
    assert (trl is None) == (find_spec("trl") is None)
    if trl:
        assert trl["grad_norm"] == pytest.approx(trl["engine_grad_norm"], rel=1e-3)
    assert render(figures) in result.stdout
    assert render(figures).count("|---|") == 7
