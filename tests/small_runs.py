"""Small runs of the real loops on the mini model: a data folder, one short SFT run of each arm, and what runs are.

The SFT runs learn sixteen tasks by heart, and RL practises these: so there are groups of mixed rewards within seconds.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partialmethod
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import transformers.models.qwen3.modeling_qwen3  # noqa: F401 (for the processes that are forked)
from typer.testing import CliRunner, Result

from glyph.cli import build_app, main
from glyph.config import RlConfig, SftConfig, dump_config, load_config
from glyph.evaluation.traces import Trace, read_traces
from glyph.executor import Executor
from glyph.local.runs.checkpoints import checkpoints
from glyph.local.runs.run_folder import RunFolder
from glyph.local.training.rl import train_rl
from glyph.local.training.sft import train_sft
from glyph.local.training.workbench import RunStopped, StopRequest
from glyph.tasks.demonstrations import Family, plan_demonstrations
from glyph.tasks.mini import MiniSizes, mini_tasks
from glyph.tasks.preparation import Prepared, write_data
from glyph.tasks.prompts import load_wording
from glyph.tasks.splits import Splits
from glyph.variants import STANDARD, Variant

MODEL = Path(__file__).parents[1] / "models" / "mini"
FAMILIES = {
    Family.DIRECT: 8,
    Family.SHADOW: 4,
    Family.VISIBLE: 4,
    Family.DEEP_SHADOW: 0,
    Family.DEEP_VISIBLE: 0,
}
SFT = (
    "sft.steps=50",
    "sft.batch_size=4",
    "optimiser.learning_rate=4e-3",
    "optimiser.betas=[0.9, 0.98]",
    "checkpoints.every=0",
)
RL = (
    "rl.steps=5",
    "rl.rollouts_per_step=12",
    "rl.group_size=4",
    "sampling.temperature=0.5",
    "optimiser.learning_rate=1e-4",
    "optimiser.warmup_steps=0",
    "evaluation.every=2",
    "evaluation.num_tasks=4",
    "checkpoints.every=1",
    "traces.every=1",
)


def write_small_data(folder: Path, executor: Executor, variant: Variant = STANDARD, tasks: int = 16) -> None:
    """A data folder whose train and validation tasks are those of its SFT traces: the shortest of the mini set."""
    drawn = mini_tasks(sizes=MiniSizes(sft=100, train=1, validation=1, test=8))
    known = tuple(sorted(drawn.sft, key=lambda task: len(task.text) + len(task.gold))[:tasks])
    made = {each.task.task_id: each for each in plan_demonstrations(known, executor.run, FAMILIES)}
    splits = Splits(known, known, known, tuple(drawn.test))
    shown = [made[task.task_id] for task in known]
    write_data(Prepared("mini", {"name": "small"}, splits, shown, 0, variant), folder, load_wording(), executor.run)


def glyph(*words: object) -> Result:
    """A command of the command line, in this process."""
    return CliRunner().invoke(build_app(), [str(word) for word in words])


def run_sft(run: Path, arm: str, data: Path) -> Path:
    done = glyph("sft", arm, "--model", MODEL, "--data", data, "--output", run, *SFT)
    assert done.exit_code == 0, done.output
    return run


def process_of(words: Sequence[object], output: Path, beat_seconds: float = 30.0) -> BaseProcess:
    """A command of the command line in a process of its own, forked from one that has imported everything: started.

    `output` gets what it says; it says what it waits for every `beat_seconds`.
    """
    output.touch()
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.small_runs"])
    process = context.Process(target=_run_command, args=([str(word) for word in words], output, beat_seconds))
    process.start()
    return process


def _run_command(words: list[str], output: Path, beat_seconds: float) -> None:
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    RunFolder.heartbeat = partialmethod(RunFolder.heartbeat, every_seconds=beat_seconds)  # type: ignore
    sys.argv = ["glyph", *words]
    main()


class Watcher:
    """Looks on at a run, and asks it to stop after a line, given by its kind and step."""

    def __init__(self, stop_after: tuple[str, int] | None = None) -> None:
        self.stop = StopRequest()
        self._stop_after = stop_after

    def update(self, line: Mapping[str, Any]) -> None:
        if (line["kind"], line["step"]) == self._stop_after:
            self.stop.requested = True

    def waiting(self, what: Any) -> AbstractContextManager[None]:
        return nullcontext()


def sft_config(arm: str, data: Path, settings: Sequence[str] = ()) -> SftConfig:
    return load_config("sft", "mini", arm, [], [*SFT, *settings], model=str(MODEL), data=str(data))


def rl_config(sft_run: Path, arm: str, data: Path, settings: Sequence[str] = (), seed: int = 7) -> RlConfig:
    return load_config("rl", "mini", arm, [], [*RL, *settings], model=str(sft_run), data=str(data), seed=seed)


def play(run: Path, config: SftConfig | RlConfig, stop_after: tuple[str, int] | None = None) -> Path:
    """A run in its folder, as the commands make it, which may be asked to stop after a line."""
    watcher = Watcher(stop_after)
    with RunFolder.create(run, dump_config(config), {"stage": config.stage, "arm": config.arm.value}) as folder:
        try:
            if isinstance(config, SftConfig):
                train_sft(config, folder, watcher, watcher.stop)
            else:
                train_rl(config, folder, watcher, watcher.stop)
        except RunStopped:
            folder.finish("interrupted")
    return run


def lines(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    whole = (run / "metrics.jsonl").read_text().rpartition("\n")[0]  # the last line may be in the writing
    found = [json.loads(line) for line in whole.splitlines()]
    return [line for line in found if kind in (None, line["kind"])]


def numbers(run: Path) -> list[dict[str, Any]]:
    """All that a run's lines say, but for how long things took."""
    timed = ("seconds", "tokens_per_second")
    return [{name: value for name, value in line.items() if name not in timed} for line in lines(run)]


def last_state(run: Path) -> dict[str, Any]:
    """What the newest checkpoint holds: the step and the digests of weights, optimiser and all its other files."""
    body = json.loads((checkpoints(run / "checkpoints")[-1] / "state.json").read_text())
    return {"step": body["step"], "digests": body["digests"]}


def said(traces: Sequence[Trace]) -> list[tuple[str, list[tuple[str, str]], float | None]]:
    """What was said in rollouts, and what it earned: all of a trace that does not depend on time."""
    return [
        (each.id, [(m.role, m.content) for m in each.messages], each.scored.reward if each.scored else None)
        for each in traces
    ]


def rollouts(run: Path) -> dict[str, Any]:
    """`said` of all rollouts that a run holds, of training steps and evaluations, by the files' names."""
    files = [*(run / "traces").glob("*.gz"), *(run / "evaluations").glob("*/*.gz")]
    return {str(file.relative_to(run)): said(read_traces(file).traces) for file in sorted(files)}


def outcome(run: Path) -> dict[str, Any]:
    """All by which two runs are the same run."""
    return {"numbers": numbers(run), "last checkpoint": last_state(run), "rollouts": rollouts(run)}


def manifest(run: Path) -> dict[str, Any]:
    return json.loads((run / "manifest.json").read_text())
