"""Reinforcement learning: rollouts of groups in the real environment, credit, one optimiser step; again.

    step k: tasks (order.py) → Collector (EnginePolicy) → plant_experience → Trainer.step → the engine gets the weights
            → traces, metrics, checkpoint → evaluation

Everything that chance decides is keyed by the seed, the step, the rollout and the token, and all scheduling is by
steps: on a CPU a run is a function of its config, and a resumed one gives the numbers of an unbroken one. With
`off_policy_steps` 1 the rollouts of a step are sampled before the step before it is trained; those under way are
part of the checkpoint.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn

from glyph.codec import codec_of
from glyph.config import RlConfig
from glyph.credit import Codec
from glyph.evaluation.traces import trace_to_dict
from glyph.executor import Executor
from glyph.local.inference.backends import WeightedGenerator, generator_beside
from glyph.local.rollouts.generated import Generated, generated_from_dict
from glyph.local.rollouts.playing import Player
from glyph.local.runs.run_folder import RunFolder
from glyph.local.training.annotation import annotate
from glyph.local.training.experience import Experience, plant_experience
from glyph.local.training.losses import PolicyLossOptions
from glyph.local.training.metric_lines import evaluation_line, train_line
from glyph.local.training.order import batch_indices
from glyph.local.training.packing import Tree
from glyph.local.training.trainer import EmptyBatchError, NonFiniteError, StepResult
from glyph.local.training.workbench import (
    RunFailedError,
    RunStopped,
    StopRequest,
    Watch,
    Workbench,
    due,
    load_workbench,
)
from glyph.tasks.task import CodeTask
from glyph.tasks.validation import read_tasks

logger = logging.getLogger(__name__)

MAX_LOST_STEPS = 10
"""So many steps in a row that train nothing end the run, as in the pinned trainer."""


@dataclass
class RlRun:
    """One run of RL between loading and its end."""

    config: RlConfig
    bench: Workbench
    folder: RunFolder
    watch: Watch
    generator: WeightedGenerator
    player: Player
    codec: Codec
    train_tasks: list[CodeTask]
    evaluation_tasks: list[CodeTask]
    under_way: "deque[Generated]" = field(default_factory=deque)
    lost_steps: int = 0
    saved: int = 0  # the step of the newest checkpoint

    def run(self, done: int, stop: StopRequest) -> None:
        """Go on from `done` finished steps. Raises: RunStopped, RunFailedError, CheckpointError."""
        steps = self.config.rl.steps
        self.generator.load_weights_from(self.bench.model)
        if not stop.requested:
            self._evaluate_if_due(done)
        for step in range(done + 1, steps + 1):
            if stop.requested:  # while loading or evaluating
                self._end_early(step - 1)
            line = self._step(step)
            self.folder.log_metrics(line)
            self.watch.update(line)
            if self.lost_steps >= MAX_LOST_STEPS:
                self.save(step)
                raise RunFailedError(f"{self.lost_steps} steps in a row trained nothing; the last: {line['skipped']}")
            if stop.requested and step < steps:
                self._end_early(step)
            if any(due(step, every, steps) for every in (self.config.checkpoints.every, self.config.evaluation.every)):
                self.save(step)  # before the evaluation, which may take long
            self._evaluate_if_due(step)

    def _end_early(self, done: int) -> NoReturn:
        """What has been done is saved, unless it is nothing: then a resume begins anew."""
        if done > self.saved:
            self.save(done)
        raise RunStopped(f"stopped after step {done}" if done else "stopped before the first step")

    def save(self, step: int) -> None:
        state = {"under_way": [each.to_dict() for each in self.under_way], "lost_steps": self.lost_steps}
        with self.watch.waiting(f"the checkpoint of step {step}"):
            self.bench.save(self.folder, step, state)
        self.saved = step

    def restore(self) -> int:
        """How many steps the newest checkpoint has behind it."""
        checkpoint = self.bench.restore(self.folder)
        if checkpoint is None:
            return 0
        tasks = {task.task_id: task for task in self.train_tasks}
        self.under_way = deque(generated_from_dict(each, tasks) for each in checkpoint.state["under_way"])
        self.lost_steps, self.saved = checkpoint.state["lost_steps"], checkpoint.step
        return checkpoint.step

    # A step.

    def _step(self, step: int) -> dict[str, Any]:
        started = time.perf_counter()
        generated = self._next(step)
        options, rule = self.config.credit.options(), self.config.credit_rule()
        size, shared = self.config.rl.group_size, self.config.rl.label_branches == "shared"
        with self.watch.waiting(f"training step {step}"):
            experience, trees = plant_experience(generated.played, size, self.codec, options, rule, shared)
            result, skipped = self._train(trees)
        if due(step, self.config.traces.every, -1):
            self.folder.write_traces(step, _annotated(experience, self.codec))
        return train_line(step, generated, experience, result, skipped, time.perf_counter() - started)

    def _train(self, trees: Sequence[Tree]) -> tuple[StepResult | None, str | None]:
        """The optimiser step, or why there was none: then the weights are those of before."""
        try:
            result = self.bench.trainer.step(trees, self.config.sampling.temperature)
        except (EmptyBatchError, NonFiniteError) as error:
            self.lost_steps += 1
            logger.warning("no step was taken (%d in a row): %s", self.lost_steps, error)
            return None, str(error)
        self.lost_steps = 0
        self.generator.load_weights_from(self.bench.model)
        return result, None

    def _next(self, step: int) -> Generated:
        """The rollouts of a step; those of the next one are sampled too where the run is off-policy."""
        ahead = min(step + self.config.rl.off_policy_steps, self.config.rl.steps)
        known = self.under_way[-1].step if self.under_way else step - 1
        for number in range(known + 1, ahead + 1):
            self.under_way.append(self._generate(number))
        return self.under_way.popleft()

    def _generate(self, step: int) -> Generated:
        batch = self.config.rl.rollouts_per_step // self.config.rl.group_size
        chosen = batch_indices(len(self.train_tasks), batch, step, self.config.seed)
        with self.watch.waiting(lambda: f"rollouts of step {step}: {self.player.status()}"):
            return self.player.training(step, [self.train_tasks[i] for i in chosen])

    # Evaluation.

    def _evaluate_if_due(self, step: int) -> None:
        of = self.config.evaluation
        wanted = of.at_start if step == 0 else due(step, of.every, self.config.rl.steps)
        if not wanted or any(line["step"] == step for line in self.folder.metrics("evaluation")):
            return
        with self.watch.waiting(lambda: f"evaluation after step {step}: {self.player.status()}"):
            played = self.player.evaluation(step, self.evaluation_tasks)
        self.folder.write_evaluation(step, [each.trace for each in played.played])
        line = evaluation_line(step, of.split, played)
        self.folder.log_metrics(line)
        self.watch.update(line)


def train_rl(config: RlConfig, folder: RunFolder, watch: Watch, stop: StopRequest) -> None:
    """Run RL from wherever the folder stands to the last step, with a checkpoint and an evaluation there.

    Raises:
        RunStopped: it was asked to stop, and saved.
        RunFailedError: nothing trains any more.
        ValueError, CheckpointError, ExecutorError: what the run cannot do without; earlier checkpoints stand.
    """
    tasks = read_tasks(config.data, config.arm, "train")
    held_out = read_tasks(config.data, config.arm, config.evaluation.split)
    with ExitStack() as stack:
        with watch.waiting("loading the model"):
            bench = load_workbench(config, config.rl.steps, PolicyLossOptions(**dict(config.loss)))
            generator = generator_beside(config, bench.model, bench.source)
        executor = stack.enter_context(Executor(workers=config.environment.test_workers, limits=config.limits()))
        run = RlRun(
            config=config,
            bench=bench,
            folder=folder,
            watch=watch,
            generator=generator,
            player=Player(config, bench.tokenizer, bench.wording, generator, executor),
            codec=codec_of(bench.tokenizer),
            train_tasks=tasks,
            evaluation_tasks=held_out[: config.evaluation.num_tasks or None],
        )
        run.run(run.restore(), stop)


def _annotated(experience: Experience, codec: Codec) -> Iterator[str]:
    """The rollouts of a step as local trace lines, with what training made of their tokens."""
    for played, credited, samples in zip(experience.played, experience.credited, experience.samples, strict=True):
        line = trace_to_dict(played.trace) | annotate(played, credited, samples, codec)
        yield json.dumps(line, allow_nan=False, separators=(",", ":"))
