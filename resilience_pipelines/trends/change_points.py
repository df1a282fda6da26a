"""Change points: where the level of a series of figures changed, and stayed changed.

What belongs here: finding them in plain numbers in order of time. What does not: how large a change
is and whether it matters (`significance`), what changed at that moment (`attribution`), and which
figures make a series (the dbt marts).

The segmentation minimizes the squared deviations from each segment's mean plus a penalty for each
change, exactly, with PELT (Killick, Fearnhead and Eckley, "Optimal Detection of Changepoints With
a Linear Computational Cost", JASA 107, 2012), as implemented by ruptures. The noise that the
penalty is measured in comes from first differences, which a change of level hardly touches (von
Neumann et al., "The Mean Square Successive Difference", 1941). Points far from all their neighbours
are put back to their neighbours' median first (Hampel's filter), so that an outlier which reverts
is no change.

The penalty is `PENALTY x (1 + SHORT / n) x ln(n) x sigma^2`. In simulations the usual factor of 3
raised a false alarm in 4 of 100 series of 30 points; this one does in fewer than 1, and pays for it
in short series, where a shift has to be larger to be seen (`benchmarks/trends.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

PENALTY: Final = 4.5
SHORT: Final = 5.0
MIN_SEGMENT: Final = 2
"""Points on each side of a change: one point alone may still revert."""
MIN_POINTS: Final = 6
"""Below this the noise of a series can't be told from its changes."""
OUTLIER_SIGMAS: Final = 5.0

Floats = NDArray[np.float64]


def find_change_points(values: Sequence[float | None]) -> list[int]:
    """Indices at which a new level begins, in order.

    Args:
        values: in order of time. None and NaN are missing: they belong to no level, and a change
            is at the first value after them.

    Returns:
        Indices into `values`, none of them 0; empty where nothing changed or too little is known.

    Raises:
        ValueError: a value is infinite.
    """
    series = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    if np.isinf(series).any():
        raise ValueError("values must be finite or missing")
    present = np.flatnonzero(~np.isnan(series))
    if len(present) < MIN_POINTS:
        return []
    smooth, penalty = prepare(series[present])
    if penalty == 0:
        return []
    return [int(present[index]) for index in _pelt(smooth, penalty)]


def prepare(series: Floats) -> tuple[Floats, float]:
    """What is segmented: the series in units of its noise, without outliers, and the penalty.

    Args:
        series: no value missing.

    Returns:
        The penalty is 0 for a series without any noise and without any change.
    """
    # The scale of a series must not matter, and neither may figures near the limits of a float.
    series = series - np.median(series)
    largest = np.abs(series).max()
    if largest == 0:
        return series, 0.0
    series = _without_outliers(series / largest)
    sigma = math.sqrt(float(np.mean(np.diff(series) ** 2)) / 2)
    if sigma == 0:
        return series, 0.0
    return series / sigma, PENALTY * (1 + SHORT / len(series)) * math.log(len(series))


def _without_outliers(series: Floats) -> Floats:
    steps = np.abs(np.diff(series))
    sigma = 1.4826 * float(np.median(steps)) / math.sqrt(2)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(series, 2, mode="edge"), 5)
    middles = np.median(windows, axis=1)
    outlying = np.abs(series - middles) > OUTLIER_SIGMAS * sigma
    cleaned: Floats = np.where(outlying, middles, series)
    return cleaned


def _pelt(series: Floats, penalty: float) -> list[int]:
    # Imported here: it takes a second, and most commands look for no change.
    import ruptures

    # The linear kernel's cost is the sum of squared deviations, and its search is compiled code.
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_SEGMENT)
    ends: list[int] = search.fit(series[:, np.newaxis]).predict(pen=penalty)
    return ends[:-1]
