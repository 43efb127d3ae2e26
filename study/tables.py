"""The tables of docs/results.md, as Markdown, from the published folders alone: what was run, and who beats whom.

What the models predict, decide and spend is behaviour.py.

Differences are second minus first, paired by task. A row of one seed has the exact McNemar p, Holm's over the rows of
its question, and a paired bootstrap interval over tasks; the row of several seeds pairs the tasks' shares over them,
and from three seeds on has a t interval of the seeds' differences, too.
A pair is compared at the last step that all its seeds have, and beside it, outside the family, each seed at its last.
Figures of the published study stand beside ours where there are any, always marked as theirs.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from glyph.evaluation.compare import Comparison, compare
from glyph.evaluation.predicates import Rollout, is_solved
from glyph.evaluation.seeds import seed_mean
from glyph.evaluation.statistics import Interval, holm
from glyph.evaluation.traces import read_traces
from glyph.protocol import Label
from glyph.report.data import rollouts_of
from glyph.report.format import UNDEFINED, format_interval, format_metric, format_p, format_value
from study.matrix import Matrix, Question, quarters
from study.pieces import Kind
from study.results import Results, Series

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "docs" / "figures" / "published.json"
SMALL = ROOT / "RESULTS_PUBLISHED" / "small"
MINI = ROOT / "RESULTS_PUBLISHED" / "mini"
MINI_STUDY = ROOT / "RESULTS_PUBLISHED" / "mini_study"
MINI_SEEDS = (42, 43, 44)
LEAST_SEEDS = 3
THEIR_SEEDS = ("42", "43")
THEIR_PAIRS = {
    ("sft-a", "a"): ("A", "A"),
    **{("sft-b", run): ("B", "B") for run in ("b", "b-overlap")},
    **{("a", run): ("A", "B") for run in ("b", "b-overlap")},
}
INTERVALS = (
    "value [95% interval] n; intervals: Wilson, † bootstrap over tasks, ‡ Wilson with one trial a task, § t over seeds."
)
Cells = Sequence[str]


def captioned(of: Results, headings: Cells, rows: Sequence[Cells], *below: str) -> str:
    """A table, what stands below it (notes, a second table; none where empty), what its model is; nothing without a
    row."""
    if not rows:
        return ""
    caption = f"{of.subject.model}; {of.subject.tasks}. {INTERVALS}"
    return "\n\n".join([table(headings, rows), *filter(None, below), caption])


@lru_cache
def published() -> dict[str, Any]:
    """The published study's figures: theirs."""
    return dict(json.loads(PUBLISHED.read_text("utf-8")))


def seed_cell(seed: int | None) -> str:
    return UNDEFINED if seed is None else str(seed)


# What was run.


def runs(results: Results) -> str:
    """Every training run: how far it came, how much of it trained, and from which weights."""
    rows = []
    for entry in [*results.training(Kind.SFT), *results.training(Kind.RL)]:
        of = entry.summary
        start = of.weights_sha256 if of.kind is Kind.SFT else entry.start.sha256
        steps = str(of.steps_done) if of.status == "finished" else f"{of.steps_done}, cut short ({of.status})"
        skipped = str(of.steps_skipped) if of.kind is Kind.RL else UNDEFINED
        rows.append(
            [
                of.run,
                seed_cell(of.seed),
                entry.folder.parent.name,
                steps,
                str(entry.resumed),
                skipped,
                _seconds(of.seconds),
                (start or UNDEFINED)[:8],
            ]
        )
    headings = ["run", "seed", "visit", "steps", "interrupted and resumed", "of them trained nothing", "seconds"]
    headings += ["SFT weights, SHA-256"]
    return captioned(results, headings, rows, *_made_differently(results))


def _made_differently(results: Results) -> Iterable[str]:
    """A note on every SFT whose weights are not the same in all visits: its runs do not start from one model."""
    digests: dict[str, set[str]] = {}
    for entry in results.training(Kind.SFT):
        digests.setdefault(entry.summary.run, set()).add(entry.summary.weights_sha256 or UNDEFINED)
    for name, found in sorted(digests.items()):
        if len(found) > 1:
            yield f"**{name} has {len(found)} different weights**: not all its runs start from the same model."


def _seconds(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.0f}"


def passes(results: Results, matrix: Matrix) -> str:
    """pass@1 of every model that played the test tasks: a row a model, run and seed, a column a quarter of a run's
    steps, and one for where runs were stopped."""
    played = {e.summary.step for e in results.entries if e.summary.kind is Kind.AFTER_RL}
    planned = {number for entry in results.training(Kind.RL) if (number := entry.summary.steps_planned)}
    steps = sorted(played & {step for number in planned for step in quarters(number)})
    elsewhere = sorted(played - set(steps))
    rows = [[*cells, *[""] * len(steps), ""] for cells in _before_rl(results, matrix)]
    for run in [name for spec in matrix.run for name in (spec.name, *(f"{spec.name}:{v}" for v in spec.replays))]:
        for series in results.series(run):
            found = {step: format_metric(e.metric("pass_at_1")) for step, e in series.steps.items()}
            others = "; ".join(f"{step}: {found[step]}" for step in elsewhere if step in found)
            cells = [found.get(step, UNDEFINED) for step in steps]
            rows.append([run, series.label, "", *cells, others or UNDEFINED])
    headings = ["pass@1", "seed", "before RL", *(f"step {step}" for step in steps), "other steps"]
    if not elsewhere:
        headings, rows = headings[:-1], [row[: len(headings) - 1] for row in rows]
    return captioned(results, headings, rows)


def _before_rl(results: Results, matrix: Matrix) -> Iterable[tuple[str, str, str]]:
    for entry in results.training(Kind.PLAIN)[:1]:
        yield "base, plain prompt", UNDEFINED, format_metric(entry.plain_pass())
    for name in ("base-a", "base-b", *(sft.name for sft in matrix.sft)):
        for series in results.series(name):
            yield name, series.label, format_metric(series.steps[0].metric("pass_at_1"))


# The questions.


Sides = tuple[Series, Series]


@dataclass(frozen=True)
class Row:
    """A comparison of two models at a step of each; of several seeds, where `sides` are several.

    `in_family` says whether its p value is one of the question's; not where it repeats a pair at another step.
    `over_seeds` is the t interval of the mean difference of at least three seeds: of two it would say nothing.
    """

    sides: tuple[Sides, ...]
    steps: tuple[int, int]
    comparison: Comparison
    in_family: bool = True
    over_seeds: Interval | None = None

    @property
    def pair(self) -> tuple[str, str]:
        first, second = self.sides[0]
        return first.run, second.run

    @property
    def seed(self) -> int | None:
        return _seed(self.sides[0]) if len(self.sides) == 1 else None

    @property
    def label(self) -> str:
        """The seed, or how many; and whether what is compared starts from different weights."""
        labels = [each.label for each in self.sides[0] if each.seed == self.seed]
        label = max(labels, key=len) if len(self.sides) == 1 else f"mean of {len(self.sides)}"
        return label + APART * any(_start_apart(each) for each in self.sides)

    @property
    def name(self) -> str:
        return f"{self.pair}, {self.label}"

    @property
    def step(self) -> str:
        """What both have in common, or the one's and the other's; a model without RL has none."""
        trained = sorted({step for step in self.steps if step}, key=self.steps.index)
        return ", ".join(map(str, trained)) or "0"


APART = " ◊"
OWN_STEPS = (
    "A row of one seed without a Holm p compares each model at its own last step (where two are given, the first's "
    "and the second's), outside the family."
)
STARTS_APART = "◊ The two come from SFT of the same arm that was made twice and came out with different weights."


def question(results: Results, of: Question) -> str:
    """The comparisons of a question, and what an override gained; nothing where no pair has been played."""
    rows = list(_compared(results, of))
    tested = {row.name: row.comparison.mcnemar for row in rows if row.in_family and len(row.sides) == 1}
    adjusted = holm({name: found.p_exact for name, found in tested.items() if found})
    headings = ["second − first", "seed", "step", "first", "second", "difference", "only", "exact p", "Holm p"]
    cells = [_cells(row, adjusted.get(row.name) if row.in_family else None) for row in rows]
    if results.subject.beside_theirs:
        headings += ["theirs, 4B"]
        for row, line in zip(rows, cells, strict=True):
            line.append(theirs(row.pair, row.seed) if row.in_family else UNDEFINED)
    own = "" if all(row.in_family for row in rows) else OWN_STEPS
    apart = STARTS_APART if any(APART in row.label for row in rows) else ""
    return captioned(results, headings, cells, own, apart, _gained(rows))


def _compared(results: Results, of: Question) -> Iterable[Row]:
    """Of each pair a row a seed, and one of all seeds: at the last step that all have, else each at its own last.

    Then the seeds whose last steps are others.
    """
    for first, second in of.pairs:
        found = [(sides, _common_steps(sides)) for sides in _paired(results.series(first), results.series(second))]
        found = [(sides, steps) for sides, steps in found if steps]
        shared = set.intersection(*(steps for _, steps in found)) if found else set()
        rows = [_row([sides], max(shared or steps)) for sides, steps in found]
        yield from rows
        if shared and len(rows) > 1:
            differences = [row.comparison.difference for row in rows]
            spread = seed_mean(differences).interval if len(rows) >= LEAST_SEEDS else None
            yield replace(_row([sides for sides, _ in found], max(shared)), over_seeds=spread)
        for row in rows:
            last = _row(row.sides)
            if last.steps != row.steps:
                yield replace(last, in_family=False)


def _paired(first: Sequence[Series], second: Sequence[Series]) -> list[Sides]:
    """Who is compared with whom: the same seed (what has none goes with any), from the same SFT weights; where a seed
    has no such pair, in the same visit; else the first of each."""
    together: dict[int, list[Sides]] = {}
    for sides in ((x, y) for y in second for x in first if None in (x.seed, y.seed) or x.seed == y.seed):
        together.setdefault(_seed(sides) or 0, []).append(sides)
    chosen = []
    for _, found in sorted(together.items()):
        alike = [each for each in found if each[0].start == each[1].start is not None]
        chosen += alike or [each for each in found if each[0].visit == each[1].visit] or found[:1]
    return list({id(y): (x, y) for x, y in reversed(chosen)}.values())[::-1]  # each of the second's once


def _seed(sides: Sides) -> int | None:
    first, second = sides
    return second.seed if first.seed is None else first.seed


def _start_apart(sides: Sides) -> bool:
    """Whether SFT of the same name came out differently for the two."""
    first, second = (each.start for each in sides)
    return first is not None and second is not None and first.sft == second.sft and first != second


def _row(sides: Sequence[Sides], step: int | None = None) -> Row:
    """The pairs at a step, where a model without RL is at 0, or each model at its own last."""
    rollouts: tuple[list[Rollout], list[Rollout]] = [], []
    steps = [0, 0]
    for both in sides:
        for place, series in enumerate(both):
            steps[place] = max(series.steps) if step is None else step if step in series.steps else 0
            rollouts[place].extend(series.steps[steps[place]].rollouts)
    return Row(tuple(sides), (steps[0], steps[1]), compare(*rollouts))


def _gained(rows: Iterable[Row]) -> str:
    """Of runs beside themselves under a variant that overrides decisions: how the tasks came to be solved."""
    cells = []
    for row in rows:
        if len(row.sides) == 1 and row.in_family and row.pair[1].startswith(f"{row.pair[0]}:"):
            both = zip(row.sides[0], row.steps, strict=True)
            right, later = gained(*(series.steps[step].rollouts for series, step in both))
            names = [f"{row.pair[1]} − {row.pair[0]}", row.label, row.step]
            cells.append([*names, str(right + later), str(right), str(later)])
    headings = ["tasks gained", "seed", "step", "gained", "first overridden candidate was right", "later recovery"]
    return table(headings, cells) if cells else ""


def gained(before: Iterable[Rollout], after: Iterable[Rollout]) -> tuple[int, int]:
    """Tasks solved after and not before: with a first overridden candidate that was verified PASS, and the others."""
    known = {rollout.record.task_id for rollout in before if is_solved(rollout.record)}
    new = [r.record for r in after if is_solved(r.record) and r.record.task_id not in known]
    firsts = [next((target for target in record.targets if target.overridden), None) for record in new]
    right = sum(first is not None and first.verified_label is Label.PASS for first in firsts)
    return right, len(new) - right


def _common_steps(sides: Sides) -> set[int]:
    """The steps that both sides were evaluated at; a model without RL, at step 0 alone, goes with any."""
    first, second = (set(each.steps) for each in sides)
    if {0} in (first, second):
        return second if first == {0} else first
    return first & second


def _cells(row: Row, adjusted: float | None) -> list[str]:
    of = row.comparison
    intervals = [format_interval(each, "difference") for each in (of.interval, row.over_seeds) if each]
    difference = " ".join([format_value(of.difference, "difference"), *intervals])
    return [
        f"{row.pair[1]} − {row.pair[0]}",
        row.label,
        row.step,
        f"{format_value(of.first_pass.value, 'share')} n={of.tasks}",
        f"{format_value(of.second_pass.value, 'share')} n={of.tasks}",
        difference,
        f"{of.mcnemar.only_first} : {of.mcnemar.only_second}" if of.mcnemar else UNDEFINED,
        format_p(of.mcnemar.p_exact if of.mcnemar else None),
        format_p(adjusted),
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
    return table(["", "after SFT", "after RL", "RL − SFT"], rows)


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
