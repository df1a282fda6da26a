"""Failures: what can become of a job on a cluster, each by its name, and telling them apart.

What belongs here: the kinds, the error that carries one, and deciding from what the API server
says. What does not: asking it (`client`), and the job's own errors (`launchers.launcher.JobError`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from resilience_pipelines.errors import (
    BusyError,
    DeadlineError,
    ResilienceError,
    UnsupportedError,
)
from resilience_pipelines.launchers.kubernetes.settings import DeadlineSettings
from resilience_pipelines.launchers.kubernetes.state import ClusterEvent, Look, PodState
from resilience_pipelines.launchers.launcher import JobError


class FailureKind(StrEnum):
    """Why a run has no result, or not all of it."""

    UNSCHEDULABLE = "Unschedulable"
    """No node took the pod in time."""
    NOT_STARTED = "NotStarted"
    """A node took it, and its container did not start: a volume, a runtime, a name."""
    IMAGE_PULL = "ImagePull"
    OOM_KILLED = "OOMKilled"
    EVICTED = "Evicted"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    NODE_LOST = "NodeLost"
    POD_DELETED = "PodDeleted"
    JOB_DELETED = "JobDeleted"
    FORBIDDEN = "Forbidden"
    QUOTA_EXCEEDED = "QuotaExceeded"
    REJECTED = "Rejected"
    """The API server or an admission webhook does not take the job as it is."""
    API_LOST = "ApiLost"
    RESULT_MISSING = "ResultMissing"
    """The job ended well, and nothing is on the landing volume."""
    JOB_FAILED = "JobFailed"
    """The job reported an error of its own, or ended with an exit code and no word."""
    LAUNCHER_KILLED = "LauncherKilled"
    """Nobody was left to follow it; recorded by whoever cleaned up."""
    INTERRUPTED = "Interrupted"
    """Whoever asked for it ended it."""


_MENDS: Final[Mapping[FailureKind, str]] = {
    FailureKind.UNSCHEDULABLE: "Free or add a node that fits, or change gpu, node_selector or "
    "tolerations; deadlines.pending_s says how long to wait.",
    FailureKind.NOT_STARTED: "`launches/` in the data home has the events. Check the volumes.",
    FailureKind.IMAGE_PULL: "Check `image`, image_pull_policy and image_pull_secrets.",
    FailureKind.OOM_KILLED: "Give the job more `memory`.",
    FailureKind.EVICTED: "Run it again, on a node with less pressure or at another time.",
    FailureKind.DEADLINE_EXCEEDED: "Ask for fewer repeats, or set deadlines.run_s.",
    FailureKind.NODE_LOST: "Look at the node; run it again on another one.",
    FailureKind.POD_DELETED: "Run it again.",
    FailureKind.JOB_DELETED: "Run it again.",
    FailureKind.FORBIDDEN: "Bind the Role of deploy/kubernetes/rbac.yaml to who asks.",
    FailureKind.QUOTA_EXCEEDED: "Wait for what holds the quota, or raise it.",
    FailureKind.REJECTED: "Change the settings as the server says.",
    FailureKind.API_LOST: "The job goes on without us and lands what it finds; the next launch "
    "cleans up behind it.",
    FailureKind.RESULT_MISSING: "The landing volume and the launcher's folder must be the same: "
    "check `landing`.",
}

_EXIT_CODES: Final[Mapping[FailureKind, type[ResilienceError]]] = {
    FailureKind.UNSCHEDULABLE: BusyError,
    FailureKind.QUOTA_EXCEEDED: BusyError,
    FailureKind.FORBIDDEN: UnsupportedError,
    FailureKind.DEADLINE_EXCEEDED: DeadlineError,
    FailureKind.API_LOST: DeadlineError,
}
"""The error whose exit code says the same."""


class ClusterError(JobError):
    """A job that failed by its cluster. `kind` says how."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        alike = _EXIT_CODES.get(kind, JobError)
        super().__init__(f"{kind}: {reason}", mend=_MENDS.get(kind, ""), exit_code=alike.exit_code)
        self.kind = kind


@dataclass(frozen=True)
class Waited:
    """How long a run has been in its states, seconds; zero where it is not.

    Attributes:
        unscheduled: without a node, or without a pod.
        unstarted: with a node and without a started container.
        pull_failing: since the first failed pull.
        unreachable: since the node stopped to report.
    """

    unscheduled: float = 0.0
    unstarted: float = 0.0
    pull_failing: float = 0.0
    unreachable: float = 0.0


_PULL_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_PULL_HOPELESS: Final = frozenset({"ErrImageNeverPull", "InvalidImageName"})
_UNREACHABLE_REASONS: Final = frozenset({"NodeLost", "NodeNotReady"})


def classify(
    look: Look, waited: Waited, deadlines: DeadlineSettings, seen: PodState | None = None
) -> ClusterError | None:
    """What has become of a run, as far as the API server knows; None while there is hope.

    A container that ended with exit code 0 has not failed. One that ended with another is
    JOB_FAILED here, and the job's own outcome says more.

    Args:
        seen: the pod that was there at an earlier look.
    """
    if look.job is None:
        return ClusterError(FailureKind.JOB_DELETED, "somebody deleted the job.")
    if look.job.condition("Complete"):
        return None
    if failure := _of_job(look):
        return failure
    if seen is not None and (look.pod is None or look.pod.uid != seen.uid):
        if waited.unreachable > 0:
            return ClusterError(FailureKind.NODE_LOST, f"node {seen.node} and its pod are gone.")
        return ClusterError(FailureKind.POD_DELETED, f"somebody deleted the pod {seen.name}.")
    if look.pod is not None and (failure := _of_pod(look.pod, look, waited, deadlines)):
        return failure
    return _of_waiting(look, waited, deadlines)


def pull_is_failing(pod: PodState) -> bool:
    """Whether the image could not be pulled at the last try."""
    return pod.container is not None and pod.container.reason in _PULL_REASONS


def is_unreachable(look: Look) -> bool:
    """Whether the pod's node has stopped to report."""
    pod = look.pod
    if pod is None or pod.ended or pod.node is None:
        return False
    ready = pod.condition("Ready")
    told = any(
        event.reason in _UNREACHABLE_REASONS and event.about == f"Pod/{pod.name}"
        for event in look.events
    )
    not_ready = ready is not None and not ready.holds
    return pod.reason == "NodeLost" or (told and not_ready and pod.phase in ("Running", "Unknown"))


def _of_job(look: Look) -> ClusterError | None:
    assert look.job is not None
    failed = look.job.condition("Failed")
    if failed is not None and failed.reason == "DeadlineExceeded":
        return ClusterError(
            FailureKind.DEADLINE_EXCEEDED, f"{failed.message or 'it took too long'}."
        )
    if failed is not None and look.pod is None:
        return ClusterError(FailureKind.POD_DELETED, f"{failed.reason}: {failed.message}")
    if look.job.deleted_at is not None:
        return ClusterError(FailureKind.JOB_DELETED, "somebody deletes the job.")
    return None


def _of_pod(
    pod: PodState, look: Look, waited: Waited, deadlines: DeadlineSettings
) -> ClusterError | None:
    container = pod.container
    disruption = pod.condition("DisruptionTarget")
    if container is not None and container.reason == "OOMKilled":
        return ClusterError(FailureKind.OOM_KILLED, "the job used more memory than it may.")
    if pod.reason in ("Evicted", "Preempting", "Preempted"):
        return ClusterError(FailureKind.EVICTED, pod.message or pod.reason)
    if disruption is not None and disruption.holds:
        lost = disruption.reason == "DeletionByTaintManager" and is_unreachable(look)
        kind = FailureKind.NODE_LOST if lost else FailureKind.EVICTED
        return ClusterError(kind, f"{disruption.reason}: {disruption.message}")
    unreachable = is_unreachable(look)
    if unreachable and (pod.deleted_at is not None or waited.unreachable > deadlines.node_lost_s):
        return ClusterError(FailureKind.NODE_LOST, f"node {pod.node} does not report any more.")
    if pod.deleted_at is not None:
        if any(event.reason == "Preempted" for event in look.events):
            return ClusterError(FailureKind.EVICTED, _last(look.events, "Preempted"))
        return ClusterError(FailureKind.POD_DELETED, f"somebody deleted the pod {pod.name}.")
    if container is not None and container.reason in _PULL_HOPELESS:
        return ClusterError(FailureKind.IMAGE_PULL, f"{container.reason}: {container.message}")
    if pull_is_failing(pod) and waited.pull_failing > deadlines.image_pull_s:
        assert container is not None
        return ClusterError(FailureKind.IMAGE_PULL, f"{container.reason}: {container.message}")
    if container is not None and container.exit_code:
        return ClusterError(
            FailureKind.JOB_FAILED,
            f"the job ended with exit code {container.exit_code} ({container.reason}).",
        )
    if pod.phase == "Failed" and container is None:
        return ClusterError(FailureKind.NOT_STARTED, f"{pod.reason}: {pod.message}")
    return None


def _of_waiting(look: Look, waited: Waited, deadlines: DeadlineSettings) -> ClusterError | None:
    pod = look.pod
    if pod is None:
        refused = _last(look.events, "FailedCreate")
        if "forbidden" in refused and "exceeded quota" not in refused:
            return ClusterError(FailureKind.FORBIDDEN, refused)
        if waited.unscheduled > deadlines.pending_s:
            kind = FailureKind.QUOTA_EXCEEDED if refused else FailureKind.UNSCHEDULABLE
            return ClusterError(kind, refused or "the job controller made no pod.")
        return None
    if pod.node is None and waited.unscheduled > deadlines.pending_s:
        scheduled = pod.condition("PodScheduled")
        why = scheduled.message if scheduled else ""
        return ClusterError(FailureKind.UNSCHEDULABLE, why or "no node took the pod.")
    if waited.unstarted > deadlines.pending_s:
        container = pod.container
        why = f"{container.reason}: {container.message}" if container else "no container."
        warnings = [f"{item.reason}: {item.message}" for item in look.events
                    if item.type == "Warning"]  # fmt: skip
        return ClusterError(FailureKind.NOT_STARTED, " ".join([why, *warnings[-2:]]))
    return None


def _last(events: tuple[ClusterEvent, ...], reason: str) -> str:
    return next((item.message for item in reversed(events) if item.reason == reason), "")
