"""Detectors of a job whose ranks work together: who has ended, who is silent, who is slow.

What belongs here: `rank_watch` (a supervisor's view), `rank_heartbeat` (no step is told of),
`collective_watchdog` (a rank's own time-out or broken connection) and `straggler_watch` (steps take
much longer than before). What does not: what ranks tell (`collectives.rank`), and the end of a
worker that serves (`process_watch`).
"""

from __future__ import annotations

import itertools
import statistics
import time

from resilience_pipelines.collectives.training import Rank, TrainingJob
from resilience_pipelines.detectors.base import PollingDetector

INTERVAL_S = 0.02
SILENCE_S = 2.0
SLOW_FACTOR = 4.0
SLOW_STEPS = 3
BASELINE_STEPS = 5
MIN_BASELINE_S = 0.05


class RankWatch(PollingDetector):
    """Raises an alarm when a rank has ended."""

    name = "rank_watch"

    def __init__(self, job: TrainingJob, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._job = job

    def _look(self) -> str | None:
        gone = [str(rank.number) for rank in self._job.ranks if not rank.process.alive()]
        return f"rank {', '.join(gone)} has ended" if gone else None


class RankHeartbeat(PollingDetector):
    """Raises an alarm when a rank has told of nothing for a while.

    Args:
        silence_s: how long; several times what a step takes.
    """

    name = "rank_heartbeat"

    def __init__(
        self, job: TrainingJob, *, silence_s: float = SILENCE_S, interval_s: float = INTERVAL_S
    ) -> None:
        super().__init__(interval_s)
        self._job = job
        self._silence_s = silence_s

    def _look(self) -> str | None:
        now_ns = time.monotonic_ns()
        silent = [
            str(rank.number)
            for rank in self._job.ranks
            if rank.told and now_ns - rank.told[-1].received_ns > self._silence_s * 1e9
        ]
        return f"no word of rank {', '.join(silent)} for {self._silence_s:g} s" if silent else None


class CollectiveWatchdog(PollingDetector):
    """Raises an alarm when a rank tells that a collective failed or ran out of time."""

    name = "collective_watchdog"

    def __init__(self, job: TrainingJob, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._job = job

    def _look(self) -> str | None:
        for rank in self._job.ranks:
            for told in rank.of("collective_failed"):
                waited_s, error = told.values["waited_s"], str(told.values["error"])
                first_line = error.splitlines()[0] if error else "no words"
                return f"rank {rank.number} after {waited_s:.3f} s: {first_line}"
        return None


class StragglerWatch(PollingDetector):
    """Raises an alarm when several steps in a row took much longer than the job's first ones.

    A rank that is slow makes all of them slow; it is the one that waits least in the collective.
    """

    name = "straggler_watch"

    def __init__(self, job: TrainingJob, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._job = job

    def _look(self) -> str | None:
        took_s = step_times_s(self._job.ranks[0])
        if len(took_s) < BASELINE_STEPS + SLOW_STEPS:
            return None
        usual_s = max(statistics.median(took_s[:BASELINE_STEPS]), MIN_BASELINE_S)
        if min(took_s[-SLOW_STEPS:]) <= SLOW_FACTOR * usual_s:
            return None
        slowest = min(self._job.ranks, key=_waited_s)
        return (
            f"the last {SLOW_STEPS} steps took {min(took_s[-SLOW_STEPS:]):.3f} s or more, "
            f"{usual_s:.3f} s is usual; rank {slowest.number} waits least for the others"
        )


def step_times_s(rank: Rank) -> list[float]:
    """The time between the ends of each two steps, by the rank's own CLOCK_MONOTONIC."""
    ends_ns = [int(told.values["at_ns"]) for told in rank.of("step")]
    return [(b - a) / 1e9 for a, b in itertools.pairwise(ends_ns)]


def _waited_s(rank: Rank) -> float:
    return sum(float(told.values["wait_s"]) for told in rank.of("step")[-SLOW_STEPS:])
