"""The detector `nccl_ras`: what NCCL's own RAS threads say of a job's ranks.

What belongs here: what of an answer is an alarm. What does not: asking (`collectives.ras`).

RAS threads watch each other whatever the ranks do. A rank that is stopped is found by its own
thread, which takes a connection and says nothing, or by the others, which wait for it in vain. RAS
calls a process dead only after a minute; a rank that has not answered is an alarm here.
"""

from __future__ import annotations

import time

from resilience_pipelines.collectives.ras import (
    RasAbsentError,
    RasClient,
    RasSilentError,
    RasStatus,
)
from resilience_pipelines.detectors.base import PollingDetector

INTERVAL_S = 0.5
PATIENCE_S = 2.0


class NcclRas(PollingDetector):
    """Raises an alarm when ranks are missing, have an error or stay behind.

    RAS has answered before: that nobody does any more is an alarm too.

    Args:
        patience_s: how long the numbers of collectives may differ and none of them grow.
    """

    name = "nccl_ras"

    def __init__(
        self, client: RasClient, *, patience_s: float = PATIENCE_S, interval_s: float = INTERVAL_S
    ) -> None:
        super().__init__(interval_s)
        self._client = client
        self._patience_s = patience_s
        self._last: RasStatus | None = None
        self._since = time.monotonic()

    def _look(self) -> str | None:
        try:
            status = self._client.status()
        except (RasAbsentError, RasSilentError) as error:
            return error.reason
        now = time.monotonic()
        if status != self._last:
            self._last, self._since = status, now
        return trouble(status) or (
            mismatch(status) if now - self._since >= self._patience_s else None
        )


def trouble(status: RasStatus) -> str | None:
    """What is wrong whenever it is seen, in words; None if nothing is."""
    for each in status.communicators:
        if each.missing:
            missing = ", ".join(map(str, each.missing))
            return f"rank {missing} of {each.size} is missing in communicator {each.name}"
        if each.errors:
            errors = ", ".join(f"{rank}: {code}" for rank, code in sorted(each.errors.items()))
            return f"errors in communicator {each.name} (rank: ncclResult_t): {errors}"
    if status.timeouts:
        return f"{status.timeouts} RAS threads did not answer another"
    if status.errors:
        return "; ".join(status.errors)[:500]
    waited = [line for line in status.warnings if line.startswith("TIMEOUT")]
    return "; ".join(status.warnings)[:500] if waited else None


def mismatch(status: RasStatus) -> str | None:
    """Which ranks have begun fewer collectives than others; usual for a moment."""
    for each in status.communicators:
        if each.mismatched:
            totals = {rank: sum(counts.values()) for rank, counts in each.counts.items()}
            most = max(totals.values())
            behind = ", ".join(f"{rank} ({n})" for rank, n in sorted(totals.items()) if n < most)
            return f"rank {behind} is behind the others ({most}) in communicator {each.name}"
    return "; ".join(status.warnings)[:500] or None
