"""How generation and training grow with the length of a rollout: made-up rollouts, all of one length.

A rollout of n tokens has a prompt of 3n/4 random tokens and n/4 that are sampled; prompts are shared by groups.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.engine.generation import generate
from benchmarks.engine.setting import GROUP, Engine, Setting
from benchmarks.engine.timing import significant, timed
from glyph.credit import TrainingSample
from glyph.local.inference.engine import EngineCore
from glyph.local.training.packing import plant


def random_ids(vocabulary: int, length: int, seed: int) -> list[int]:
    """Ids from the middle of the vocabulary, where no special token is."""
    return np.random.default_rng(seed).integers(vocabulary // 4, vocabulary // 2, length).tolist()


def synthetic_sample(vocabulary: int, length: int, number: int) -> TrainingSample:
    sampled = length // 4
    return TrainingSample(
        token_ids=tuple(random_ids(vocabulary, length, number)),
        mask=(False,) * (length - sampled) + (True,) * sampled,
        logprobs=(0.0,) * (length - sampled) + (-8.0,) * sampled,
        rl_weights=(1.0,) * length,
        ce_weights=(0.0,) * length,
        advantage=0.5 - number % 2,
    )


def measure_context(setting: Setting, engine: Engine, core: EngineCore) -> dict[str, Any]:
    sizes, trainer, of = setting.sizes, engine.bench.trainer, engine.config.sampling
    ways: dict[str, Callable[[], object]] = {}
    for length in sizes.contexts:
        rollouts = [synthetic_sample(core.vocabulary, length, number) for number in range(sizes.context_rollouts)]
        trees = [plant([sample])[0] for sample in rollouts]
        cut = length - length // 4
        prompts = [rollouts[i - i % GROUP].token_ids[:cut] for i in range(len(rollouts))]
        ways[f"training {length}"] = partial(trainer.step, trees, of.temperature)
        ways[f"generation {length}"] = partial(generate, core, prompts, length // 4, of.temperature, of.top_k)
    seconds = timed(ways, sizes.rounds, sizes.limit_seconds, setting.device)
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    lengths = {
        str(length): {
            "generation": significant(middle[f"generation {length}"]),
            "training": significant(middle[f"training {length}"]),
            "generated_tokens_per_second": significant(
                sizes.context_rollouts * (length // 4) / middle[f"generation {length}"]
            ),
            "trainer_tokens_per_second": significant(sizes.context_rollouts * length / middle[f"training {length}"]),
        }
        for length in sizes.contexts
    }
    return {"rollouts": sizes.context_rollouts, "rounds": len(next(iter(seconds.values()))), "lengths": lengths}
