"""The detector `image_verifier`: a scrubber that reads a stored snapshot again and again.

What belongs here: asking the store. What does not: how images are verified (`snapshots.store`).
"""

from __future__ import annotations

from resilience_pipelines.detectors.base import PollingDetector
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot

INTERVAL_S = 0.1


class ImageVerifier(PollingDetector):
    """Raises an alarm when the image is not what its manifest says.

    It looks no further then: an image does not heal, and reading it is load.
    """

    name = "image_verifier"

    def __init__(
        self, store: SnapshotStore, snapshot: StoredSnapshot, *, interval_s: float = INTERVAL_S
    ) -> None:
        super().__init__(interval_s)
        self._store = store
        self._snapshot = snapshot
        self._problem: str | None = None

    def _look(self) -> str | None:
        if self._problem is None:
            try:
                self._store.verify(self._snapshot)
            except SnapshotError as error:
                if error.code is not SnapshotReason.IMAGE_CORRUPT:
                    raise
                self._problem = error.reason
        return self._problem
