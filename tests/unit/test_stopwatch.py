"""Phases of a stopwatch add up to its total."""

from __future__ import annotations

import pytest

from resilience_pipelines.records import Phase
from resilience_pipelines.stopwatch import Stopwatch


def test_phases_and_unaccounted_are_the_total() -> None:
    watch = Stopwatch(started_ns=0)
    watch.add("a", 100, 300)
    watch.add("b", 500, 1_000)
    assert watch.unaccounted_s(1e-6) == pytest.approx(0.3e-6)
    assert [phase.name for phase in watch.phases] == ["a", "b"]


def test_a_phase_that_fails_is_kept_and_named() -> None:
    watch = Stopwatch()
    with pytest.raises(ValueError, match="no"), watch.phase("verify"):
        raise ValueError("no")
    assert [phase.name for phase in watch.phases] == ["verify"]
    assert watch.current == "verify"


def test_phases_of_another_watch_are_moved_to_this_ones_start() -> None:
    watch = Stopwatch(started_ns=1_000_000_000)
    inner = Phase(name="lock", start_s=0.5, duration_s=0.1, clock="c", resolution_s=1e-9)
    watch.extend([inner], started_ns=2_000_000_000)
    (moved,) = watch.phases
    assert moved.start_s == pytest.approx(1.5)
    assert moved.duration_s == pytest.approx(0.1)
