"""What every detector has: a thread, alarms with the time of each, and a failure that shows.

What belongs here: the life of a detector. What does not: what one looks at (a module each), and
what its alarms mean for an experiment (`faults`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from resilience_pipelines.stopwatch import HOST_CLOCK, HOST_RESOLUTION_S

STOP_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Alarm:
    """A moment at which a detector began to report a problem.

    Attributes:
        at_ns: CLOCK_MONOTONIC, in nanoseconds.
        detail: what it saw.
    """

    at_ns: int
    detail: str


class Detector(ABC):
    """Watches from `start` to `stop`. Whoever starts it stops it.

    A detector never raises: what goes wrong with it is its `failure`, and whoever reads its alarms
    has to read that too. One that failed and has no alarm did not find that all was well.
    """

    name: ClassVar[str]
    clock: str = HOST_CLOCK

    def __init__(self) -> None:
        self._alarms: list[Alarm] = []
        self._failure: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @property
    def resolution_s(self) -> float:
        """The coarsest step with which it told time, in seconds."""
        return HOST_RESOLUTION_S

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All alarms so far, in order."""
        return tuple(self._alarms)

    @property
    def failure(self) -> str | None:
        """What went wrong with the detector itself; None while it works."""
        return self._failure

    @property
    def alarmed(self) -> bool:
        """Whether what it last saw was a problem."""
        return bool(self._alarms)

    def looked_since(self, at_ns: int) -> bool:  # noqa: ARG002
        """Whether it has finished a look that it began at or after CLOCK_MONOTONIC `at_ns`."""
        return True  # the kernel would have woken it

    def start(self) -> None:
        """Begin to watch: what happens after this returns is not missed."""
        try:
            self._open()
        except Exception as error:  # noqa: BLE001 - kept as the failure, see the class
            self._fail(error)
            return
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin to stop, without waiting; `stop` has to follow."""
        self._stopping.set()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self.ask_to_stop()
        if self._thread.ident is not None:
            self._thread.join(STOP_DEADLINE_S)
            if self._thread.is_alive():
                self._failure = f"it did not stop within {STOP_DEADLINE_S:g} s"
                return
        self._close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - kept as the failure, see the class
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = f"{type(error).__name__}: {error}"

    def _alarm(self, detail: str) -> None:
        self._alarms.append(Alarm(time.monotonic_ns(), detail))

    def _open(self) -> None:  # noqa: B027 - not every one has something to open
        """Take hold of what it watches, in the thread of whoever starts it."""

    def _close(self) -> None:  # noqa: B027 - see `_open`
        """Let go of it. Called also when `_open` failed."""

    @abstractmethod
    def _watch(self) -> None:
        """Watch, and call `_alarm`, until `_stopping` is set."""


class PollingDetector(Detector):
    """Looks again and again, and raises an alarm when what it sees turns from well to not well.

    Args:
        interval_s: pause between two looks.
    """

    def __init__(self, interval_s: float) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._longest_step_s = interval_s
        self._looked_from_ns = 0
        self._alarmed = False

    @property
    def resolution_s(self) -> float:
        """The longest time that passed between the ends of two looks, as it was measured."""
        return max(self._longest_step_s, HOST_RESOLUTION_S)

    @property
    def alarmed(self) -> bool:
        """See `Detector.alarmed`."""
        return self._alarmed

    def looked_since(self, at_ns: int) -> bool:
        """See `Detector.looked_since`."""
        return self._looked_from_ns >= at_ns

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._stopping.is_set():
            began_ns = time.monotonic_ns()
            problem = self._look()
            now = time.monotonic()
            self._longest_step_s = max(self._longest_step_s, now - last)
            last = now
            if problem is not None and not self._alarmed:
                self._alarm(problem)
            self._alarmed = problem is not None
            self._looked_from_ns = began_ns
            self._stopping.wait(self._interval_s)

    @abstractmethod
    def _look(self) -> str | None:
        """What is wrong now, in words; None if nothing is."""
