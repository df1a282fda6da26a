"""Detectors of DCGM: its health watches, and its policies.

What belongs here: asking and listening. What does not: DCGM's tools (`resilience_pipelines.dcgm`).
"""

from __future__ import annotations

import os
import pty
import select

from resilience_pipelines.dcgm import HEALTHY, Dcgm
from resilience_pipelines.detectors.base import Detector, PollingDetector
from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.workers.base import LaunchPlan
from resilience_pipelines.workers.process import worker_environment
from resilience_pipelines.workers.space import HostSpace, Process, wait_until

HEALTH_INTERVAL_S = 1.0
LISTEN_DEADLINE_S = 20.0
_WAKE_S = 0.05
_STEP_S = 0.02
_READ_BYTES = 4096
_LISTENING = "Listening for violations"
_ALARMS = ("has violated policy manager values", "detected.")


class DcgmHealth(PollingDetector):
    """Raises an alarm when `dcgmi health --check` does not say healthy."""

    name = "dcgm_health"

    def __init__(self, dcgm: Dcgm, *, interval_s: float = HEALTH_INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._dcgm = dcgm

    def _open(self) -> None:
        self._dcgm.watch_health()

    def _look(self) -> str | None:
        health = self._dcgm.health()
        return None if health.overall == HEALTHY else f"{health.overall}: {health.detail}"


class DcgmPolicy(Detector):
    """Raises an alarm for each violation that `dcgmi policy --reg` reports.

    It is given a terminal to write to: into a pipe it would say only later that it listens.
    """

    name = "dcgm_policy"

    def __init__(self, dcgm: Dcgm, max_temperature_c: int) -> None:
        super().__init__()
        self._dcgm = dcgm
        self._max_temperature_c = max_temperature_c
        self._space: HostSpace | None = None
        self._process: Process | None = None
        self._master = -1
        self._text = ""

    def _open(self) -> None:
        self._dcgm.set_policy(self._max_temperature_c)
        self._space = HostSpace()
        self._master, slave = pty.openpty()
        argv = (str(self._dcgm.client), "policy", "--reg", "--host", self._dcgm.host)
        try:
            env = worker_environment(LaunchPlan(argv, 0))
            self._process = self._space.spawn(argv, env=env, output=slave)
        finally:
            os.close(slave)
        try:
            wait_until(self._listens, LISTEN_DEADLINE_S, "dcgmi listens", _STEP_S)
        except DeadlineError as error:
            said = self._text[-200:]
            raise DeadlineError(f"{error.reason} It said {said!r}.") from error

    def _close(self) -> None:
        space, self._space = self._space, None
        if space is not None:
            space.close()
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for line in self._lines(_WAKE_S):
                if any(words in line for words in _ALARMS):
                    self._alarm(line.strip())

    def _listens(self) -> bool:
        return any(_LISTENING in line for line in self._lines(0))

    def _lines(self, timeout_s: float) -> list[str]:
        """The whole lines that came.

        Raises:
            RuntimeError: dcgmi has ended.
        """
        ready, _, _ = select.select([self._master], [], [], timeout_s)
        if not ready:
            return []
        try:
            read = os.read(self._master, _READ_BYTES)
        except OSError as error:  # EIO: nobody holds the other end any more
            raise RuntimeError(f"dcgmi policy ended: {self._text[-200:]!r}") from error
        *lines, self._text = (self._text + read.decode(errors="replace")).split("\n")
        return lines
