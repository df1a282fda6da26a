"""Properties of the bootstrap intervals, and the fast resampling against a slow plain one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.trends import statistics
from resilience_pipelines.trends.statistics import (
    Interval,
    difference_of_medians_ci,
    mean_ci,
    median_ci,
    ratio_of_medians_ci,
)

times_s = st.floats(min_value=1e-3, max_value=1e4, allow_nan=False)
samples = st.lists(times_s, min_size=2, max_size=40)


def the(interval: Interval | None) -> Interval:
    assert interval is not None
    return interval


@given(samples)
def test_interval_contains_the_median(values: list[float]) -> None:
    interval = the(median_ci(values))
    assert interval.low <= interval.estimate <= interval.high
    assert interval.n == len(values)
    assert math.isclose(interval.estimate, float(np.median(values)), rel_tol=1e-12)


@given(samples)
def test_interval_stays_within_the_values(values: list[float]) -> None:
    interval = the(median_ci(values))
    assert min(values) <= interval.low
    assert interval.high <= max(values)


@given(samples, st.randoms(use_true_random=False))
def test_order_of_values_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert median_ci(values) == median_ci(shuffled)


@given(samples, st.floats(min_value=0, max_value=1e4))
def test_a_shift_of_the_values_shifts_the_interval(values: list[float], shift: float) -> None:
    plain = the(median_ci(values))
    moved = the(median_ci([value + shift for value in values]))
    for name in ("estimate", "low", "high"):
        assert math.isclose(
            getattr(moved, name), getattr(plain, name) + shift, rel_tol=1e-9, abs_tol=1e-9
        )


@given(samples, st.floats(min_value=1e-3, max_value=1e3))
def test_a_change_of_unit_scales_the_interval(values: list[float], factor: float) -> None:
    plain = the(median_ci(values))
    scaled = the(median_ci([value * factor for value in values]))
    for name in ("estimate", "low", "high"):
        assert math.isclose(getattr(scaled, name), getattr(plain, name) * factor, rel_tol=1e-9)


@given(samples, st.integers(min_value=0, max_value=2**32))
def test_the_same_seed_gives_the_same_interval(values: list[float], seed: int) -> None:
    assert median_ci(values, seed) == median_ci(values, seed)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_values_have_no_interval(values: list[float]) -> None:
    assert median_ci(values) is None
    assert mean_ci(values) is None
    assert ratio_of_medians_ci(values, [1.0, 2.0]) is None
    assert ratio_of_medians_ci([1.0, 2.0], values) is None
    assert difference_of_medians_ci(values, [1.0, 2.0]) is None
    assert difference_of_medians_ci([1.0, 2.0], values) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        median_ci([1.0, bad])
    with pytest.raises(ValueError, match="finite"):
        mean_ci([1.0, bad])


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert median_ci([3.0] * 7) == Interval(7, 3.0, 3.0, 3.0)


@given(samples, st.randoms(use_true_random=False))
def test_the_interval_of_a_mean_contains_it_in_any_order(
    values: list[float], random: object
) -> None:
    interval = the(mean_ci(values))
    tolerance = 1e-9 * max(1.0, *map(abs, values))
    assert math.isclose(interval.estimate, math.fsum(values) / len(values), rel_tol=1e-9)
    assert min(values) - tolerance <= interval.low <= interval.estimate + tolerance
    assert interval.estimate - tolerance <= interval.high <= max(values) + tolerance
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert mean_ci(shuffled) == interval


def test_the_interval_of_a_mean_is_that_of_plain_resampling() -> None:
    generator = np.random.default_rng(5)
    values = generator.exponential(size=12)
    means = sorted(generator.choice(values, size=12).mean() for _ in range(20_000))
    interval = the(mean_ci(values.tolist()))
    width = interval.high - interval.low
    assert abs(interval.low - means[500]) < 0.05 * width
    assert abs(interval.high - means[-500]) < 0.05 * width


@given(samples, samples)
def test_ratio_interval_contains_the_ratio(above: list[float], below: list[float]) -> None:
    interval = the(ratio_of_medians_ci(above, below))
    assert interval.low <= interval.estimate <= interval.high
    assert interval.n == min(len(above), len(below))


@given(samples, samples, st.floats(min_value=1e-3, max_value=1e3))
def test_ratio_does_not_depend_on_the_unit(
    above: list[float], below: list[float], factor: float
) -> None:
    plain = the(ratio_of_medians_ci(above, below))
    scaled = the(
        ratio_of_medians_ci([value * factor for value in above], [v * factor for v in below])
    )
    for name in ("estimate", "low", "high"):
        assert math.isclose(getattr(scaled, name), getattr(plain, name), rel_tol=1e-9)


def test_ratio_over_zero_has_no_interval() -> None:
    assert ratio_of_medians_ci([1.0, 2.0], [0.0, 1.0]) is None


def test_ratio_resamples_both_sides_independently() -> None:
    # With one stream for both, every resample of equal samples would have the ratio 1.
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    interval = the(ratio_of_medians_ci(values, values))
    assert interval.low < 1 < interval.high


@given(samples, samples)
def test_difference_interval_contains_the_difference(above: list[float], less: list[float]) -> None:
    interval = the(difference_of_medians_ci(above, less))
    assert interval.low <= interval.estimate <= interval.high
    assert interval.n == min(len(above), len(less))


def test_difference_from_a_constant_is_the_median_moved() -> None:
    values = [1.0, 2.0, 3.0, 5.0, 8.0]
    moved, plain = the(difference_of_medians_ci(values, [2.0, 2.0])), the(median_ci(values))
    assert (moved.estimate, moved.low, moved.high) == (1.0, plain.low - 2, plain.high - 2)


def test_difference_resamples_both_sides_independently() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    interval = the(difference_of_medians_ci(values, values))
    assert interval.low < 0 < interval.high


def plain_bootstrap(values: list[float], resamples: int) -> tuple[float, float]:
    generator = np.random.default_rng(1)
    medians = [
        float(np.median(generator.choice(values, size=len(values)))) for _ in range(resamples)
    ]
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 20, 31])
def test_fast_resampling_has_the_distribution_of_the_plain_bootstrap(n: int) -> None:
    values = sorted(np.random.default_rng(n).lognormal(size=n).tolist())
    fast = statistics._resampled_medians(np.asarray(values), np.random.default_rng(2))
    generator = np.random.default_rng(3)
    plain = np.median(generator.choice(values, size=(20_000, n)), axis=1)
    # Kolmogorov-Smirnov distance: for these counts 0.03 is exceeded once in about 10^5 trials.
    grid = np.concatenate([fast, plain])
    distance = np.abs(
        np.searchsorted(np.sort(fast), grid + 1e-12) / len(fast)
        - np.searchsorted(np.sort(plain), grid + 1e-12) / len(plain)
    ).max()
    assert distance < 0.03


@pytest.mark.parametrize("n", [5, 12, 25])
def test_interval_agrees_with_the_plain_bootstrap(n: int) -> None:
    # Evenly spaced values: one rank is one unit, and both may differ by at most one rank.
    values = [float(value) for value in range(n)]
    interval = the(median_ci(values))
    low, high = plain_bootstrap(values, 4_000)
    assert abs(interval.low - low) <= 1
    assert abs(interval.high - high) <= 1


def test_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        interval = the(median_ci(generator.exponential(size=25).tolist()))
        covered += interval.low <= math.log(2) <= interval.high
    assert 0.90 <= covered / 400 <= 0.99
