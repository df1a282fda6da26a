"""Dynamo Snapshot's arm, against fakes of the API server and of its operator and agents."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from resilience_pipelines.kubernetes_api import load_configuration
from resilience_pipelines.launchers.dynamo_snapshot.benchmark import DynamoResult, run_dynamo
from resilience_pipelines.launchers.dynamo_snapshot.cleanup import clean_pods
from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    AGENT_PERMISSIONS,
    PERMISSIONS,
    DynamoError,
    DynamoReason,
)
from resilience_pipelines.launchers.dynamo_snapshot.manifests import Marks
from resilience_pipelines.launchers.fault_cluster import pod_settings
from resilience_pipelines.launchers.kubernetes.client import CLUSTER_PERMISSIONS
from resilience_pipelines.launchers.kubernetes.client import PERMISSIONS as LAUNCHER_PERMISSIONS
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings
from resilience_pipelines.launches import home_id
from resilience_pipelines.records import Arm, Outcome, StartupMeasurement
from resilience_pipelines.startup.benchmark import StartupPlan
from resilience_pipelines.workers.pod import PodPlace
from tests.support import contract_server
from tests.support.fake_chaos.stand_in import PodServer
from tests.support.fake_dynamo import AGENT, SNAPSHOTS, Fails, FakeDynamo
from tests.support.fake_kubernetes.cluster import FakeCluster, fake_cluster
from tests.support.workers import ContractWorker

RUN = "20260302T090111Z-startup-803468b6"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeCluster]:
    contract_server.STATE["asleep"] = False
    with fake_cluster(tmp_path) as cluster:
        # As deploy/kubernetes grants it, where the names of these sets are read from.
        cluster.server.granted = set(
            LAUNCHER_PERMISSIONS | CLUSTER_PERMISSIONS | PERMISSIONS | AGENT_PERMISSIONS
        )
        yield cluster


@pytest.fixture
def dynamo(fake: FakeCluster) -> FakeDynamo:
    return FakeDynamo(fake)


def settings_of(fake: FakeCluster, **dynamo: Any) -> KubernetesSettings:
    told = {"agent_namespace": "snapshot", "capture_s": 3.0, "restore_s": 3.0, "ready_s": 3.0}
    return fake.settings(
        dynamo_snapshot=told | dynamo, deadlines={"pending_s": 5.0, "cleanup_s": 5.0}
    )


def measure(
    fake: FakeCluster,
    arms: tuple[Arm, ...] = (Arm.COLD, Arm.RESTORE),
    repeats: int = 1,
    **more: Any,
) -> DynamoResult:
    settings = settings_of(fake, **more)
    evidence = fake.folder / "evidence"
    evidence.mkdir(exist_ok=True)
    with place_of(fake, settings) as place:
        return run_dynamo(
            StartupPlan(arms=arms, repeats=repeats), ContractWorker(), place, settings,
            Marks(RUN, home_id(fake.home)), evidence, lambda *_: None,
        )  # fmt: skip


@contextlib.contextmanager
def place_of(fake: FakeCluster, settings: KubernetesSettings) -> Iterator[PodPlace]:
    configuration = load_configuration(str(fake.kubeconfig), None)
    with closing(kubernetes.client.ApiClient(configuration)) as api:
        yield PodPlace(api, pod_settings(settings), "v1.31.2+fake")


def restore_of(result: DynamoResult) -> StartupMeasurement:
    [found] = [item for item in result.startups if item.arm is Arm.RESTORE]
    return found


@pytest.mark.parametrize("capture", ["pod_snapshot", "snapshot_job"])
def test_cold_starts_and_restores_are_measured_and_nothing_is_left(
    fake: FakeCluster, dynamo: FakeDynamo, capture: str
) -> None:
    result = measure(fake, repeats=2, capture=capture)
    assert [(item.arm, item.variant, item.outcome) for item in result.startups] == [
        (Arm.COLD, "pod", Outcome.OK),
        (Arm.RESTORE, "dynamo_snapshot", Outcome.OK),
        (Arm.RESTORE, "dynamo_snapshot", Outcome.OK),
        (Arm.COLD, "pod", Outcome.OK),
    ], [item.detail for item in result.startups]
    [snapshot] = result.snapshots
    assert (snapshot.outcome, snapshot.engine) == (Outcome.OK, "dynamo-snapshot")
    assert {"sleep", "agent_wait", "criu_dump"} <= {item.name for item in snapshot.phases}
    names = [item.name for item in result.startups[1].phases]
    assert names[0] == "pod_created"
    assert names[-4:] == [
        "agent_wait", "criu_restore", "agent_unaccounted", "first_token",
    ]  # fmt: skip
    assert result.startups[1].snapshot_id == snapshot.snapshot_id
    assert result.stack.snapshot_engine == "dynamo-snapshot"
    assert result.stack.kubernetes_version == "v1.31.2+fake"
    assert result.stack.container_runtime == "containerd://1.7.0"
    assert result.stack.kernel_version is None, "what a node does not tell is not known"
    assert result.unsupported == {}
    assert dynamo.left() == []
    assert fake.server.used <= fake.server.granted  # type: ignore[operator]


def test_without_its_kinds_a_restore_is_not_applicable_and_cold_starts_are_measured(
    fake: FakeCluster,
) -> None:
    fake.kubelet.unmounted.add("snapshot-control")
    fake.kubelet.serve = PodServer
    result = measure(fake)
    assert [(item.arm, item.outcome) for item in result.startups] == [
        (Arm.COLD, Outcome.OK), (Arm.RESTORE, Outcome.UNSUPPORTED),
    ]  # fmt: skip
    restore = restore_of(result)
    assert restore.reason_code == DynamoReason.NO_DYNAMO_SNAPSHOT
    assert "no kind podsnapshots.nvidia.com" in restore.detail
    assert "Not applicable" in result.unsupported["restore"]
    assert result.snapshots == ()
    assert fake.left() == []


def test_without_rights_a_restore_is_not_applicable(fake: FakeCluster, dynamo: FakeDynamo) -> None:
    assert fake.server.granted is not None
    fake.server.granted -= {("nvidia.com", "podsnapshots", "list")}
    restore = restore_of(measure(fake))
    assert (restore.outcome, restore.reason_code) == (
        Outcome.UNSUPPORTED, DynamoReason.CLUSTER_FORBIDS,
    )  # fmt: skip
    assert dynamo.left() == []


def test_a_right_that_is_missing_later_is_the_reason(fake: FakeCluster, dynamo: FakeDynamo) -> None:
    assert fake.server.granted is not None
    fake.server.granted -= {("nvidia.com", "podsnapshots", "create")}
    result = measure(fake)
    assert result.snapshots[0].reason_code == DynamoReason.CLUSTER_FORBIDS
    assert restore_of(result).outcome is Outcome.FAILED
    assert dynamo.left() == []


@pytest.mark.parametrize("capture", ["pod_snapshot", "snapshot_job"])
@pytest.mark.parametrize(
    ("fails", "code"),
    [
        (Fails.CAPTURING, DynamoReason.CAPTURE_FAILED),
        (Fails.SILENTLY, DynamoReason.CAPTURE_DEADLINE),
    ],
)
def test_a_snapshot_that_fails_is_recorded_and_no_restore_is_made(
    fake: FakeCluster, dynamo: FakeDynamo, fails: Fails, code: DynamoReason, capture: str
) -> None:
    dynamo.fails = fails
    if (fails, capture) == (Fails.SILENTLY, "snapshot_job"):
        # Nobody runs the pod of a SnapshotJob then: nothing can be measured.
        with pytest.raises(DynamoError, match="no pod was made"):
            measure(fake, capture=capture)
        assert dynamo.left() == []
        return
    result = measure(fake, capture=capture, capture_s=1.0)
    [snapshot] = result.snapshots
    assert (snapshot.outcome, snapshot.reason_code) == (Outcome.FAILED, code), snapshot.detail
    restore = restore_of(result)
    assert (restore.outcome, restore.reason_code, restore.total_s) == (Outcome.FAILED, code, None)
    assert dynamo.left() == []


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        (Fails.RESTORING, DynamoReason.RESTORE_FAILED),
        (Fails.REFUSING, DynamoReason.RESTORE_REFUSED),
        (Fails.FALLING_BACK, DynamoReason.COLD_FALLBACK),
        (Fails.CLAIMING, DynamoReason.COLD_FALLBACK),
        (Fails.CRASHING, DynamoReason.POD_ENDED),
    ],
)
def test_a_restore_that_is_none_says_why_and_is_never_one(
    fake: FakeCluster, dynamo: FakeDynamo, fails: Fails, code: DynamoReason
) -> None:
    dynamo.fails = fails
    restore = restore_of(measure(fake))
    assert (restore.outcome, restore.reason_code) == (Outcome.FAILED, code), restore.detail
    assert restore.total_s is None
    assert dynamo.left() == []


def test_agents_that_are_silent_until_the_deadline_are_the_reason(
    fake: FakeCluster, dynamo: FakeDynamo
) -> None:
    after_capture(fake, dynamo, lambda: setattr(dynamo, "fails", Fails.SILENTLY))
    restore = restore_of(measure(fake, arms=(Arm.RESTORE,), restore_s=1.0))
    dynamo.fails = Fails.NOT
    assert restore.reason_code == DynamoReason.RESTORE_DEADLINE
    assert "the agent says nothing" in restore.detail


def test_a_pod_that_is_deleted_while_it_waits_is_the_reason(
    fake: FakeCluster, dynamo: FakeDynamo
) -> None:
    def delete() -> None:
        dynamo.fails = Fails.SILENTLY
        threading.Thread(target=_delete_restored, args=(fake,), daemon=True).start()

    after_capture(fake, dynamo, delete)
    restore = restore_of(measure(fake, arms=(Arm.RESTORE,)))
    assert restore.reason_code == DynamoReason.POD_DELETED


def _delete_restored(fake: FakeCluster) -> None:
    for _ in range(500):
        for pod in fake.store.all("pods"):
            running = pod["status"].get("phase") == "Running"
            if "nvidia.com/restore-from" in pod["metadata"].get("annotations", {}) and running:
                threading.Event().wait(0.3)
                with contextlib.suppress(Exception):
                    fake.store.delete("pods", pod["metadata"]["name"], 0)
                return
        threading.Event().wait(0.02)


def after_capture(fake: FakeCluster, dynamo: FakeDynamo, act: Any) -> None:
    """Do something once, as soon as a snapshot is ready."""

    class Once:
        done = False

        def step(self) -> None:
            ready = [item for item in fake.store.all(SNAPSHOTS) if dynamo._condition(item, "Ready")]
            if ready and not self.done:
                self.done = True
                act()

    fake.operators.append(Once())


def test_a_finalizer_that_stays_is_told(fake: FakeCluster, dynamo: FakeDynamo) -> None:
    dynamo.fails = Fails.REMOVING
    result = measure(fake)
    assert restore_of(result).outcome is Outcome.OK
    assert "podsnapshotcontent-cleanup" in result.unsupported["removal from the cluster"]


def test_lines_of_an_agent_that_nobody_knows_are_kept_and_told(
    fake: FakeCluster, dynamo: FakeDynamo
) -> None:
    dynamo.fails = Fails.LOGGING
    restore = restore_of(measure(fake))
    assert restore.outcome is Outcome.OK
    assert "can't be read" in restore.detail
    assert "restore" in {item.name for item in restore.phases}, "one phase, as seen from here"
    kept = (fake.folder / "evidence" / "agent-restore-0.log").read_text()
    assert "Restore timing summary, all went well" in kept


def test_without_an_agent_s_log_a_restore_is_one_phase(
    fake: FakeCluster, dynamo: FakeDynamo
) -> None:
    restore = restore_of(measure(fake, agent_namespace=None))
    assert (restore.outcome, restore.detail) == (Outcome.OK, "")
    assert "criu_restore" not in {item.name for item in restore.phases}


def test_what_a_killed_platform_left_is_removed_by_the_next(
    fake: FakeCluster, dynamo: FakeDynamo
) -> None:
    labels = Marks(RUN, home_id(fake.home)).labels
    others = Marks(RUN, "another-home").labels
    for name, found in (("mine", labels), ("theirs", others)):
        fake.store.add("jobs", {
            "metadata": {"name": name, "labels": found},
            "spec": {"backoffLimit": 0, "template": {"metadata": {}, "spec": {
                "containers": [], "nodeSelector": {"no": "node"},
            }}},
        })  # fmt: skip
        fake.store.add(SNAPSHOTS, {
            "metadata": {"name": name, "labels": found, "finalizers": ["x"]},
            "spec": {"source": {"podRef": {"name": "gone", "uid": "0", "containers": ["worker"]}}},
        })  # fmt: skip
    with place_of(fake, settings_of(fake)) as place:
        assert clean_pods(place, fake.home) == [RUN]
        assert clean_pods(place, fake.home) == []
    kept = {item["metadata"]["name"] for kind in ("jobs", SNAPSHOTS) for item in
            fake.store.all(kind)}  # fmt: skip
    assert kept == {"theirs"}
    assert AGENT in {item["metadata"]["name"] for item in fake.store.all("pods")}
