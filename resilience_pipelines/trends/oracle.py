"""The slow, plain way to find change points, which the fast one is tested against.

What belongs here: optimal partitioning, written for reading (Jackson et al., "An Algorithm for
Optimal Partitioning of Data on an Interval", 2005). What does not: anything that is used to judge
a measurement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def squared_deviations(values: Sequence[float]) -> float:
    """Of the values from their mean."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def segmentation_cost(values: Sequence[float], changes: Sequence[int], penalty: float) -> float:
    """What is minimized: deviations within the segments, and a penalty for each change."""
    edges = [0, *changes, len(values)]
    inside = sum(squared_deviations(values[start:end]) for start, end in itertools.pairwise(edges))
    return inside + penalty * len(changes)


def best_segmentation(values: Sequence[float], penalty: float, min_segment: int) -> list[int]:
    """The changes with the least cost, by trying every last segment of every beginning.

    Args:
        penalty: for each change, in squared units of the values.
        min_segment: points that a segment has at least.
    """
    best: dict[int, tuple[float, list[int]]] = {0: (-penalty, [])}
    for end in range(min_segment, len(values) + 1):
        options = [
            (
                cost + penalty + squared_deviations(values[start:end]),
                [*changes, start] if start else [],
            )
            for start, (cost, changes) in best.items()
            if end - start >= min_segment
        ]
        best[end] = min(options)
    return best[len(values)][1]
