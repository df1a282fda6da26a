"""A stopwatch that turns consecutive steps into phases which add up.

What belongs here: timing on the host's CLOCK_MONOTONIC. What does not: phases that a worker's
output tells (`Worker.marks`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from resilience_pipelines.records import Phase

HOST_CLOCK = "host_monotonic"
HOST_RESOLUTION_S = max(time.get_clock_info("monotonic").resolution, 1e-9)


class Stopwatch:
    """Phases of one measurement, as offsets from its start.

    Args:
        started_ns: CLOCK_MONOTONIC of the start, in nanoseconds; now by default.
    """

    def __init__(self, started_ns: int | None = None) -> None:
        self.started_ns = time.monotonic_ns() if started_ns is None else started_ns
        self._phases: list[Phase] = []
        self.current: str | None = None
        """The phase that is running, or that an error ended."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a step. It is kept also when it ends with an error."""
        self.current = name
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self.add(name, begin, time.monotonic_ns())
        self.current = None

    def add(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        clock: str = HOST_CLOCK,
        resolution_s: float = HOST_RESOLUTION_S,
    ) -> None:
        """Add a phase with known boundaries on CLOCK_MONOTONIC."""
        self._phases.append(
            Phase(
                name=name,
                start_s=max(0, start_ns - self.started_ns) / 1e9,
                duration_s=max(0, end_ns - start_ns) / 1e9,
                clock=clock,
                resolution_s=resolution_s,
            )
        )

    def extend(self, phases: Iterable[Phase], started_ns: int) -> None:
        """Add phases that count from another start."""
        shift = (started_ns - self.started_ns) / 1e9
        for phase in phases:
            self._phases.append(
                phase.model_copy(update={"start_s": max(0.0, phase.start_s + shift)})
            )

    def elapsed_s(self) -> float:
        """Time since the start."""
        return (time.monotonic_ns() - self.started_ns) / 1e9

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases so far, in order of their start."""
        return tuple(sorted(self._phases, key=lambda phase: phase.start_s))

    def unaccounted_s(self, total_s: float) -> float:
        """What `total_s` holds beyond the phases."""
        return max(0.0, total_s - sum(phase.duration_s for phase in self._phases))
