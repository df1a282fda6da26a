"""A snapshot taken in one container and restored in another, with what a pod's settings allow it.

The containers are what a node's runtime makes of the launcher's own manifests: real ones, by runc,
with masked paths, namespaces of their own and no network but loopback. AppArmor, Yama and a user
namespace are not among it. Starting a container takes seconds, so that several run at once, before
the first test that asks how one of them ended.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.job_spec import SnapshotSpec, StartupSpec
from resilience_pipelines.launchers.kubernetes.launcher import run_on_kubernetes
from resilience_pipelines.launchers.kubernetes.manifest import ClusterFacts, build_job
from resilience_pipelines.launchers.kubernetes.settings import (
    SNAPSHOT_CAPABILITIES,
    KubernetesSettings,
)
from resilience_pipelines.launches import read_launches
from resilience_pipelines.records import (
    Arm,
    Basis,
    Outcome,
    RunRecord,
    SnapshotMeasurement,
    StartupMeasurement,
    new_run_id,
)
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.debian_archive import ArchiveError
from resilience_pipelines.snapshots.manifest import Manifest, new_snapshot_id
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.warehouse.landing import landing_folder, read_landing
from tests.support.containers import (
    Engine,
    find_engine,
    machine_capabilities,
    pod_program,
    run_container,
)
from tests.support.fake_kubernetes.cluster import NODE, fake_cluster

REPOSITORY = Path(__file__).parents[2]
VOLUMES = ("landing", "snapshots", "cache")
PRIVILEGED: dict[str, Any] = {"privileged": True}
LEAST: dict[str, Any] = {"capabilities": SNAPSHOT_CAPABILITIES, "seccomp": "Unconfined"}
DEFAULT_SECCOMP = LEAST | {"seccomp": "RuntimeDefault"}
AT_ONCE = 4
SILENT_AFTER_S = 10.0
# Without these CRIU does not answer; with them a restore takes two seconds.
SILENT = ("SETPCAP", "SYS_PTRACE")
WITHOUT_NAMESPACES = ("NET_ADMIN", "SYS_ADMIN", "SYS_CHROOT")
GATED = ("SETPCAP", "SYS_PTRACE", "SYS_TIME")


@pytest.fixture(scope="module")
def engine_of_containers(tmp_path_factory: pytest.TempPathFactory, criu: Criu) -> Iterator[Engine]:
    """A runc, or a skip that says why there is none."""
    del criu  # without one that works here, none works in a container
    lacking = set(SNAPSHOT_CAPABILITIES) - set(machine_capabilities())
    if os.geteuid() != 0 or lacking:
        pytest.skip(f"containers need root with {', '.join(sorted(lacking)) or 'its capabilities'}")
    try:
        engine = find_engine(tmp_path_factory.mktemp("runc"))
    except (ArchiveError, OSError) as error:
        pytest.skip(f"no runc: {error}")
    yield engine
    assert engine.left() == []


@dataclass(frozen=True)
class Node:
    """Where containers run, with the folders behind the claims of their pods."""

    engine: Engine
    folder: Path

    def run(
        self, spec: SnapshotSpec | StartupSpec, security: dict[str, Any], timeout_s: float
    ) -> RunRecord | None:
        """Run one job's container; its record, or None where it has not ended in time."""
        settings = KubernetesSettings.model_validate(
            {"image": "none", "python": sys.executable, "security": security}
            | {name: {"claim": name} for name in VOLUMES}
        )
        run_id = new_run_id(spec.kind)
        job = build_job(spec, run_id, "0" * 16, settings, ClusterFacts(None, None))
        [container] = job["spec"]["template"]["spec"]["containers"]
        pod = self.folder / f"pod-{secrets.token_hex(4)}"
        volumes = {name: self.folder / name for name in VOLUMES} | {"home": pod / "home"}
        for folder in (pod / "home", pod / "bundle"):
            folder.mkdir(parents=True)
        kept = {name: os.environ[name] for name in ("RESILIENCE_CRIU_PREFIX",)
                if name in os.environ}  # fmt: skip
        try:
            ended = run_container(
                self.engine, container, volumes, pod / "bundle", timeout_s=timeout_s,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(REPOSITORY)} | kept,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        landed = landing_folder(self.folder / "landing", run_id)
        assert landed.is_dir(), ended.output
        return read_landing(landed).record

    def take(self, security: dict[str, Any]) -> SnapshotMeasurement:
        """What came of a snapshot in a container."""
        record = self.run(SnapshotSpec(), security, 120.0)
        assert record is not None, "it has not ended"
        [taken] = record.snapshots
        return taken

    def restore(
        self, snapshot: str, security: dict[str, Any], timeout_s: float = 120.0
    ) -> StartupMeasurement | None:
        """What came of a snapshot's restore in a container; None where CRIU does not answer."""
        record = self.run(
            StartupSpec(arms=(Arm.RESTORE,), repeats=1, snapshot=snapshot), security, timeout_s
        )
        if record is None:
            return None
        assert record.snapshots == (), "what is restored is the snapshot that was asked for"
        [start] = record.startups
        return start

    def forget_capabilities(self, snapshot: str) -> str:
        """A copy whose manifest tells no capabilities, so that the gate has nothing to refuse."""
        store = self.folder / "snapshots"
        manifest = Manifest.model_validate_json((store / snapshot / "manifest.json").read_bytes())
        other = new_snapshot_id()
        shutil.copytree(store / snapshot, store / other)
        changed = manifest.model_copy(update={"snapshot_id": other, "capabilities": None})
        (store / other / "manifest.json").write_text(changed.model_dump_json())
        return other


@pytest.fixture(scope="module")
def node(engine_of_containers: Engine, tmp_path_factory: pytest.TempPathFactory) -> Node:
    folder = tmp_path_factory.mktemp("node")
    for name in VOLUMES:
        (folder / name).mkdir(mode=0o700)
    return Node(engine_of_containers, folder)


@dataclass(frozen=True)
class Launched:
    """A snapshot in one pod and its restore in another, by the launcher."""

    taken: SnapshotMeasurement
    restored: RunRecord
    nodes: list[str | None]
    left: list[str]


@pytest.fixture(scope="module")
def launched(node: Node) -> Launched:
    """The API is a fake; launcher, manifests, containers, CRIU and records are the real ones."""
    with fake_cluster(node.folder) as cluster:
        cluster.kubelet.program = pod_program(node.engine, cluster.folder / "containers")
        settings = cluster.settings(
            python=sys.executable, security=LEAST, restore_node="same", deadlines={"run_s": 240.0},
            **{name: {"host_path": str(node.folder / name)} for name in ("snapshots", "cache")},
        )  # fmt: skip

        def run(spec: SnapshotSpec | StartupSpec) -> RunRecord:
            result = run_on_kubernetes(spec, cluster.home, lambda *_: None, settings)
            return read_landing(result.folder).record

        [taken] = run(SnapshotSpec()).snapshots
        assert taken.outcome is Outcome.OK, taken.detail
        restored = run(StartupSpec(arms=(Arm.RESTORE,), repeats=1, snapshot=taken.snapshot_id))
        nodes = [launch.node for launch in read_launches(cluster.home)]
        return Launched(taken, restored, nodes, cluster.left())


@pytest.fixture(scope="module")
def snapshot(launched: Launched) -> str:
    """One that a container with the least capabilities took."""
    assert launched.taken.snapshot_id is not None
    return launched.taken.snapshot_id


@dataclass(frozen=True)
class Restores:
    """Restores that run at once, by who took the snapshot and what the other container may do."""

    of_privileged: dict[str, Future[StartupMeasurement | None]]
    of_least: dict[str, Future[StartupMeasurement | None]]
    ungated: dict[str, Future[StartupMeasurement | None]]
    """By the capability that is missing, of a snapshot whose manifest tells none."""
    taken_confined: Future[SnapshotMeasurement]


@pytest.fixture(scope="module")
def restores(node: Node, snapshot: str) -> Iterator[Restores]:
    forgetful = node.forget_capabilities(snapshot)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        taken = pool.submit(node.take, PRIVILEGED)

        def of_privileged(security: dict[str, Any]) -> StartupMeasurement | None:
            found = taken.result()
            assert found.snapshot_id is not None, found.detail
            return node.restore(found.snapshot_id, security)

        def lacking(
            snapshot: str, missing: str, timeout_s: float = 120.0
        ) -> Future[StartupMeasurement | None]:
            kept = tuple(name for name in SNAPSHOT_CAPABILITIES if name != missing)
            poor = LEAST | {"capabilities": kept}
            return pool.submit(node.restore, snapshot, poor, timeout_s)

        silent = {name: lacking(forgetful, name, SILENT_AFTER_S) for name in SILENT}
        yield Restores(
            ungated=silent | {
                name: lacking(forgetful, name) for name in SNAPSHOT_CAPABILITIES
                if name not in SILENT
            },
            of_least={
                "privileged": pool.submit(node.restore, snapshot, PRIVILEGED),
                "confined": pool.submit(node.restore, snapshot, DEFAULT_SECCOMP),
            } | {name: lacking(snapshot, name) for name in GATED},
            taken_confined=pool.submit(node.take, DEFAULT_SECCOMP),
            of_privileged={
                "privileged": pool.submit(of_privileged, PRIVILEGED),
                "least": pool.submit(of_privileged, LEAST),
            },
        )  # fmt: skip


def came_back(future: Future[StartupMeasurement | None]) -> StartupMeasurement:
    start = future.result()
    assert start is not None
    assert start.outcome is Outcome.OK, start.detail
    return start


def refused(future: Future[StartupMeasurement | None]) -> StartupMeasurement:
    start = future.result()
    assert start is not None
    assert (start.outcome, start.reason_code) == (Outcome.FAILED, SnapshotReason.INCOMPATIBLE)
    assert start.detail.startswith("capabilities: ")
    return start


def test_the_launcher_has_one_pod_take_a_snapshot_and_another_restore_it(
    launched: Launched,
) -> None:
    assert launched.taken.source_serving_after is True
    [start] = launched.restored.startups
    assert start.outcome is Outcome.OK, start.detail
    assert start.snapshot_id == launched.taken.snapshot_id
    assert launched.restored.launcher == "kubernetes"
    assert launched.restored.basis is Basis.SIMULATED
    assert launched.nodes == [NODE, NODE]
    assert launched.left == []


def test_a_snapshot_of_few_capabilities_comes_back_in_a_privileged_container(
    restores: Restores, snapshot: str
) -> None:
    assert came_back(restores.of_least["privileged"]).snapshot_id == snapshot


def test_a_privileged_container_s_snapshot_comes_back_only_in_one_as_privileged(
    restores: Restores,
) -> None:
    came_back(restores.of_privileged["privileged"])
    assert "SYS_MODULE" in refused(restores.of_privileged["least"]).detail


def test_a_confined_container_restores_snapshots_and_takes_none(restores: Restores) -> None:
    came_back(restores.of_least["confined"])
    taken = restores.taken_confined.result()
    assert (taken.outcome, taken.reason_code) == (Outcome.FAILED, SnapshotReason.DUMP_FAILED)
    assert "seccomp" in taken.detail
    assert taken.source_serving_after is True


@pytest.mark.parametrize("missing", GATED)
def test_a_capability_that_the_snapshot_has_and_the_container_lacks_is_named(
    restores: Restores, missing: str
) -> None:
    assert f"wants capabilities {missing}," in refused(restores.of_least[missing]).detail


@pytest.mark.parametrize("missing", SNAPSHOT_CAPABILITIES)
def test_without_one_of_the_least_capabilities_nothing_comes_back_whatever_the_gate_knows(
    restores: Restores, missing: str
) -> None:
    start = restores.ungated[missing].result()
    if start is None:
        assert missing in SILENT
        return
    assert start.outcome is not Outcome.OK
    assert (start.outcome is Outcome.UNSUPPORTED) == (missing in WITHOUT_NAMESPACES), start.detail
