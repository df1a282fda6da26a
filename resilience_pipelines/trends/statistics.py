"""Statistics: median and mean of a few repeats, ratio and difference of two medians, their spread.

What belongs here: point estimates and their bootstrap confidence intervals, as functions of plain
numbers. What does not: which measurements may be put together (the dbt marts), and whether a
difference matters (`significance`, `change_points`).

The intervals are percentile bootstrap intervals (Efron, "Bootstrap Methods: Another Look at the
Jackknife", Annals of Statistics 7, 1979; Efron and Tibshirani, "An Introduction to the Bootstrap",
1993, chapter 13). A resample of `n` values is `n` uniform draws of ranks, and its median depends on
the middle one or two of these draws alone. Order statistics of uniform draws are Beta distributed
(David and Nagaraja, "Order Statistics", 2003, section 2.1), so they are drawn directly: the same
distribution as resampling all values, in time and memory that do not grow with `n`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 10_000
SEED = 20_260_101
"""The seed of every interval in the marts: the same measurements give the same interval."""


@dataclass(frozen=True)
class Interval:
    """A point estimate with its confidence interval, in the unit of the values.

    Attributes:
        n: how many values it stands on; of a ratio, the smaller of both counts.
    """

    n: int
    estimate: float
    low: float
    high: float


def median_ci(values: Sequence[float], seed: int = SEED) -> Interval | None:
    """The median and its 95 % interval.

    Returns:
        None for fewer than two values: one value says nothing of its own spread.

    Raises:
        ValueError: a value is not finite.
    """
    ordered = _ordered(values)
    if len(ordered) < 2:
        return None
    medians = _resampled_medians(ordered, np.random.default_rng(seed))
    low, high = _bounds(medians)
    return Interval(len(ordered), _median(ordered), low, high)


def mean_ci(values: Sequence[float], seed: int = SEED) -> Interval | None:
    """The mean and its 95 % interval. Its memory grows with the number of values.

    Returns:
        None for fewer than two values: one value says nothing of its own spread.

    Raises:
        ValueError: a value is not finite.
    """
    ordered = _ordered(values)
    n = len(ordered)
    if n < 2:
        return None
    # How often each value is in a resample.
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    low, high = _bounds((counts * ordered).sum(axis=1) / n)
    return Interval(n, float(ordered.mean()), low, high)


def ratio_of_medians_ci(
    numerator: Sequence[float], denominator: Sequence[float], seed: int = SEED
) -> Interval | None:
    """The median of one sample over that of another, independent one, and its 95 % interval.

    Returns:
        None where either has fewer than two values, or where the denominator holds a value that
        is not above zero: then a resample has no ratio.

    Raises:
        ValueError: a value is not finite.
    """
    above, below = _ordered(numerator), _ordered(denominator)
    if min(len(above), len(below)) < 2 or below[0] <= 0:
        return None
    streams = [np.random.default_rng([seed, stream]) for stream in (0, 1)]
    ratios = _resampled_medians(above, streams[0]) / _resampled_medians(below, streams[1])
    low, high = _bounds(ratios)
    return Interval(min(len(above), len(below)), _median(above) / _median(below), low, high)


def difference_of_medians_ci(
    values: Sequence[float], less: Sequence[float], seed: int = SEED
) -> Interval | None:
    """The median of one sample less that of another, independent one, and its 95 % interval.

    Returns:
        None where either has fewer than two values.

    Raises:
        ValueError: a value is not finite.
    """
    first, second = _ordered(values), _ordered(less)
    n = min(len(first), len(second))
    if n < 2:
        return None
    streams = [np.random.default_rng([seed, stream]) for stream in (0, 1)]
    low, high = _bounds(
        _resampled_medians(first, streams[0]) - _resampled_medians(second, streams[1])
    )
    return Interval(n, _median(first) - _median(second), low, high)


def _ordered(values: Sequence[float]) -> NDArray[np.float64]:
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not np.isfinite(ordered).all():
        raise ValueError(f"values must be finite, but one is {ordered[~np.isfinite(ordered)][0]}")
    return ordered


def _median(ordered: NDArray[np.float64]) -> float:
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(low / 2 + high / 2)


def _resampled_medians(
    ordered: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Medians of `RESAMPLES` resamples of sorted values."""
    n = len(ordered)
    middle = (n + 1) // 2
    lower = generator.beta(middle, n + 1 - middle, size=RESAMPLES)
    low = _at(ordered, lower)
    if n % 2:
        return low
    # The next order statistic is the smallest of the n - middle uniform draws above `lower`.
    upper = lower + (1 - lower) * generator.beta(1, n - middle, size=RESAMPLES)
    return low / 2 + _at(ordered, upper) / 2


def _at(ordered: NDArray[np.float64], fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    ranks = np.minimum((fractions * len(ordered)).astype(np.int64), len(ordered) - 1)
    return ordered[ranks]


def _bounds(resampled: NDArray[np.float64]) -> tuple[float, float]:
    # Bounds are values that were resampled, not points between two of them.
    tail = (1 - CONFIDENCE) / 2
    resampled.sort()
    last = len(resampled) - 1
    return (
        float(resampled[math.floor(tail * last)]),
        float(resampled[math.ceil((1 - tail) * last)]),
    )
