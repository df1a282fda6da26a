"""Jobs on the real cluster that KUBECONFIG names; docs/kubernetes.md says what it needs.

`make test-kubernetes` runs these alone, and prints which failures the cluster gave.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.home import Home, open_home
from resilience_pipelines.job_spec import FaultSpec, JobSpec, StartupSpec
from resilience_pipelines.launchers.kubernetes.client import Cluster, connect
from resilience_pipelines.launchers.kubernetes.failures import ClusterError, FailureKind
from resilience_pipelines.launchers.kubernetes.launcher import clean_orphans, run_on_kubernetes
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings
from resilience_pipelines.launches import home_id, read_launches
from resilience_pipelines.records import Arm, Basis
from resilience_pipelines.warehouse.landing import find_landings, read_landing

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1200)]

IMAGE = "RESILIENCE_TEST_IMAGE"
FOLDER = "RESILIENCE_TEST_FOLDER"
NAMESPACE = "RESILIENCE_TEST_NAMESPACE"

DEADLINES: dict[str, float] = {
    "pending_s": 60, "image_pull_s": 45, "run_s": 900, "landing_s": 30, "grace_s": 30,
    "cleanup_s": 120, "poll_s": 5,
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A data home whose landing folder the cluster's nodes see too."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: KUBECONFIG names none")
    for name in (IMAGE, FOLDER):
        if not os.environ.get(name):
            pytest.skip(f"{name} is not set (docs/kubernetes.md says what it names)")
    shared = Path(os.environ[FOLDER]) / f"landing-{os.getpid()}-{time.monotonic_ns()}"
    shared.mkdir(parents=True)
    root = tmp_path / "home"
    root.mkdir()
    (root / "landing").symlink_to(shared)
    return open_home(root)


def settings(home: Home, **changes: Any) -> KubernetesSettings:
    fields: dict[str, Any] = {
        "image": os.environ[IMAGE],
        "image_pull_policy": "IfNotPresent",
        "namespace": os.environ.get(NAMESPACE, "resilience"),
        "kubeconfig": str(Path(os.environ["KUBECONFIG"]).absolute()),
        "landing": {"host_path": str(home.landing.resolve())},
        "security": {"privileged": True},
    }
    deadlines = DEADLINES | changes.pop("deadlines", {})
    return KubernetesSettings.model_validate(fields | changes | {"deadlines": deadlines})


@pytest.fixture
def cluster(home: Home) -> Iterator[Cluster]:
    found = connect(settings(home))
    yield found
    clean_orphans(found, home)
    found.close()


def left(cluster: Cluster, home: Home) -> list[str]:
    jobs = cluster.jobs(home_id(home))
    return [job.name for job in jobs] + [
        pod.name for record in read_launches(home) for pod in cluster.pods(record.run_id)[0]
    ]


def run(home: Home, spec: JobSpec, **changes: Any) -> Path:
    told = lambda *_: None  # noqa: E731
    return run_on_kubernetes(spec, home, told, settings(home, **changes)).folder


def failing(home: Home, cluster: Cluster, **changes: Any) -> FailureKind:
    with pytest.raises(ClusterError) as caught:
        run(home, StartupSpec(arms=(Arm.COLD,), repeats=50), **changes)
    assert left(cluster, home) == []
    [record] = read_launches(home)
    assert record.failure == caught.value.kind
    print(f"seen on this cluster: {caught.value.kind}: {caught.value.reason[:120]}")
    return caught.value.kind


def test_a_benchmark_and_two_faults_land_as_they_do_here(home: Home, cluster: Cluster) -> None:
    startup = read_landing(run(home, StartupSpec(repeats=1))).record
    assert startup.launcher == "kubernetes"
    assert startup.basis is Basis.REFERENCE
    assert startup.stack.kubernetes_version == cluster.version()
    assert {item.arm for item in startup.startups} >= {Arm.COLD, Arm.WARM_CACHE}
    faults = read_landing(
        run(home, FaultSpec(faults=("worker_killed", "worker_hung"), controls=False))
    ).record
    assert {item.fault for item in faults.faults} == {"worker_killed", "worker_hung"}
    for record in read_launches(home):
        names = [phase.name for phase in record.phases]
        assert {"scheduled", "container_start", "container_run"} <= set(names)
    assert left(cluster, home) == []


def test_a_gpu_that_no_node_has_is_unschedulable(home: Home, cluster: Cluster) -> None:
    kind = failing(home, cluster, gpu={"count": 1, "product": "no-such-gpu"})
    assert kind is FailureKind.UNSCHEDULABLE


def test_an_image_that_is_nowhere_is_told(home: Home, cluster: Cluster) -> None:
    kind = failing(home, cluster, image="localhost/none:1", image_pull_policy="Never")
    assert kind is FailureKind.IMAGE_PULL


def test_too_little_memory_is_told(home: Home, cluster: Cluster) -> None:
    assert failing(home, cluster, memory="64Mi") in (
        FailureKind.OOM_KILLED,
        FailureKind.JOB_FAILED,  # where the kernel chose another process of the container
    )


def test_a_deadline_ends_the_job(home: Home, cluster: Cluster) -> None:
    kind = failing(home, cluster, deadlines={"run_s": 20})
    assert kind is FailureKind.DEADLINE_EXCEEDED


def test_a_deleted_pod_is_told_and_loses_nothing(home: Home, cluster: Cluster) -> None:
    def delete_soon() -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            for job in cluster.jobs(home_id(home)):
                for pod in cluster.pods(job.run_id)[0]:
                    if pod.container is not None and pod.container.started_at is not None:
                        time.sleep(20)
                        cluster.delete_pod(pod.name, 30)
                        return
            time.sleep(1)

    thread = threading.Thread(target=delete_soon, daemon=True)
    thread.start()
    assert failing(home, cluster) is FailureKind.POD_DELETED
    assert len(list(find_landings(home.landing))) <= 1


def test_a_service_account_without_rights_is_forbidden(home: Home) -> None:
    path = os.environ.get("RESILIENCE_TEST_POWERLESS_KUBECONFIG")
    if not path:
        pytest.skip("RESILIENCE_TEST_POWERLESS_KUBECONFIG names no kubeconfig without rights")
    with pytest.raises(ClusterError) as caught:
        run(home, StartupSpec(), kubeconfig=path)
    assert caught.value.kind is FailureKind.FORBIDDEN
    print(f"seen on this cluster: {caught.value.kind}")
