"""State: what the API server says of a job, its pods and what happened to them, as values.

What belongs here: reading the parts that matter from the API's JSON. What does not: asking for it
(`client`), and what it means (`failures`, `phases`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from resilience_pipelines.launchers.kubernetes.manifest import CONTAINER, RUN_LABEL, WORKER_LABEL

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """One condition of a job or a pod."""

    type: str
    status: str
    reason: str
    message: str
    changed_at: datetime | None

    @property
    def holds(self) -> bool:
        """Whether it is true."""
        return self.status == "True"


@dataclass(frozen=True)
class ContainerState:
    """The job's container.

    Attributes:
        reason: why it waits or has ended, in the kubelet's word.
        exit_code: set once it has ended.
    """

    name: str
    reason: str
    message: str
    started_at: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    image_id: str


@dataclass(frozen=True)
class PodState:
    """One pod. `reason` is the pod's own, e.g. `Evicted`."""

    name: str
    uid: str
    phase: str
    reason: str
    message: str
    node: str | None
    created_at: datetime | None
    deleted_at: datetime | None
    conditions: tuple[Condition, ...]
    container: ContainerState | None

    @property
    def ended(self) -> bool:
        """Whether its container will do nothing more."""
        return self.phase in ("Succeeded", "Failed")

    def condition(self, name: str) -> Condition | None:
        """The condition of a type."""
        return next((item for item in self.conditions if item.type == name), None)


@dataclass(frozen=True)
class JobState:
    """One job."""

    name: str
    uid: str
    run_id: str
    worker: str
    created_at: datetime | None
    deleted_at: datetime | None
    conditions: tuple[Condition, ...]

    def condition(self, name: str) -> Condition | None:
        """The condition of a type, where it is true."""
        return next((item for item in self.conditions if item.type == name and item.holds), None)


@dataclass(frozen=True)
class ClusterEvent:
    """What a part of the cluster reported about a job or a pod."""

    type: str
    reason: str
    message: str
    about: str
    """Kind and name of its object, e.g. `Pod/resilience-...`."""
    at: datetime | None
    """When it first happened."""
    count: int
    source: str


@dataclass(frozen=True)
class Look:
    """What one look at a run found. `job` is None where there is none (any more)."""

    job: JobState | None
    pods: tuple[PodState, ...]
    events: tuple[ClusterEvent, ...]
    pods_version: str

    @property
    def pod(self) -> PodState | None:
        """The oldest pod, which is the one that measures."""
        return self.pods[0] if self.pods else None


def parse_job(found: Json) -> JobState:
    """A job from the API's JSON."""
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    return JobState(
        name=metadata["name"],
        uid=metadata["uid"],
        run_id=labels.get(RUN_LABEL, ""),
        worker=labels.get(WORKER_LABEL) or "unknown",
        created_at=parse_time(metadata.get("creationTimestamp")),
        deleted_at=parse_time(metadata.get("deletionTimestamp")),
        conditions=_conditions(found),
    )


def parse_pod(found: Json) -> PodState:
    """A pod from the API's JSON."""
    metadata, status = found["metadata"], found.get("status") or {}
    containers = {item["name"]: item for item in status.get("containerStatuses") or ()}
    return PodState(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase") or "Unknown",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        node=(found.get("spec") or {}).get("nodeName"),
        created_at=parse_time(metadata.get("creationTimestamp")),
        deleted_at=parse_time(metadata.get("deletionTimestamp")),
        conditions=_conditions(found),
        container=_container(containers[CONTAINER]) if CONTAINER in containers else None,
    )


def parse_cluster_event(found: Json) -> ClusterEvent:
    """An event from the API's JSON; old and new reporters fill different times."""
    about = found.get("involvedObject") or {}
    times = (found.get("firstTimestamp"), found.get("eventTime"), found.get("lastTimestamp"))
    source = found.get("source") or {}
    return ClusterEvent(
        type=found.get("type") or "",
        reason=found.get("reason") or "",
        message=found.get("message") or "",
        about=f"{about.get('kind', '')}/{about.get('name', '')}",
        at=next((parse_time(time) for time in times if time), None),
        count=int(found.get("count") or 1),
        source=source.get("component") or found.get("reportingComponent") or "",
    )


def parse_time(text: str | None) -> datetime | None:
    """A moment as the API writes it, RFC 3339."""
    return datetime.fromisoformat(text) if text else None


def _conditions(found: Json) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=item["type"],
            status=item["status"],
            reason=item.get("reason") or "",
            message=item.get("message") or "",
            changed_at=parse_time(item.get("lastTransitionTime")),
        )
        for item in (found.get("status") or {}).get("conditions") or ()
    )


def _container(found: Json) -> ContainerState:
    state: Json = found.get("state") or {}
    waiting = state.get("waiting") or {}
    running = state.get("running") or {}
    ended = state.get("terminated") or {}
    return ContainerState(
        name=found["name"],
        reason=waiting.get("reason") or ended.get("reason") or "",
        message=waiting.get("message") or ended.get("message") or "",
        started_at=parse_time(running.get("startedAt") or ended.get("startedAt")),
        finished_at=parse_time(ended.get("finishedAt")),
        exit_code=ended.get("exitCode"),
        image_id=found.get("imageID") or "",
    )
