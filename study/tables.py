"""The tables of docs/results.md, as Markdown, from the published folders alone.

Differences are second minus first, paired by task. A row of one seed has the exact McNemar p, Holm's over the rows of
its question, and a paired bootstrap interval over tasks; the row of several seeds pairs the tasks' shares over them.
Figures of the published study stand beside ours where there are any, always marked as theirs.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from glyph.evaluation.compare import Comparison, compare
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.seeds import seed_mean
from glyph.evaluation.statistics import holm
from glyph.evaluation.traces import read_traces
from glyph.protocol import Label
from glyph.report.data import rollouts_of
from glyph.report.format import UNDEFINED, format_interval, format_metric, format_p, format_value
from study.matrix import Matrix, Question
from study.pieces import Kind
from study.results import Entry, Results

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "docs" / "figures" / "published.json"
SMALL = ROOT / "RESULTS_PUBLISHED" / "small"
MINI = ROOT / "RESULTS_PUBLISHED" / "mini"
MINI_SEEDS = (42, 43, 44)
THEIR_SEEDS = ("42", "43")
THEIR_PAIRS = {("sft-a", "a"): ("A", "A"), ("sft-b", "b"): ("B", "B"), ("a", "b"): ("A", "B")}
CAPTION = (
    "Qwen2.5-Coder-0.5B-Instruct, **weights: a 4-bit quantisation, dequantised**; MBPP test tasks, greedy. "
    "value [95% interval] n; intervals: Wilson, † bootstrap over tasks, ‡ Wilson with one trial a task, § t over seeds."
)
CLASSES = (Label.PASS, Label.ASSERTION_FAILURE, Label.RUNTIME_ERROR)
Cells = Sequence[str]


def markdown(headings: Cells, rows: Iterable[Cells]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def captioned(headings: Cells, rows: Sequence[Cells]) -> str:
    """A table with what its model is; nothing without a row."""
    return f"{markdown(headings, rows)}\n\n{CAPTION}" if rows else ""


@lru_cache
def published() -> dict[str, Any]:
    """The published study's figures: theirs."""
    return dict(json.loads(PUBLISHED.read_text("utf-8")))


def _seed(seed: int | None) -> str:
    return UNDEFINED if seed is None else str(seed)


# What was run.


def runs(results: Results) -> str:
    """Every training run: how far it came, how much of it trained, and from which weights."""
    rows = []
    for entry in [*results.training(Kind.SFT), *results.training(Kind.RL)]:
        of = entry.summary
        start = of.weights_sha256 if of.kind is Kind.SFT else entry.manifest["model_digest"]
        steps = str(of.steps_done) if of.status == "finished" else f"{of.steps_done}, cut short ({of.status})"
        skipped = str(of.steps_skipped) if of.kind is Kind.RL else UNDEFINED
        rows.append(
            [
                of.run,
                _seed(of.seed),
                entry.folder.parent.name,
                steps,
                skipped,
                _seconds(of.seconds),
                (start or UNDEFINED)[:8],
            ]
        )
    headings = ["run", "seed", "visit", "steps", "of them trained nothing", "seconds", "SFT weights, SHA-256"]
    return captioned(headings, rows)


def _seconds(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.0f}"


def passes(results: Results, matrix: Matrix) -> str:
    """pass@1 of every model that played the test tasks: a row a model, run and seed, a column a step."""
    steps = sorted({e.summary.step for e in results.entries if e.summary.kind is Kind.AFTER_RL})
    rows = [[name, UNDEFINED, cell, *[""] * len(steps)] for name, cell in _before_rl(results, matrix)]
    for run in [name for spec in matrix.run for name in (spec.name, *(f"{spec.name}:{v}" for v in spec.replays))]:
        for seed in results.seeds(run):
            found = results.evaluations(run, seed)
            cells = [format_metric(found[step].metric("pass_at_1")) if step in found else UNDEFINED for step in steps]
            rows.append([run, _seed(seed), "", *cells])
    return captioned(["pass@1", "seed", "before RL", *(f"step {step}" for step in steps)], rows)


def _before_rl(results: Results, matrix: Matrix) -> Iterable[tuple[str, str]]:
    for entry in results.training(Kind.PLAIN)[:1]:
        yield "base, plain prompt", format_metric(entry.plain_pass())
    for name in ("base-a", "base-b", *(sft.name for sft in matrix.sft)):
        for entry in results.evaluations(name).values():
            yield name, format_metric(entry.metric("pass_at_1"))


# The questions.


@dataclass(frozen=True)
class Row:
    """A comparison of two models; `seed` is None where several seeds are pooled (`seeds` of them)."""

    pair: tuple[str, str]
    seed: int | None
    seeds: int
    step: int
    comparison: Comparison

    @property
    def name(self) -> str:
        return f"{self.pair}, {self.seed}"


def question(results: Results, of: Question) -> str:
    """The comparisons of a question; nothing where no pair has been played."""
    rows = list(_compared(results, of))
    exact = {row.name: row.comparison.mcnemar.p_exact for row in rows if row.seeds == 1 and row.comparison.mcnemar}
    adjusted = holm(exact)
    headings = [
        "second − first",
        "seed",
        "step",
        "first",
        "second",
        "difference",
        "only",
        "exact p",
        "Holm p",
        "theirs, 4B",
    ]
    return captioned(headings, [_cells(row, adjusted.get(row.name)) for row in rows])


def _compared(results: Results, of: Question) -> Iterable[Row]:
    """Of each pair a row a seed, and one of all seeds: at the last step that all have, else each at its own last."""
    for pair in of.pairs:
        steps = {seed: _common_steps(results, pair, seed) for seed in _common_seeds(results, pair)}
        steps = {seed: found for seed, found in steps.items() if found}
        shared = set.intersection(*steps.values()) if steps else set()
        for seed, found in steps.items():
            step = max(shared or found)
            yield Row(pair, seed, 1, step, compare(*_sides(results, pair, [seed], step)))
        if shared and len(steps) > 1:
            yield Row(pair, None, len(steps), max(shared), compare(*_sides(results, pair, list(steps), max(shared))))


def _common_seeds(results: Results, pair: tuple[str, str]) -> list[int | None]:
    """The seeds that both sides have; what has no seed goes with every seed of the other."""
    first, second = (results.seeds(name) for name in pair)
    if [None] in (first, second):
        return second if first == [None] else first
    return [seed for seed in first if seed in second]


def _common_steps(results: Results, pair: tuple[str, str], seed: int | None) -> set[int]:
    """The steps that both sides were evaluated at; a model without RL, at step 0 alone, goes with any."""
    first, second = (set(_evaluations(results, name, seed)) for name in pair)
    if {0} in (first, second):
        return second if first == {0} else first
    return first & second


def _evaluations(results: Results, name: str, seed: int | None) -> dict[int, Entry]:
    return results.evaluations(name, seed) or results.evaluations(name)


def _sides(
    results: Results, pair: tuple[str, str], seeds: Sequence[int | None], step: int
) -> tuple[list[Rollout], list[Rollout]]:
    sides: tuple[list[Rollout], list[Rollout]] = [], []
    for side, name in zip(sides, pair, strict=True):
        for seed in seeds:
            found = _evaluations(results, name, seed)
            side += (found.get(step) or found[0]).rollouts
    return sides


def _cells(row: Row, adjusted: float | None) -> list[str]:
    of = row.comparison
    seed = f"mean of {row.seeds}" if row.seeds > 1 else _seed(row.seed)
    difference = f"{format_value(of.difference, 'difference')} {format_interval(of.interval, 'difference')}".rstrip()
    return [
        f"{row.pair[1]} − {row.pair[0]}",
        seed,
        str(row.step),
        f"{format_value(of.first_pass.value, 'share')} n={of.tasks}",
        f"{format_value(of.second_pass.value, 'share')} n={of.tasks}",
        difference,
        f"{of.mcnemar.only_first} : {of.mcnemar.only_second}" if of.mcnemar else UNDEFINED,
        format_p(of.mcnemar.p_exact if of.mcnemar else None),
        format_p(adjusted),
        theirs(row.pair, row.seed),
    ]


def theirs(pair: tuple[str, str], seed: int | None) -> str:
    """The published difference of the same pair and seed, after 100 steps, and its McNemar p."""
    of, key = published(), str(seed)
    passed, p = of["test_pass_at_1_greedy_n500"], of["mcnemar_p"]
    if key not in THEIR_SEEDS or pair not in THEIR_PAIRS:
        return UNDEFINED
    first, second = THEIR_PAIRS[pair]
    if first == second:
        before, chance = passed[first]["sft"], p[f"{first}_100_vs_sft"][key]
    else:
        before, chance = passed[first][key]["100"], p[f"{first}_vs_{second}_100"][f"{first}{key}{second}{key}"]
    return f"{passed[second][key]['100'] - before:+.1f} pp, p {chance:g}"


# What Arm B predicts and decides.


def _last(results: Results, matrix: Matrix) -> Iterable[tuple[str, int | None, Entry]]:
    """The last evaluation of every run and seed, and the SFT models'."""
    for name in [*(sft.name for sft in matrix.sft), *(spec.name for spec in matrix.run)]:
        for seed in results.seeds(name):
            found = results.evaluations(name, seed)
            yield name, seed, found[max(found)]


def predictions(results: Results, matrix: Matrix) -> str:
    """Accuracy and, by class, base rate, precision and recall of the predictions on the test tasks."""
    headings = ["run", "seed", "step", "accuracy", "macro-F1"]
    headings += [f"{label.value}: base rate / precision / recall" for label in CLASSES]
    rows = []
    for name, seed, entry in _last(results, matrix):
        if entry.summary.arm == "b":
            cells = [format_metric(entry.metric("prediction_accuracy"))]
            cells.append(format_value(entry.metric("macro_f1_true_classes").value, "score"))
            rows.append([name, _seed(seed), str(entry.summary.step), *cells, *(_by_class(entry, c) for c in CLASSES)])
    return captioned(headings, [*rows, *(_their_predictions() if rows else [])])


def _by_class(entry: Entry, label: Label) -> str:
    parts = [entry.metric(f"{name}_{label.value}") for name in ("base_rate", "precision", "recall")]
    return " / ".join(format_value(part.value, "share") for part in parts)


def _their_predictions() -> Iterable[list[str]]:
    of = published()
    for place, seed in enumerate(THEIR_SEEDS):
        precision = {Label.RUNTIME_ERROR: f"{of['runtime_error_precision'][seed]:.1f}%"}
        recall = of["recall_step100"]
        cells = [f"{UNDEFINED} / {precision.get(c, UNDEFINED)} / {recall[c.value][place]}%" for c in CLASSES]
        yield ["theirs, 4B", seed, "100", UNDEFINED, UNDEFINED, *cells]


def decisions(results: Results, matrix: Matrix) -> str:
    """Who was rejected, and how rollouts with and without a REVISE end."""
    names = ["bad_patch_rejection", "good_patch_rejection", "never_revised_pass", "never_revised_hit_cap"]
    names += ["revised_pass", "revised_hit_cap"]
    headings = ["run", "seed", "step", "bad patches rejected", "good patches rejected", "never revised: solved"]
    headings += ["never revised: at the cap", "revised: solved", "revised: at the cap"]
    rows = []
    for name, seed, entry in _last(results, matrix):
        if entry.summary.arm == "b" and entry.metric("bad_patch_rejection").denominator:
            cells = [format_metric(entry.metric(each)) for each in names]
            rows.append([name, _seed(seed), str(entry.summary.step), *cells])
    return captioned(headings, [*rows, *(_their_decisions() if rows else [])])


def _their_decisions() -> Iterable[list[str]]:
    of = published()
    for seed in THEIR_SEEDS:
        rejected, split = of["chose_revise"][seed], of["revise_split_step100"][seed]
        sides = [
            f"{split[side][key]}% n={split[side]['n']}" for side in ("never", "revised") for key in ("pass", "hit_cap")
        ]
        yield ["theirs, 4B", seed, "100", f"{rejected['bad_patch']}%", f"{rejected['good_patch']}%", *sides]


def costs(results: Results, matrix: Matrix) -> str:
    """First patches, recovery, and what a rollout costs."""
    names = ["first_patch", "recovery", "tool_calls", "visible_tests", "visible_tests_per_solved", "hardcoded_solved"]
    headings = ["run", "seed", "step", "first patch correct", "recovery", "tool calls", "visible tests"]
    headings += ["visible tests a solved task", "hard-coded among solved"]
    rows = [
        [name, _seed(seed), str(entry.summary.step), *(format_metric(entry.metric(each)) for each in names)]
        for name, seed, entry in _last(results, matrix)
    ]
    return captioned(headings, rows)


# The mini scale, whose runs the quickstart made.


def mini() -> str:
    """Means over seeds, and differences paired by task; the rows of one arm pool its seeds."""
    stages = {(stage, arm): _mini_rollouts(stage, arm) for stage in ("sft", "rl") for arm in "ab"}
    rows = []
    for arm in "ab":
        shares = [_mini_mean(stage, arm) for stage in ("sft", "rl")]
        rows.append([f"Arm {arm.upper()}", *shares, _difference(compare(stages["sft", arm], stages["rl", arm]))])
    between = [_difference(compare(stages[stage, "a"], stages[stage, "b"])) for stage in ("sft", "rl")]
    rows.append(["B − A", *between, ""])
    return markdown(["", "after SFT", "after RL", "RL − SFT"], rows)


@lru_cache
def _mini_traces(stage: str, arm: str, seed: int) -> tuple[Rollout, ...]:
    return rollouts_of(read_traces(MINI / f"test-{stage}-{arm}-seed{seed}").traces)


def _mini_rollouts(stage: str, arm: str) -> list[Rollout]:
    return [rollout for seed in MINI_SEEDS for rollout in _mini_traces(stage, arm, seed)]


def _mini_mean(stage: str, arm: str) -> str:
    shares = [sum(r.record.reward for r in of) / len(of) for of in (_mini_traces(stage, arm, s) for s in MINI_SEEDS)]
    return format_value(seed_mean(shares).mean, "share")


def _difference(of: Comparison) -> str:
    return f"{format_value(of.difference, 'difference')} {format_interval(of.interval, 'difference')}".rstrip("†")
