"""The tables of docs/results.md, as Markdown, from the published folders alone: what was run, and who beats whom.

What the models predict, decide and spend is behaviour.py.

Differences are second minus first, paired by task. A row of one seed has the exact McNemar p, Holm's over the rows of
its question, and a paired bootstrap interval over tasks; the row of several seeds pairs the tasks' shares over them,
and from three seeds on has a t interval of the seeds' differences, too.
Who is compared with whom, and at which step, is comparisons.py.
Figures of the published study stand beside ours where there are any, always marked as theirs.
"""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from glyph.evaluation.compare import Comparison, compare
from glyph.evaluation.predicates import Rollout, is_solved
from glyph.evaluation.seeds import seed_mean
from glyph.evaluation.statistics import holm
from glyph.evaluation.traces import read_traces
from glyph.protocol import Label
from glyph.report.data import rollouts_of
from glyph.report.format import UNDEFINED, format_interval, format_metric, format_p, format_value
from study.comparisons import Row, compared, is_replay
from study.matrix import Matrix, Question, quarters
from study.pieces import Kind
from study.results import Results, Series

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "docs" / "figures" / "published.json"
SMALL = ROOT / "RESULTS_PUBLISHED" / "small"
MINI = ROOT / "RESULTS_PUBLISHED" / "mini"
MINI_STUDY = ROOT / "RESULTS_PUBLISHED" / "mini_study"
MINI_SEEDS = (42, 43, 44)
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


def seed_cell(seed: int | None, visit: str = "") -> str:
    """The seed, and the visit where one is named."""
    return " ".join(filter(None, (UNDEFINED if seed is None else str(seed), visit)))


def series_cell(of: Series) -> str:
    """The seed, and the visit where several made the run."""
    return seed_cell(of.seed, of.visit.name if of.several else "")


# What was run.


def runs(results: Results) -> str:
    """Every training run: how far it came, how much of it trained, and from which weights."""
    rows = []
    for entry in [*results.training(Kind.SFT), *results.training(Kind.RL)]:
        of = entry.summary
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
                entry.start.sha256[:8],
            ]
        )
    headings = ["run", "seed", "visit", "steps", "interrupted and resumed", "of them trained nothing", "seconds"]
    headings += ["SFT weights, SHA-256"]
    return captioned(results, headings, rows, *_made_differently(results))


def _made_differently(results: Results) -> Iterable[str]:
    """A note on every SFT whose weights are not the same in all visits: its runs do not start from one model."""
    digests: dict[str, set[str]] = {}
    for entry in results.training(Kind.SFT):
        digests.setdefault(entry.summary.run, set()).add(entry.start.sha256)
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
            rows.append([run, series_cell(series), "", *cells, others or UNDEFINED])
    headings = ["pass@1", "seed", "before RL", *(f"step {step}" for step in steps), "other steps"]
    if not elsewhere:
        headings, rows = headings[:-1], [row[: len(headings) - 1] for row in rows]
    return captioned(results, headings, rows)


def _before_rl(results: Results, matrix: Matrix) -> Iterable[tuple[str, str, str]]:
    for entry in results.training(Kind.PLAIN)[:1]:
        yield "base, plain prompt", UNDEFINED, format_metric(entry.plain_pass())
    for name in ("base-a", "base-b", *(sft.name for sft in matrix.sft)):
        for series in results.series(name):
            yield name, series_cell(series), format_metric(series.steps[0].metric("pass_at_1"))


# The questions.


OWN_STEPS = (
    "A row of one seed without a Holm p compares each model at its own last step (where two are given, the first's "
    "and the second's), outside the family."
)
APART = " ◊"
STARTS_APART = "◊ The two were made in different visits, and not from the same SFT weights."


def question(results: Results, of: Question) -> str:
    """The comparisons of a question, and what an override gained; nothing where no pair has been played."""
    rows = list(compared(results, of))
    tested = {str(place): row.comparison.mcnemar for place, row in enumerate(rows) if row.in_family}
    adjusted = holm({place: found.p_exact for place, found in tested.items() if found})
    headings = ["second − first", "seed", "step", "first", "second", "difference", "only", "exact p", "Holm p"]
    cells = [_cells(row, adjusted.get(str(place))) for place, row in enumerate(rows)]
    if results.subject.beside_theirs:
        headings += ["theirs, 4B"]
        for row, line in zip(rows, cells, strict=True):
            line.append(theirs(row.pair, row.seed) if row.in_family else UNDEFINED)
    own = "" if all(row.in_family for row in rows) else OWN_STEPS
    apart = STARTS_APART if any(row.apart for row in rows) else ""
    return captioned(results, headings, cells, own, apart, _gained(rows))


def _named(row: Row) -> str:
    """The seed, or how many; the visits, where several made a side; a mark where the two come from apart."""
    several = f"mean of {len(row.sides)} {row.visits}".rstrip()
    return (seed_cell(row.seed, row.visits) if len(row.sides) == 1 else several) + APART * row.apart


def _steps(row: Row) -> str:
    """What both have in common, or the one's and the other's; a model without RL has none."""
    trained = sorted({step for step in row.steps if step}, key=row.steps.index)
    return ", ".join(map(str, trained)) or "0"


def _gained(rows: Iterable[Row]) -> str:
    """Of runs beside themselves under a variant that overrides decisions: how the tasks came to be solved."""
    cells = []
    for row in rows:
        if len(row.sides) == 1 and row.in_family and is_replay(*row.pair):
            both = zip(row.sides[0], row.steps, strict=True)
            right, later = gained(*(series.steps[step].rollouts for series, step in both))
            names = [f"{row.pair[1]} − {row.pair[0]}", _named(row), _steps(row)]
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


def _cells(row: Row, adjusted: float | None) -> list[str]:
    of = row.comparison
    intervals = [format_interval(each, "difference") for each in (of.interval, row.over_seeds) if each]
    difference = " ".join([format_value(of.difference, "difference"), *intervals])
    return [
        f"{row.pair[1]} − {row.pair[0]}",
        _named(row),
        _steps(row),
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
