"""The detector `checkpoint_verifier`: a scrubber that compares a checkpoint with its manifest.

What belongs here: watching one committed checkpoint. What does not: the manifest
(`collectives.checkpoints`).
"""

from __future__ import annotations

from resilience_pipelines.collectives.checkpoints import Checkpoint, read_manifest
from resilience_pipelines.detectors.weights_verifier import INTERVAL_S, WeightsVerifier


class CheckpointVerifier(WeightsVerifier):
    """Raises an alarm when a file of a checkpoint is not what the manifest says.

    Raises:
        OSError, ValueError: the manifest can't be read.
    """

    name = "checkpoint_verifier"

    def __init__(self, checkpoint: Checkpoint, *, interval_s: float = INTERVAL_S) -> None:
        files = read_manifest(checkpoint).files
        super().__init__(
            {checkpoint.folder / name: sha256 for name, sha256 in files.items()},
            interval_s=interval_s,
        )
