"""Playing rollouts with a model: assignments in, their rollouts out in the same order, with what they cost.

Shared by training steps, evaluations inside a run and `glyph evaluate`: one way to play, whoever asks.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from glyph.config import RlConfig
from glyph.executor import Executor
from glyph.local.inference.requests import SteppedGenerator
from glyph.local.inference.sampling import SamplingParams
from glyph.local.rollouts.collector import Assignment, Collector, Played
from glyph.local.rollouts.generated import Generated
from glyph.local.rollouts.policy import EnginePolicy
from glyph.tasks.prompts import Wording
from glyph.tasks.task import CodeTask

Track = Callable[[Iterator[Played]], Iterable[Played]]


@dataclass
class Player:
    """A generator and the environment of a config. `status` says what the rollouts under way wait for."""

    config: RlConfig
    tokenizer: PreTrainedTokenizerBase
    wording: Wording
    generator: SteppedGenerator
    executor: Executor
    _collector: Collector | None = None

    def play(
        self, step: int, work: Sequence[Assignment], sampling: SamplingParams, seed: str, track: Track = iter
    ) -> Generated:
        """Play assignments; `seed` keys all that is sampled, `track` looks on while rollouts end.

        What the generator keeps of earlier rollouts is forgotten first, so that they leave no trace in these.
        """
        started = time.perf_counter()
        with self.generator.updating():
            pass
        rules, config = self.config.rules(), self.config
        policy = EnginePolicy(self.generator, self.tokenizer, sampling, seed)
        rows, delay = config.generation.max_rows, config.environment.test_delay
        collector = self._collector = Collector(
            policy, self.executor, rules, self.wording, config.model, rows, test_delay=delay
        )
        played = {each.assignment.session(rules): each for each in track(collector.collect(work))}
        return Generated(
            step,
            tuple(played[each.session(rules)] for each in work),
            policy.generated_tokens,
            collector.policy_seconds,
            collector.test_seconds,
            time.perf_counter() - started,
        )

    def training(self, step: int, tasks: Sequence[CodeTask]) -> Generated:
        """The groups of a training step. Where a task stands twice, its second group goes on counting samples."""
        of, group = self.config.sampling, self.config.rl.group_size
        groups: Counter[str] = Counter()
        work: list[Assignment] = []
        for task in tasks:
            first = groups[task.task_id] * group
            work += [Assignment(task, "train", sample) for sample in range(first, first + group)]
            groups[task.task_id] += 1
        sampling = SamplingParams(of.temperature, of.top_k, of.top_p, of.max_completion_tokens)
        return self.play(step, work, sampling, f"{self.config.seed}/{step}")

    def evaluation(self, step: int, tasks: Sequence[CodeTask], track: Track = iter) -> Generated:
        """The rollouts of an evaluation, sampled alike after whichever step."""
        of, cut = self.config.evaluation, self.config.sampling
        work = [Assignment(task, of.split, sample) for task in tasks for sample in range(of.samples)]
        sampling = SamplingParams(of.temperature, cut.top_k, cut.top_p, cut.max_completion_tokens)
        return self.play(step, work, sampling, f"{self.config.seed}/evaluation", track)

    def status(self) -> str:
        return self._collector.status() if self._collector else "not begun"
