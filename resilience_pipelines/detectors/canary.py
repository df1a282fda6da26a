"""The detector `canary`: a request whose answer is known, from the client's side.

What belongs here: asking and comparing, so that a worker that says it is healthy and is not, or
that answers wrongly, is caught. What does not: the verdict over the whole answer after a recovery.
"""

from __future__ import annotations

from resilience_pipelines.detectors.base import PollingDetector
from resilience_pipelines.records import OracleVerdict
from resilience_pipelines.workers.client import (
    WorkerClient,
    WorkerRequestError,
)
from resilience_pipelines.workers.oracle import RecordedAnswer, compare

INTERVAL_S = 0.3
TIMEOUT_S = 1.5
TOKENS = 2


class Canary(PollingDetector):
    """Raises an alarm when the first tokens don't come in time or are not those recorded.

    Args:
        expected: the recorded answer.
        tolerance: greatest difference of a log-probability that still is the same answer.
        timeout_s: how long one answer may take.
        tokens: how many are asked for; few, because asking is load.
    """

    name = "canary"

    def __init__(
        self,
        client: WorkerClient,
        expected: RecordedAnswer,
        *,
        tolerance: float,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        tokens: int = TOKENS,
    ) -> None:
        super().__init__(interval_s)
        self._client = client
        self._tolerance = tolerance
        self._timeout_s = timeout_s
        self._expected = expected.model_copy(
            update={
                "token_ids": expected.token_ids[:tokens],
                "logprobs": expected.logprobs[:tokens],
            }
        )

    def _look(self) -> str | None:
        expected = self._expected
        try:
            got = self._client.complete(
                expected.prompt, len(expected.token_ids), timeout_s=self._timeout_s
            )
        except WorkerRequestError as error:
            return f"no answer: {error}"
        oracle = compare(expected, got, self._tolerance)
        if oracle.verdict is OracleVerdict.EQUAL:
            return None
        return f"wrong answer: {oracle.detail}"
