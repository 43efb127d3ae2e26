"""Formulas against numbers worked out by hand."""

import math
from itertools import combinations

import numpy as np
import pytest

from glyph.evaluation.statistics import (
    chi_square_1_tail,
    cluster_bootstrap,
    holm,
    mcnemar_corrected,
    mcnemar_exact,
    paired_bootstrap,
    pass_at_k,
    ratio,
    wilson_interval,
)


def test_wilson_by_hand() -> None:
    # p = .5, n = 4, z = 1.959964: centre .5, half = z/(1+z²/4) * sqrt(.25/4 + z²/64) = .34996
    interval = wilson_interval(2, 4)
    assert interval is not None
    assert interval.low == pytest.approx(0.15004, abs=1e-5)
    assert interval.high == pytest.approx(0.84996, abs=1e-5)


def test_wilson_at_the_ends() -> None:
    # At 0 of n the upper end is z²/(n+z²): 3.841459/13.841459
    none, everything = wilson_interval(0, 10), wilson_interval(10, 10)
    assert none is not None
    assert everything is not None
    assert (none.low, everything.high) == (0.0, 1.0)
    assert none.high == pytest.approx(0.277533, abs=1e-6)
    assert everything.low == pytest.approx(1 - none.high)
    assert wilson_interval(0, 0) is None


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(successes, n)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        (0, 0, 1.0),
        (0, 5, 2 / 32),  # 2 · C(5,0) / 2^5
        (1, 5, 14 / 64),  # 2 · (1 + 6) / 2^6
        (3, 3, 1.0),  # both tails overlap: capped
        (2, 8, 112 / 1024),  # 2 · (1 + 10 + 45) / 2^10
    ],
)
def test_exact_mcnemar_by_hand(only_first: int, only_second: int, p: float) -> None:
    assert mcnemar_exact(only_first, only_second) == pytest.approx(p, rel=1e-12)
    assert mcnemar_exact(only_second, only_first) == pytest.approx(p, rel=1e-12)


def test_exact_mcnemar_of_large_counts_does_not_overflow() -> None:
    assert mcnemar_exact(3000, 3000) == 1.0
    assert mcnemar_exact(0, 2000) == 0.0


def test_corrected_mcnemar_by_hand() -> None:
    # (|2-8|-1)²/10 = 2.5; erfc(sqrt(1.25)) = .113846
    assert mcnemar_corrected(2, 8) == pytest.approx(0.113846, abs=1e-6)
    assert mcnemar_corrected(0, 0) == 1.0
    assert mcnemar_corrected(4, 4) == 1.0


def test_chi_square_tail_at_its_quantile() -> None:
    assert chi_square_1_tail(3.841458820694124) == pytest.approx(0.05, abs=1e-12)
    assert chi_square_1_tail(0.0) == 1.0


@pytest.mark.parametrize(
    ("first", "second", "published"),
    [
        (253, 282, 0.0003),  # A: SFT against RL, seed 42
        (253, 271, 0.028),  # A, 43
        (241, 260, 0.033),  # B, 42
        (241, 268, 0.0017),  # B, 43
        (282, 260, 0.068),  # A 42 against B 42
        (282, 268, 0.25),
        (271, 260, 0.39),
        (271, 268, 0.86),
    ],
)
def test_published_p_values_are_corrected_mcnemar(first: int, second: int, published: float) -> None:
    """The study gives rates of 500 tasks and p values, no counts: a plausible number of discordant pairs fits both."""
    gap = abs(second - first)
    digits = len(str(published)) - 2
    fits = [
        n for n in range(gap, 500, 2) if round(mcnemar_corrected((n - gap) // 2, (n + gap) // 2), digits) == published
    ]
    assert fits
    assert 50 < fits[0] < 140


def test_holm_by_hand() -> None:
    # sorted .01 .02 .04: 3·.01 = .03, 2·.02 = .04, 1·.04 = .04
    assert holm({"a": 0.04, "b": 0.01, "c": 0.02}) == pytest.approx({"a": 0.04, "b": 0.03, "c": 0.04})
    # monotone and capped: 2·.6 = 1.2 → 1, then at least that
    assert holm({"a": 0.7, "b": 0.6}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
    with pytest.raises(ValueError, match="p value"):
        holm({"a": 1.5})


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 2), (5, 0, 3), (5, 5, 3), (6, 3, 5), (4, 4, 4)])
def test_pass_at_k_counts_subsets(n: int, c: int, k: int) -> None:
    outcomes = [True] * c + [False] * (n - c)
    subsets = list(combinations(outcomes, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_undefined_with_too_few_samples() -> None:
    assert pass_at_k(4, 2, 5) is None
    with pytest.raises(ValueError, match="k >= 1"):
        pass_at_k(4, 2, 0)
    with pytest.raises(ValueError, match="solved"):
        pass_at_k(4, 5, 1)


def test_paired_bootstrap_brackets_the_normal_interval() -> None:
    # 60 gains, 40 losses, 400 ties: mean .04, sd sqrt(.2 - .0016), standard error .0199
    differences = np.array([1.0] * 60 + [-1.0] * 40 + [0.0] * 400)
    interval = paired_bootstrap(differences)
    assert interval is not None
    error = 1.96 * math.sqrt((0.2 - 0.0016) / 500)
    assert interval.low == pytest.approx(0.04 - error, abs=0.004)
    assert interval.high == pytest.approx(0.04 + error, abs=0.004)
    assert interval.method == "paired-bootstrap"
    assert paired_bootstrap(differences) == interval


def test_bootstraps_without_spread_or_tasks_give_nothing() -> None:
    assert paired_bootstrap(np.zeros(20)) is None
    assert paired_bootstrap(np.array([1.0])) is None
    assert cluster_bootstrap(np.zeros((5, 2)), ratio) is None


def test_cluster_bootstrap_is_wider_than_wilson_when_samples_agree() -> None:
    """Ten samples a task that always agree are worth one sample a task."""
    sums = np.array([[10.0, 10.0]] * 20 + [[0.0, 10.0]] * 20)
    clustered, naive, honest = cluster_bootstrap(sums, ratio), wilson_interval(200, 400), wilson_interval(20, 40)
    assert clustered is not None
    assert naive is not None
    assert honest is not None
    assert clustered.high - clustered.low > 2 * (naive.high - naive.low)
    assert clustered.high - clustered.low == pytest.approx(honest.high - honest.low, abs=0.03)
