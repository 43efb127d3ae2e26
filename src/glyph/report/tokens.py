"""Training rollouts with the role of each token, a bounded number of them, for the page's viewer.

In: the `traces/step_*.jsonl.gz` of runs (local trace lines with `tokens`, `targets`, `advantage`) and stored traces
without roles. Out: `Exhibit`s: plain data whose text is safe to show (control characters written as escapes).
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from glyph.evaluation.traces import Trace, parse_trace
from glyph.report.groups import Group
from glyph.report.rollout import printable, render_rollout
from glyph.report.runs import Number, RunError, first_fault

ROLLOUTS_PER_STEP = 3
STEPS_PER_RUN = 3
MAX_BYTES = 1_800_000
"""Of all exhibits together, as JSON."""


class Role(str, Enum):
    """What training does with a token: its letter in the page's data is the first one."""

    CONTEXT = "context"  # not sampled: prompt, tool results, template
    RL = "rl"
    MASKED = "masked"  # sampled, but without credit by rule: a label, a decision that a variant overrode
    UNTRAINED = "untrained"  # sampled, but its rollout or its group trains nothing


class LabelBranch(BaseModel):
    """A verified-label sample: the tokens that follow `tokens[:at]` in it, of which those marked "ce" are trained."""

    at: int = Field(ge=0)
    label: str
    tokens: list[tuple[str, Literal["ce", "shared"]]]


class AnnotatedLine(BaseModel):
    """What a line of a step's traces has beside the trace."""

    tokens: list[tuple[str, Role]]
    targets: list[LabelBranch] = Field(default_factory=list)
    advantage: Number = None


@dataclass(frozen=True)
class Exhibit:
    """One rollout in the viewer: with the roles of its tokens, or as `text`."""

    place: str
    title: str
    annotated: AnnotatedLine | None = None
    text: str | None = None

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"place": printable(self.place), "title": printable(self.title)}
        if self.annotated is None:
            return {**data, "text": self.text}
        tokens = self.annotated.tokens
        return {
            **data,
            "tokens": [printable(text) for text, _ in tokens],
            "roles": "".join(role.value[0] for _, role in tokens),
            "targets": [
                {
                    "at": target.at,
                    "label": printable(target.label),
                    "tokens": [[printable(text), kind == "ce"] for text, kind in target.tokens],
                }
                for target in self.annotated.targets
            ],
            "advantage": self.annotated.advantage,
        }


def training_exhibits(groups: Sequence[Group], limit: int = MAX_BYTES) -> list[Exhibit]:
    """A few rollouts of the first, a middle and the last stored step of each run, as many as fit `limit` bytes.

    What is dropped first is the third and then the second rollout of each step.
    """
    ranked: list[tuple[int, int, Exhibit]] = []
    for group in groups:
        for run in group.runs:
            for step, path in _spread(run.step_files(), STEPS_PER_RUN):
                place = f"{group.name} · seed {run.manifest.seed} · training step {step}"
                for rank, exhibit in enumerate(_choose(place, path)):
                    ranked.append((rank, len(ranked), exhibit))
    kept, used = [], 0
    for _, order, exhibit in sorted(ranked, key=lambda each: each[:2]):
        used += len(json.dumps(exhibit.to_dict()))
        if used > limit:
            break
        kept.append((order, exhibit))
    return [exhibit for _, exhibit in sorted(kept, key=lambda each: each[0])]


def text_exhibit(place: str, trace: Trace) -> Exhibit:
    """A stored rollout without roles, as `glyph show` prints it."""
    return Exhibit(place, _title(trace), text=render_rollout(trace))


def _spread(files: Sequence[tuple[int, Path]], count: int) -> list[tuple[int, Path]]:
    """The first, the last, and what lies evenly between."""
    if len(files) <= count:
        return list(files)
    return [files[round(place * (len(files) - 1) / (count - 1))] for place in range(count)]


def _choose(place: str, path: Path) -> list[Exhibit]:
    """The rollout with the largest advantage, that with the smallest, that with the most label branches."""
    lines = list(read_annotated(path))
    if not lines:
        return []
    known = [each for each in lines if each[1].advantage is not None] or lines
    wanted = [
        max(known, key=lambda each: each[1].advantage or 0.0),
        min(known, key=lambda each: each[1].advantage or 0.0),
        max(lines, key=lambda each: len(each[1].targets)),
        *lines,
    ]
    chosen = list({id(each): each for each in wanted}.values())[:ROLLOUTS_PER_STEP]
    return [Exhibit(place, _title(trace), annotated) for trace, annotated in chosen]


def read_annotated(path: Path) -> Iterator[tuple[Trace, AnnotatedLine]]:
    """The rollouts of a training step that have tokens; one that an environment fault ended may have none.

    Raises:
        RunError: a line is bad, or a label branch leaves beyond the rollout's end.
    """
    try:
        body = path.read_bytes()
        text = gzip.decompress(body) if path.suffix == ".gz" else body
    except (OSError, EOFError) as error:
        raise RunError(f"{path}: {error}") from None
    for number, raw in enumerate(text.splitlines(), 1):
        try:
            data = json.loads(raw)
            if isinstance(data, dict) and data.get("tokens"):
                annotated = AnnotatedLine.model_validate(data)
                for target in annotated.targets:
                    if target.at > len(annotated.tokens):
                        raise ValueError(f"targets: at {target.at} is beyond {len(annotated.tokens)} tokens")
                yield parse_trace(raw), annotated
        except ValidationError as error:
            raise RunError(f"{path}:{number}: {first_fault(error)}") from None
        except ValueError as error:
            raise RunError(f"{path}:{number}: {error}") from None


def _title(trace: Trace) -> str:
    if trace.record is None:
        return f"task {trace.task_id or '?'} · {trace.error or 'no record'}"
    record = trace.record
    return f"task {record.task_id} · stop {record.stop_reason.value} · reward {record.reward:g}"
