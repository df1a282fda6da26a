"""Telemetry: samples of a running worker, taken beside a measurement at a fixed interval.

What belongs here: the sampling thread and its rows. What does not: what the samples mean.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import polars as pl
import psutil

from resilience_pipelines.samples import SAMPLES_SCHEMA
from resilience_pipelines.workers.space import Process

SAMPLE_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Reading:
    """One value of one series."""

    series: str
    unit: str
    value: float


Source = Callable[[], list[Reading]]

Row = tuple[str, float, str, str, float]
"""subject, at_s, series, unit, value"""


class Watched:
    """One subject and the sources that are sampled for it.

    Args:
        rows: where samples go.
    """

    def __init__(self, subject: str, sources: Iterable[Source], rows: list[Row]) -> None:
        self._subject = subject
        self._sources = list(sources)
        self._rows = rows
        self._started = time.monotonic()
        self.failure: str | None = None
        """The error that ended its samples; what they are beside goes on."""

    def add(self, source: Source) -> None:
        """Sample a further source, now for the first time."""
        self._sources.append(source)
        self._sample((source,))

    def sample(self) -> None:
        """Take one sample of each source."""
        self._sample(tuple(self._sources))

    def _sample(self, sources: Sequence[Source]) -> None:
        if self.failure is not None:
            return
        at_s = time.monotonic() - self._started
        try:
            readings = [reading for source in sources for reading in source()]
        except Exception as error:  # noqa: BLE001 - recorded; a measurement does not fail with it
            self.failure = repr(error)
            return
        self._rows.extend(
            (self._subject, at_s, reading.series, reading.unit, reading.value)
            for reading in readings
        )


class Telemetry:
    """Collects samples of several measurements; `frame` gives them all.

    Args:
        interval_s: pause between two samples of a source.
        machine: what is sampled for every subject, such as the machine's GPUs.
    """

    def __init__(
        self, interval_s: float = SAMPLE_INTERVAL_S, machine: Source | None = None
    ) -> None:
        self._interval_s = interval_s
        self._machine = () if machine is None else (machine,)
        self._rows: list[Row] = []
        self.failures: dict[str, str] = {}
        """Subjects whose samples ended early, and the error that ended them."""

    @contextmanager
    def watching(self, subject: str, *sources: Source) -> Iterator[Watched]:
        """Sample sources in a thread of its own for as long as the block runs.

        Args:
            subject: the measurement that the samples belong to.
        """
        watched = Watched(subject, (*self._machine, *sources), self._rows)
        stop = threading.Event()

        def sample() -> None:
            while watched.failure is None:
                watched.sample()
                if stop.wait(self._interval_s):
                    return

        thread = threading.Thread(target=sample, name=f"telemetry-{subject}", daemon=True)
        thread.start()
        try:
            yield watched
        finally:
            stop.set()
            thread.join(5.0)
            if watched.failure is not None:
                self.failures[subject] = watched.failure

    def frame(self) -> pl.DataFrame:
        """All samples: subject, at_s (since the block began), series, unit, value."""
        return pl.DataFrame(self._rows, schema=SAMPLES_SCHEMA, orient="row")


def process_source(process: Process) -> Source:
    """Resident memory in bytes and CPU time in seconds of a process tree."""

    def read() -> list[Reading]:
        resident = 0
        cpu_s = 0.0
        for member in process.tree():
            try:
                with member.oneshot():
                    resident += member.memory_info().rss
                    times = member.cpu_times()
                    cpu_s += times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return [
            Reading("worker_resident_memory", "bytes", resident),
            Reading("worker_cpu_time", "seconds", cpu_s),
        ]

    return read
