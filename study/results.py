"""The one reader of the study's published folders: a summary beside each run and each evaluation.

In: RESULTS_PUBLISHED/small/*/*. Out: `Entry`s, one a folder, and the `Series` of a run's evaluations.
"""

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glyph.evaluation.metrics import Metric
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.statistics import Interval, wilson_interval
from glyph.evaluation.traces import read_traces
from glyph.report.data import rollouts_of
from study.pieces import PLAIN, SUMMARY, TRACES, TRAINING, Kind


@dataclass(frozen=True)
class Subject:
    """What was evaluated on what, said below every table, and whether the published figures stand in it."""

    model: str
    tasks: str
    beside_theirs: bool


SMALL = Subject(
    "Qwen2.5-Coder-0.5B-Instruct, **weights: a 4-bit quantisation, dequantised**",
    "MBPP's 500 test tasks, greedy",
    beside_theirs=True,
)
MINI = Subject(
    "The mini model, 1.2 million parameters", "500 held-out tasks of the project's own, greedy", beside_theirs=False
)


class ResultsError(ValueError):
    """A results folder is not of the form that study/publish.py writes; the message says where."""


class Summary(BaseModel):
    """What stands in summary.json. `seed` is None for what all seeds share; `run` names a run without its seed;
    `steps_planned` are those whose quarters are the checkpoints."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Kind
    run: str
    arm: str | None
    seed: int | None
    step: int
    status: str
    seconds: float | None = None
    steps_planned: int | None = None
    steps_done: int | None = None
    steps_skipped: int | None = None
    weights_sha256: str | None = None
    metrics: Annotated[dict[str, dict[str, Any]], Field(default_factory=dict)]


class Start(NamedTuple):
    """The SFT model that a series comes from, or is."""

    sft: str
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A published folder."""

    folder: Path
    summary: Summary

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Raises: ResultsError: there is none."""
        file = self.folder / "manifest.json"
        try:
            return dict(json.loads(file.read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise ResultsError(f"{file}: {error}; a result is published with its manifest") from error

    @property
    def resumed(self) -> int:
        """How often a training run was interrupted and went on."""
        return len(self.manifest["sessions"]) - 1

    @property
    def start(self) -> Start:
        """Of a training run. Raises: ResultsError: its weights are not known."""
        if self.summary.kind is Kind.SFT:
            sft, digest = self.summary.run, self.summary.weights_sha256
        else:
            sft, digest = Path(str(self.manifest.get("model"))).name, self.manifest.get("model_digest")
        if not digest:
            raise ResultsError(f"{self.folder}: no SHA-256 of its SFT weights (SFT: summary.json, RL: manifest.json)")
        return Start(sft, digest)

    @cached_property
    def rollouts(self) -> tuple[Rollout, ...]:
        """Of an evaluation under the protocol."""
        return rollouts_of(read_traces(self.folder / TRACES).traces)

    def metric(self, name: str) -> Metric:
        """As it was computed from the whole traces, the test code included."""
        fields = dict(self.summary.metrics[name])
        interval = fields.pop("interval")
        return Metric(**fields, interval=interval and Interval(**interval))

    def plain_pass(self) -> Metric:
        """The share of tasks that the base model solves on a plain prompt."""
        lines = [json.loads(line) for line in (self.folder / PLAIN).read_text().splitlines()]
        solved, n = float(sum(line["solved"] for line in lines)), float(len(lines))
        return Metric(
            "plain", "pass@1", "Outcome", "share", solved, n, solved / n, wilson_interval(solved, n), len(lines)
        )


@dataclass(frozen=True)
class Series:
    """The evaluations on the test tasks, by step, of a run with one seed (None: no seed) in one visit.

    `several` says whether other visits made the same; `start` is None of the base model.
    """

    run: str
    seed: int | None
    visit: Path
    several: bool
    start: Start | None
    steps: dict[int, Entry]


@dataclass(frozen=True)
class Results:
    """All folders below a root, sorted by path."""

    entries: tuple[Entry, ...]
    subject: Subject

    def series(self, run: str) -> list[Series]:
        """Of a run, an SFT model or a replay (`b`, `sft-b`, `b:forced_keep`): by seed, then by visit.

        Raises:
            ResultsError: an evaluation that is there twice, or without the training that it is of.
        """
        found: dict[tuple[int | None, Path], dict[int, Entry]] = {}
        for entry in self.entries:
            of = entry.summary
            if of.kind in (Kind.BASE, Kind.AFTER_SFT, Kind.AFTER_RL) and of.run == run:
                steps = found.setdefault((of.seed, entry.folder.parent), {})
                if (other := steps.setdefault(of.step, entry)) is not entry:
                    raise ResultsError(f"{entry.folder}: the same evaluation as {other.folder}: remove one")
        visits = Counter(seed for seed, _ in found)
        return [
            Series(run, seed, visit, visits[seed] > 1, self._start(run, seed, visit, steps), steps)
            for (seed, visit), steps in sorted(found.items(), key=lambda item: (item[0][0] or 0, item[0][1]))
        ]

    def _start(self, run: str, seed: int | None, visit: Path, steps: dict[int, Entry]) -> Start | None:
        """Of the training that a series was made by, which is of the same visit."""
        if any(entry.summary.kind is Kind.BASE for entry in steps.values()):
            return None
        for entry in self.entries:
            of = entry.summary
            if entry.folder.parent == visit and of.run == run.partition(":")[0] and of.kind in TRAINING:
                if of.kind is Kind.SFT or of.seed == seed:
                    return entry.start
        raise ResultsError(f"{visit}: evaluations of {run} without its training run: publish them together")

    def training(self, kind: Kind) -> list[Entry]:
        return [entry for entry in self.entries if entry.summary.kind is kind]


def read_results(root: Path, subject: Subject = SMALL) -> Results:
    """Every folder below the root with a summary. Raises: ResultsError."""
    entries = []
    for file in sorted(root.rglob(SUMMARY)):
        try:
            entries.append(Entry(file.parent, Summary.model_validate_json(file.read_text("utf-8"))))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise ResultsError(f"{file}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    return Results(tuple(entries), subject)
