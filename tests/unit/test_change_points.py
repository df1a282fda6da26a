"""Change points are where a level changed and stayed, whatever the unit, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from resilience_pipelines.trends.change_points import (
    MIN_POINTS,
    MIN_SEGMENT,
    find_change_points,
    prepare,
)
from resilience_pipelines.trends.oracle import best_segmentation, segmentation_cost

SERIES = st.lists(st.integers(-1000, 1000).map(float), min_size=MIN_POINTS, max_size=40)


def planted(seed: int, shift: float, noise: float, points: int = 30, at: int = 15) -> list[float]:
    """A level of 100 that changes by `shift` at index `at`; both are fractions of the level."""
    random = np.random.default_rng(seed)
    levels = np.where(np.arange(points) < at, 100.0, 100.0 * (1 + shift))
    return list(levels + 100 * noise * random.standard_normal(points))


@given(SERIES)
@settings(max_examples=200, deadline=None)  # the search is imported in the first one
def test_the_fast_search_is_as_good_as_the_plain_one(values: list[float]) -> None:
    series, penalty = prepare(np.array(values))
    assume(penalty > 0)
    numbers = [float(value) for value in series]
    found = find_change_points(values)
    best = best_segmentation(numbers, penalty, MIN_SEGMENT)
    # Two segmentations may cost the same; neither may cost less.
    assert segmentation_cost(numbers, found, penalty) == pytest.approx(
        segmentation_cost(numbers, best, penalty), rel=1e-9, abs=1e-9
    )


@given(SERIES, st.integers(-(10**6), 10**6))
def test_adding_a_constant_changes_nothing(values: list[float], constant: int) -> None:
    assert find_change_points([value + constant for value in values]) == find_change_points(values)


@given(SERIES, st.sampled_from([2.0**-20, 0.5, 2.0, 2.0**40]), st.sampled_from([1, -1]))
def test_another_unit_changes_nothing(values: list[float], unit: float, sign: int) -> None:
    scaled = [sign * unit * value for value in values]
    assert find_change_points(scaled) == find_change_points(values)


@given(SERIES, st.data())
def test_missing_values_are_skipped(values: list[float], data: st.DataObject) -> None:
    at = sorted(data.draw(st.sets(st.integers(0, len(values)), max_size=5)), reverse=True)
    holed: list[float | None] = list(values)
    for index in at:
        holed.insert(index, data.draw(st.sampled_from([None, math.nan])))
    kept = [i for i, value in enumerate(holed) if value is not None and not math.isnan(value)]
    assert find_change_points(holed) == [kept[index] for index in find_change_points(values)]


@given(st.floats(-1e300, 1e300), st.integers(0, 60))
def test_identical_values_never_change(value: float, points: int) -> None:
    assert find_change_points([value] * points) == []


@given(st.lists(st.floats(-1e9, 1e9), max_size=MIN_POINTS - 1))
def test_too_few_points_have_no_change(values: Sequence[float]) -> None:
    assert find_change_points(values) == []


@given(st.integers(2, 27), st.floats(0.01, 100), st.integers(0, 10**6))
def test_one_outlier_that_reverts_is_no_change(at: int, factor: float, seed: int) -> None:
    quiet = planted(seed, 0, 0.001)
    assume(abs(factor - 1) > 0.1)
    outlying = [*quiet[:at], quiet[at] * factor, *quiet[at + 1 :]]
    # What the filter puts in its place: the noise is then a little less than with the point itself.
    window = [outlying[min(max(place, 0), len(outlying) - 1)] for place in range(at - 2, at + 3)]
    filtered = [*quiet[:at], median(window), *quiet[at + 1 :]]
    assume(not find_change_points(quiet))
    assume(not find_change_points(filtered))
    assert find_change_points(outlying) == []


def test_a_change_without_noise_is_found_where_it_is() -> None:
    assert find_change_points([1.0] * 10 + [2.0] * 10 + [1.5] * 10) == [10, 20]


def test_an_infinite_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        find_change_points([math.inf] * 10)


def within_one_point(shift: float, noise: float, trials: int) -> float:
    positions = np.random.default_rng(1).integers(5, 26, size=trials)
    hits = sum(
        any(
            abs(found - at) <= 1
            for found in find_change_points(planted(seed, shift, noise, 30, at))
        )
        for seed, at in enumerate(positions)
    )
    return hits / trials


# A point of a trend is the median of at least five starts, which has 0.54 times their noise.
MEDIAN_OF_FIVE = 0.536


def test_a_shift_of_a_tenth_is_found_within_one_point() -> None:
    """In series of 30 medians of five starts that scatter by 3 %, in 99 of 100 of them."""
    assert within_one_point(0.10, 0.03 * MEDIAN_OF_FIVE, 1000) >= 0.99


def test_single_starts_are_placed_nearly_as_well_as_can_be() -> None:
    """With 3 % on every point even who knows that there is one shift is off by more in 2 of 100."""
    assert within_one_point(0.10, 0.03, 1000) >= 0.96


@pytest.mark.parametrize("points", [30, 100])
def test_at_most_one_series_in_a_hundred_raises_a_false_alarm(points: int) -> None:
    alarms = sum(bool(find_change_points(planted(seed, 0, 0.03, points))) for seed in range(2000))
    assert alarms / 2000 <= 0.01
