"""Experience of one RL step: rollouts of whole groups, their credit, and the samples that train.

    tasks of the step → collector → `Played` in order → credit of each → groups (advantages) → batch weights → trees

Rollouts that an environment fault ended, and those cut by length or context, leave their group before its mean and
never reach the trainer. So does one whose samples cannot be trained, say for a log-prob that is not finite: it is
counted and logged, and stops nothing.
"""

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from glyph.credit import (
    Codec,
    Credited,
    CreditOptions,
    CreditRule,
    TrainingSample,
    apply_rule,
    credit_group,
    credit_rollout,
    shaped_reward,
    weigh_labels,
)
from glyph.local.rollouts.collector import Played
from glyph.local.training.packing import SampleError, Tree, plant

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Experience:
    """A step's rollouts, and what of them trains.

    `credited` is None for a rollout that left its group; `samples` has its final samples, empty where it trains
    nothing. Both are in the order of `played`.
    """

    played: tuple[Played, ...]
    credited: tuple[Credited | None, ...]
    samples: tuple[tuple[TrainingSample, ...], ...]
    left_out: Counter[str] = field(default_factory=Counter)
    mixed_groups: int = 0
    uniform_groups: int = 0

    @property
    def misses(self) -> Counter[str]:
        """Prediction targets without a label sample, by reason."""
        total: Counter[str] = Counter()
        for each in self.credited:
            total.update({miss.value: n for miss, n in each.misses.items()} if each else {})
        return total


def plant_experience(
    played: Sequence[Played],
    group_size: int,
    codec: Codec,
    options: CreditOptions,
    rule: CreditRule = credit_group,
    shared: bool = True,
) -> tuple[Experience, list[Tree]]:
    """`make_experience` and its trees, without the rollouts whose samples cannot be trained.

    Raises: ValueError, as `make_experience`.
    """
    unsound: set[int] = set()
    while True:
        experience, trees, before = make_experience(played, group_size, codec, options, rule, unsound), [], len(unsound)
        for place, samples in enumerate(experience.samples):
            try:
                trees += plant(samples, shared)
            except SampleError as error:
                logger.warning("rollout %s is left out: %s", played[place].trace.id, error)
                unsound.add(place)
        if len(unsound) == before:
            return experience, trees


def make_experience(
    played: Sequence[Played],
    group_size: int,
    codec: Codec,
    options: CreditOptions,
    rule: CreditRule = credit_group,
    unsound: Collection[int] = (),
) -> Experience:
    """Credit the rollouts of a step, which stand group by group. `rule` never sees a group of which nothing is left.

    Those at the places `unsound` are left out as bad samples.

    Raises:
        ValueError: the rollouts are no whole groups, or the rule does not answer for each rollout of a group.
    """
    if len(played) % group_size:
        raise ValueError(f"{len(played)} rollouts are no whole groups of {group_size}")
    left_out: Counter[str] = Counter()
    credited = [
        _credit(each, codec, options, left_out, sound=place not in unsound) for place, each in enumerate(played)
    ]
    samples: list[tuple[TrainingSample, ...]] = [()] * len(played)
    mixed = uniform = 0
    for start in range(0, len(played), group_size):
        places = [i for i in range(start, start + group_size) if credited[i]]
        rewards = [_reward(played[i], options) for i in places]
        mixed += len(set(rewards)) > 1
        uniform += len(set(rewards)) == 1
        group = apply_rule(rule, [each for i in places if (each := credited[i])], rewards, options)
        for place, shipped in zip(places, group, strict=True):
            samples[place] = shipped
    weighed = iter(weigh_labels([sample for shipped in samples for sample in shipped], options))
    final = tuple(tuple(next(weighed) for _ in shipped) for shipped in samples)
    return Experience(tuple(played), tuple(credited), final, left_out, mixed, uniform)


def _credit(
    played: Played, codec: Codec, options: CreditOptions, left_out: Counter[str], sound: bool
) -> Credited | None:
    record = played.trace.scored
    if record is None:
        left_out["fault"] += 1
    elif record.stop_reason.cut:
        left_out[record.stop_reason.value] += 1
    elif not played.branches:
        left_out["no_tokens"] += 1
    elif not sound:
        left_out["bad_sample"] += 1
    else:
        return credit_rollout(played.branches, record, codec, options)
    return None


def _reward(played: Played, options: CreditOptions) -> float:
    assert played.trace.record is not None  # only credited rollouts are asked
    return shaped_reward(played.trace.record, options)
