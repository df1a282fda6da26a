"""The detector `operation_watch`: whether a snapshot or restore under way reports a failure.

What belongs here: the report that an operation leaves, and reading it. What does not: doing one.
"""

from __future__ import annotations

import threading

from resilience_pipelines.detectors.base import PollingDetector

INTERVAL_S = 0.02


class OperationReport:
    """How an operation that runs in a thread of its own ended.

    Attributes:
        code: reason code of its failure; None while it runs, and when it succeeded.
        detail: what it said of it.
    """

    def __init__(self) -> None:
        self.code: str | None = None
        self.detail = ""
        self._ended = threading.Event()

    def end(self, code: str | None, detail: str) -> None:
        """Note the end; `code` is None for a success."""
        self.code, self.detail = code, detail
        self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether it has ended in either way."""
        return self._ended.is_set()

    def wait(self, limit_s: float) -> bool:
        """Wait for its end; False when it has not come within the limit."""
        return self._ended.wait(limit_s)


class OperationWatch(PollingDetector):
    """Raises an alarm when the operation has reported that it failed."""

    name = "operation_watch"

    def __init__(self, report: OperationReport, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._report = report

    def _look(self) -> str | None:
        if self._report.ended and self._report.code is not None:
            return f"{self._report.code}: {self._report.detail}"
        return None
