"""A detector: it watches while an experiment lives, and its alarms carry the time of each.

This one asks the kernel for the state of a worker's processes and raises an alarm when one is
stopped by a signal, or has ended.
"""

from __future__ import annotations

from pathlib import Path

from resilience_pipelines.detectors.base import PollingDetector
from resilience_pipelines.workers.process import RunningWorker

INTERVAL_S = 0.05
MEANINGS = {"T": "is stopped", "Z": "has ended"}


class StateWatch(PollingDetector):
    """Alarms when a process of a worker stops running.

    Args:
        running: the worker. The processes that it has when this is made are watched.
    """

    name = "state_watch"

    def __init__(self, running: RunningWorker, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._pids = [member.pid for member in running.process.tree()]

    def _look(self) -> str | None:
        for pid in self._pids:
            try:
                text = Path(f"/proc/{pid}/stat").read_text()
            except FileNotFoundError:
                return f"process {pid} is gone"
            # The name before the state is in parentheses, and may hold any character.
            state = text.rpartition(")")[2].split()[0]
            if state in MEANINGS:
                return f"process {pid} {MEANINGS[state]}"
        return None
