"""The detector `health_probe`: `GET /health` as a load balancer or a kubelet asks it.

What belongs here: asking and counting. What does not: whether a healthy answer is true (`canary`).
"""

from __future__ import annotations

from resilience_pipelines.detectors.base import PollingDetector
from resilience_pipelines.workers.client import WorkerClient

INTERVAL_S = 0.1
TIMEOUT_S = 0.5
FAILURES = 2


class HealthProbe(PollingDetector):
    """Raises an alarm after some failures in a row.

    Args:
        timeout_s: how long one answer may take.
        failures: how many in a row are an alarm.
    """

    name = "health_probe"

    def __init__(
        self,
        client: WorkerClient,
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        failures: int = FAILURES,
    ) -> None:
        super().__init__(interval_s)
        self._client = client
        self._timeout_s = timeout_s
        self._needed = failures
        self._failed = 0

    def _look(self) -> str | None:
        self._failed = 0 if self._client.healthy(self._timeout_s) else self._failed + 1
        if self._failed < self._needed:
            return None
        return f"{self._needed} times in a row no healthy answer within {self._timeout_s:g} s"
