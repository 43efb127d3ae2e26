"""What several training seeds say together: their mean, and an interval that covers the seed.

The intervals of `metrics.py` cover the sampling of tasks under one policy; this one covers training again with
another seed, on the same tasks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glyph.evaluation.statistics import Interval

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5% quantile of Student's t with 1, 2, … 30 degrees of freedom."""


@dataclass(frozen=True)
class SeedMean:
    """The mean over `n` seeds; None where no seed has a value. The interval needs two seeds."""

    mean: float | None
    interval: Interval | None
    n: int


def seed_mean(values: Sequence[float | None], share: bool = False) -> SeedMean:
    """The mean of the defined values with a 95% t interval, cut to 0 and 1 for a share.

    No interval with one seed, nor where all seeds agree: a lack of spread is no certainty.
    """
    known = [value for value in values if value is not None]
    if not known:
        return SeedMean(None, None, 0)
    n, mean = len(known), math.fsum(known) / len(known)
    spread = math.fsum((value - mean) ** 2 for value in known)
    if n < 2 or spread < 1e-18:
        return SeedMean(mean, None, n)
    half = t_quantile(n - 1) * math.sqrt(spread / (n - 1) / n)
    low, high = mean - half, mean + half
    if share:
        low, high = max(0.0, low), min(1.0, high)
    return SeedMean(mean, Interval(low, high, "t-over-seeds"), n)


def t_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t; above the table by its expansion around the normal's (error below 1e-3)."""
    if freedom < 1:
        raise ValueError(f"t needs at least one degree of freedom, got {freedom}")
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
