"""The mean over training seeds and its interval, against numbers worked out by hand and against the density of t."""

import math

import numpy as np
import pytest

from glyph.evaluation.seeds import T_975, seed_mean, t_quantile


def test_three_seeds() -> None:
    """0.4, 0.5, 0.6: standard deviation 0.1, so 4.303 · 0.1 / √3 on each side."""
    mean = seed_mean([0.4, 0.5, 0.6])
    assert mean.mean == pytest.approx(0.5)
    assert mean.interval is not None
    assert mean.interval.low == pytest.approx(0.5 - 0.24843, abs=1e-4)
    assert mean.interval.high == pytest.approx(0.5 + 0.24843, abs=1e-4)
    assert (mean.interval.method, mean.n) == ("t-over-seeds", 3)


def test_a_share_stays_between_0_and_1_and_a_loss_does_not() -> None:
    share, loss = seed_mean([0.1, 0.9], share=True).interval, seed_mean([0.1, 0.9]).interval
    assert share is not None
    assert loss is not None
    assert (share.low, share.high) == (0.0, 1.0)
    assert loss.low == pytest.approx(0.5 - 12.706 * 0.4)


def test_what_is_undefined_is_left_out_and_never_0() -> None:
    assert seed_mean([None, None]).mean is None
    assert seed_mean([]).n == 0
    half = seed_mean([0.5, None])
    assert (half.mean, half.interval, half.n) == (0.5, None, 1)
    assert seed_mean([0.5, 0.5, 0.5]).interval is None  # no spread is no certainty


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 30, 31, 60])
def test_quantiles_leave_a_fortieth_above(freedom: int) -> None:
    """Half of the density lies above 0; the integral up to the quantile must take 0.475 of it."""
    constant = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    x = np.linspace(0, t_quantile(freedom), 200_001)
    density = constant * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert np.trapezoid(density, x) == pytest.approx(0.475, abs=2e-4)


def test_quantiles_fall_towards_the_normal() -> None:
    values = [t_quantile(freedom) for freedom in range(1, 60)]
    assert values == sorted(values, reverse=True)
    assert len(T_975) == 30
    with pytest.raises(ValueError, match="got 0"):
        t_quantile(0)
