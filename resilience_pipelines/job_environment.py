"""What a launcher tells a job by environment variables: their names and what each holds.

What belongs here: the names, for both sides. What does not: what a user sets (`home`, `launchers`),
and reading a machine (`stack`). No secret is ever told this way.
"""

from __future__ import annotations

import os
from typing import Final

SPEC: Final = "RESILIENCE_JOB_SPEC"
"""The job's specification as JSON, where standard input can't bring it."""

RUN_ID: Final = "RESILIENCE_RUN_ID"
"""The name of the run, where the launcher chose it to find its landing folder."""

OUTCOME: Final = "RESILIENCE_JOB_OUTCOME"
"""A file that gets the job's last event, where its output may be lost on the way."""

LAUNCHED_BY: Final = "RESILIENCE_LAUNCHED_BY"
"""The launcher's name, for the record."""

SIMULATED: Final = "RESILIENCE_SIMULATED"
"""Why no figure of this job is a measurement; set only where that is so."""

CLUSTER: Final = "RESILIENCE_CLUSTER"
"""The Kubernetes launcher's settings as JSON, for a job that measures pods from outside of them."""

KUBERNETES_VERSION: Final = "RESILIENCE_KUBERNETES_VERSION"
"""The API server's own version."""

CONTAINER_RUNTIME: Final = "RESILIENCE_CONTAINER_RUNTIME"
"""The container runtime and its version, where every node that may run the pod has the same."""

IMAGE_DIGEST: Final = "RESILIENCE_IMAGE_DIGEST"
"""The digest of the image, where it was named by its digest."""


def told(name: str) -> str | None:
    """What the launcher told, or None."""
    return os.environ.get(name) or None
