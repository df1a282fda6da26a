"""Telemetry: samples of a running worker, taken beside a measurement at a fixed interval.

What belongs here: the sampling thread and its rows. What does not: what the samples mean.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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


class Telemetry:
    """Collects samples of several measurements; `frame` gives them all.

    Args:
        interval_s: pause between two samples of a source.
    """

    def __init__(self, interval_s: float = SAMPLE_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._rows: list[tuple[str, float, str, str, float]] = []
        self.failures: dict[str, str] = {}
        """Subjects whose samples ended early, and the error that ended them."""

    @contextmanager
    def watching(self, subject: str, source: Source) -> Iterator[None]:
        """Sample a source in a thread of its own for as long as the block runs.

        Args:
            subject: the measurement that the samples belong to.
        """
        stop = threading.Event()
        started = time.monotonic()

        def sample() -> None:
            while True:
                at_s = time.monotonic() - started
                try:
                    readings = source()
                except Exception as error:  # noqa: BLE001 - samples end; what they are beside goes on
                    self.failures[subject] = repr(error)
                    return
                self._rows.extend(
                    (subject, at_s, reading.series, reading.unit, reading.value)
                    for reading in readings
                )
                if stop.wait(self._interval_s):
                    return

        thread = threading.Thread(target=sample, name=f"telemetry-{subject}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(5.0)

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
