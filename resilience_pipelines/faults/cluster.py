"""What faults of a worker in a pod share, whichever operator of the cluster injects them.

What belongs here: starting the worker in a pod, its guards and detectors, the proofs, and objects
of an operator: making one, reading and removing it. What does not: what an object of one operator
says (`chaos_mesh`, `litmus`).

An object belongs to the worker's Job, and has a limit of its own: when this platform is killed, the
operator ends the fault, and the cluster removes both.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.pod_watch import PodWatch
from resilience_pipelines.detectors.slow_answers import SlowAnswers
from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.faults.fault import (
    Elsewhere,
    FaultContext,
    Injection,
    ObstacleError,
    Target,
)
from resilience_pipelines.faults.pod_effects import Before, Effect, as_before, look_before, prove
from resilience_pipelines.faults.recovery import wake_again
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.kubernetes_api import ApiError, Json, objects_of
from resilience_pipelines.records import Proof
from resilience_pipelines.workers.oracle import record_answer
from resilience_pipelines.workers.pod import TARGET_LABEL, PodPlace, PodSpace, start_in_pod
from resilience_pipelines.workers.space import holds_within

VARIABLE: Final = "RESILIENCE_CLUSTER_FAULTS"
"""Set to 1 by an operator who allows experiments on a cluster, in pods that they start there."""
WORKERS: Final = frozenset({"reference"})
"""The workers that `serve` can become."""

PERMISSIONS: Final = frozenset(
    {
        ("", "pods/proxy", "get"),
        ("", "pods/proxy", "create"),
        *(
            ("chaos-mesh.org", plural, verb)
            for plural in ("podchaos", "networkchaos", "stresschaos", "iochaos")
            for verb in ("create", "get", "list", "patch", "delete")
        ),
        *(
            ("litmuschaos.io", "chaosengines", verb)
            for verb in ("create", "get", "list", "patch", "delete")
        ),
        *(("litmuschaos.io", "chaosresults", verb) for verb in ("get", "list", "delete")),
        *(("litmuschaos.io", "chaosexperiments", verb) for verb in ("get", "list")),
    }
)
"""What these faults do beside what the launcher may: deploy/kubernetes/rbac-faults.yaml has it."""

INJECT_DEADLINE_S = 60.0
EFFECT_DEADLINE_S = 60.0
ROLLBACK_DEADLINE_S = 90.0
STEP_S = 0.1


@dataclass(frozen=True)
class Kind:
    """A kind of object of an operator."""

    group: str
    version: str
    plural: str
    kind: str


class Objects:
    """Objects of one kind in the namespace of a place."""

    def __init__(self, place: PodPlace, kind: Kind) -> None:
        self._place = place
        self._kind = kind
        self._where = (kind.group, kind.version, place.settings.namespace, kind.plural)

    def list(self) -> Sequence[Json]:
        """All of them.

        Raises:
            ApiError: 404 where the cluster does not know this kind.
        """
        found = self._place.call(
            f"list {self._kind.plural}", self._place.custom.list_namespaced_custom_object,
            *self._where,
        )  # fmt: skip
        return objects_of(found.get("items"))

    def get(self, name: str) -> Json | None:
        """One of them; None where there is none."""
        try:
            return self._place.call(
                f"read {self._kind.plural} {name}",
                self._place.custom.get_namespaced_custom_object, *self._where, name,
            )  # fmt: skip
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def look(self, name: str) -> Json | None:
        """As `get`, but also None where the server does not answer now."""
        try:
            return self.get(name)
        except ApiError as error:
            if not error.may_pass:
                raise
            return None

    def create(self, name: str, space: PodSpace, spec: Mapping[str, Any]) -> None:
        """Make one that belongs to a worker's Job; see `make`."""
        labels = {TARGET_LABEL: space.name}
        self.make(name, {"labels": labels, "ownerReferences": [owned_by_job(space)]}, spec)

    def make(self, name: str, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        """Make one.

        Raises:
            ApiError: the server or an admission webhook refuses it; where no answer came it may
                have been made.
        """
        place = {"name": name, "namespace": self._place.settings.namespace}
        body = {
            "apiVersion": f"{self._kind.group}/{self._kind.version}",
            "kind": self._kind.kind,
            "metadata": place | dict(metadata),
            "spec": dict(spec),
        }
        self._place.call(
            f"create {self._kind.plural} {name}",
            self._place.custom.create_namespaced_custom_object, *self._where, body,
        )  # fmt: skip

    def patch(self, name: str, change: Mapping[str, Any]) -> None:
        """Merge a change into one; one that is gone is left alone."""
        try:
            self._place.call(
                f"change {self._kind.plural} {name}",
                self._place.custom.patch_namespaced_custom_object, *self._where, name,
                dict(change),
            )  # fmt: skip
        except ApiError as error:
            if error.status != 404:
                raise

    def remove(self, name: str, deadline_s: float) -> None:
        """Delete one and wait until it is gone, whatever its finalizers wait for.

        Raises:
            DeadlineError: it is still there; tells its finalizers.
            ApiError: the server refuses.
        """
        last: list[Json | None] = [None]

        def gone() -> bool:
            try:
                last[0] = self.get(name)
                if last[0] is not None and "deletionTimestamp" not in last[0]["metadata"]:
                    self._place.call(
                        f"delete {self._kind.plural} {name}",
                        self._place.custom.delete_namespaced_custom_object, *self._where, name,
                    )  # fmt: skip
                    return False
            except ApiError as error:
                if not error.may_pass and error.status != 404:
                    raise
                return False
            return last[0] is None

        if not holds_within(gone, deadline_s, STEP_S):
            metadata = last[0]["metadata"] if last[0] else {}
            holds = ", ".join(metadata.get("finalizers") or ()) or "none"
            raise DeadlineError(
                f"{self._kind.kind} {name} is still there after {deadline_s:g} s, with the "
                f"finalizers {holds}: its operator has not undone what it did, which may still be "
                "in place.",
                mend="Read its events and the operator's log. Taking the finalizer off by force "
                "removes the object and not what was done.",
            )


def owned_by_job(space: PodSpace) -> dict[str, Any]:
    """How an object says that it belongs to a worker's Job."""
    return {
        "apiVersion": "batch/v1", "kind": "Job", "name": space.name, "uid": space.uid,
        "blockOwnerDeletion": False, "controller": False,
    }  # fmt: skip


def new_name() -> str:
    """A name for an object; known before it is made, so that it can be removed in any case."""
    return f"resilience-{secrets.token_hex(5)}"


def need_place(context: FaultContext) -> PodPlace:
    """The cluster to work on.

    Raises:
        ObstacleError: there is none, it is not allowed, or the worker can't be started there.
    """
    if context.cluster is None:
        raise ObstacleError(FaultReason.NO_CLUSTER, context.no_cluster_why or "No cluster is set.")
    if context.worker.name not in WORKERS:
        raise ObstacleError(
            FaultReason.NO_POD_WORKER,
            f"{context.worker.name} can't be started in a pod; {', '.join(WORKERS)} can.",
        )
    return context.cluster


def need_kind(place: PodPlace, kind: Kind, missing: FaultReason) -> Objects:
    """Objects of a kind that the cluster knows and lets us use.

    Raises:
        ObstacleError: it does not.
        ApiError: the server is lost.
    """
    objects = Objects(place, kind)
    try:
        objects.list()
    except ApiError as error:
        if error.status == 404:
            raise ObstacleError(
                missing, f"The cluster has no kind {kind.plural}.{kind.group}."
            ) from error
        if error.status in (401, 403):
            raise ObstacleError(FaultReason.CLUSTER_FORBIDS, error.reason) from error
        raise
    return objects


@dataclass(frozen=True)
class NobodyElse:
    """Nobody else has a fault of this kind in the namespace."""

    place: PodPlace
    kind: Kind
    name: str = "nobody_else"

    def objection(self, target: Target | None) -> str | None:  # noqa: ARG002
        """See `Guard.objection`."""
        try:
            found = [item["metadata"]["name"] for item in Objects(self.place, self.kind).list()]
        except ApiError as error:
            return None if error.status in (401, 403, 404) else error.reason
        return f"{self.kind.plural} are there: {', '.join(found)}" if found else None


@dataclass(frozen=True)
class OwnPod:
    """The pod that the fault selects is the one that this experiment started, and no other is."""

    name: str = "own_pod"

    def objection(self, target: Target | None) -> str | None:
        """See `Guard.objection`."""
        if target is None:
            return None
        space = pod_space(target)
        owners = space.place.owners(space.name)
        if owners == [space.uid]:
            return None
        return f"the label {TARGET_LABEL}={space.name} selects pods of the owners {owners}"


def pod_space(target: Target) -> PodSpace:
    """The pod that a target lives in."""
    space = target.running.space
    assert isinstance(space, PodSpace)
    return space


@dataclass(frozen=True)
class Expectation:
    """What a fault has to do to the worker.

    Attributes:
        threshold: see `pod_effects.prove`.
    """

    effect: Effect
    threshold: float = 0.0


class ClusterInjection(Injection):
    """One fault of a worker in a pod, put in place by an operator of the cluster."""

    hits_worker = False

    def __init__(self, context: FaultContext, place: PodPlace, expectation: Expectation) -> None:
        super().__init__(context)
        self.place = place
        self._expectation = expectation
        self._before: Before | None = None
        self._name: str | None = None
        self._rolled_back = False

    @property
    def before(self) -> Before:
        """The worker before the fault."""
        assert self._before is not None, "attach comes first"
        return self._before

    @property
    def name(self) -> str:
        """The name of the operator's object."""
        assert self._name is not None, "inject comes first"
        return self._name

    @property
    def space(self) -> PodSpace:
        """The pod of the target."""
        return pod_space(self.target)

    def start_elsewhere(self) -> Elsewhere:
        """Start the worker in a pod, and ask for the answer that it gives while it is well."""
        running = start_in_pod(self.context.worker, self.place)
        try:
            answer = record_answer(running.client, timeout_s=self.context.worker.request_deadline_s)
        except BaseException:
            running.stop()
            raise
        self.context = replace(self.context, answer=answer)
        return Elsewhere(running, self.context)

    def attach(self, target: Target) -> None:
        """Measure what the effect is compared with."""
        super().attach(target)
        self._before = look_before(self.space, target.running.client, self._expectation.effect)

    def detectors(self) -> Sequence[Detector]:
        """The pod's own, and answers that take far longer than before."""
        limit_s = self.before.work_s * 1.5 + 0.05
        return (
            PodWatch(self.space, self.before.pod),
            SlowAnswers(self.target.running.client, limit_s),
        )

    def parameters(self) -> Mapping[str, Any]:
        """Where it was, and what it was like before."""
        if self._before is None:
            return {}
        return {
            "kubernetes_version": self.place.version,
            "node": self._before.pod.node,
            "way_before_s": self._before.way_s,
            "work_before_s": self._before.work_s,
        }

    def prove_effect(self) -> Proof:
        """See `pod_effects`: the operator's own word does not count."""
        return prove(
            self._expectation.effect, self._expectation.threshold, self.before, self.space,
            self.target.running.client, EFFECT_DEADLINE_S,
        )  # fmt: skip

    def roll_back(self) -> None:
        """Let the operator undo it, and remove its object. A second call does nothing."""
        if not self._rolled_back:
            self._rolled_back = True
            if self._name is not None:
                self._undo()
                if self._expectation.effect is Effect.READING_FAILS:
                    wake_again(self.target.running)

    def prove_rollback(self) -> Proof:
        """The object is gone, its operator has said that all is undone, and the worker serves."""
        made = self._name is not None
        left = self._left() if made else None
        serving = as_before(self.before, self.target.running.client, ROLLBACK_DEADLINE_S)
        return Proof(
            proved=left is None and serving.proved, source="API server and client",
            detail=f"{left or (self._undone_words() if made else 'nothing was made')}; "
            f"{serving.detail}",
        )  # fmt: skip

    def close(self) -> None:
        """See `Injection.close`."""
        if self._target is not None:
            self.roll_back()

    @abstractmethod
    def _undo(self) -> None:
        """Undo and remove; called where an object was made, or may have been."""

    @abstractmethod
    def _left(self) -> str | None:
        """What of the fault is left in the cluster, or not known to be undone; None: nothing."""

    @abstractmethod
    def _undone_words(self) -> str:
        """What says that nothing is left."""
