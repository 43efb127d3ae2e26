"""The Verifiers taskset: prepared rows in, scored traces with a verified record out.

Loads the task files of `python -m data.prepare`, writes the editable project into the runtime, and afterwards
attaches the program's record (with its verified prediction targets) to `trace.info["glyph"]`, from which the reward
and the metrics follow. It decides nothing about the rollout itself: that is `episode.py`, run by `program.py`.
"""

import json
from pathlib import Path
from typing import Any, Literal

import verifiers.v1 as vf
from pydantic import field_validator, model_validator

from glyph.episode import Rules
from glyph.evaluation.metrics import rollout_metrics
from glyph.program import PROJECT_FOLDER, RECORD_PATH
from glyph.protocol import Arm, StopReason
from glyph.records import TRACE_KEY, RolloutRecord, record_from_dict
from glyph.tasks.prompts import DEFAULT_PROMPTS, Wording, load_wording, opening
from glyph.tasks.validation import check_wording, read_rows, task_of
from glyph.variants import parse_variant
from glyph.workspace import PLACEHOLDER, SOLUTION_PATH


class GlyphTaskData(vf.TaskData):
    """One task of one arm. `test_code` is visible to the agent in its prompt and never in its workspace."""

    task_id: str
    arm: str
    split: str
    variant: str
    test_code: str
    budget: int
    max_context_tokens: int
    cut: str


class CutRolloutError(vf.TaskError):
    """A limit of tokens cut the rollout, and the taskset was told to count that as an error."""


class GlyphTask(vf.Task[GlyphTaskData]):
    """Sets up the workspace and scores a finished rollout."""

    async def setup(self, trace: vf.Trace, runtime: Any) -> None:
        await runtime.write(f"{PROJECT_FOLDER}/{SOLUTION_PATH}", PLACEHOLDER.encode())

    async def finalize(self, trace: vf.Trace, runtime: Any) -> None:
        """Attach the record. A missing record is a fault of the environment: an error, not a reward of 0.

        Raises:
            RuntimeError: the program was stopped before it had written one (a time-out, or a limit of Verifiers that
                the arm does not know).
            CutRolloutError: the rollout was cut, and `cut` is "error". The record is attached all the same.
        """
        try:
            data = json.loads(await runtime.read(RECORD_PATH))
        except FileNotFoundError as error:
            raise RuntimeError(f"the rollout left no record; it stopped with {trace.stop_condition!r}") from error
        record = record_from_dict(data)
        trace.info[TRACE_KEY] = record.to_dict()
        if record.stop_reason is StopReason.CONTEXT:  # so that Verifiers and trainers see a truncation as one
            trace.stop_condition = "context_length"
        if record.stop_reason.cut and self.data.cut == "error":
            raise CutRolloutError(f"cut by its {record.stop_reason.value} limit")

    @vf.reward
    async def solved(self, trace: vf.Trace) -> float:
        return self._record(trace).reward

    @vf.metric
    async def glyph(self, trace: vf.Trace) -> dict[str, float]:
        return rollout_metrics(self._record(trace), self.data.test_code)

    @staticmethod
    def _record(trace: vf.Trace) -> RolloutRecord:
        return record_from_dict(trace.info[TRACE_KEY])


class GlyphTasksetConfig(vf.TasksetConfig):
    """`--taskset.*`: which rows to load and the rules that they are played by.

    `cut` says what becomes of a rollout that is cut by its length or context limit: scored, as an evaluation wants
    it, or an error, so that a trainer leaves it out of its group's mean.
    """

    arm: Arm = Arm.REACTIVE
    split: str = "validation"
    data: Path = Path("data")
    variant: str = "standard"
    prompts: Path = DEFAULT_PROMPTS
    budget: int = Rules.budget
    max_context_tokens: int = Rules.max_context_tokens
    cut: Literal["score", "error"] = "score"

    @field_validator("variant")
    @classmethod
    def _known_variant(cls, text: str) -> str:
        return parse_variant(text).name

    @model_validator(mode="after")
    def _consistent(self) -> "GlyphTasksetConfig":
        Rules(self.arm, parse_variant(self.variant), self.budget, self.max_context_tokens)
        return self


class GlyphTaskset(vf.Taskset[GlyphTask, GlyphTasksetConfig]):
    """The tasks of one arm and split.

    Raises (from `load`):
        ValueError: the data folder lacks the file, or a row is malformed; says where and how to mend it.
    """

    def load(self) -> list[GlyphTask]:
        config, wording = self.config, load_wording(self.config.prompts)
        check_wording(config.data, wording, config.prompts)
        rows = read_rows(config.data, f"arm_{config.arm.value}_{config.split}.jsonl", ("system", "prompt"))
        return [GlyphTask(self._data(i, row, wording), config.task) for i, row in enumerate(rows)]

    def _data(self, idx: int, row: dict[str, Any], wording: Wording) -> GlyphTaskData:
        config = self.config
        messages = opening(task_of(row), config.arm, parse_variant(config.variant), wording, config.budget)
        system, prompt = (message["content"] for message in messages)
        return GlyphTaskData(
            idx=idx,
            name=row["task_id"],
            prompt=prompt,
            system_prompt=system,
            task_id=row["task_id"],
            arm=config.arm.value,
            split=config.split,
            variant=config.variant,
            test_code=row["test_code"],
            budget=config.budget,
            max_context_tokens=config.max_context_tokens,
            cut=config.cut,
        )
