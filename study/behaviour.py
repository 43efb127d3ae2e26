"""The tables of what the models do: what Arm B predicts and decides, what a rollout costs, how training went.

In: the published evaluations on the test tasks, each run's last, and the runs' metrics. Out: Markdown. A metric over
some predictions alone (of first candidates, of later ones) is the metric of the same name over rollouts that hold only
these.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.markdown import table
from glyph.evaluation.metrics import Metric, compute
from glyph.evaluation.predicates import Rollout, has_gate, has_revised, hit_cap
from glyph.protocol import Decision, Label
from glyph.records import PredictionTarget
from glyph.report.format import UNDEFINED, format_metric, format_value
from glyph.report.runs import TrainLine, read_run
from study.matrix import Matrix
from study.pieces import Kind
from study.results import Entry, Results, Series
from study.tables import THEIR_SEEDS, captioned, published, seed_cell, series_cell

ENDS = 10
CLASSES = (Label.PASS, Label.ASSERTION_FAILURE, Label.RUNTIME_ERROR)
Targets = tuple[PredictionTarget, ...]


def _series(results: Results, matrix: Matrix, replays: bool = False) -> Iterable[Series]:
    """What was evaluated: the SFT models, every run and seed, and, if asked for, runs under their replays."""
    again = [f"{spec.name}:{variant}" for spec in matrix.run for variant in spec.replays if replays]
    for name in [*(sft.name for sft in matrix.sft), *(spec.name for spec in matrix.run), *again]:
        yield from results.series(name)


def _last(results: Results, matrix: Matrix, replays: bool = False) -> Iterable[tuple[str, str, Entry]]:
    """The last evaluation of each: its name, its seed as shown, and the evaluation."""
    for series in _series(results, matrix, replays):
        yield series.run, series_cell(series), series.steps[max(series.steps)]


def with_targets(rollouts: Iterable[Rollout], kept: Callable[[Targets], Targets]) -> list[Rollout]:
    """The rollouts with some of their predictions alone, for metrics over these."""
    return [replace(each, record=replace(each.record, targets=kept(each.record.targets))) for each in rollouts]


def first(targets: Targets) -> Targets:
    """On the first candidate of a rollout."""
    return targets[:1]


def later(targets: Targets) -> Targets:
    """On a candidate that another one went before."""
    return targets[1:]


def later_readable(targets: Targets) -> Targets:
    return tuple(target for target in later(targets) if target.label is not None)


def predictions(results: Results, matrix: Matrix) -> str:
    """Accuracy and, by class, base rate, precision and recall of the predictions on the test tasks."""
    headings = ["run", "seed", "step", "accuracy", "macro-F1"]
    headings += [f"{label.value}: base rate / precision / recall" for label in CLASSES]
    headings += ["RUNTIME_ERROR after the first candidate: base rate", "RUNTIME_ERROR after it: precision"]
    rows = []
    for name, seed, entry in _last(results, matrix):
        if entry.summary.arm == "b":
            cells = [format_metric(entry.metric("prediction_accuracy"))]
            cells.append(format_value(entry.metric("macro_f1_true_classes").value, "score"))
            cells += [_by_class(entry, each) for each in CLASSES]
            after = with_targets(entry.rollouts, later_readable)
            cells += [format_metric(compute(f"{each}_RUNTIME_ERROR", after)) for each in ("base_rate", "precision")]
            rows.append([name, seed, str(entry.summary.step), *cells])
    note = "After the first candidate: predictions that follow a failed test or a revision, without unreadable ones."
    theirs = _their_predictions() if rows and results.subject.beside_theirs else []
    return captioned(results, headings, [*rows, *theirs], note)


def _by_class(entry: Entry, label: Label) -> str:
    parts = [entry.metric(f"{name}_{label.value}") for name in ("base_rate", "precision", "recall")]
    return " / ".join(format_value(part.value, "share") for part in parts)


def _their_predictions() -> Iterable[list[str]]:
    of = published()
    for place, seed in enumerate(THEIR_SEEDS):
        precision = {Label.RUNTIME_ERROR: f"{of['runtime_error_precision'][seed]:.1f}%"}
        recall = of["recall_step100"]
        cells = [f"{UNDEFINED} / {precision.get(c, UNDEFINED)} / {recall[c.value][place]}%" for c in CLASSES]
        yield ["theirs, 4B", seed, "100", UNDEFINED, UNDEFINED, *cells, UNDEFINED, UNDEFINED]


def decisions(results: Results, matrix: Matrix) -> str:
    """Who was rejected, among first candidates and later ones, and how rollouts with and without a REVISE end."""
    rejected, ended, undecided = [], [], []
    for name, seed, entry in _last(results, matrix):
        if entry.summary.arm == "b" and entry.metric("bad_patch_rejection").denominator:
            place = [name, seed, str(entry.summary.step)]
            rejected.append([*place, *map(format_metric, _rejections(entry))])
            ended.append([*place, *map(format_metric, _endings(entry))])
            undecided.append(f"{' '.join(place[: 1 + (seed != UNDEFINED)])}: {_undecided(entry)}")
    if not rejected:
        return ""
    headings = ["rejected", "seed", "step", "bad, first candidates", "bad, later ones", "bad, all"]
    headings += ["good, first candidates", "good, later ones", "good, all"]
    note = (
        "A candidate is bad that is not verified PASS; later ones follow a failed visible test or a revision. "
        f"Targets without a readable decision are left out ({', '.join(undecided)})."
    )
    their_rejected, their_ended = _their_decisions() if results.subject.beside_theirs else ([], [])
    split = ["rollouts", "seed", "step", "never revised: solved", "never revised: at the cap", "revised: solved"]
    split += ["revised: at the cap", "revised: ended by a protocol error"]
    return captioned(results, headings, [*rejected, *their_rejected], note, table(split, [*ended, *their_ended]))


def _rejections(entry: Entry) -> list[Metric]:
    """Bad patches rejected, then good ones: of first candidates, of later ones, of all."""
    parts = [with_targets(entry.rollouts, kept) for kept in (first, later)]
    names = ("bad_patch_rejection", "good_patch_rejection")
    return [each for name in names for each in (*(compute(name, part) for part in parts), entry.metric(name))]


def _endings(entry: Entry) -> list[Metric]:
    names = ("never_revised_pass", "never_revised_hit_cap", "revised_pass", "revised_hit_cap")
    revised = [rollout for rollout in entry.rollouts if has_revised(rollout.record)]
    return [*map(entry.metric, names), compute("stop_protocol_error", revised)]


def _undecided(entry: Entry) -> str:
    return f"{entry.metric('undecided_targets').numerator:g}"


def _their_decisions() -> tuple[list[list[str]], list[list[str]]]:
    of, rejected, ended = published(), [], []
    for seed in THEIR_SEEDS:
        place, chosen, split = ["theirs, 4B", seed, "100"], of["chose_revise"][seed], of["revise_split_step100"][seed]
        shares = [[UNDEFINED, UNDEFINED, f"{chosen[each]}%"] for each in ("bad_patch", "good_patch")]
        rejected.append([*place, *shares[0], *shares[1]])
        sides = [
            f"{split[side][key]}% n={split[side]['n']}" for side in ("never", "revised") for key in ("pass", "hit_cap")
        ]
        ended.append([*place, *sides, UNDEFINED])
    return rejected, ended


def development(results: Results, matrix: Matrix) -> str:
    """Of Arm B, at every step that was evaluated: what it predicts and decides, of what could be read, and in how many
    rollouts it breaks the protocol."""
    headings = ["run", "seed", "step", "predictions other than PASS", "decisions REVISE", "breaches of the protocol"]
    headings += ["of them after a REVISE", "after the last call of the budget"]
    rows = [
        [series.run, series_cell(series), str(step), *_development(entry)]
        for series in _series(results, matrix)
        for step, entry in sorted(series.steps.items())
        if entry.summary.arm == "b"
    ]
    return captioned(results, headings, rows)


def _development(entry: Entry) -> list[str]:
    records = [rollout.record for rollout in entry.rollouts]
    labels = [target.label for record in records for target in record.targets if target.label is not None]
    decisions = [target.decision for record in records for target in record.targets if target.decision is not None]
    broken = [record for record in records if record.protocol_error is not None]
    gated = any(map(has_gate, records))
    return [
        _of([label is not Label.PASS for label in labels]),
        _of([decision is Decision.REVISE for decision in decisions]) if gated else UNDEFINED,
        _of([record.protocol_error is not None for record in records]),
        str(sum(map(has_revised, broken))) if gated else UNDEFINED,
        str(sum(map(hit_cap, broken))),
    ]


def _of(found: Sequence[bool]) -> str:
    return f"{sum(found)} of {len(found)}"


def costs(results: Results, matrix: Matrix) -> str:
    """First patches, recovery, and what a rollout costs."""
    names = ["first_patch", "recovery", "stop_protocol_error", "tool_calls", "visible_tests"]
    names += ["visible_tests_per_solved", "hardcoded_solved"]
    headings = ["run", "seed", "step", "first patch correct", "recovery", "protocol errors", "tool calls"]
    headings += ["visible tests", "visible tests a solved task", "hard-coded among solved"]
    rows = [
        [name, seed, str(entry.summary.step), *(format_metric(entry.metric(each)) for each in names)]
        for name, seed, entry in _last(results, matrix, replays=True)
    ]
    return captioned(results, headings, rows)


def training(results: Results, matrix: Matrix) -> str:
    """The rollouts that runs were trained on, sampled: their first ten steps and their last ten."""
    headings = ["training rollouts, first → last ten steps", "seed", "mean reward", "ended by a protocol error"]
    headings += ["loss of verified labels, nats a token", "predictions right", "bad patches rejected", "good ones"]
    order = {spec.name: place for place, spec in enumerate(matrix.run)}
    runs = sorted(results.training(Kind.RL), key=lambda of: (order[of.summary.run], of.summary.seed or 0))
    several = Counter((entry.summary.run, entry.summary.seed) for entry in runs)
    rows = []
    for entry in runs:
        of = entry.summary
        seed = seed_cell(of.seed, entry.folder.parent.name if several[of.run, of.seed] > 1 else "")
        steps = read_run(entry.folder).training
        ends = (steps[:ENDS], steps[-ENDS:])
        cells = [[_mean(line.reward_mean for line in end) for end in ends]]
        cells.append([_pooled("stop_protocol_error", end) for end in ends])
        cells.append([_label_loss(end) for end in ends])
        for name in ("prediction_accuracy", "bad_patch_rejection", "good_patch_rejection"):
            cells.append([_pooled(name, end) for end in ends])
        rows.append([of.run, seed, *map(_change, cells)])
    return f"{table(headings, rows)}\n\n{results.subject.model}; sampled at temperature 0.8." if rows else ""


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else UNDEFINED


def _label_loss(steps: Sequence[TrainLine]) -> str:
    """A mean over all label tokens of these steps."""
    known = [(line.ce_nll, line.ce_tokens) for line in steps if line.ce_nll is not None and line.ce_tokens]
    return f"{sum(nll * n for nll, n in known) / sum(n for _, n in known):.2f}" if known else UNDEFINED


def _pooled(name: str, steps: Sequence[TrainLine]) -> str:
    """A share over all rollouts of these steps."""
    found = [line.metrics[name] for line in steps if name in line.metrics]
    n = sum(metric.denominator for metric in found)
    return format_value(sum(metric.numerator or 0 for metric in found) / n, "share") if n else UNDEFINED


def _change(cells: Sequence[str]) -> str:
    return UNDEFINED if set(cells) == {UNDEFINED} else " → ".join(cells)
