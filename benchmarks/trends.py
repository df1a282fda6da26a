"""Change points: how fast, how often right, how often wrong. Prints one JSON object.

    python benchmarks/trends.py [--series 100000] [--points 100]

Series are a level with 3 % of noise on every point, half of them with a shift of a tenth. `placed`
is the share of shifts found within one point, `best_possible` that of who knows that there is
exactly one shift and looks for nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from resilience_pipelines.trends.change_points import find_change_points

NOISE, SHIFT = 0.03, 0.10


def made(seed: int, points: int, shift: float) -> tuple[list[float], int]:
    """A series and the index of its shift."""
    random = np.random.default_rng(seed)
    at = int(random.integers(points // 6, points - points // 6 + 1))
    levels = np.where(np.arange(points) < at, 1.0, 1.0 + shift)
    return list(levels * (1 + NOISE * random.standard_normal(points))), at


def analyse(task: tuple[range, int]) -> int:
    """Change points of many series; returns how many there were."""
    seeds, points = task
    return sum(len(find_change_points(made(seed, points, SHIFT * (seed % 2))[0])) for seed in seeds)


def one_known_shift(values: list[float]) -> int:
    """The best place for exactly one shift, by least squares."""
    series = np.array(values)
    costs = [
        float(((series[:k] - series[:k].mean()) ** 2).sum())
        + float(((series[k:] - series[k:].mean()) ** 2).sum())
        for k in range(2, len(series) - 1)
    ]
    return int(np.argmin(costs)) + 2


def quality(points: int, trials: int) -> dict[str, float]:
    """Shares of right and wrong answers."""
    placed = best = 0
    for seed in range(trials):
        values, at = made(seed, points, SHIFT)
        placed += any(abs(found - at) <= 1 for found in find_change_points(values))
        best += abs(one_known_shift(values) - at) <= 1
    alarms = sum(bool(find_change_points(made(seed, points, 0)[0])) for seed in range(trials))
    return {
        "placed": placed / trials, "best_possible": best / trials, "false_alarms": alarms / trials,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100_000)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--trials", type=int, default=2000)
    options = parser.parse_args()
    step = 1000
    tasks = [
        (range(first, min(first + step, options.series)), options.points)
        for first in range(0, options.series, step)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(find_change_points, [[1.0, 2.0] * 5] * (os.cpu_count() or 1)))
        begin = time.monotonic()
        changes = sum(pool.map(analyse, tasks))
        elapsed_s = time.monotonic() - begin
    print(
        json.dumps(
            {
                "series": options.series,
                "points": options.points,
                "cores": os.cpu_count(),
                "elapsed_s": round(elapsed_s, 1),
                "changes": changes,
                **{f"of_{n}_points": quality(n, options.trials) for n in (12, 30, 100)},
            },
            indent=2,
        )
    )
