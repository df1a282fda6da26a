"""Load a checkpoint as a job would, and tell what came of it: `python -m ... FOLDER`.

What belongs here: one load with torch's distributed checkpoint, with no other check than its own.
What does not: hashes of files (`checkpoints`).
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from resilience_pipelines.collectives.model import new_state, state_sha256


def main() -> int:
    """Print one JSON object: `sha256` of what was loaded, or the `error` that refused it."""
    torch.set_num_threads(1)
    state = new_state(0, "cpu")
    try:
        dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
    except (CheckpointException, Exception) as error:  # noqa: BLE001 - any refusal is the finding
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[-1000:]}))  # noqa: T201
        return 0
    print(json.dumps({"sha256": state_sha256(state)}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
