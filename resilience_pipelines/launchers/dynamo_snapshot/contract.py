"""The contract of Dynamo Snapshot: names of its API, and what the status of its objects means.

What belongs here: kinds, annotations, the control folder, conditions, our names for what can go
wrong, and the rights that all of it needs. What does not: calls of the API server (`engine`).
Where each name comes from is said in the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults.cluster import Kind
from resilience_pipelines.kubernetes_api import Json, object_of, objects_of, text_of

ENGINE: Final = "dynamo-snapshot"
"""In a stack's `snapshot_engine`."""

GROUP: Final = "nvidia.com"
POD_SNAPSHOT: Final = Kind(GROUP, "v1alpha1", "podsnapshots", "PodSnapshot")
SNAPSHOT_JOB: Final = Kind(GROUP, "v1alpha1", "snapshotjobs", "SnapshotJob")

RESTORE_FROM: Final = f"{GROUP}/restore-from"
"""Annotation of a pod: the PodSnapshot in its namespace that is restored into it."""
SOURCE_LABEL: Final = f"{GROUP}/snapshot-is-checkpoint-source"
OWNER_LABEL: Final = f"{GROUP}/snapshot-job"
"""Of a PodSnapshot: the SnapshotJob that made it. It has no owner reference."""
RESTORED: Final = f"{GROUP}/Restored"
"""Condition of a pod, written by the agent of its node."""

CONTROL_VOLUME: Final = "snapshot-control"
CONTROL_PATH: Final = "/snapshot-control"
CONTROL_VARIABLE: Final = "SNAPSHOT_CONTROL_DIR"
STANDBY_VARIABLE: Final = "SNAPSHOT_RESTORE_STANDBY"
READY_FILE: Final = "ready-for-snapshot"
RESTORED_FILE: Final = "restore-complete"
SERVING_FILE: Final = "resilience-restore-ready"
"""A workload's own: it serves again. Snapshot does not look at it."""

AGENT_SELECTOR: Final = "app.kubernetes.io/component=snapshot-agent"
AGENT_CONTAINER: Final = "agent"

PERMISSIONS: Final = frozenset(
    {
        ("", "pods/proxy", "get"),
        ("", "pods/proxy", "create"),
        *((GROUP, "podsnapshots", verb) for verb in ("create", "get", "list", "delete")),
        *((GROUP, "snapshotjobs", verb) for verb in ("create", "get", "list", "delete")),
    }
)
"""What is done beside what the launcher may: deploy/kubernetes/rbac-dynamo-snapshot.yaml has it."""

AGENT_PERMISSIONS: Final = frozenset({("", "pods", "list"), ("", "pods/log", "get")})
"""What is done in the namespace of the agents."""


class DynamoReason(StrEnum):
    """Why a snapshot or a start by Dynamo Snapshot is none."""

    NO_DYNAMO_SNAPSHOT = "no_dynamo_snapshot"
    """The cluster does not know its kinds: it is not installed."""
    CLUSTER_FORBIDS = "cluster_forbids"
    NO_SNAPSHOT = "no_snapshot"
    """There is none to restore, because taking it failed."""
    NOT_READY = "source_not_ready"
    """The source is quiet, and its pod does not say that it may be captured."""
    CAPTURE_FAILED = "capture_failed"
    CAPTURE_DEADLINE = "capture_deadline"
    SNAPSHOT_DELETED = "snapshot_deleted"
    POD_PENDING = "pod_pending"
    """Its container did not start in time: no node, no image, no volume."""
    POD_DELETED = "pod_deleted"
    POD_ENDED = "pod_ended"
    """Its container ended by itself, or was ended, before it served."""
    RESTORE_FAILED = "restore_failed"
    RESTORE_REFUSED = "restore_incompatible"
    """The agent's own compatibility check says no."""
    RESTORE_DEADLINE = "restore_deadline"
    COLD_FALLBACK = "cold_fallback"
    """A worker serves that was started in the pod and not restored into it."""
    NO_ANSWER = "no_answer"
    API = "api_server"
    """The API server refuses, or was lost."""


class DynamoError(ResilienceError):
    """A snapshot or a start that came to nothing. `code` says why."""

    def __init__(self, code: DynamoReason, reason: str, *, mend: str = "") -> None:
        super().__init__(reason, mend=mend)
        self.code = code


@dataclass(frozen=True)
class Word:
    """What an object's status says: still going on where neither holds."""

    done: bool
    failed: bool
    reason: str
    content: str = ""
    """Of a PodSnapshot: the cluster's object that it is bound to."""
    snapshot: str = ""
    """Of a SnapshotJob: the PodSnapshot that it made."""


def read_snapshot(found: Json) -> Word:
    """What a PodSnapshot says."""
    status = object_of(found.get("status"))
    return Word(
        done=_holds(status, "Ready"),
        failed=_holds(status, "Failed"),
        reason=_words(status, "Failed", "Ready"),
        content=text_of(status.get("boundSnapshotContentName")),
    )


def read_snapshot_job(found: Json) -> Word:
    """What a SnapshotJob says."""
    status = object_of(found.get("status"))
    return Word(
        done=_holds(status, "Completed"),
        failed=_holds(status, "Failed"),
        reason=_words(status, "Failed", "Captured", "Running"),
        snapshot=text_of(status.get("podSnapshotName")),
    )


class Restored(StrEnum):
    """What the agent says of a pod's restore."""

    PENDING = "pending"
    """It says nothing yet, is at it, or says what no version known here says."""
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"


_REFUSED: Final = frozenset({"RestoreIncompatible", "RestoreReplenishmentIncompatible"})
_FAILED: Final = frozenset({"RestoreFailed", "RestorePartiallySucceeded"})


def read_restored(status: str, reason: str) -> Restored:
    """What the condition `RESTORED` of a pod means."""
    if status == "True":
        return Restored.DONE
    if status == "False" and reason in _REFUSED:
        return Restored.REFUSED
    if status == "False" and reason in _FAILED:
        return Restored.FAILED
    return Restored.PENDING


def _holds(status: Json, name: str) -> bool:
    found = [item for item in objects_of(status.get("conditions")) if item.get("type") == name]
    return bool(found) and all(item.get("status") == "True" for item in found)


def _words(status: Json, *names: str) -> str:
    """Reason and message of the first of some conditions that says any."""
    conditions = objects_of(status.get("conditions"))
    for name in names:
        for item in conditions:
            if item.get("type") == name and (said := text_of(item.get("reason"))):
                return f"{said}: {text_of(item.get('message'))}"[:2000]
    return "it says nothing"
