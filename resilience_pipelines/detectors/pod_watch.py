"""The detector `pod_watch`: a controller's view, that the worker's pod or its container was lost.

What belongs here: asking the API server for the pod. What does not: whether the worker answers
(`health_probe`, `canary`).
"""

from __future__ import annotations

from resilience_pipelines.detectors.base import PollingDetector
from resilience_pipelines.kubernetes_api import ApiError
from resilience_pipelines.workers.pod import PodLook, PodSpace

INTERVAL_S = 0.25


class PodWatch(PollingDetector):
    """Raises an alarm when the pod is another one, or its container another or not running."""

    name = "pod_watch"

    def __init__(self, space: PodSpace, first: PodLook, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._space = space
        self._first = first

    def _look(self) -> str | None:
        try:
            look = self._space.look()
        except ApiError as error:
            if not error.may_pass:
                raise
            return None  # it can't tell now
        if look is None:
            return f"pod {self._first.name} is gone"
        if look.uid != self._first.uid:
            return f"pod {self._first.name} was replaced by {look.name}"
        if look.restarts > self._first.restarts:
            return f"the container of pod {look.name} was started again"
        return None if look.running else f"the container of pod {look.name} does not run"
