"""Faults of a worker in a pod, against stateful fakes of the API server, Chaos Mesh and Litmus."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from resilience_pipelines.faults import cluster as cluster_faults
from resilience_pipelines.faults import experiment, pod_effects
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.chaos_mesh import Disturbance
from resilience_pipelines.faults.cluster import PERMISSIONS as FAULT_PERMISSIONS
from resilience_pipelines.faults.experiment import run_experiment
from resilience_pipelines.faults.fault import FaultContext
from resilience_pipelines.faults.litmus import LitmusExperiment
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.kubernetes_api import load_configuration
from resilience_pipelines.launchers.kubernetes.client import PERMISSIONS
from resilience_pipelines.records import FaultRun, OracleVerdict, Verdict
from resilience_pipelines.workers.oracle import RecordedAnswer
from resilience_pipelines.workers.pod import PodPlace, PodSettings
from resilience_pipelines.workers.space import SpaceSupport
from tests.integration.fault_support import NEED_CLUSTER, make_context
from tests.support.fake_chaos import chaos_mesh, litmus
from tests.support.fake_chaos.chaos_mesh import ChaosMesh
from tests.support.fake_chaos.litmus import Litmus
from tests.support.fake_chaos.stand_in import PodServer
from tests.support.fake_kubernetes.cluster import FakeCluster, fake_cluster
from tests.support.fake_kubernetes.server import Fault
from tests.support.fake_kubernetes.store import Object, StatusError
from tests.support.workers import ContractWorker


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for what will not happen are short here, and so is a partition."""
    monkeypatch.setattr(experiment, "CONTROL_OBSERVATION_S", 0.5)
    monkeypatch.setattr(cluster_faults, "INJECT_DEADLINE_S", 3.0)
    monkeypatch.setattr(cluster_faults, "EFFECT_DEADLINE_S", 4.0)
    monkeypatch.setattr(cluster_faults, "ROLLBACK_DEADLINE_S", 4.0)
    monkeypatch.setattr(pod_effects, "PROBE_TIMEOUT_S", 1.0)
    for item in Disturbance:
        if item.value.duration_s is not None and item.value.recovery is Recovery.CLUSTER:
            quick = dataclasses.replace(item.value, duration_s=8)
            monkeypatch.setattr(item, "_value_", quick)
    for experiment_ in LitmusExperiment:
        quick_ = dataclasses.replace(experiment_.value, duration_s=30)
        if experiment_.value.recovery is Recovery.CLUSTER:
            quick_ = dataclasses.replace(experiment_.value, duration_s=3)
        monkeypatch.setattr(experiment_, "_value_", quick_)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeCluster]:
    with fake_cluster(tmp_path) as cluster:
        cluster.kubelet.serve = PodServer
        # As deploy/kubernetes grants it, where the names of both sets are read from.
        cluster.server.granted = set(PERMISSIONS | FAULT_PERMISSIONS)
        cluster.kubelet.images.add("registry.test/worker:1")
        yield cluster


@pytest.fixture
def place(fake: FakeCluster, tmp_path: Path) -> Iterator[PodPlace]:
    settings = PodSettings(
        image="registry.test/worker:1",
        memory="1Gi",
        home=str(tmp_path / "pod"),
        pending_s=10.0,
        request_s=5.0,
        gone_s=10.0,
    )
    with closing(
        kubernetes.client.ApiClient(load_configuration(str(fake.kubeconfig), None))
    ) as api:
        yield PodPlace(api, settings, "v1.31.2+fake")


@pytest.fixture
def context(place: PodPlace, tmp_path: Path) -> FaultContext:
    answer = RecordedAnswer(prompt="none of these is asked", token_ids=(1,), logprobs=(-1.0,))
    worker = ContractWorker(name="reference", sleep_levels=(1, 2))
    found = make_context(tmp_path / "context", SpaceSupport(False, "asked"), None, answer, None)
    return dataclasses.replace(found, worker=worker, cluster=place, deadline_s=60.0)


@pytest.fixture
def mesh(fake: FakeCluster) -> ChaosMesh:
    return ChaosMesh(fake)


@pytest.fixture
def lit(fake: FakeCluster) -> Litmus:
    return Litmus(fake)


def run(name: str, context: FaultContext, *, control: bool = False) -> FaultRun:
    fault = CATALOGUE[name]
    recovery = None if control else Recovery(fault.recoveries[0])
    return run_experiment(fault, recovery, context, repeat=0, control=control)


def left(fake: FakeCluster) -> list[str]:
    kinds = ("jobs", "pods", *chaos_mesh.PLURALS, "chaosengines", "chaosresults")
    return [item["metadata"]["name"] for kind in kinds for item in fake.store.all(kind)]


@pytest.mark.parametrize("name", NEED_CLUSTER)
def test_every_fault_is_proved_detected_recovered_from_and_rolled_back(
    fake: FakeCluster, mesh: ChaosMesh, lit: Litmus, context: FaultContext, name: str
) -> None:
    found = run(name, context)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert found.effect is not None
    assert found.effect.proved
    assert found.rollback is not None
    assert found.rollback.proved
    assert found.oracle.verdict is OracleVerdict.EQUAL
    assert found.parameters["kubernetes_version"] == "v1.31.2+fake"
    assert found.parameters["node"] == "node-1"
    seen = {detection.detector for detection in found.detections}
    assert {"pod_watch", "slow_answers", "health_probe", "canary"} <= seen
    assert not {"process_watch", "kernel_log"} & seen, "these see this machine's processes only"
    assert left(fake) == []


@pytest.mark.parametrize("name", ["chaos_mesh_network_delay", "litmus_pod_delete"])
def test_a_control_arm_makes_no_object_and_sees_no_alarm(
    fake: FakeCluster, mesh: ChaosMesh, lit: Litmus, context: FaultContext, name: str
) -> None:
    found = run(name, context, control=True)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail)
    made = [item.resource for item in fake.server.requests if item.verb == "create"]
    assert made == ["jobs"]
    assert left(fake) == []


# Not applicable.


@pytest.mark.parametrize("name", NEED_CLUSTER)
def test_without_a_cluster_nothing_is_tried(context: FaultContext, name: str) -> None:
    alone = dataclasses.replace(context, cluster=None, no_cluster_why="nobody allowed it")
    found = run(name, alone)
    assert (found.verdict, found.reason_code) == (Verdict.NOT_APPLICABLE, FaultReason.NO_CLUSTER)
    assert found.detail == "nobody allowed it"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("chaos_mesh_pod_kill", FaultReason.NO_CHAOS_MESH),
        ("litmus_pod_delete", FaultReason.NO_LITMUS),
    ],
)
def test_without_its_custom_resources_a_fault_is_not_applicable(
    fake: FakeCluster, context: FaultContext, name: str, reason: FaultReason
) -> None:
    found = run(name, context)
    assert (found.verdict, found.reason_code) == (Verdict.NOT_APPLICABLE, reason)
    assert left(fake) == []


def test_an_experiment_that_litmus_does_not_have_is_not_applicable(
    fake: FakeCluster, lit: Litmus, context: FaultContext
) -> None:
    fake.store.remove("chaosexperiments", "pod-delete")
    found = run("litmus_pod_delete", context)
    assert (found.verdict, found.reason_code) == (Verdict.NOT_APPLICABLE, FaultReason.NO_LITMUS)
    assert "pod-delete" in found.detail


def test_a_right_that_is_missing_is_named(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    fake.server.granted = set()
    found = run("chaos_mesh_pod_kill", context)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_APPLICABLE, FaultReason.CLUSTER_FORBIDS,
    )  # fmt: skip
    assert "podchaos is forbidden" in found.detail


def test_memory_is_not_taken_where_the_pod_has_no_limit_of_its_own(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext, place: PodPlace
) -> None:
    place.settings = dataclasses.replace(place.settings, memory=None)
    found = run("chaos_mesh_memory_stress", context)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_APPLICABLE, FaultReason.NO_RESOURCE_LIMIT,
    )  # fmt: skip
    assert left(fake) == []


def test_a_worker_that_can_t_be_started_in_a_pod_is_told(context: FaultContext) -> None:
    other = dataclasses.replace(context, worker=ContractWorker(name="other"))
    found = run("chaos_mesh_pod_kill", other)
    assert found.reason_code == FaultReason.NO_POD_WORKER


# What goes wrong.

LASTING = "chaos_mesh_network_delay"


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (chaos_mesh.Fails.ABSENT, "No controller of Chaos Mesh took up"),
        (chaos_mesh.Fails.SELECTING, "selected no pod"),
        (chaos_mesh.Fails.INJECTING, "Apply: unable to set tcs for pod"),
    ],
)
def test_what_chaos_mesh_could_not_inject_is_not_injected_and_says_why(
    fake: FakeCluster,
    mesh: ChaosMesh,
    context: FaultContext,
    fails: chaos_mesh.Fails,
    words: str,
) -> None:
    mesh.fails = fails
    found = run(LASTING, context)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.INJECTION_FAILED,
    ), found.detail  # fmt: skip
    assert words in found.detail
    assert left(fake) == []


@pytest.mark.parametrize(
    "name",
    [
        LASTING, "chaos_mesh_pod_kill", "chaos_mesh_read_error", "chaos_mesh_memory_stress",
        "litmus_network_latency",
    ],
)  # fmt: skip
def test_an_injection_that_silently_did_nothing_is_not_injected(
    fake: FakeCluster, mesh: ChaosMesh, lit: Litmus, context: FaultContext, name: str
) -> None:
    mesh.fails = chaos_mesh.Fails.SILENTLY
    lit.fails = litmus.Fails.SILENTLY
    found = run(name, context)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED,
    )  # fmt: skip
    assert left(fake) == []


def test_an_object_that_the_webhook_refuses_is_not_injected(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    def review(given: Object) -> StatusError | None:
        if given.get("kind") != "NetworkChaos":
            return None
        return StatusError(
            403, "Forbidden", 'admission webhook "vauth.kb.io" denied the request: no rights'
        )

    fake.server.admission.append(review)
    found = run(LASTING, context)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.INJECTION_FAILED,
    )  # fmt: skip
    assert "vauth.kb.io" in found.detail
    assert left(fake) == []


def test_a_finalizer_that_stays_is_a_rollback_that_failed_and_names_it(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    mesh.fails = chaos_mesh.Fails.RECOVERING
    found = run(LASTING, context)
    assert found.verdict is Verdict.ROLLBACK_FAILED
    assert found.rollback is not None
    assert "chaos-mesh/records" in found.rollback.detail
    assert "may still be in place" in found.rollback.detail
    [item] = fake.store.all("networkchaos")
    assert item["metadata"]["finalizers"] == ["chaos-mesh/records"], "nobody forced it off"


def test_a_fault_ends_by_itself_when_the_platform_is_gone(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext, place: PodPlace
) -> None:
    """A killed platform leaves an object with a duration, that belongs to the worker's Job."""
    found = run("chaos_mesh_network_partition", context)
    [made] = [item.body for item in fake.server.requests
              if (item.resource, item.verb) == ("networkchaos", "create")]  # fmt: skip
    [job] = [item.body for item in fake.server.requests
             if (item.resource, item.verb) == ("jobs", "create")]  # fmt: skip
    assert made["spec"]["duration"] == "8s"
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Job", job["metadata"]["name"])
    assert job["spec"]["activeDeadlineSeconds"] > 0
    assert job["spec"]["ttlSecondsAfterFinished"] >= 0
    # Nobody lifted it before the worker came back: its own limit did.
    assert found.time_to_recover_s is not None
    assert found.time_to_recover_s > 7


def test_a_worker_that_could_not_read_says_it_is_well_and_is_not(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    found = run("chaos_mesh_read_error", context)
    seen = {item.detector: item.detected for item in found.detections}
    assert seen["canary"]
    assert not seen["health_probe"]
    assert found.effect is not None
    assert "Input/output error" in found.effect.detail
    assert found.time_to_recover_s is not None
    assert found.time_to_recover_s > 6, "only the fault's own end lets it wake"


def test_an_abort_undoes_the_fault_first(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    abort = threading.Event()

    def end_soon(given: Object) -> StatusError | None:
        if given.get("kind") == "NetworkChaos":
            threading.Timer(1.0, abort.set).start()
        return None

    fake.server.admission.append(end_soon)
    found = run("chaos_mesh_network_partition", dataclasses.replace(context, abort=abort))
    assert found.verdict is Verdict.ABORTED or found.reason_code == FaultReason.OPERATOR_ABORT, (
        found.verdict, found.detail,
    )  # fmt: skip
    assert found.rollback is not None
    assert found.rollback.proved, found.rollback.detail
    paused = [item for item in fake.server.requests if item.verb == "patch"]
    assert paused, "it was paused before it was deleted"
    assert left(fake) == []


def test_somebody_else_s_experiment_in_the_namespace_stops_ours(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    mesh.fails = chaos_mesh.Fails.ABSENT
    fake.store.add("networkchaos", {"metadata": {"name": "theirs"}, "spec": {}})
    found = run(LASTING, context)
    assert (found.verdict, found.reason_code) == (Verdict.ABORTED, FaultReason.GUARD_REFUSED)
    assert "theirs" in found.detail


def test_an_api_server_that_is_lost_while_the_fault_is_awaited_is_asked_again(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    busy = StatusError(503, "ServiceUnavailable", "etcd is slow")
    for verb in ("get", "delete"):
        permission = ("chaos-mesh.org", "networkchaos", verb)
        fake.server.faults.append(Fault(permission, busy, times=3))
        fake.server.faults.append(Fault(permission, None, times=1))
    found = run(LASTING, context)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail)
    assert left(fake) == []


def test_an_object_whose_making_was_not_answered_is_removed_too(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    fake.server.faults.append(Fault(("chaos-mesh.org", "networkchaos", "create"), None))
    found = run(LASTING, context)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.INJECTION_FAILED,
    )  # fmt: skip
    assert "networkchaos" in {item.resource for item in fake.server.requests
                              if item.verb == "delete"}  # fmt: skip
    assert left(fake) == []


@pytest.mark.parametrize("verdict", ["Pass", "Fail", "Awaited", "SomethingNew"])
def test_litmus_s_own_verdict_is_recorded_whatever_it_is_and_decides_nothing(
    fake: FakeCluster, lit: Litmus, context: FaultContext, verdict: str
) -> None:
    lit.verdict = verdict
    found = run("litmus_container_kill", context)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail)
    assert found.parameters["litmus_verdict"] == verdict
    assert found.parameters["litmus_probe_success_percentage"] == "100"


def test_an_engine_is_stopped_and_its_verdict_says_so(
    fake: FakeCluster, lit: Litmus, context: FaultContext
) -> None:
    found = run("litmus_network_latency", context)
    assert found.parameters["litmus_verdict"] == "Stopped"
    patches = [item.body for item in fake.server.requests if item.resource == "chaosengines"
               and item.verb == "patch"]  # fmt: skip
    assert {"spec": {"engineState": "stop"}} in patches


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (litmus.Fails.ABSENT, "No operator of Litmus took up"),
        (litmus.Fails.FINDING, "ChaosExperiment Not Found"),
    ],
)
def test_what_litmus_could_not_inject_is_not_injected_and_says_why(
    fake: FakeCluster, lit: Litmus, context: FaultContext, fails: litmus.Fails, words: str
) -> None:
    lit.fails = fails
    found = run("litmus_pod_delete", context)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.INJECTION_FAILED,
    )  # fmt: skip
    assert words in found.detail
    assert left(fake) == []


def test_an_engine_that_does_not_stop_is_a_rollback_that_failed(
    fake: FakeCluster, lit: Litmus, context: FaultContext
) -> None:
    lit.fails = litmus.Fails.STOPPING
    found = run("litmus_network_latency", context)
    assert found.verdict is Verdict.ROLLBACK_FAILED
    assert found.rollback is not None
    assert "finalizer" in found.rollback.detail


# The worker in the pod.


def test_a_worker_that_ends_in_its_pod_is_told_with_its_last_words(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext
) -> None:
    fake.kubelet.serve = lambda: PodServer(exits=True)
    found = run(LASTING, context)
    assert (found.verdict, found.reason_code) == (
        Verdict.INCONCLUSIVE, FaultReason.PREPARATION_FAILED,
    )  # fmt: skip
    assert "ended before it was ready" in found.detail
    assert left(fake) == []


def test_a_pod_that_no_node_takes_is_told(
    fake: FakeCluster, mesh: ChaosMesh, context: FaultContext, place: PodPlace
) -> None:
    changes: dict[str, Any] = {"placement": {"nodeSelector": {"pool": "none"}}, "pending_s": 0.5}
    far = PodPlace(place.api, dataclasses.replace(place.settings, **changes), "v1.31.2+fake")
    worker = ContractWorker(name="reference", start_deadline_s=0.5)
    found = run(LASTING, dataclasses.replace(context, cluster=far, worker=worker))
    assert found.reason_code == FaultReason.PREPARATION_FAILED
    assert "didn't match Pod's node affinity" in found.detail
    assert left(fake) == []
