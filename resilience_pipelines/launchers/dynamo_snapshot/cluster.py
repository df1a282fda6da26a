"""What is read of a cluster besides Dynamo Snapshot's objects: pods, the agent's log, nodes.

What belongs here: one look at a worker's pod, the phases of its start as they are seen from here,
the log of a node's agent, and the stack of nodes. What does not: what is done (`engine`).

The phases have the names of a job's pod (`launchers.kubernetes.phases`). Their boundaries are the
moments at which this platform first sees them, on its own clock: one clock, so that they add up
with the first token, to `POLL_S` instead of the whole seconds that the cluster's own parts write.
Those stay in the evidence.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from resilience_pipelines.kubernetes_api import ApiError, Json, objects_of, text_of
from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    AGENT_CONTAINER,
    AGENT_SELECTOR,
    RESTORED,
    Restored,
    read_restored,
)
from resilience_pipelines.launchers.kubernetes.nodes import NodeState, parse_node
from resilience_pipelines.launchers.kubernetes.state import (
    ClusterEvent,
    PodState,
    parse_cluster_event,
    parse_pod,
)
from resilience_pipelines.records import Phase
from resilience_pipelines.stopwatch import HOST_CLOCK
from resilience_pipelines.workers.pod import CONTAINER, TARGET_LABEL, PodPlace

POLL_S: Final = 0.1
"""Between two looks; the resolution of what is seen from here."""
LOG_LINES: Final = 2000


@dataclass(frozen=True)
class Sight:
    """One look at a worker's pod. `pod` is None where there is none."""

    pod: PodState | None
    events: tuple[ClusterEvent, ...]
    raw: Mapping[str, Any]

    @property
    def running(self) -> bool:
        """Whether its container runs."""
        container = self.pod.container if self.pod else None
        return (
            container is not None
            and container.started_at is not None
            and container.exit_code is None
        )

    @property
    def ended(self) -> bool:
        """Whether its container has ended."""
        if self.pod is None:
            return False
        container = self.pod.container
        return self.pod.ended or (container is not None and container.exit_code is not None)

    @property
    def ready(self) -> bool:
        """Whether the pod says that it is ready."""
        found = self.pod.condition("Ready") if self.pod else None
        return found is not None and found.holds

    @property
    def restored(self) -> Restored:
        """What the agent says."""
        found = self.pod.condition(RESTORED) if self.pod else None
        return read_restored(found.status, found.reason) if found else Restored.PENDING

    @property
    def restored_words(self) -> str:
        """Reason and message of the agent."""
        found = self.pod.condition(RESTORED) if self.pod else None
        return f"{found.reason}: {found.message}" if found else "the agent says nothing"

    @property
    def waits_for(self) -> str:
        """Why its container does not run, in the words of the kubelet and the scheduler."""
        if self.pod is None:
            return "no pod was made"
        container, scheduled = self.pod.container, self.pod.condition("PodScheduled")
        words = [container.reason, container.message] if container else []
        if scheduled is not None and not scheduled.holds:
            words.append(scheduled.message)
        warnings = [f"{item.reason}: {item.message}" for item in self.events
                    if item.type == "Warning"]  # fmt: skip
        return "; ".join(filter(None, [*words, *warnings[-2:]])) or "it says nothing"


class Watcher:
    """Looks at pods and agents of a place."""

    def __init__(self, place: PodPlace) -> None:
        import kubernetes

        self._place = place
        self._core = kubernetes.client.CoreV1Api(place.api)

    def see(self, name: str) -> Sight:
        """The oldest pod that a worker's label selects, and what was reported about it.

        Raises:
            ApiError
        """
        namespace = self._place.settings.namespace
        items = objects_of(self._place.call(
            "list pods", self._core.list_namespaced_pod, namespace,
            label_selector=f"{TARGET_LABEL}={name}",
        ).get("items"))  # fmt: skip
        if not items:
            return Sight(None, (), {})
        found = min(items, key=lambda item: str(item["metadata"].get("creationTimestamp") or ""))
        pod = parse_pod(found, CONTAINER)
        events = objects_of(self._place.call(
            "list events", self._core.list_namespaced_event, namespace,
            field_selector=f"involvedObject.uid={pod.uid}",
        ).get("items"))  # fmt: skip
        ordered = sorted(events, key=lambda item: str(item.get("lastTimestamp") or ""))
        return Sight(pod, tuple(map(parse_cluster_event, ordered)), found)

    def look(self, name: str) -> Sight | None:
        """As `see`; None where the server does not answer now.

        Raises:
            ApiError: it refuses.
        """
        try:
            return self.see(name)
        except ApiError as error:
            if not error.may_pass:
                raise
            return None

    def agent_log(self, namespace: str, node: str) -> str:
        """The last lines that the agent of a node logged.

        Raises:
            ApiError: it can't be read, or there is no agent on that node.
        """
        import urllib3
        from kubernetes.client import ApiException

        timeout_s = self._place.settings.request_s
        agents = self._place.call(
            "list agents", self._core.list_namespaced_pod, namespace,
            label_selector=AGENT_SELECTOR, field_selector=f"spec.nodeName={node}",
        )  # fmt: skip
        names = [text_of(item["metadata"].get("name")) for item in objects_of(agents.get("items"))]
        if not names:
            raise ApiError("name an agent", 404, f"there is none on {node} in {namespace}")
        try:
            response = self._core.read_namespaced_pod_log(
                names[0], namespace, container=AGENT_CONTAINER, tail_lines=LOG_LINES,
                _preload_content=False, _request_timeout=(timeout_s, timeout_s),
            )  # fmt: skip
        except ApiException as error:
            raise ApiError("give the log", error.status or 0, str(error.reason)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError("give the log", 0, type(error).__name__) from error
        return str(response.data.decode(errors="replace"))

    def nodes(self, gpu_resource: str) -> list[NodeState]:
        """All nodes; none where they may not be listed.

        Raises:
            ApiError: the server is lost.
        """
        try:
            found = self._place.call("list nodes", self._core.list_node)
        except ApiError as error:
            if error.status in (401, 403):
                return []
            raise
        return [parse_node(item, gpu_resource) for item in objects_of(found.get("items"))]


BOUNDARIES: Final = (
    "pod_created", "scheduled", "image_pull_wait", "image_pull", "container_start", "restore",
)  # fmt: skip
"""Names of phases, each by its end, in the order in which they come."""


@dataclass
class Timeline:
    """When each boundary of a pod's start was first seen.

    Args:
        started_ns: CLOCK_MONOTONIC of the decision to start, in nanoseconds.
    """

    started_ns: int
    _seen: dict[str, int] = field(default_factory=dict)

    def note(self, sight: Sight) -> None:
        """Take in one look."""
        now = time.monotonic_ns()
        pod = sight.pod
        if pod is None:
            return
        scheduled = pod.condition("PodScheduled")
        reasons = {event.reason for event in sight.events}
        holds: Mapping[str, bool] = {
            "pod_created": True,
            "scheduled": pod.node is not None or (scheduled is not None and scheduled.holds),
            "image_pull_wait": "Pulling" in reasons,
            # The kubelet says `Pulled` of an image that it had, too.
            "image_pull": {"Pulling", "Pulled"} <= reasons,
            "container_start": sight.running,
            "restore": sight.restored is Restored.DONE,
        }
        for name in BOUNDARIES:
            if holds[name]:
                self._seen.setdefault(name, now)

    def at_ns(self, name: str) -> int | None:
        """When a boundary was seen; None while it was not."""
        return self._seen.get(name)

    def phases(self) -> list[Phase]:
        """Phases up to the last boundary that was seen. What was seen at once has no length."""
        found: list[Phase] = []
        before = self.started_ns
        for name in BOUNDARIES:
            end = self._seen.get(name)
            if end is None or end < before:
                continue
            found.append(phase(name, before, end, self.started_ns))
            before = end
        return found


def phase(
    name: str, start_ns: int, end_ns: int, origin_ns: int, resolution_s: float = POLL_S
) -> Phase:
    """A phase on this machine's clock."""
    return Phase(
        name=name,
        start_s=(start_ns - origin_ns) / 1e9,
        duration_s=(end_ns - start_ns) / 1e9,
        clock=HOST_CLOCK,
        resolution_s=resolution_s,
    )


def node_facts(nodes: Sequence[NodeState], gpus: int) -> dict[str, str | int | None]:
    """The dimensions of a stack that nodes tell, as far as all that were used agree.

    Args:
        gpus: how many a pod gets; without any, a node's GPUs are no part of its stack.
    """
    facts: list[dict[str, str | int | None]] = []
    for node in nodes:
        told: dict[str, str | int | None] = {
            "kernel_version": node.kernel,
            "container_runtime": node.container_runtime,
        }
        if gpus:
            memory = node.gpu_memory_bytes
            told |= {
                "gpu_sku": node.gpu_product,
                "gpu_memory_mib": memory // 2**20 if memory is not None else None,
                "driver_version": node.driver_version,
            }
        facts.append(told)
    if not facts:
        return {}
    return {
        name: facts[0][name] if all(item[name] == facts[0][name] for item in facts) else None
        for name in facts[0]
    }


def as_json(sight: Sight | None) -> Json:
    """What was seen of a pod, for the evidence: in the cluster's own words and times."""
    if sight is None:
        return {}
    events = [
        {"reason": item.reason, "message": item.message, "at": str(item.at), "by": item.source}
        for item in sight.events
    ]
    status = sight.raw.get("status")
    return {"status": status if isinstance(status, dict) else {}, "events": events}
