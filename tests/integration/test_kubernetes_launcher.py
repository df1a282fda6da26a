"""Jobs on Kubernetes, through the real client, on the fake of its API: each failure by its name,
nothing left behind, no landed result lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import StartupSpec
from resilience_pipelines.launchers.kubernetes import client as client_module
from resilience_pipelines.launchers.kubernetes.client import (
    CLUSTER_PERMISSIONS,
    PERMISSIONS,
    connect,
)
from resilience_pipelines.launchers.kubernetes.failures import ClusterError, FailureKind
from resilience_pipelines.launchers.kubernetes.launcher import clean_orphans, run_on_kubernetes
from resilience_pipelines.launchers.kubernetes.manifest import MANAGED_BY, MANAGED_BY_LABEL
from resilience_pipelines.launchers.launcher import JobError, JobResult
from resilience_pipelines.launches import LaunchRecord, read_launches, write_launch
from resilience_pipelines.records import Arm, Basis, RunKind
from resilience_pipelines.warehouse.landing import find_landings, read_landing
from tests.factories import EPOCH, RecordFactory, land
from tests.support.fake_kubernetes.cluster import NODE, REPOSITORY, FakeCluster, fake_cluster
from tests.support.fake_kubernetes.server import Fault
from tests.support.fake_kubernetes.store import StatusError

Progress = list[tuple[str, int, int]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with fake_cluster(tmp_path) as found:
        found.server.granted = set(PERMISSIONS | CLUSTER_PERMISSIONS)
        found.stand_in()
        yield found


def launch(cluster: FakeCluster, **changes: Any) -> tuple[JobResult, Progress]:
    told: Progress = []
    result = run_on_kubernetes(
        StartupSpec(), cluster.home, lambda *item: told.append(item), cluster.settings(**changes)
    )
    return result, told


def failing(cluster: FakeCluster, **changes: Any) -> tuple[ClusterError, LaunchRecord]:
    """Run a job that fails by its cluster; nothing of it may be left there."""
    with pytest.raises(ClusterError) as caught:
        launch(cluster, **changes)
    assert cluster.left() == []
    [record] = read_launches(cluster.home)
    assert record.failure == caught.value.kind
    return caught.value, record


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = 20.0) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.02)


class Background:
    """A launch in a thread of its own, so that a test can act meanwhile."""

    def __init__(self, cluster: FakeCluster, **changes: Any) -> None:
        self.cluster = cluster
        self.told: Progress = []
        self.result: JobResult | None = None
        self.error: BaseException | None = None
        self._settings = cluster.settings(**changes)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def until_running(self) -> str:
        """Wait until its pod runs; returns the pod's name."""
        wait_until(self.cluster.kubelet.processes, "a running pod")
        wait_until(lambda: len(self.told) >= 2, "progress")
        [pod] = self.cluster.store.all("pods")
        return str(pod["metadata"]["name"])

    def end(self) -> JobResult | BaseException:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.result or self.error or AssertionError("neither a result nor an error")

    def _run(self) -> None:
        try:
            self.result = run_on_kubernetes(
                StartupSpec(), self.cluster.home, lambda *item: self.told.append(item),
                self._settings,
            )  # fmt: skip
        except BaseException as error:
            self.error = error


def hold(cluster: FakeCluster, *options: str) -> Path:
    """Let jobs go on until a file is there."""
    path = cluster.folder / "go-on"
    cluster.stand_in("--hold", str(path), *options)
    return path


def kind_of(found: object) -> FailureKind:
    assert isinstance(found, ClusterError), found
    return found.kind


def evidence(home: Home, record: LaunchRecord, name: str) -> str:
    assert name in record.evidence
    return (home.launches / record.run_id / name).read_text()


def taken_on(home: Home, node: str) -> str:
    """A snapshot that an earlier launch of this home took on a node; returns its id."""
    factory = RecordFactory()
    name = "snap-20260302T090000Z-00000001"
    taken = factory.snapshot().model_copy(update={"snapshot_id": name})
    record = factory.record(RunKind.SNAPSHOT, snapshots=[taken])
    land(home.landing, record)
    launched = LaunchRecord(
        run_id=record.run_id, launcher="kubernetes", worker="reference", basis=Basis.SIMULATED,
        launched_at=EPOCH, ended_at=EPOCH, landed=True, namespace="resilience", job_name="job",
        node=node,
    )  # fmt: skip
    write_launch(home, launched, {})
    return name


def test_a_stored_snapshot_goes_to_its_node_or_to_any_other(cluster: FakeCluster) -> None:
    spec = StartupSpec(arms=(Arm.RESTORE,), snapshot=taken_on(cluster.home, NODE))

    def run(**changes: Any) -> LaunchRecord:
        settings = cluster.settings(**changes)
        result = run_on_kubernetes(spec, cluster.home, lambda *_: None, settings)
        [record] = [item for item in read_launches(cluster.home) if item.run_id == result.run_id]
        return record

    assert run(restore_node="same").node == NODE
    with pytest.raises(ClusterError) as caught:
        run(restore_node="other", deadlines={"pending_s": 0.5})
    assert caught.value.kind is FailureKind.UNSCHEDULABLE, "there is only that one node"
    cluster.add_node("node-2")
    assert run(restore_node="other").node == "node-2"
    assert cluster.left() == []


def test_a_snapshot_of_an_unknown_node_is_refused_before_anything_is_made(
    cluster: FakeCluster,
) -> None:
    spec = StartupSpec(arms=(Arm.RESTORE,), snapshot="snap-20260101T000000Z-00000000")
    with pytest.raises(InputError, match="no launch of this data home"):
        run_on_kubernetes(
            spec, cluster.home, lambda *_: None, cluster.settings(restore_node="same")
        )
    assert cluster.server.requests == []


def test_a_job_lands_its_result_and_leaves_nothing(cluster: FakeCluster) -> None:
    result, told = launch(cluster)
    assert told == [("step 0", 0, 9), ("step 1", 1, 9)]
    assert read_landing(result.folder).record.run_id == result.run_id
    assert cluster.left() == []
    assert list(cluster.home.work.iterdir()) == []
    assert list((cluster.home.landing / ".outcomes").iterdir()) == []
    [record] = read_launches(cluster.home)
    assert record.landed
    assert record.failure is None
    assert record.exit_code == 0
    assert "Pulled" in evidence(cluster.home, record, "events.json")
    assert "step 1" in evidence(cluster.home, record, "log-tail.txt")


def test_nothing_of_a_fake_is_called_a_measurement(cluster: FakeCluster) -> None:
    launch(cluster)
    [record] = read_launches(cluster.home)
    assert record.basis is Basis.SIMULATED


def test_every_permission_is_used_and_none_besides(cluster: FakeCluster) -> None:
    go_on = hold(cluster, "--stubborn")
    cluster.kubelet.lost_nodes.clear()
    run = Background(cluster, deadlines={"cleanup_s": 2.0})
    pod = run.until_running()
    # A pod that its kubelet can't end has to be deleted itself.
    cluster.kubelet.lose_node(NODE)
    run.end()
    assert cluster.left() == []
    assert cluster.server.used == PERMISSIONS | CLUSTER_PERMISSIONS
    [record] = read_launches(cluster.home)
    assert any(pod in notice and "by force" in notice for notice in record.notices)
    go_on.touch()


def test_the_phases_of_the_pod_are_recorded_with_their_clocks(cluster: FakeCluster) -> None:
    launch(cluster)
    [record] = read_launches(cluster.home)
    names = [phase.name for phase in record.phases]
    assert names == [
        "pod_created", "scheduled", "image_pull_wait", "image_pull", "container_start",
        "container_run",
    ]  # fmt: skip
    assert {phase.resolution_s for phase in record.phases} == {1.0}


def test_a_job_s_own_error_comes_with_its_reason_and_exit_code(cluster: FakeCluster) -> None:
    cluster.stand_in("--error", "the disk is full")
    with pytest.raises(JobError, match="the disk is full") as caught:
        launch(cluster)
    assert caught.value.exit_code == 5
    assert cluster.left() == []


def test_a_job_without_a_last_word_fails_with_the_end_of_its_log(cluster: FakeCluster) -> None:
    cluster.stand_in("--no-landing", "--no-outcome", "--exit", "3")
    error, _ = failing(cluster)
    assert error.kind is FailureKind.JOB_FAILED
    assert "a library's own words" in error.reason


def test_a_result_that_is_not_on_the_volume_is_missing(cluster: FakeCluster) -> None:
    cluster.stand_in("--no-landing", "--no-outcome")
    error, _ = failing(cluster)
    assert error.kind is FailureKind.RESULT_MISSING
    assert "landing" in error.mend


def test_a_result_on_another_mount_is_brought_home(cluster: FakeCluster) -> None:
    elsewhere = cluster.folder / "volume"
    elsewhere.mkdir()
    result, _ = launch(cluster, landing={"host_path": str(elsewhere), "here": str(elsewhere)})
    assert cluster.home.landing in result.folder.parents
    assert read_landing(result.folder).run_file_sha256


def test_no_gpu_is_unschedulable_in_the_scheduler_s_words(cluster: FakeCluster) -> None:
    error, record = failing(cluster, gpu={"count": 1})
    assert error.kind is FailureKind.UNSCHEDULABLE
    assert "Insufficient nvidia.com/gpu" in error.reason
    assert error.exit_code == 4
    assert "FailedScheduling" in evidence(cluster.home, record, "events.json")


def test_a_driver_that_no_node_has_is_unschedulable(cluster: FakeCluster) -> None:
    error, _ = failing(cluster, gpu={"driver_version": "580.159.04", "product": "NVIDIA-H200"})
    assert error.kind is FailureKind.UNSCHEDULABLE
    assert "selector" in error.reason


def test_a_node_with_gpu_driver_and_taint_is_found(cluster: FakeCluster) -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "nvidia.com/cuda.driver.major": "580",
        "nvidia.com/cuda.driver.minor": "159",
    }
    cluster.add_node("gpu", runtime="cri-o://1.30", labels=labels)
    cluster.store.change("nodes", "gpu", lambda node: node["spec"].update(
        taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]))  # fmt: skip
    cluster.store.change(
        "nodes", "gpu", lambda node: node["status"]["allocatable"].update({"nvidia.com/gpu": "2"})
    )
    launch(
        cluster,
        gpu={"count": 2, "product": "NVIDIA-H200", "driver_version": "580.159"},
        tolerations=[{"key": "nvidia.com/gpu"}],
    )
    [record] = read_launches(cluster.home)
    assert record.node == "gpu"
    assert record.container_runtime == "cri-o://1.30"


def test_nodes_that_differ_leave_the_container_runtime_unknown(cluster: FakeCluster) -> None:
    cluster.add_node("other", runtime="cri-o://1.30")
    launch(cluster)
    [record] = read_launches(cluster.home)
    assert record.container_runtime is None


@pytest.mark.parametrize("policy", ["IfNotPresent", "Never"])
def test_a_missing_image_is_told(cluster: FakeCluster, policy: str) -> None:
    error, _ = failing(cluster, image="registry.test/none:1", image_pull_policy=policy)
    assert error.kind is FailureKind.IMAGE_PULL
    assert "registry.test/none:1" in error.reason


def test_a_volume_that_can_t_be_mounted_is_told(cluster: FakeCluster) -> None:
    cluster.kubelet.mount_problem = "hostPath type check failed"
    error, _ = failing(cluster)
    assert error.kind is FailureKind.NOT_STARTED
    assert "hostPath type check failed" in error.reason


def test_out_of_memory_is_told(cluster: FakeCluster) -> None:
    hold(cluster)
    run = Background(cluster)
    run.until_running()
    cluster.kubelet.kill_as("OOMKilled")
    assert kind_of(run.end()) is FailureKind.OOM_KILLED
    assert cluster.left() == []
    [record] = read_launches(cluster.home)
    assert record.exit_code == 137


def test_an_eviction_is_told_and_what_was_measured_is_kept(cluster: FakeCluster) -> None:
    hold(cluster)
    run = Background(cluster)
    run.until_running()
    cluster.kubelet.evict("The node was low on resource: memory.")
    found = run.end()
    assert kind_of(found) is FailureKind.EVICTED
    assert "low on resource" in str(found)
    assert "What it had measured is in" in str(found)
    assert len(list(find_landings(cluster.home.landing))) == 1
    assert cluster.left() == []


def test_a_deadline_ends_the_job_and_keeps_what_it_has(cluster: FakeCluster) -> None:
    hold(cluster)
    error, record = failing(cluster, deadlines={"run_s": 2.0})
    assert error.kind is FailureKind.DEADLINE_EXCEEDED
    assert error.exit_code == 7
    assert record.landed


def test_a_deleted_pod_is_told_and_loses_nothing(cluster: FakeCluster) -> None:
    hold(cluster)
    run = Background(cluster)
    pod = run.until_running()
    cluster.store.delete("pods", pod, 2)
    found = run.end()
    assert kind_of(found) is FailureKind.POD_DELETED
    assert len(list(find_landings(cluster.home.landing))) == 1
    assert cluster.left() == []
    assert cluster.kubelet.processes() == []


def test_a_deleted_job_is_told(cluster: FakeCluster) -> None:
    hold(cluster, "--no-landing", "--no-outcome")
    run = Background(cluster)
    run.until_running()
    [job] = cluster.store.all("jobs")
    cluster.store.delete("jobs", job["metadata"]["name"])
    assert kind_of(run.end()) is FailureKind.JOB_DELETED
    assert cluster.left() == []


def test_a_lost_node_is_told_and_its_pod_removed(cluster: FakeCluster) -> None:
    hold(cluster)
    run = Background(cluster, deadlines={"cleanup_s": 2.0})
    run.until_running()
    cluster.kubelet.lose_node(NODE)
    assert kind_of(run.end()) is FailureKind.NODE_LOST
    assert cluster.left() == []


def test_a_missing_permission_is_named(cluster: FakeCluster) -> None:
    assert cluster.server.granted is not None
    cluster.server.granted.discard(("batch", "jobs", "create"))
    error, _ = failing(cluster)
    assert error.kind is FailureKind.FORBIDDEN
    assert 'cannot create resource "jobs"' in error.reason
    assert error.exit_code == 3


def test_nodes_that_may_not_be_listed_cost_only_the_runtime(cluster: FakeCluster) -> None:
    assert cluster.server.granted is not None
    cluster.server.granted -= CLUSTER_PERMISSIONS
    launch(cluster)
    [record] = read_launches(cluster.home)
    assert record.container_runtime is None


def test_a_quota_on_jobs_is_told(cluster: FakeCluster) -> None:
    cluster.server.admission.append(
        lambda _: StatusError(403, "Forbidden", "exceeded quota: gpus, requested: count/jobs=1")
    )
    error, _ = failing(cluster)
    assert error.kind is FailureKind.QUOTA_EXCEEDED


def test_a_quota_on_pods_is_told(cluster: FakeCluster) -> None:
    cluster.controllers.pod_quota_message = 'pods "x" is forbidden: exceeded quota: gpus'
    error, _ = failing(cluster)
    assert error.kind is FailureKind.QUOTA_EXCEEDED
    assert "exceeded quota: gpus" in error.reason


def test_a_pod_that_may_not_be_made_is_forbidden(cluster: FakeCluster) -> None:
    cluster.controllers.pod_quota_message = 'pods "x" is forbidden: violates PodSecurity'
    error, _ = failing(cluster)
    assert error.kind is FailureKind.FORBIDDEN
    assert "PodSecurity" in error.reason


def test_an_admission_webhook_s_no_is_told(cluster: FakeCluster) -> None:
    cluster.server.admission.append(
        lambda _: StatusError(422, "Invalid", "admission webhook denied: no hostPath here")
    )
    error, _ = failing(cluster)
    assert error.kind is FailureKind.REJECTED
    assert "no hostPath here" in error.reason


def test_an_old_server_drops_fields_and_that_is_said(tmp_path: Path) -> None:
    with fake_cluster(tmp_path, version="v1.20.2+fake") as cluster:
        cluster.stand_in()
        result, _ = launch(cluster)
        [notice] = result.notices
        assert "v1.20.2" in notice
        assert "spec.podFailurePolicy" in notice
        assert "spec.ttlSecondsAfterFinished" in notice
        assert cluster.left() == []


def test_on_an_old_server_a_deleted_pod_s_successor_does_not_count(tmp_path: Path) -> None:
    with fake_cluster(tmp_path, version="v1.20.2+fake") as cluster:
        hold(cluster)
        run = Background(cluster)
        pod = run.until_running()
        cluster.store.delete("pods", pod, 0)
        assert kind_of(run.end()) is FailureKind.POD_DELETED
        assert cluster.left() == []
        wait_until(lambda: not cluster.kubelet.processes(), "the end of both pods' processes")


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_busy_server_is_asked_again(cluster: FakeCluster, code: int) -> None:
    error = StatusError(code, "TooManyRequests", "later", Retry_After="0")
    cluster.server.faults += [
        Fault(("batch", "jobs", "create"), error, times=2),
        Fault(("", "pods", "list"), error, times=3),
        Fault(("batch", "jobs", "delete"), error, times=1),
    ]
    launch(cluster)
    assert cluster.left() == []


def test_an_answer_lost_on_its_way_makes_no_second_job(cluster: FakeCluster) -> None:
    cluster.server.faults.append(Fault(("batch", "jobs", "create")))
    launch(cluster)
    made = [item for item in cluster.server.requests if item.verb == "create"]
    assert len(made) == 2
    assert len([item for item in cluster.store.history
                if item.resource == "jobs" and item.type == "ADDED"]) == 1  # fmt: skip


def test_a_history_that_is_gone_is_listed_again(cluster: FakeCluster) -> None:
    go_on = hold(cluster)
    run = Background(cluster)
    run.until_running()
    for _ in range(3):
        cluster.store.compact()
        cluster.server.break_connections()
        time.sleep(0.1)
    go_on.touch()
    assert isinstance(run.end(), JobResult)


def test_a_broken_log_goes_on_where_it_was(cluster: FakeCluster) -> None:
    cluster.stand_in("--progress", "8")
    cluster.server.faults += [Fault(("", "pods/log", "get"), after_lines=n) for n in (1, 3, 0, 4)]
    _, told = launch(cluster)
    assert told == [(f"step {n}", n, 9) for n in range(8)]


def test_a_log_that_never_comes_costs_only_progress(cluster: FakeCluster) -> None:
    cluster.server.faults.append(
        Fault(("", "pods/log", "get"), StatusError(500, "InternalError", "no log"), times=999)
    )
    result, told = launch(cluster, deadlines={"api_lost_s": 1.0})
    assert told == []
    assert result.folder.is_dir()
    assert cluster.left() == []
    assert any("Evidence" in notice for notice in result.notices)


def test_a_server_that_was_lost_costs_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE_S", 0.3)
    go_on = hold(cluster)
    run = Background(cluster)
    run.until_running()
    cluster.server.lose()
    go_on.touch()
    # The job ends and lands while nobody can be asked.
    wait_until(lambda: list(find_landings(cluster.home.landing)), "a landing folder")
    time.sleep(1.0)
    cluster.server.come_back()
    result = run.end()
    assert isinstance(result, JobResult), result
    assert result.folder.is_dir()
    assert cluster.left() == []


def test_a_server_lost_for_good_keeps_the_result_and_the_next_launch_cleans_up(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE_S", 0.2)
    go_on = hold(cluster)
    run = Background(cluster, deadlines={"api_lost_s": 2.0})
    run.until_running()
    cluster.server.lose()
    go_on.touch()
    result = run.end()
    assert isinstance(result, JobResult), result
    assert any("API server" in notice for notice in result.notices)
    cluster.server.come_back()
    assert cluster.left()
    launch(cluster)
    assert cluster.left() == []


def test_a_server_lost_before_the_job_is_done_is_told(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE_S", 0.2)
    go_on = hold(cluster)
    run = Background(cluster, deadlines={"api_lost_s": 1.0})
    run.until_running()
    cluster.server.lose()
    assert kind_of(run.end()) is FailureKind.API_LOST
    go_on.touch()
    wait_until(lambda: list(find_landings(cluster.home.landing)), "a landing folder")
    cluster.server.come_back()
    launch(cluster)
    assert cluster.left() == []
    assert len(list(find_landings(cluster.home.landing))) == 2


def test_a_killed_launcher_leaves_nothing_once_another_starts(cluster: FakeCluster) -> None:
    hold(cluster)
    (cluster.home.root / "kubernetes.json").write_text(cluster.settings().model_dump_json())
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from resilience_pipelines.home import open_home\n"
        "from resilience_pipelines.job_spec import StartupSpec\n"
        "from resilience_pipelines.launchers.kubernetes.launcher import run_on_kubernetes\n"
        "from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings\n"
        "home = open_home(sys.argv[1])\n"
        "text = (home.root / 'kubernetes.json').read_text()\n"
        "settings = KubernetesSettings.model_validate_json(text)\n"
        "run_on_kubernetes(StartupSpec(), home, print, settings)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(cluster.home.root)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: "step 1" in cluster.output(), "a job at work", 60)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(10)
    assert cluster.left()
    settings = cluster.settings()
    [removed] = clean_orphans(connect(settings), cluster.home)
    assert cluster.left() == []
    assert cluster.kubelet.processes() == []
    # Told to end, the job has landed what it had.
    [folder] = find_landings(cluster.home.landing)
    assert folder.name == removed
    [record] = read_launches(cluster.home)
    assert record.failure == FailureKind.LAUNCHER_KILLED
    assert record.landed


def test_a_job_that_somebody_follows_is_no_orphan(cluster: FakeCluster) -> None:
    go_on = hold(cluster)
    run = Background(cluster)
    run.until_running()
    assert clean_orphans(connect(cluster.settings()), cluster.home) == []
    go_on.touch()
    assert isinstance(run.end(), JobResult)


def test_a_job_of_another_data_home_is_left_alone(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.store.add("jobs", {
        "metadata": {"name": "theirs", "labels": {MANAGED_BY_LABEL: MANAGED_BY,
                                                  "resilience-pipelines/home": "f" * 16}},
        "spec": {"template": {}}, "status": {"conditions": [{
            "type": "Complete", "status": "True", "lastTransitionTime": "2099-01-01T00:00:00Z"}]},
    })  # fmt: skip
    launch(cluster)
    assert cluster.left() == ["jobs/theirs"]


def test_an_interrupted_launch_deletes_the_job_and_keeps_what_it_has(cluster: FakeCluster) -> None:
    hold(cluster)

    def interrupt(what: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_kubernetes(StartupSpec(), cluster.home, interrupt, cluster.settings())
    assert cluster.left() == []
    assert cluster.kubelet.processes() == []
    assert len(list(find_landings(cluster.home.landing))) == 1
    [record] = read_launches(cluster.home)
    assert record.failure == FailureKind.INTERRUPTED


def test_what_can_t_be_removed_is_said(cluster: FakeCluster) -> None:
    def keep(job: dict[str, Any]) -> None:
        job["metadata"]["finalizers"] = ["example.test/keep"]

    cluster.server.prune = keep
    result, _ = launch(cluster, deadlines={"cleanup_s": 1.0})
    assert any("finalizer" in notice for notice in result.notices)
    [job] = cluster.store.all("jobs")
    cluster.store.change("jobs", job["metadata"]["name"],
                         lambda item: item["metadata"].pop("finalizers"))  # fmt: skip


def test_a_job_goes_with_the_pod_of_its_platform(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = cluster.store.add("pods", {
        "metadata": {"name": "platform"}, "spec": {"nodeName": "elsewhere"}, "status": {},
    })  # fmt: skip
    cluster.kubelet.lost_nodes.add("elsewhere")
    monkeypatch.setenv("RESILIENCE_POD_NAME", "platform")
    monkeypatch.setenv("RESILIENCE_POD_UID", platform["metadata"]["uid"])
    hold(cluster)
    run = Background(cluster)
    wait_until(cluster.kubelet.processes, "a running pod")
    [job] = cluster.store.all("jobs")
    assert job["metadata"]["ownerReferences"][0]["name"] == "platform"
    cluster.store.delete("pods", "platform", 0)
    wait_until(lambda: not cluster.store.all("jobs"), "the job's removal")
    run.end()
    assert cluster.left() == []


def test_a_job_lands_the_same_record_as_a_local_one(cluster: FakeCluster) -> None:
    """The reference worker itself, in a process that a pod would be."""
    cluster.kubelet.program = None
    told: Progress = []
    spec = StartupSpec.model_validate_json(json.dumps({"arms": ["cold"], "repeats": 1}))
    result = run_on_kubernetes(
        spec, cluster.home, lambda *item: told.append(item),
        cluster.settings(deadlines={"run_s": 200.0}),
    )  # fmt: skip
    record = read_landing(result.folder).record
    assert record.launcher == "kubernetes"
    assert record.basis is Basis.SIMULATED
    assert record.stack.kubernetes_version == "v1.31.2+fake"
    assert record.stack.container_runtime == "containerd://1.7.0"
    assert [item.outcome for item in record.startups] == ["ok"]
    assert told[-1][0] == "finished"
    assert cluster.left() == []
