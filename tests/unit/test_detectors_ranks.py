"""Detectors of a training job see what they are for, and nothing of a job that is well."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from resilience_pipelines.collectives.training import Rank, Told, TrainingJob
from resilience_pipelines.detectors.base import PollingDetector
from resilience_pipelines.detectors.ranks import (
    CollectiveWatchdog,
    RankHeartbeat,
    RankWatch,
    StragglerWatch,
)


def rank(
    number: int, step_ends_s: Sequence[float], *, alive: bool = True, wait_s: float = 0
) -> Rank:
    """A rank without a process, that ended its steps so many seconds ago."""
    made = Rank.__new__(Rank)
    made.number = number
    made.process = cast("Any", SimpleNamespace(alive=lambda: alive))
    now_ns = time.monotonic_ns()
    made.told = [
        Told(
            now_ns - round(ago_s * 1e9),
            {"event": "step", "step": step, "at_ns": now_ns - round(ago_s * 1e9), "wait_s": wait_s},
        )
        for step, ago_s in enumerate(step_ends_s, 1)
    ]
    return made


def job(*ranks: Rank) -> TrainingJob:
    return cast("TrainingJob", SimpleNamespace(ranks=ranks))


STEADY = [0.06 * n for n in range(20, -1, -1)]


@pytest.mark.parametrize("detector", [RankWatch, RankHeartbeat, CollectiveWatchdog, StragglerWatch])
def test_a_job_that_is_well_raises_no_alarm(detector: type[PollingDetector]) -> None:
    well = job(rank(0, STEADY), rank(1, STEADY))
    assert detector(well)._look() is None  # type: ignore[call-arg, arg-type]


def test_a_rank_that_has_told_of_nothing_yet_is_not_silent() -> None:
    assert RankHeartbeat(job(rank(0, [])))._look() is None


def test_the_rank_that_ended_is_named() -> None:
    found = RankWatch(job(rank(0, STEADY), rank(1, STEADY, alive=False)))._look()
    assert found == "rank 1 has ended"


def test_the_rank_that_is_silent_is_named() -> None:
    found = RankHeartbeat(job(rank(0, STEADY), rank(1, [9.0, 2.5])), silence_s=2)._look()
    assert found == "no word of rank 1 for 2 s"


def test_a_collective_that_ran_out_of_time_is_told_by_whoever_waited() -> None:
    waiting = rank(0, STEADY)
    values = {"event": "collective_failed", "waited_s": 3.0, "error": "Timed out\nstack"}
    waiting.told.append(Told(time.monotonic_ns(), values))
    found = CollectiveWatchdog(job(waiting, rank(1, STEADY)))._look()
    assert found == "rank 0 after 3.000 s: Timed out"


def test_steps_that_take_much_longer_are_a_straggler_and_the_slow_one_is_named() -> None:
    slow = [9.0 + 0.06 * n for n in range(10, 0, -1)] + [1.5, 1.0, 0.5, 0.0]
    found = StragglerWatch(job(rank(0, slow, wait_s=0.4), rank(1, slow, wait_s=0.01)))._look()
    assert found is not None
    assert "rank 1 waits least" in found


def test_one_slow_step_is_no_straggler() -> None:
    hiccup = [9.0 + 0.06 * n for n in range(10, 0, -1)] + [0.18, 0.12, 0.06, 0.0]
    assert StragglerWatch(job(rank(0, hiccup), rank(1, hiccup)))._look() is None
