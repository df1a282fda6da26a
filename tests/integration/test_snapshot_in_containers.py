"""A snapshot taken in one container and restored in another, with what a pod's settings allow it.

The containers are what a node's runtime makes of the launcher's own manifests: real ones, by runc,
with masked paths, namespaces of their own and no network but loopback. AppArmor and a user
namespace are not among it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
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
from resilience_pipelines.records import Arm, Basis, Outcome, RunRecord, new_run_id
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.debian_archive import ArchiveError
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
LEAST: dict[str, Any] = {"capabilities": SNAPSHOT_CAPABILITIES, "seccomp": "Unconfined"}


@pytest.fixture(scope="module")
def engine_of_containers(tmp_path_factory: pytest.TempPathFactory, criu: Criu) -> Engine:
    """A runc, or a skip that says why there is none."""
    del criu  # without one that works here, none works in a container
    lacking = set(SNAPSHOT_CAPABILITIES) - set(machine_capabilities())
    if os.geteuid() != 0 or lacking:
        pytest.skip(f"containers need root with {', '.join(sorted(lacking)) or 'its capabilities'}")
    try:
        return find_engine(tmp_path_factory.mktemp("runc"))
    except (ArchiveError, OSError) as error:
        pytest.skip(f"no runc: {error}")


@dataclass(frozen=True)
class Node:
    """Where containers run, with the folders behind the claims of their pods."""

    engine: Engine
    folder: Path

    def run(
        self,
        spec: SnapshotSpec | StartupSpec,
        security: dict[str, Any],
        *,
        shared: tuple[str, ...] = VOLUMES,
        timeout_s: float = 120.0,
    ) -> RunRecord | None:
        """Run one job's container; its record, or None where it landed nothing in time."""
        claims = {name: {"claim": name} for name in shared}
        settings = KubernetesSettings.model_validate(
            {"image": "none", "python": sys.executable, "security": security} | claims
        )
        run_id = new_run_id(spec.kind)
        job = build_job(spec, run_id, "0" * 16, settings, ClusterFacts(None, None))
        [container] = job["spec"]["template"]["spec"]["containers"]
        pod = self.folder / f"pod-{secrets.token_hex(4)}"
        home, bundle = pod / "home", pod / "bundle"
        for folder in (home, bundle, *(self.folder / name for name in VOLUMES)):
            folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "snapshots").chmod(0o700)
        volumes = {name: self.folder / name for name in shared} | {"home": home}
        kept = {name: os.environ[name] for name in ("RESILIENCE_CRIU_PREFIX",)
                if name in os.environ}  # fmt: skip
        try:
            run_container(
                self.engine, container, volumes, bundle, timeout_s=timeout_s,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(REPOSITORY)} | kept,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        landed = landing_folder(self.folder / "landing", run_id)
        return read_landing(landed).record if landed.is_dir() else None

    def take(self, security: dict[str, Any], **options: Any) -> str:
        """Take a snapshot in a container; returns its id."""
        record = self.run(SnapshotSpec(), security, **options)
        assert record is not None
        [taken] = record.snapshots
        assert taken.outcome is Outcome.OK, taken.detail
        assert taken.source_serving_after is True
        assert taken.snapshot_id is not None
        return taken.snapshot_id

    def restored(self, snapshot: str, security: dict[str, Any], **options: Any) -> Outcome | None:
        """How a snapshot's restore in another container ended."""
        record = self.run(
            StartupSpec(arms=(Arm.RESTORE,), repeats=1, snapshot=snapshot), security, **options
        )
        if record is None:
            return None
        assert record.snapshots == ()
        [start] = record.startups
        assert start.snapshot_id == snapshot
        return start.outcome


@pytest.fixture(scope="module")
def node(engine_of_containers: Engine, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(engine_of_containers, tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="module")
def snapshot(node: Node) -> str:
    """One that a container with the least capabilities took."""
    return node.take(LEAST)


@pytest.mark.parametrize("security", [{"privileged": True}, LEAST], ids=["privileged", "least"])
def test_a_snapshot_of_one_container_comes_back_in_another(
    node: Node, snapshot: str, security: dict[str, Any]
) -> None:
    assert node.restored(snapshot, security) is Outcome.OK


def test_a_privileged_container_s_snapshot_needs_no_privileges_to_come_back(node: Node) -> None:
    assert node.restored(node.take({"privileged": True}), LEAST) is Outcome.OK


@pytest.mark.parametrize("missing", SNAPSHOT_CAPABILITIES)
def test_without_one_of_the_least_capabilities_nothing_comes_back(
    node: Node, snapshot: str, missing: str
) -> None:
    kept = tuple(name for name in SNAPSHOT_CAPABILITIES if name != missing)
    # CRIU gives no answer without some of them: whoever comes back does so in a few seconds.
    ended = node.restored(snapshot, LEAST | {"capabilities": kept}, timeout_s=30)
    assert ended is not Outcome.OK


def test_the_launcher_has_one_pod_take_a_snapshot_and_another_restore_it(
    engine_of_containers: Engine, tmp_path: Path
) -> None:
    """The API is a fake; launcher, manifests, containers, CRIU and records are the real ones."""
    with fake_cluster(tmp_path) as cluster:
        cluster.kubelet.program = pod_program(engine_of_containers, cluster.folder / "containers")
        volumes = {name: cluster.folder / f"volume-{name}" for name in ("snapshots", "cache")}
        for folder in volumes.values():
            folder.mkdir(mode=0o700)
        settings = cluster.settings(
            python=sys.executable, security=LEAST, restore_node="same",
            deadlines={"run_s": 240.0},
            **{name: {"host_path": str(folder)} for name, folder in volumes.items()},
        )  # fmt: skip

        def run(spec: SnapshotSpec | StartupSpec) -> RunRecord:
            result = run_on_kubernetes(spec, cluster.home, lambda *_: None, settings)
            return read_landing(result.folder).record

        [taken] = run(SnapshotSpec()).snapshots
        assert taken.outcome is Outcome.OK, taken.detail
        record = run(StartupSpec(arms=(Arm.RESTORE,), repeats=1, snapshot=taken.snapshot_id))
        [start] = record.startups
        assert (start.outcome, start.snapshot_id) == (Outcome.OK, taken.snapshot_id), start.detail
        assert record.launcher == "kubernetes"
        assert record.basis is Basis.SIMULATED
        assert [launch.node for launch in read_launches(cluster.home)] == [NODE, NODE]
        assert cluster.left() == []
