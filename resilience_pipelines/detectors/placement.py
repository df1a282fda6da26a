"""The detector `placement`: whether a worker may run near its GPU.

What belongs here: comparing CPUs. What does not: which CPUs are near (`resilience_pipelines.nvml`).
"""

from __future__ import annotations

import os
from collections.abc import Collection

from resilience_pipelines.detectors.base import PollingDetector

INTERVAL_S = 0.2


class Placement(PollingDetector):
    """Raises an alarm when a process may run on no CPU that is near its GPU.

    Args:
        near: those CPUs.
    """

    name = "placement"

    def __init__(self, pid: int, near: Collection[int], *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._pid = pid
        self._near = frozenset(near)

    def _look(self) -> str | None:
        try:
            allowed = os.sched_getaffinity(self._pid)
        except ProcessLookupError:
            return None  # that it has ended is for others to see
        if allowed & self._near:
            return None
        return f"process {self._pid} runs on CPUs {sorted(allowed)}, none of them near its GPU"
