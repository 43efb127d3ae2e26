"""Training runs as a report: what their first and last evaluations say, pooled over seeds, and the paired tests.

In: runs of the engine (and, beside them, plain trace files). Out: `Content`, all that the page shows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from glyph.evaluation.compare import Comparison, UnpairedError, compare
from glyph.evaluation.metrics import compute
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.statistics import holm
from glyph.evaluation.traces import Trace, TraceFile, read_traces
from glyph.report.curves import Series, evaluation_series, training_series
from glyph.report.data import MAX_COMPARED_COLUMNS, Column, Report, build_report, make_column, pair_name, rollouts_of
from glyph.report.groups import Group, group_runs
from glyph.report.runs import TrainingRun, TrainLine

EVALUATION_CURVES = {
    "pass_at_1": "pass@1",
    "first_patch": "First patch correct",
    "recovery": "Recovery after a failed test",
    "prediction_accuracy": "Prediction accuracy",
    "gate_discrimination": "Gate discrimination",
}
TRAINING_CURVES = {
    "reward_mean": ("Reward of the training rollouts", "share"),
    "loss": ("Loss", "nats a token"),
    "policy_loss": ("Policy loss", ""),
    "ce_nll": ("Label cross-entropy", "nats a token"),
    "label_loss": ("Label loss", "weighted"),
    "entropy": ("Entropy", "nats a token"),
    "mismatch_kl": ("Mismatch with the sampler (KL)", "nats a token"),
    "grad_norm": ("Gradient norm", "before clipping"),
    "tokens_per_second": ("Speed", "tokens a second: generated in RL, trained in SFT"),
}
"""Fields of a training line: what they are called and what they are in."""


@dataclass(frozen=True)
class Snapshot:
    """The evaluation of a group at one step, pooled over its seeds. `at` is "first" or "last" of those compared."""

    group: Group
    split: str
    step: int
    at: str
    column: Column
    by_seed: dict[int, tuple[Rollout, ...]]
    traces: tuple[Trace, ...]


@dataclass(frozen=True)
class Content:
    """The report and what the page draws beside its tables. `files` are the plain trace files."""

    report: Report
    groups: tuple[Group, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    files: tuple[TraceFile, ...] = ()
    curves: dict[str, tuple[Series, ...]] = field(default_factory=dict)

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns that get figures of their own: the last evaluation of each group, and every trace file.

        Of groups evaluated on several splits it is the evaluation on `test`, else on the first split.
        """
        splits = [snapshot.split for snapshot in self.snapshots]
        main = "test" if "test" in splits else splits[0] if splits else ""
        others = {s.column.name for s in self.snapshots if s.at == "first" or s.split != main}
        return tuple(column for column in self.report.columns if column.name not in others)

    def colours(self) -> dict[str, int]:
        """A colour for each group, its columns having the same, and further ones for trace files; by name."""
        found = {group.name: place for place, group in enumerate(self.groups)}
        found |= {snapshot.column.name: found[snapshot.group.name] for snapshot in self.snapshots}
        for column in self.report.columns:
            found.setdefault(column.name, len(set(found.values())))
        return found


def build_content(
    runs: Sequence[TrainingRun], files: Sequence[TraceFile], title: str, manifest: dict[str, Any], lenient: bool = False
) -> Content:
    """Measure the first and last evaluations of every group, compare what shares tasks, and add the trace files.

    Raises:
        TraceError: a stored evaluation cannot be read, or a run is given twice.
    """
    groups = group_runs(runs)
    if not groups:
        return Content(build_report(files, title, manifest), files=tuple(files))
    notes = [f"{run.folder}: {note}" for run in runs for note in run.notes]
    snapshots = tuple(snapshot for group in groups for snapshot in _snapshots(group, lenient, notes))
    plain = build_report(files, title)
    columns = (*(snapshot.column for snapshot in snapshots), *plain.columns)
    comparisons = (*_comparisons(snapshots), *plain.comparisons)
    family = holm({pair_name(each): each.mcnemar.p_exact for each in comparisons if each.mcnemar})
    curves = _curves(groups)
    training = {
        "groups": [_group_facts(group) for group in groups],
        "curves": {name: [series.to_dict() for series in several] for name, several in curves.items()},
    }
    report = Report(title, columns, comparisons, family, manifest, training, tuple(notes))
    return Content(report, groups, snapshots, tuple(files), curves)


def _snapshots(group: Group, lenient: bool, notes: list[str]) -> Iterator[Snapshot]:
    """The first and the last step at which all seeds were evaluated on a split and their rollouts are stored."""
    for split in group.splits:
        stored = [_stored_steps(run, split) for run in group.runs]
        common = sorted(set.intersection(*map(set, stored)))
        if not common:
            notes.append(f"{group.name}: no evaluation on {split} whose rollouts all its runs have stored")
            continue
        for at, step in (("first", common[0]), ("last", common[-1]))[len(common) == 1 :]:
            files = [read_traces(paths[step], lenient) for paths in stored]
            notes += [f"{f.path}: bad lines skipped: {len(f.skipped)}" for f in files if f.skipped]
            name = f"{group.name}, step {step}" + (f", {split}" if len(group.splits) > 1 else "")
            notes += _disagreements(group, split, step, files)
            traces = tuple(trace for file in files for trace in file.traces)
            column = make_column(name, [file.path for file in files], group.arm, traces)
            pairs = zip(group.seeds, files, strict=True)
            by_seed = {seed: rollouts_of(file.traces) for seed, file in pairs} if len(set(group.seeds)) > 1 else {}
            yield Snapshot(group, split, step, at, column, by_seed, traces)


def _disagreements(group: Group, split: str, step: int, files: Sequence[TraceFile]) -> Iterator[str]:
    """What to say where a run's metrics.jsonl and its stored rollouts differ in pass@1."""
    for run, file in zip(group.runs, files, strict=True):
        line = next(line for line in run.of_split(split) if line.step == step)
        written = line.metrics["pass_at_1"].value if "pass_at_1" in line.metrics else None
        found = compute("pass_at_1", rollouts_of(file.traces)).value
        if written != found and (written is None or found is None or abs(written - found) > 1e-9):
            yield f"{run.folder}: pass@1 of step {step} is {written} in metrics.jsonl, {found} in {file.path.name}"


def _stored_steps(run: TrainingRun, split: str) -> dict[int, Path]:
    found = {line.step: run.trace_file(line) for line in run.of_split(split)}
    return {step: path for step, path in found.items() if path is not None and path.is_file()}


def _comparisons(snapshots: Sequence[Snapshot]) -> list[Comparison]:
    """Before against after in each group; of the last evaluations, groups of one stage and each arm's SFT and RL."""
    pairs = [(a, b) for a, b in combinations(snapshots, 2) if a.group is b.group and a.split == b.split]
    last = [snapshot for snapshot in snapshots if snapshot.at == "last"]
    for stage in dict.fromkeys(snapshot.group.stage for snapshot in last):
        alike = [snapshot for snapshot in last if snapshot.group.stage == stage]
        if len({snapshot.group.name for snapshot in alike}) <= MAX_COMPARED_COLUMNS:
            pairs += [(a, b) for a, b in combinations(alike, 2) if a.group is not b.group and a.split == b.split]
    pairs += [(a, b) for a in last for b in last if from_sft(a, b)]
    found = []
    for first, second in pairs:
        names = first.column.name, second.column.name
        found.append(_compare(first.column.rollouts, second.column.rollouts, names))
        for seed in first.by_seed.keys() & second.by_seed.keys():
            own = tuple(f"{name}, seed {seed}" for name in names)
            found.append(_compare(first.by_seed[seed], second.by_seed[seed], (own[0], own[1])))
    return [comparison for comparison in found if comparison is not None]


def from_sft(before: Snapshot, after: Snapshot) -> bool:
    """Whether one is the SFT and the other the RL of an arm, both evaluated on the same split."""
    stages = before.group.stage, after.group.stage
    return stages == ("sft", "rl") and before.group.arm == after.group.arm and before.split == after.split


def _compare(first: Sequence[Rollout], second: Sequence[Rollout], names: tuple[str, str]) -> Comparison | None:
    try:
        return compare(first, second, names)
    except UnpairedError:
        return None


def _curves(groups: Sequence[Group]) -> dict[str, tuple[Series, ...]]:
    """Every curve of which some group has a value: `STAGE/evaluation/SPLIT/METRIC` and `STAGE/train/FIELD`.

    Stages do not share a figure, since their steps differ.
    """
    found: dict[str, tuple[Series, ...]] = {}
    for stage in dict.fromkeys(group.stage for group in groups):
        alike = [group for group in groups if group.stage == stage]
        for split in dict.fromkeys(split for group in alike for split in group.splits):
            having = [group for group in alike if split in group.splits]
            if len({line.step for group in having for run in group.runs for line in run.of_split(split)}) < 2:
                continue  # a point is no curve: it stands in the other figures and tables
            for metric in EVALUATION_CURVES:
                unit = "difference" if metric == "gate_discrimination" else "share"
                series = tuple(evaluation_series(group, split, metric, unit) for group in having)
                found[f"{stage}/evaluation/{split}/{metric}"] = series
        for name, (_, unit) in TRAINING_CURVES.items():
            found[f"{stage}/train/{name}"] = tuple(training_series(group, _field(name), unit) for group in alike)
    return {name: kept for name, several in found.items() if (kept := tuple(s for s in several if s.defined))}


def _field(name: str) -> Any:
    def value(line: TrainLine) -> float | None:
        return getattr(line, name)

    return value


def _group_facts(group: Group) -> dict[str, Any]:
    runs = [
        {
            "folder": str(run.folder),
            "steps": run.training[-1].step if run.training else 0,
            "evaluations": len(run.evaluations),
            "manifest": run.facts,
            "config": run.config,
        }
        for run in group.runs
    ]
    return {"name": group.name, "stage": group.stage, "arm": group.arm, "seeds": group.seeds, "runs": runs}
