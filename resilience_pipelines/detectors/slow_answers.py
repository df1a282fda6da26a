"""The detector `slow_answers`: right answers that take longer than they did before.

What belongs here: timing answers against those from before. What does not: answers that are wrong
or don't come (`canary`).
"""

from __future__ import annotations

import time

from resilience_pipelines.detectors.base import PollingDetector
from resilience_pipelines.workers.client import WorkerClient, WorkerRequestError

INTERVAL_S = 0.3
TIMEOUT_S = 10.0
IN_A_ROW = 3
TOKENS = 2
_PROMPT = "How long does it take?"


class SlowAnswers(PollingDetector):
    """Raises an alarm when some answers in a row took longer than a limit, or did not come.

    Args:
        limit_s: how long an answer may take.
        in_a_row: how many that took longer are an alarm.
    """

    name = "slow_answers"

    def __init__(
        self,
        client: WorkerClient,
        limit_s: float,
        *,
        interval_s: float = INTERVAL_S,
        in_a_row: int = IN_A_ROW,
    ) -> None:
        super().__init__(interval_s)
        self._client = client
        self._limit_s = limit_s
        self._needed = in_a_row
        self._slow = 0

    def _look(self) -> str | None:
        took_s = answer_s(self._client, TIMEOUT_S)
        self._slow = self._slow + 1 if took_s is None or took_s > self._limit_s else 0
        if self._slow < self._needed:
            return None
        took = f"{took_s:.3g} s" if took_s is not None else f"more than {TIMEOUT_S:g} s"
        return f"{self._needed} answers in a row took over {self._limit_s:.3g} s, the last {took}"


def answer_s(client: WorkerClient, timeout_s: float) -> float | None:
    """How long a short completion takes, in seconds; None when none comes."""
    begin = time.monotonic()
    try:
        client.complete(_PROMPT, TOKENS, timeout_s=timeout_s)
    except WorkerRequestError:
        return None
    return time.monotonic() - begin
