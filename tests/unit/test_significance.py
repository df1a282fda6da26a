"""Significant is not relevant: a change can be sure and small, or large and within the noise."""

from __future__ import annotations

import numpy as np
import pytest

from resilience_pipelines.trends.significance import MIN_HISTORY, changes_of, noise_threshold


def series(
    levels: list[float], noise: float, *, runs_each: int = 4, per_run: int = 5, seed: int = 1
) -> tuple[list[float], list[str]]:
    """Runs of a few starts each, at each level in turn."""
    random = np.random.default_rng(seed)
    values: list[float] = []
    runs: list[str] = []
    for number, level in enumerate(np.repeat(levels, runs_each)):
        values += list(level * (1 + noise * random.standard_normal(per_run)))
        runs += [f"run-{number}"] * per_run
    return values, runs


def test_a_large_change_is_significant_and_relevant() -> None:
    values, runs = series([10, 13], 0.02)
    (change,) = changes_of(values, runs)
    assert change.index == 20
    assert (change.n_before, change.n_after) == (20, 20)
    assert change.fraction == pytest.approx(0.3, abs=0.03)
    assert change.low is not None
    assert change.high is not None
    assert change.low < 0.3 < change.high
    assert change.significant
    assert change.relevant is True


def test_a_sure_change_within_what_runs_differ_by_anyway_is_not_relevant() -> None:
    """Each run has a level of its own, 4 % apart; inside a run nothing scatters."""
    offsets = [1.0, 1.04, 1.0, 1.04, 1.0, 1.04, 1.0, 1.04]
    values = [10 * offset * (1.05 if run >= 4 else 1) for run, offset in enumerate(offsets)]
    threshold = noise_threshold(np.repeat(values, 5), [str(n // 5) for n in range(40)], [20])
    assert threshold is not None
    assert threshold > 0.03


def test_without_history_relevance_is_not_known() -> None:
    values, runs = series([10, 13], 0.02, runs_each=2, per_run=5)
    (change,) = changes_of(values, runs)
    assert change.threshold is None
    assert change.significant
    assert change.relevant is None


def test_the_threshold_is_not_raised_by_the_changes_themselves() -> None:
    values, runs = series([10, 20, 10], 0.01)
    assert [change.index for change in changes_of(values, runs)] == [20, 40]
    threshold = noise_threshold(values, runs, [20, 40])
    assert threshold is not None
    assert threshold < 0.1


def test_the_threshold_is_of_the_series_own_noise() -> None:
    quiet = noise_threshold(*series([10], 0.005, runs_each=20), [])
    loud = noise_threshold(*series([10], 0.05, runs_each=20), [])
    assert quiet is not None
    assert loud is not None
    assert quiet < loud / 5


@pytest.mark.parametrize("runs_each", range(1, MIN_HISTORY + 1))
def test_fewer_than_the_least_history_gives_no_threshold(runs_each: int) -> None:
    assert noise_threshold(*series([10], 0.02, runs_each=runs_each), []) is None


def test_a_level_of_zero_has_no_fraction() -> None:
    (change,) = changes_of([0.0] * 10 + [1.0] * 10, ["a"] * 20)
    assert (change.fraction, change.low, change.high) == (None, None, None)
    assert not change.significant
    assert change.relevant is False


def test_lengths_that_differ_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 values, but 1 runs"):
        changes_of([1.0, 2.0], ["a"])
