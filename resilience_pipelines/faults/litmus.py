"""Faults by Litmus: pods deleted, containers killed, network and CPU disturbed by its experiments.

What belongs here: the strategy `litmus`: a ChaosEngine (litmuschaos.io/v1alpha1) for one
experiment, what its status and the ChaosResult say. What does not: the worker in the pod and the
proofs (`cluster`, `pod_effects`).

Litmus gives a verdict of its own, about its own probes. It is recorded as it is, whatever word it
is, and decides nothing here. An engine is stopped (`engineState: stop`) before it is deleted.
"""

from __future__ import annotations

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
from resilience_pipelines.kubernetes_api import Json, object_of, objects_of
from resilience_pipelines.records import Layer
from resilience_pipelines.workers.pod import CONTAINER, TARGET_LABEL, PodPlace
from resilience_pipelines.workers.space import holds_within

STRATEGY: Final = "litmus"
ACCOUNT: Final = "litmus-admin"
"""The service account in the namespace that Litmus's own charts make for its runners."""


def _kind(name: str) -> Kind:
    return Kind("litmuschaos.io", "v1alpha1", f"{name.lower()}s", name)


ENGINES: Final = _kind("ChaosEngine")
RESULTS: Final = _kind("ChaosResult")
EXPERIMENTS: Final = _kind("ChaosExperiment")

_ENDED: Final = frozenset({"completed", "stopped"})
_STARTED: Final = frozenset({"Running", "Completed"})


@dataclass(frozen=True)
class Experiment:
    """One of Litmus's experiments.

    Attributes:
        name: of the ChaosExperiment.
        env: its settings.
        duration_s: TOTAL_CHAOS_DURATION, after which it undoes itself.
    """

    name: str
    description: str
    env: Mapping[str, str]
    expectation: Expectation
    expected: Mapping[str, float]
    recovery: Recovery
    duration_s: int = 120


class LitmusExperiment(Enum):
    """What Litmus does to the worker's pod; the name is the fault's, after `litmus_`."""

    POD_DELETE = Experiment(
        "pod-delete", "the pod is deleted, without grace",
        # As long as one interval: it is deleted once.
        {"FORCE": "true", "CHAOS_INTERVAL": "10"},
        Expectation(Effect.REPLACED),
        {"pod_watch": 90.0},
        Recovery.CLUSTER, duration_s=10,
    )  # fmt: skip
    CONTAINER_KILL = Experiment(
        "container-kill", "the worker's container is killed; its kubelet starts it again",
        {"CHAOS_INTERVAL": "10", "TARGET_CONTAINER": CONTAINER},
        Expectation(Effect.RESTARTED),
        {"pod_watch": 90.0},
        Recovery.CLUSTER, duration_s=10,
    )  # fmt: skip
    NETWORK_LATENCY = Experiment(
        "pod-network-latency", "each packet of the pod leaves 700 ms later",
        {"NETWORK_LATENCY": "700", "TARGET_CONTAINER": CONTAINER},
        Expectation(Effect.SLOWER_WAY, 0.5),
        {"health_probe": 90.0, "slow_answers": 90.0},
        Recovery.RESUME,
    )  # fmt: skip
    NETWORK_LOSS = Experiment(
        "pod-network-loss", "half of the packets that the pod sends are lost",
        {"NETWORK_PACKET_LOSS_PERCENTAGE": "50", "TARGET_CONTAINER": CONTAINER},
        Expectation(Effect.SLOWER_WAY, 0.15),
        {"health_probe": 90.0, "slow_answers": 120.0},
        Recovery.RESUME,
    )  # fmt: skip
    CPU_HOG = Experiment(
        "pod-cpu-hog", "four cores' worth of busy work in the worker's container",
        {"CPU_CORES": "4", "TARGET_CONTAINER": CONTAINER},
        Expectation(Effect.SLOWER_WORK, 2.0),
        {"slow_answers": 90.0},
        Recovery.RESUME,
    )  # fmt: skip


@dataclass(frozen=True)
class LitmusFault:
    """One experiment of Litmus on a worker in a pod."""

    experiment: LitmusExperiment
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"litmus_{self.experiment.name.lower()}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return f"{self.experiment.value.description} (Litmus {self.experiment.value.name})"

    @property
    def expected(self) -> Mapping[str, float]:
        """See `Fault.expected`."""
        return self.experiment.value.expected

    @property
    def recoveries(self) -> tuple[str, ...]:
        """See `Fault.recoveries`."""
        return (self.experiment.value.recovery,)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        found = self.experiment.value
        return {
            "experiment": found.name, "env": dict(found.env), "duration_s": found.duration_s,
        }  # fmt: skip

    def guards(self, context: FaultContext) -> Sequence[Guard]:
        """See `Fault.guards`."""
        return () if context.cluster is None else (NobodyElse(context.cluster, ENGINES), OwnPod())

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        place = need_place(context)
        need_kind(place, ENGINES, FaultReason.NO_LITMUS)
        need_kind(place, RESULTS, FaultReason.NO_LITMUS)
        experiments = need_kind(place, EXPERIMENTS, FaultReason.NO_LITMUS)
        name = self.experiment.value.name
        if experiments.get(name) is None:
            raise ObstacleError(
                FaultReason.NO_LITMUS,
                f"The namespace {place.settings.namespace} has no ChaosExperiment {name}.",
            )
        return LitmusInjection(context, place, self.experiment.value)


@dataclass(frozen=True)
class EngineState:
    """What Litmus says of an engine with one experiment.

    Attributes:
        status: of the engine, e.g. `initialized`; empty before its operator has seen it.
        experiment: of the experiment, e.g. `Running`.
    """

    status: str
    experiment: str


def parse_engine(found: Json) -> EngineState:
    """Read the status of a ChaosEngine."""
    status = object_of(found.get("status"))
    experiments = objects_of(status.get("experiments")) or [{}]
    return EngineState(
        status=str(status.get("engineStatus") or ""),
        experiment=str(experiments[0].get("status") or ""),
    )


@dataclass(frozen=True)
class ResultState:
    """What a ChaosResult says, in Litmus's own words; empty where it does not say it.

    Attributes:
        verdict: `Pass`, `Fail`, `Stopped`, `Awaited`, or any other word of another release.
        failure: the step that failed and its error code.
    """

    phase: str
    verdict: str
    probe_success_percentage: str
    failure: str


def parse_result(found: Json) -> ResultState:
    """Read the status of a ChaosResult; older releases have `failStep` for `failureOutput`."""
    status = object_of(object_of(found.get("status")).get("experimentStatus"))
    output = object_of(status.get("failureOutput"))
    parts = (output.get("failedStep") or status.get("failStep"), output.get("errorCode"))
    words = [str(part) for part in parts if part and part != "N/A"]
    return ResultState(
        phase=str(status.get("phase") or ""),
        verdict=str(status.get("verdict") or ""),
        probe_success_percentage=str(status.get("probeSuccessPercentage") or ""),
        failure=": ".join(words),
    )


class LitmusInjection(ClusterInjection):
    """One engine, its result, and the way back."""

    def __init__(self, context: FaultContext, place: PodPlace, experiment: Experiment) -> None:
        super().__init__(context, place, experiment.expectation)
        self._experiment = experiment
        self._engines = Objects(place, ENGINES)
        self._results = Objects(place, RESULTS)
        self._ended = False
        self._result: ResultState | None = None

    def parameters(self) -> Mapping[str, Any]:
        """What Litmus said in the end, in its own words, beside where it was."""
        said = self._result
        if said is None:
            return super().parameters()
        return {
            **super().parameters(),
            "litmus_phase": said.phase,
            "litmus_verdict": said.verdict,
            "litmus_probe_success_percentage": said.probe_success_percentage,
            "litmus_failure": said.failure,
        }

    def inject(self) -> None:
        """Make the engine, and wait until its experiment runs.

        Raises:
            ApiError: the server or a webhook refuses it.
            ResilienceError: it does not run in time, or not at all; says what Litmus said.
        """
        self._name = new_name()
        self._engines.create(self.name, self.space, self._spec())
        last = EngineState("", "")

        def runs() -> bool:
            nonlocal last
            last = self._state() or last
            if last.experiment and last.experiment not in _STARTED and last.status in _ENDED:
                return True
            return last.experiment in _STARTED

        what = f"The experiment {self._experiment.name} of ChaosEngine {self.name}"
        if holds_within(runs, cluster.INJECT_DEADLINE_S, cluster.STEP_S):
            if last.experiment in _STARTED:
                return
            raise ResilienceError(f"{what} was not run: {last.experiment}.")
        limit = f"within {cluster.INJECT_DEADLINE_S:g} s"
        if not last.status:
            raise ResilienceError(f"No operator of Litmus took up ChaosEngine {self.name} {limit}.")
        raise ResilienceError(f"{what} did not run {limit}: {last.experiment or last.status}.")

    def _spec(self) -> dict[str, Any]:
        env = {
            "TOTAL_CHAOS_DURATION": str(self._experiment.duration_s),
            "TARGET_PODS": self.before.pod.name,
        } | dict(self._experiment.env)
        components = {"env": [{"name": name, "value": value} for name, value in env.items()]}
        return {
            "engineState": "active",
            # Before 3.0 pods had to be annotated for it; these are ours.
            "annotationCheck": "false",
            "appinfo": {
                "appns": self.place.settings.namespace,
                "applabel": f"{TARGET_LABEL}={self.space.name}",
                # Litmus knows no Jobs: without a kind it goes by the label.
                "appkind": "",
            },
            "chaosServiceAccount": ACCOUNT,
            "jobCleanUpPolicy": "delete",
            "experiments": [{"name": self._experiment.name, "spec": {"components": components}}],
        }

    def _state(self) -> EngineState | None:
        """Its state; None where it is gone or the server does not answer now."""
        found = self._engines.look(self.name)
        return None if found is None else parse_engine(found)

    def _undo(self) -> None:
        if self._experiment.recovery is Recovery.CLUSTER:
            # It is over by itself after its duration, and then has a verdict.
            self._await_end(self._experiment.duration_s + cluster.ROLLBACK_DEADLINE_S / 2)
        if not self._ended:
            self._engines.patch(self.name, {"spec": {"engineState": "stop"}})
            self._await_end(cluster.ROLLBACK_DEADLINE_S)
        result = f"{self.name}-{self._experiment.name}"
        found = self._results.get(result)
        self._result = parse_result(found) if found is not None else None
        self._engines.remove(self.name, cluster.ROLLBACK_DEADLINE_S)
        self._results.remove(result, cluster.ROLLBACK_DEADLINE_S)

    def _await_end(self, limit_s: float) -> None:
        def ended() -> bool:
            state = self._state()
            self._ended = state is not None and state.status in _ENDED
            # An engine that nobody took up runs nothing that could end.
            return self._ended or (state is not None and not state.status)

        holds_within(ended, limit_s, cluster.STEP_S)

    def _left(self) -> str | None:
        if self._engines.get(self.name) is not None:
            return f"ChaosEngine {self.name} is still there"
        return None

    def _undone_words(self) -> str:
        said = "ended, then gone" if self._ended else "gone"
        verdict = f", its own verdict {self._result.verdict or 'none'}" if self._result else ""
        return f"ChaosEngine {self.name}: {said}{verdict}"
