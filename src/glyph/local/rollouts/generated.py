"""The rollouts of a step between sampling and training, and their JSON form, for checkpoints of off-policy runs."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glyph.credit import Segment
from glyph.evaluation.traces import parse_trace, trace_to_dict
from glyph.local.rollouts.collector import Assignment, Played
from glyph.tasks.task import CodeTask


@dataclass(frozen=True)
class Generated:
    """The rollouts of a step, in the order of their assignments, and what they cost.

    `generation_seconds` is the time in the policy, `environment_seconds` the time spent waiting for tests.
    """

    step: int
    played: tuple[Played, ...]
    tokens: int
    generation_seconds: float
    environment_seconds: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: no tuples."""
        costs = {name: value for name, value in self.__dict__.items() if name not in ("step", "played")}
        return {"step": self.step, **costs, "played": [_played_to_dict(each) for each in self.played]}


def generated_from_dict(data: Mapping[str, Any], tasks: Mapping[str, CodeTask]) -> Generated:
    """Rebuild what `to_dict` made; `tasks` by id.

    Raises:
        ValueError: a task that is not among them: the data is another than the run began with.
    """
    costs = {name: value for name, value in data.items() if name not in ("step", "played")}
    return Generated(data["step"], tuple(_played_from_dict(each, tasks) for each in data["played"]), **costs)


def _played_to_dict(played: Played) -> dict[str, Any]:
    return {
        "task_id": played.assignment.task.task_id,
        "split": played.assignment.split,
        "sample": played.assignment.sample,
        "trace": json.loads(json.dumps(trace_to_dict(played.trace))),
        "branches": [[_plain(segment) for segment in branch] for branch in played.branches],
    }


def _plain(segment: Segment) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(segment).items()}


def _played_from_dict(data: Mapping[str, Any], tasks: Mapping[str, CodeTask]) -> Played:
    if data["task_id"] not in tasks:
        raise ValueError(f"the checkpoint has rollouts of task {data['task_id']}, which the data does not hold")
    assignment = Assignment(tasks[data["task_id"]], data["split"], data["sample"])
    branches = tuple(tuple(_segment(each) for each in branch) for branch in data["branches"])
    return Played(assignment, parse_trace(json.dumps(data["trace"])), branches)


def _segment(data: Mapping[str, Any]) -> Segment:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return Segment(**fields)
