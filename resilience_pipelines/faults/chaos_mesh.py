"""Faults by Chaos Mesh: a pod or container killed, its network, CPU and files disturbed.

What belongs here: the strategy `chaos_mesh`: the objects (chaos-mesh.org/v1alpha1) and what their
status means. What does not: the worker in the pod and the proofs (`cluster`, `pod_effects`).

Chaos Mesh says Selected, AllInjected and AllRecovered; what it says of an injection is the act, and
no proof. A one-shot action (a kill) has nothing to recover; whoever only asks the worker may miss a
quick replacement, so only `pod_watch` has to see it. Others have a `duration`, are paused to undo
them, and deleted once AllRecovered holds: after a deletion nothing says it any more.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults import cluster
from resilience_pipelines.faults.cluster import (
    ClusterInjection,
    Expectation,
    Kind,
    NobodyElse,
    Objects,
    OwnPod,
    need_kind,
    need_place,
    new_name,
)
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError
from resilience_pipelines.faults.pod_effects import Effect
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.kubernetes_api import Json, object_of, objects_of, text_of
from resilience_pipelines.records import Layer
from resilience_pipelines.workers.pod import CONTAINER, TARGET_LABEL, PodPlace
from resilience_pipelines.workers.space import holds_within

STRATEGY: Final = "chaos_mesh"
PAUSE_ANNOTATION: Final = "experiment.chaos-mesh.org/pause"
_GROUP: Final = "chaos-mesh.org"


def _kind(name: str) -> Kind:
    return Kind(_GROUP, "v1alpha1", name.lower(), name)


@dataclass(frozen=True)
class Chaos:
    """One kind of disturbance.

    Attributes:
        spec: of the object, without its selector and duration.
        duration_s: after which Chaos Mesh undoes it by itself; None for an action that is done at
            once and has nothing to undo.
        memory: what a stressor takes, as a part of the memory limit of the worker's container.
    """

    kind: Kind
    description: str
    spec: Mapping[str, Any]
    expectation: Expectation
    expected: Mapping[str, float]
    recovery: Recovery
    duration_s: int | None = 120
    in_container: bool = False
    memory: float | None = None


_NETWORK = _kind("NetworkChaos")


class Disturbance(Enum):
    """What Chaos Mesh does to the worker's pod; the name is the fault's, after `chaos_mesh_`."""

    POD_KILL = Chaos(
        _kind("PodChaos"), "the pod is deleted, without grace",
        {"action": "pod-kill", "gracePeriod": 0},
        Expectation(Effect.REPLACED),
        {"pod_watch": 30.0},
        Recovery.CLUSTER, duration_s=None,
    )  # fmt: skip
    CONTAINER_KILL = Chaos(
        _kind("PodChaos"), "the worker's container is killed; its kubelet starts it again",
        {"action": "container-kill"},
        Expectation(Effect.RESTARTED),
        {"pod_watch": 30.0},
        Recovery.CLUSTER, duration_s=None, in_container=True,
    )  # fmt: skip
    NETWORK_DELAY = Chaos(
        _NETWORK, "each packet of the pod leaves 700 ms later",
        {"action": "delay", "delay": {"latency": "700ms", "correlation": "0", "jitter": "0ms"}},
        Expectation(Effect.SLOWER_WAY, 0.5),
        {"health_probe": 30.0, "slow_answers": 30.0},
        Recovery.RESUME,
    )  # fmt: skip
    NETWORK_LOSS = Chaos(
        _NETWORK, "half of the packets that the pod sends are lost",
        {"action": "loss", "loss": {"loss": "50", "correlation": "0"}},
        Expectation(Effect.SLOWER_WAY, 0.15),
        {"health_probe": 30.0, "slow_answers": 45.0},
        Recovery.RESUME,
    )  # fmt: skip
    NETWORK_PARTITION = Chaos(
        _NETWORK, "nothing that the pod sends arrives, until the fault's own limit",
        {"action": "partition", "direction": "to"},
        Expectation(Effect.UNANSWERED),
        {"health_probe": 30.0, "canary": 30.0},
        Recovery.CLUSTER, duration_s=40,
    )  # fmt: skip
    NETWORK_BANDWIDTH = Chaos(
        _NETWORK, "the pod sends no more than 2 kB per second",
        {"action": "bandwidth", "bandwidth": {"rate": "2kbps", "limit": 20000, "buffer": 2000}},
        Expectation(Effect.SLOWER_WAY, 0.2),
        {"health_probe": 45.0, "slow_answers": 60.0},
        Recovery.RESUME,
    )  # fmt: skip
    CPU_STRESS = Chaos(
        _kind("StressChaos"), "four busy processes in the worker's container",
        {"stressors": {"cpu": {"workers": 4, "load": 100}}},
        Expectation(Effect.SLOWER_WORK, 2.0),
        {"slow_answers": 45.0},
        Recovery.RESUME, in_container=True,
    )  # fmt: skip
    MEMORY_STRESS = Chaos(
        _kind("StressChaos"), "a process in the worker's container takes more memory than that has",
        # The kernel shall take the worker for it, or the whole container. At -1000 the stressor
        # would outlive that.
        {"stressors": {"memory": {"workers": 1, "oomScoreAdj": -999}}},
        Expectation(Effect.RESTARTED),
        {"pod_watch": 60.0},
        Recovery.CLUSTER, in_container=True, memory=1.25,
    )  # fmt: skip
    READ_LATENCY = Chaos(
        _kind("IOChaos"), "each operation on the worker's files takes 1 s longer",
        {
            "action": "latency", "delay": "1s", "percent": 100,
        },
        Expectation(Effect.SLOWER_READING, 0.8),
        {"canary": 90.0},
        Recovery.RESUME, in_container=True,
    )  # fmt: skip
    READ_ERROR = Chaos(
        _kind("IOChaos"), "each read of the worker's files fails with EIO, until the fault's own "
        "limit",
        {"action": "fault", "errno": errno.EIO, "methods": ["read"], "percent": 100},
        Expectation(Effect.READING_FAILS),
        {"canary": 30.0},
        Recovery.CLUSTER, duration_s=40, in_container=True,
    )  # fmt: skip


@dataclass(frozen=True)
class ChaosMeshFault:
    """A disturbance of a worker in a pod."""

    disturbance: Disturbance
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE

    @property
    def _chaos(self) -> Chaos:
        return self.disturbance.value

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"chaos_mesh_{self.disturbance.name.lower()}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return f"{self._chaos.description} (Chaos Mesh {self._chaos.kind.kind})"

    @property
    def expected(self) -> Mapping[str, float]:
        """See `Fault.expected`."""
        return self._chaos.expected

    @property
    def recoveries(self) -> tuple[str, ...]:
        """See `Fault.recoveries`."""
        return (self._chaos.recovery,)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {
            "kind": self._chaos.kind.kind,
            "spec": dict(self._chaos.spec),
            "duration_s": self._chaos.duration_s,
        }

    def guards(self, context: FaultContext) -> Sequence[Guard]:
        """See `Fault.guards`."""
        if context.cluster is None:
            return ()
        return (NobodyElse(context.cluster, self._chaos.kind), OwnPod())

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        place = need_place(context)
        if self._chaos.memory is not None and place.settings.memory is None:
            raise ObstacleError(
                FaultReason.NO_RESOURCE_LIMIT,
                "The worker's pod has no memory limit: the memory that is taken would be the "
                "node's. Set `memory` in the launcher's settings.",
            )
        objects = need_kind(place, self._chaos.kind, FaultReason.NO_CHAOS_MESH)
        return ChaosMeshInjection(context, place, objects, self._chaos)


@dataclass(frozen=True)
class ChaosState:
    """What Chaos Mesh says of an object.

    Attributes:
        taken_up: whether any controller has looked at it.
        failures: the last failed operation of each record, in its words.
    """

    taken_up: bool
    selected: bool
    all_injected: bool
    all_recovered: bool
    paused: bool
    failures: tuple[str, ...]


def parse_state(found: Json) -> ChaosState:
    """Read the status of an object."""
    status = object_of(found.get("status"))
    holds: dict[str, bool] = {}
    for item in objects_of(status.get("conditions")):
        name = text_of(item.get("type"))
        # Told twice, it holds only if it does both times.
        holds[name] = holds.get(name, True) and item.get("status") == "True"
    failures = []
    for record in objects_of(object_of(status.get("experiment")).get("containerRecords")):
        # Releases before 2.3 write no events into a record.
        events = objects_of(record.get("events"))
        failed = [item for item in events if item.get("type") == "Failed"]
        if failed:
            failures.append(f"{failed[-1].get('operation')}: {failed[-1].get('message')}")
    return ChaosState(
        taken_up=bool(holds),
        selected=holds.get("Selected", False),
        all_injected=holds.get("AllInjected", False),
        all_recovered=holds.get("AllRecovered", False),
        paused=holds.get("Paused", False),
        failures=tuple(failures),
    )


class ChaosMeshInjection(ClusterInjection):
    """One object, and its way back."""

    def __init__(
        self, context: FaultContext, place: PodPlace, objects: Objects, chaos: Chaos
    ) -> None:
        super().__init__(context, place, chaos.expectation)
        self._objects = objects
        self._chaos = chaos
        self._was_selected = False
        self._recovered = False

    def inject(self) -> None:
        """Make the object, and wait until Chaos Mesh says that it is injected.

        Raises:
            ApiError: the server or Chaos Mesh's webhook refuses it.
            ResilienceError: it was not injected in time; says what Chaos Mesh said.
        """
        self._name = new_name()
        self._objects.create(self.name, self.space, self._spec())
        last: list[Json] = [{}]

        def injected() -> bool:
            state = self._state(last)
            return state is not None and state.all_injected

        if not holds_within(injected, cluster.INJECT_DEADLINE_S, cluster.STEP_S):
            raise ResilienceError(self._why_not(last[0]))

    def _spec(self) -> dict[str, Any]:
        spec = dict(self._chaos.spec) | {
            "mode": "all",
            "selector": {
                "namespaces": [self.place.settings.namespace],
                "labelSelectors": {TARGET_LABEL: self.space.name},
            },
        }
        if self._chaos.kind.kind == "IOChaos":
            home = self.place.settings.home
            spec |= {"volumePath": home, "path": f"{home}/**/*"}
        if self._chaos.memory is not None:
            spec["stressors"] = {
                "memory": spec["stressors"]["memory"] | {"size": self._size(self._chaos.memory)}
            }
        if self._chaos.in_container:
            spec["containerNames"] = [CONTAINER]
        if self._chaos.duration_s is not None:
            spec["duration"] = f"{self._chaos.duration_s}s"
        return spec

    def _size(self, part: float) -> str:
        """A part of the container's memory limit, in the words of Chaos Mesh."""
        from kubernetes.utils.quantity import parse_quantity

        limit = self.place.settings.memory
        assert limit is not None, "prepare refuses a place without one"
        return f"{math.ceil(float(parse_quantity(limit)) * part / 1e6)}MB"

    def _state(self, last: list[Json] | None = None) -> ChaosState | None:
        """Its state; None where it is gone or the server does not answer now."""
        found = self._objects.look(self.name)
        if found is None:
            return None
        if last is not None:
            last[0] = found
        state = parse_state(found)
        self._was_selected |= state.selected
        return state

    def _why_not(self, found: Json) -> str:
        what = f"{self._chaos.kind.kind} {self.name}"
        limit = f"within {cluster.INJECT_DEADLINE_S:g} s"
        state = parse_state(found)
        if not state.taken_up:
            return f"No controller of Chaos Mesh took up {what} {limit}."
        if not state.selected:
            return f"{what} selected no pod {limit}."
        said = list(state.failures)
        if not said:
            uid = str((found.get("metadata") or {}).get("uid", ""))
            said = [text for text in self.place.events(uid) if text.startswith("Failed")][-1:]
        return f"{what} was not injected {limit}: {'; '.join(said) or 'it says nothing'}."

    def _undo(self) -> None:
        if self._chaos.duration_s is not None:
            self._pause()
        self._objects.remove(self.name, cluster.ROLLBACK_DEADLINE_S)

    def _pause(self) -> None:
        """Have it undone while there still is an object that can say so."""
        self._objects.patch(self.name, {"metadata": {"annotations": {PAUSE_ANNOTATION: "true"}}})

        def settled() -> bool:
            state = self._state()
            # Nothing was selected: there is nothing that could be undone.
            self._recovered = state is not None and state.all_recovered
            return self._recovered or (state is not None and not self._was_selected)

        holds_within(settled, cluster.ROLLBACK_DEADLINE_S / 2, cluster.STEP_S)

    def _left(self) -> str | None:
        if self._objects.get(self.name) is not None:
            return f"{self._chaos.kind.kind} {self.name} is still there"
        if self._chaos.duration_s is not None and self._was_selected and not self._recovered:
            return f"{self._chaos.kind.kind} {self.name} is gone without having said AllRecovered"
        return None

    def _undone_words(self) -> str:
        said = "AllRecovered, then gone" if self._recovered else "gone"
        return f"{self._chaos.kind.kind} {self.name}: {said}"
