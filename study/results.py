"""The one reader of the study's published folders: a summary beside each run and each evaluation.

In: RESULTS_PUBLISHED/small/*/*. Out: typed `Evaluation`s and `TrainingFacts`, and the rollouts of an evaluation.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glyph.evaluation.metrics import Metric
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.statistics import Interval, wilson_interval
from glyph.evaluation.traces import read_traces
from glyph.report.data import rollouts_of
from study.pieces import PLAIN, SUMMARY, TRACES, Kind


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
    """What stands in summary.json. `seed` is None for what all seeds share; `run` names a run without its seed."""

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


@dataclass(frozen=True)
class Entry:
    """A published folder."""

    folder: Path
    summary: Summary

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "manifest.json").read_text("utf-8")))

    @property
    def resumed(self) -> int:
        """How often a training run was interrupted and went on."""
        return len(self.manifest["sessions"]) - 1

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
class Results:
    """All folders below a root, sorted by path."""

    entries: tuple[Entry, ...]
    subject: Subject

    def evaluations(self, run: str, seed: int | None = None) -> dict[int, Entry]:
        """Of a run (`b`, `sft-b`, `b:forced_keep`) and seed: the evaluations on the test tasks by step.

        Where several visits have one of the same run and step (an SFT model), the first visit's.
        """
        found: dict[int, Entry] = {}
        for entry in self.entries:
            of = entry.summary
            if of.kind in (Kind.BASE, Kind.AFTER_SFT, Kind.AFTER_RL) and (of.run, of.seed) == (run, seed):
                found.setdefault(of.step, entry)
        return found

    def training(self, kind: Kind) -> list[Entry]:
        return [entry for entry in self.entries if entry.summary.kind is kind]

    def seeds(self, run: str) -> list[int | None]:
        """The seeds that a run has evaluations of, in order; `[None]` for what has no seed."""
        found = {e.summary.seed for e in self.entries if e.summary.run == run and e.summary.metrics}
        return sorted(found, key=lambda seed: -1 if seed is None else seed)


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
