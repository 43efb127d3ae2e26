"""Intervals and tests, as pure functions of counts and arrays.

Owns every formula that a metric or a comparison needs: Wilson, McNemar, bootstraps over tasks, Holm, pass@k.
Needs numpy only. Resampling is seeded, so the same input gives the same interval.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2_000
SEED = 0


@dataclass(frozen=True)
class Interval:
    """A 95% interval and the method that made it: `wilson`, `wilson-over-tasks`, `cluster-bootstrap`, …"""

    low: float
    high: float
    method: str


def wilson_interval(successes: float, n: float, method: str = "wilson") -> Interval | None:
    """The Wilson score interval of a proportion of independent trials; None when `n` is 0.

    Raises:
        ValueError: `successes` is not within 0 and `n`.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie within 0 and n: got {successes} of {n}")
    if n == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(low, high, method)


def cluster_bootstrap(
    sums: Array, statistic: Callable[[Array], Array], resamples: int = RESAMPLES, seed: int = SEED
) -> Interval | None:
    """The percentile interval of a statistic of sums when whole tasks are drawn with replacement.

    `sums` has one row a task and one column a quantity (tasks × quantities); `statistic` maps summed rows
    (resamples × quantities) to values (resamples). A resample whose value is undefined (NaN) is left out.
    None with fewer than two tasks, and when all resamples agree: no spread is no evidence of certainty.
    """
    if len(sums) < 2:
        return None
    values = statistic(_task_weights(len(sums), resamples, seed) @ sums)
    values = values[~np.isnan(values)]
    if len(values) == 0 or np.ptp(values) < 1e-12:
        return None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(float(low), float(high), "cluster-bootstrap")


def ratio(sums: Array) -> Array:
    """First column over second column, NaN where the second is 0: the statistic of a pooled rate or mean."""
    numerator, denominator = sums[:, 0], sums[:, 1]
    return np.divide(numerator, denominator, out=np.full(len(sums), np.nan), where=denominator != 0)


@lru_cache(maxsize=2)
def _task_weights(tasks: int, resamples: int, seed: int) -> Array:
    """How often each task is drawn in each resample (resamples × tasks); shared by all metrics of a file."""
    draws = np.random.default_rng(seed).multinomial(tasks, np.full(tasks, 1 / tasks), size=resamples)
    return draws.astype(np.float64)


def paired_bootstrap(differences: Array, resamples: int = 10_000, seed: int = SEED) -> Interval | None:
    """The percentile interval of the mean of paired differences, one a task; pairs are drawn together.

    None with fewer than two pairs, and when all differences are equal.
    """
    sums = np.column_stack([differences, np.ones(len(differences))])
    interval = cluster_bootstrap(sums, ratio, resamples, seed)
    return Interval(interval.low, interval.high, "paired-bootstrap") if interval else None


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact McNemar p value: a binomial test of the discordant pairs against one half.

    1.0 when no pair is discordant. Source: McNemar 1947; the exact form doubles the smaller binomial tail.
    """
    n = _discordant(only_first, only_second)
    tail = ways = 1  # C(n, 0), then each binomial coefficient from the one before
    for i in range(1, min(only_first, only_second) + 1):
        ways = ways * (n - i + 1) // i
        tail += ways
    return min(1.0, 2 * tail / 2**n)


def mcnemar_corrected(only_first: int, only_second: int) -> float:
    """McNemar p value with Edwards' continuity correction: the upper tail of chi-square with 1 degree of freedom.

    1.0 when no pair is discordant.
    """
    n = _discordant(only_first, only_second)
    if n == 0:
        return 1.0
    return chi_square_1_tail(max(abs(only_first - only_second) - 1, 0) ** 2 / n)


def chi_square_1_tail(x: float) -> float:
    """P(X >= x) for a chi-square variable with one degree of freedom."""
    return math.erfc(math.sqrt(x / 2))


def _discordant(only_first: int, only_second: int) -> int:
    if min(only_first, only_second) < 0:
        raise ValueError(f"counts of discordant pairs cannot be negative: got {only_first} and {only_second}")
    return only_first + only_second


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p values of a family of tests, under the same names and in the same order."""
    for name, p in p_values.items():
        if not 0 <= p <= 1:
            raise ValueError(f"{name}: expected a p value within 0 and 1, got {p}")
    ordered = sorted(p_values, key=p_values.__getitem__)
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def pass_at_k(samples: int, solved: int, k: int) -> float | None:
    """The unbiased estimate that at least one of `k` samples is solved; None when a task has fewer than `k`.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if k < 1 or not 0 <= solved <= samples:
        raise ValueError(f"expected k >= 1 and 0 <= solved <= samples, got k={k}, {solved} of {samples}")
    if samples < k:
        return None
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)
