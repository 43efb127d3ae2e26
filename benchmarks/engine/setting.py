"""What is measured: a model and prepared data at a scale, and for each arm an engine that plays and trains.

The policy of an arm is the model after a short SFT, or the SFT run that was given. The learning rate of the RL steps
is next to nothing, so that each step is played by the same policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glyph.codec import codec_of
from glyph.config import RlConfig, load_config
from glyph.credit import Codec, TrainingSample, credit_group
from glyph.executor import Executor
from glyph.local.inference.backends import WeightedGenerator, generator_beside
from glyph.local.inference.weights import copy_weights
from glyph.local.rollouts.collector import Played
from glyph.local.rollouts.playing import Player
from glyph.local.training.experience import make_experience
from glyph.local.training.losses import PolicyLossOptions
from glyph.local.training.order import batch_indices
from glyph.local.training.packing import plant
from glyph.local.training.sft import load_samples
from glyph.local.training.workbench import Workbench, load_workbench, model_folder
from glyph.protocol import Arm
from glyph.tasks.task import CodeTask
from glyph.tasks.validation import read_tasks

GROUP = 8
"""Rollouts of one task in all measures but the split of a step, which has the group of its scale."""
STILL = ("optimiser.learning_rate=1e-9", "optimiser.warmup_steps=0", "optimiser.schedule=constant")


@dataclass(frozen=True)
class Sizes:
    """How much is measured. `rollouts` of a step, of which the first `trained` are for the comparisons of trainers.

    No new round of a measure begins after `limit_seconds`; a step with and without labels has `pair_seconds`.
    """

    sft_steps: int
    rollouts: int
    trained: int
    rollouts_per_step: tuple[int, ...]
    step_rounds: int
    rows: int
    new_tokens: int
    contexts: tuple[int, ...]
    context_rollouts: int
    checkpoints: int
    rounds: int
    limit_seconds: float
    pairs: int
    pair_seconds: float


COUNTS, CONTEXTS = (8, 16, 32, 64), (256, 512, 1024, 2048)
FULL = {
    "cpu": Sizes(160, 64, 32, COUNTS, 3, 64, 64, CONTEXTS, 4, 5, rounds=5, limit_seconds=30, pairs=15, pair_seconds=60),
    "cuda": Sizes(20, 64, 64, COUNTS, 3, 64, 256, CONTEXTS, 32, 1, rounds=5, limit_seconds=5, pairs=9, pair_seconds=10),
}
QUICK = Sizes(6, 8, 8, (8,), 1, 8, 4, (64, 128), 2, 1, rounds=1, limit_seconds=0, pairs=1, pair_seconds=0)


@dataclass(frozen=True)
class Setting:
    """`sft_runs` by arm: a run or model folder to start from; an arm without one is tuned here."""

    model: str
    data: Path
    device: str
    scale: str
    sizes: Sizes
    sft_runs: dict[Arm, str]

    def config(self, arm: Arm, *overrides: str) -> RlConfig:
        model = self.sft_runs.get(arm, self.model)
        changes = [*STILL, *overrides]
        return load_config("rl", self.scale, arm, (), changes, model=model, data=self.data, device=self.device)


@dataclass
class Engine:
    """An arm's policy with its generator, environment and trainer, as a run has them."""

    config: RlConfig
    bench: Workbench
    generator: WeightedGenerator
    executor: Executor
    codec: Codec
    tasks: list[CodeTask]

    def player(self, group: int) -> Player:
        changed = self.config.model_copy(update={"rl": self.config.rl.model_copy(update={"group_size": group})})
        return Player(changed, self.bench.tokenizer, self.bench.wording, self.generator, self.executor)

    def tasks_of(self, step: int, count: int) -> list[CodeTask]:
        return [self.tasks[i] for i in batch_indices(len(self.tasks), count, step, self.config.seed)]

    def samples(self, played: Sequence[Played], group: int) -> list[tuple[TrainingSample, ...]]:
        """The samples of each rollout that has credit, with rewards 1 and 0 by turns: so that every one trains."""
        options = self.config.credit.options()
        credited = [each for each in make_experience(played, group, self.codec, options).credited if each]
        return credit_group(credited, [float(i % 2) for i in range(len(credited))], options)


def open_engine(setting: Setting, arm: Arm, executor: Executor) -> Engine:
    """Load an arm's engine; its model is tuned first where no SFT run was given."""
    config = setting.config(arm)
    bench = load_workbench(config, config.rl.steps, PolicyLossOptions(**dict(config.loss)))
    if arm not in setting.sft_runs:
        _tune(setting, arm, bench)
    generator = generator_beside(config, bench.model, model_folder(config.model))
    generator.load_weights_from(bench.model)
    tasks = read_tasks(setting.data, arm, "train")
    return Engine(config, bench, generator, executor, codec_of(bench.tokenizer), tasks)


def _tune(setting: Setting, arm: Arm, bench: Workbench) -> None:
    steps = setting.sizes.sft_steps
    short = [f"sft.steps={steps}", f"optimiser.warmup_steps={min(2, steps - 1)}"]
    config = load_config(
        "sft", setting.scale, arm, (), short, model=setting.model, data=setting.data, device=setting.device
    )
    tuning = load_workbench(config, steps)
    trees = [plant([sample])[0] for sample in load_samples(config, tuning.tokenizer)]
    for step in range(1, steps + 1):
        tuning.trainer.step([trees[i] for i in batch_indices(len(trees), config.sft.batch_size, step, config.seed)])
    copy_weights(tuning.model, bench.model)
