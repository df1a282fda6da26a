"""The detector `process_watch`: a supervisor's view, that the worker's root process has ended.

What belongs here: waiting for a pidfd. What does not: processes below the root, which a supervisor
does not see either.
"""

from __future__ import annotations

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.workers.space import Process

_WAKE_S = 0.05


class ProcessWatch(Detector):
    """Waits for the end of one process. The kernel wakes it: it does not poll."""

    name = "process_watch"

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def _watch(self) -> None:
        while not self._stopping.is_set():
            if self._process.wait_gone(_WAKE_S):
                self._alarm(f"process {self._process.pid} has ended")
                return
