"""State: what the API server says of a job, its pods and what happened to them, as values.

What belongs here: reading the parts that matter from the API's JSON. What does not: asking for it
(`client`), and what it means (`failures`, `phases`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from resilience_pipelines.kubernetes_api import Json, named, object_of, objects_of, text_of
from resilience_pipelines.launchers.kubernetes.manifest import CONTAINER, RUN_LABEL, WORKER_LABEL


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
    metadata = object_of(found.get("metadata"))
    labels = object_of(metadata.get("labels"))
    return JobState(
        name=named(found),
        uid=named(found, "uid"),
        run_id=text_of(labels.get(RUN_LABEL)),
        worker=text_of(labels.get(WORKER_LABEL)) or "unknown",
        created_at=parse_time(metadata.get("creationTimestamp")),
        deleted_at=parse_time(metadata.get("deletionTimestamp")),
        conditions=_conditions(found),
    )


def parse_pod(found: Json, container: str = CONTAINER) -> PodState:
    """A pod from the API's JSON.

    Args:
        container: the name of the one that matters.
    """
    metadata, status = object_of(found.get("metadata")), object_of(found.get("status"))
    statuses = objects_of(status.get("containerStatuses"))
    containers = {text_of(item.get("name")): item for item in statuses}
    return PodState(
        name=named(found),
        uid=named(found, "uid"),
        phase=text_of(status.get("phase")) or "Unknown",
        reason=text_of(status.get("reason")),
        message=text_of(status.get("message")),
        node=text_of(object_of(found.get("spec")).get("nodeName")) or None,
        created_at=parse_time(metadata.get("creationTimestamp")),
        deleted_at=parse_time(metadata.get("deletionTimestamp")),
        conditions=_conditions(found),
        container=_container(containers[container]) if container in containers else None,
    )


def parse_cluster_event(found: Json) -> ClusterEvent:
    """An event from the API's JSON; old and new reporters fill different times."""
    about = object_of(found.get("involvedObject"))
    times = (found.get("firstTimestamp"), found.get("eventTime"), found.get("lastTimestamp"))
    source = object_of(found.get("source"))
    count = found.get("count")
    return ClusterEvent(
        type=text_of(found.get("type")),
        reason=text_of(found.get("reason")),
        message=text_of(found.get("message")),
        about=f"{text_of(about.get('kind'))}/{text_of(about.get('name'))}",
        at=next((parse_time(time) for time in times if time), None),
        count=count if type(count) is int and count > 0 else 1,
        source=text_of(source.get("component")) or text_of(found.get("reportingComponent")),
    )


def parse_time(text: object) -> datetime | None:
    """A moment as the API writes it, RFC 3339; None for anything that names no moment."""
    try:
        moment = datetime.fromisoformat(text_of(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _conditions(found: Json) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=text_of(item.get("type")),
            status=text_of(item.get("status")),
            reason=text_of(item.get("reason")),
            message=text_of(item.get("message")),
            changed_at=parse_time(item.get("lastTransitionTime")),
        )
        for item in objects_of(object_of(found.get("status")).get("conditions"))
    )


def _container(found: Json) -> ContainerState:
    state = object_of(found.get("state"))
    waiting = object_of(state.get("waiting"))
    running = object_of(state.get("running"))
    ended = object_of(state.get("terminated"))
    code = ended.get("exitCode")
    return ContainerState(
        name=text_of(found.get("name")),
        reason=text_of(waiting.get("reason")) or text_of(ended.get("reason")),
        message=text_of(waiting.get("message")) or text_of(ended.get("message")),
        started_at=parse_time(running.get("startedAt") or ended.get("startedAt")),
        finished_at=parse_time(ended.get("finishedAt")),
        exit_code=code if type(code) is int else None,
        image_id=text_of(found.get("imageID")),
    )
