"""The cluster: server, controllers and kubelet together, and the kubeconfig that names it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from resilience_pipelines.home import Home, open_home
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings
from tests.support.fake_kubernetes.controllers import Controllers
from tests.support.fake_kubernetes.kubelet import Kubelet
from tests.support.fake_kubernetes.server import FakeServer, Old
from tests.support.fake_kubernetes.store import Object, Store

REPOSITORY = Path(__file__).parents[3]
NODE = "node-1"

QUICK: dict[str, Any] = {
    "pending_s": 1.0, "image_pull_s": 0.6, "run_s": 60.0, "node_lost_s": 0.6, "api_lost_s": 20.0,
    "landing_s": 1.0, "grace_s": 2, "cleanup_s": 20.0, "request_s": 5.0, "poll_s": 1.0,
}  # fmt: skip


class Operator(Protocol):
    """A controller of custom resources."""

    def step(self) -> None:
        """Do what it would do now."""


class FakeCluster:
    """A cluster of one node with a data home beside it."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        self.home: Home = open_home(folder / "home")
        self.store = Store()
        self.controllers = Controllers(self.store)
        self.kubelet = Kubelet(self.store, folder, REPOSITORY)
        self.server = FakeServer(self.store, self.kubelet, version, "resilience")
        self.operators: list[Operator] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.problems: list[Exception] = []
        self.add_node(NODE)

    def add_node(
        self,
        name: str,
        runtime: str = "containerd://1.7.0",
        *,
        gpus: int = 0,
        ready: bool = True,
        labels: dict[str, str] | None = None,
    ) -> None:
        self.store.add("nodes", {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {},
            "status": {
                "allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {},
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "nodeInfo": {"containerRuntimeVersion": runtime},
            },
        })  # fmt: skip

    @property
    def kubeconfig(self) -> Path:
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.server.address}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}],
        }))  # fmt: skip
        return path

    def settings(self, **changes: Any) -> KubernetesSettings:
        deadlines = QUICK | changes.pop("deadlines", {})
        fields: dict[str, Any] = {
            "image": "registry.test/resilience:1",
            "kubeconfig": str(self.kubeconfig),
            "home": str(self.folder / "in-pod"),
            "landing": {"host_path": str(self.home.landing)},
            "deadlines": deadlines,
        }
        return KubernetesSettings.model_validate(fields | changes)

    def stand_in(self, *options: str) -> None:
        """Let pods run the stand-in."""

        def program(pod: Object) -> list[str]:
            home = pod["spec"]["containers"][0]["command"][4]
            name = "tests.support.fake_kubernetes.stand_in"
            return [sys.executable, "-m", name, "--home", home, *options]

        self.kubelet.program = program

    def output(self) -> str:
        """What all pods that are there have said."""
        names = [pod["metadata"]["name"] for pod in self.store.all("pods")]
        return "\n".join(text for name in names for _, text in self.kubelet.lines(name))

    def left(self) -> list[str]:
        """What of the launcher is in the cluster."""
        return [f"{kind}/{item['metadata']['name']}" for kind in ("jobs", "pods", "configmaps")
                for item in self.store.all(kind)]  # fmt: skip

    def start(self) -> None:
        self.server.start()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self.kubelet.stop()
        self.server.stop()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                self.controllers.step()
                self.kubelet.step()
                for operator in self.operators:
                    operator.step()
            except Exception as error:
                self.problems.append(error)


@contextmanager
def fake_cluster(folder: Path, version: str = "v1.31.2+fake") -> Iterator[FakeCluster]:
    """A cluster that runs while the block does; a problem of the fake itself fails the test."""
    cluster = FakeCluster(folder, version)
    if version.startswith("v1.20"):
        cluster.server.prune = Old()
        cluster.controllers.replaces_deleted_pods = True
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
    if cluster.problems:
        raise cluster.problems[0]
