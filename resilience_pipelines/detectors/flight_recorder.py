"""The detector `flight_recorder`: which rank is behind, by the dumps of all ranks.

What belongs here: comparing dumps. What does not: a dump (`collectives.flight_recorder`).

Ranks enter the same collectives in the same order. Whoever has waited long in one that another has
not entered waits for that other rank; where all have waited long in the same one, none is behind,
and what joins them does not carry it. A rank that enters one after the other long after the first
is slow. A rank whose recorder has gone silent has stopped, or is no more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from resilience_pipelines.collectives.flight_recorder import Dump, dump_path, read_dump
from resilience_pipelines.collectives.training import TrainingJob
from resilience_pipelines.detectors.base import PollingDetector

INTERVAL_S = 0.1
PATIENCE_S = 2.0
LATE_S = 0.25
LATE_TIMES = 3
COMPARED = 8


class FlightRecorder(PollingDetector):
    """Raises an alarm when the dumps say that a rank is behind, silent or slow."""

    name = "flight_recorder"

    def __init__(self, job: TrainingJob, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._job = job

    def _look(self) -> str | None:
        dumps = [read_dump(dump_path(self._job.flight, rank.number)) for rank in self._job.ranks]
        return trouble(dumps, time.monotonic_ns())


def trouble(dumps: Sequence[Dump], now_ns: int) -> str | None:
    """What is wrong with which rank, in words; None if nothing is.

    Args:
        now_ns: CLOCK_MONOTONIC, in nanoseconds.
    """
    return behind(dumps) or silent(dumps, now_ns) or late(dumps)


def behind(dumps: Sequence[Dump]) -> str | None:
    """Who has not entered the collective that another has waited in."""
    first = max(dumps, key=lambda dump: (dump.sequence, dump.waited_s() or 0.0))
    waited_s = first.waited_s()
    if first.last is None or waited_s is None or (waited_s < PATIENCE_S and not first.final):
        return None
    where = f"collective {first.sequence} ({first.last.operation})"
    others = [dump for dump in dumps if dump.sequence < first.sequence]
    if others:
        who = ", ".join(f"{dump.rank} (at {dump.sequence})" for dump in others)
        return f"rank {who} is behind: rank {first.rank} has waited {waited_s:.3f} s in {where}"
    if len(dumps) > 1 and all((dump.waited_s() or 0.0) >= PATIENCE_S for dump in dumps):
        return f"no rank is behind: all have waited {PATIENCE_S:g} s or more in {where}"
    return None


def silent(dumps: Sequence[Dump], now_ns: int) -> str | None:
    """Whose recorder has written nothing for a while, other than a last word."""
    found = [
        f"{dump.rank} (at {dump.sequence})"
        for dump in dumps
        if not dump.final and now_ns - dump.written_ns > PATIENCE_S * 1e9
    ]
    return f"the recorder of rank {', '.join(found)} is silent" if found else None


def late(dumps: Sequence[Dump]) -> str | None:
    """Who, and nobody else, entered several of the last collectives long after the first."""
    entered = [{each.sequence: each.created_ns for each in dump.collectives} for dump in dumps]
    common = sorted(set.intersection(*(set(each) for each in entered)))[-COMPARED:]
    times = Counter(
        dump.rank
        for sequence in common
        for dump, each in zip(dumps, entered, strict=True)
        if each[sequence] - min(other[sequence] for other in entered) > LATE_S * 1e9
    )
    if len(times) != 1:
        return None
    ((rank, count),) = times.items()
    if count < LATE_TIMES:
        return None
    return f"rank {rank} entered {count} of {len(common)} collectives {LATE_S:g} s late or more"
