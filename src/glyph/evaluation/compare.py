"""Two trace sets, paired by task: who solves what, and whether the difference is more than chance.

In: the rollouts of two runs. Out: a `Comparison` over the tasks that both have scored; tasks that only one has are
listed. Differences are second minus first. Nothing is read from or written to a file.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from glyph.evaluation.metrics import Metric, compute
from glyph.evaluation.predicates import Rollout, is_solved
from glyph.evaluation.statistics import Interval, mcnemar_corrected, mcnemar_exact, paired_bootstrap


class UnpairedError(ValueError):
    """Two runs share no task, so there is nothing to pair."""


@dataclass(frozen=True)
class McNemar:
    """The paired 2×2 table and both p values."""

    both: int
    only_first: int
    only_second: int
    neither: int
    p_exact: float
    p_corrected: float


@dataclass(frozen=True)
class Comparison:
    """`difference` is the mean over paired tasks of second minus first pass rate.

    `mcnemar` is None, and `no_mcnemar` says why, where a task has several samples: McNemar's test needs one solved
    or failed outcome a task, and choosing one of several would throw the others away.
    """

    first: str
    second: str
    tasks: int
    only_in_first: tuple[str, ...]
    only_in_second: tuple[str, ...]
    first_pass: Metric
    second_pass: Metric
    difference: float
    interval: Interval | None
    mcnemar: McNemar | None
    no_mcnemar: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(first: Sequence[Rollout], second: Sequence[Rollout], names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Pair two sets of rollouts by task id and test the difference of pass@1.

    Raises:
        UnpairedError: no task is in both.
    """
    outcomes = _outcomes(first), _outcomes(second)
    paired = [task for task in outcomes[0] if task in outcomes[1]]
    if not paired:
        examples = [next(iter(side), "none") for side in outcomes]
        raise UnpairedError(f"no task is in both: {names[0]} has {examples[0]} …, {names[1]} has {examples[1]} …")
    shares = [np.array([np.mean(side[task]) for task in paired]) for side in outcomes]
    differences = shares[1] - shares[0]
    several = sum(max(len(side[task]) for side in outcomes) > 1 for task in paired)
    within = set(paired)
    return Comparison(
        first=names[0],
        second=names[1],
        tasks=len(paired),
        only_in_first=tuple(task for task in outcomes[0] if task not in within),
        only_in_second=tuple(task for task in outcomes[1] if task not in within),
        first_pass=compute("pass_at_1", [rollout for rollout in first if rollout.record.task_id in within]),
        second_pass=compute("pass_at_1", [rollout for rollout in second if rollout.record.task_id in within]),
        difference=float(differences.mean()),
        interval=paired_bootstrap(differences),
        mcnemar=None if several else _mcnemar(shares[0] == 1, shares[1] == 1),
        no_mcnemar=f"{several} of {len(paired)} tasks have several samples" if several else None,
    )


def _outcomes(rollouts: Sequence[Rollout]) -> dict[str, list[bool]]:
    outcomes: dict[str, list[bool]] = {}
    for rollout in rollouts:
        outcomes.setdefault(rollout.record.task_id, []).append(is_solved(rollout.record))
    return outcomes


def _mcnemar(first: np.ndarray, second: np.ndarray) -> McNemar:
    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(~first & second))
    return McNemar(
        both=int(np.sum(first & second)),
        only_first=only_first,
        only_second=only_second,
        neither=int(np.sum(~first & ~second)),
        p_exact=mcnemar_exact(only_first, only_second),
        p_corrected=mcnemar_corrected(only_first, only_second),
    )
