"""Whether a change is significant, and whether it is relevant: two questions.

What belongs here: both answers for the change points of one series of figures. What does not:
finding the points (`change_points`) and their causes (the marts).

A change is *significant* when the interval of the ratio of both levels' medians excludes 1: chance
alone hardly makes it. It is *relevant* when it is larger, too, than what this series does by itself
between one run and the next, where nothing changed. Where a series has too little history to know
that, relevance is not known, which is not the same as no.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from resilience_pipelines.trends.change_points import find_change_points
from resilience_pipelines.trends.statistics import ratio_of_medians_ci

MIN_HISTORY: Final = 4
"""Changes from run to run below which a series' own noise is not known."""


@dataclass(frozen=True)
class Change:
    """A change of level.

    Attributes:
        index: of the first value of the new level.
        n_before, n_after: how many values each level stands on.
        before, after: medians of both levels, in the unit of the values.
        fraction: `after / before - 1`; None where `before` is not above zero.
        low, high: 95 % interval of the fraction; None where there is none.
        threshold: the fraction that this series exceeds only rarely by itself; None if not known.
    """

    index: int
    n_before: int
    n_after: int
    before: float
    after: float
    fraction: float | None
    low: float | None
    high: float | None
    threshold: float | None

    @property
    def significant(self) -> bool:
        """Whether the interval excludes no change."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def relevant(self) -> bool | None:
        """Whether it is significant and above the threshold; None where that is not known."""
        if not self.significant or self.fraction is None:
            return False
        return None if self.threshold is None else abs(self.fraction) > self.threshold


def changes_of(values: Sequence[float], runs: Sequence[str]) -> list[Change]:
    """The changes of level of a series.

    Args:
        values: in order of time.
        runs: the run that each value was measured in.

    Raises:
        ValueError: a value is not finite, or the lengths differ.
    """
    if len(values) != len(runs):
        raise ValueError(f"{len(values)} values, but {len(runs)} runs")
    found = find_change_points(values)
    threshold = noise_threshold(values, runs, found)
    edges = [0, *found, len(values)]
    return [
        _change(values[start:middle], values[middle:end], middle, threshold)
        for start, middle, end in zip(edges, edges[1:], edges[2:], strict=False)
    ]


def noise_threshold(
    values: Sequence[float], runs: Sequence[str], changes: Sequence[int]
) -> float | None:
    """The third quartile plus three times the interquartile range of what runs differ by.

    It is over the relative changes from the median of one run to that of the next, where both lie
    on the same level.

    Returns:
        A fraction; None below `MIN_HISTORY` such changes.
    """
    levels = np.searchsorted(np.asarray(changes), np.arange(len(values)), side="right")
    medians = [
        (level, float(np.median([value for *_, value in group])))
        for (level, _), group in itertools.groupby(
            zip(levels, runs, values, strict=True), key=lambda item: (item[0], item[1])
        )
    ]
    steps = [
        abs(after / before - 1)
        for (level, before), (next_level, after) in itertools.pairwise(medians)
        if level == next_level and before > 0
    ]
    if len(steps) < MIN_HISTORY:
        return None
    first, third = np.quantile(steps, [0.25, 0.75])
    return float(third + 3 * (third - first))


def _change(
    before: Sequence[float], after: Sequence[float], index: int, threshold: float | None
) -> Change:
    old, new = float(np.median(before)), float(np.median(after))
    ratio = ratio_of_medians_ci(after, before)
    return Change(
        index=index,
        n_before=len(before),
        n_after=len(after),
        before=old,
        after=new,
        fraction=new / old - 1 if old > 0 else None,
        low=ratio.low - 1 if ratio else None,
        high=ratio.high - 1 if ratio else None,
        threshold=threshold,
    )
