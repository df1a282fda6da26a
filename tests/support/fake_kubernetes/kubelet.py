"""The kubelet: pulls no image, and really runs a pod's command as a process of this machine.

Volumes become folders and links below one folder of the test; a pod that mounts anything elsewhere
is refused, so that no pod touches this machine's files.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.support.fake_kubernetes.controllers import event, set_condition
from tests.support.fake_kubernetes.store import Object, Store, now

Program = Callable[[Object], list[str]]
"""The command that stands in for a pod's own."""


class Served(Protocol):
    """What stands in for a process: a server in this one."""

    returncode: int | None
    stdout: Iterator[str]
    port: int

    def poll(self) -> int | None: ...
    def wait(self, timeout_s: float) -> None: ...
    def receive(self, number: int) -> None: ...


Running = subprocess.Popen[str] | Served


@dataclass
class _Container:
    process: Running
    started_at: str
    lines: list[tuple[float, str]] = field(default_factory=list)
    reader: threading.Thread | None = None
    term_sent_at: float | None = None
    reason: str = ""
    ended: bool = False
    port: int | None = None


class Kubelet:
    """One for all nodes."""

    def __init__(self, store: Store, folder: Path, repository: Path) -> None:
        self.store = store
        self.folder = folder
        self.repository = repository
        self.images = {"registry.test/resilience:1"}
        self.program: Program | None = None
        self.serve: Callable[[], Served] | None = None
        """What stands in for the process of a pod that has a port."""
        self.serve_pod: Callable[[Object], Served] | None = None
        """The same, where it matters which pod it is."""
        self.foreign: dict[str, list[tuple[float, str]]] = {}
        """Pods that it does not start, as others run them, and their logs."""
        self.unmounted: set[str] = set()
        """Volumes that nothing of a stand-in needs."""
        self.lost_nodes: set[str] = set()
        self.mount_problem = ""
        self._containers: dict[str, _Container] = {}

    def port(self, pod: str) -> int | None:
        """Where on this machine the server of a pod listens."""
        container = self._containers.get(pod)
        return container.port if container else None

    def kill(self, pod: str) -> None:
        """Kill one pod's container."""
        _signal(self._containers[pod].process, signal.SIGKILL)

    def pause(self, pod: str, paused: bool) -> None:
        """Stop or continue a pod's container, as a part of slowing it down."""
        _signal(self._containers[pod].process, signal.SIGSTOP if paused else signal.SIGCONT)

    def let_serve(self, pod: str, port: int) -> None:
        """Let a pod's server be found, which was not before."""
        self._containers[pod].port = port

    def process(self, pod: str) -> Running:
        """What runs in a pod."""
        return self._containers[pod].process

    def lines(self, pod: str) -> list[tuple[float, str]]:
        if pod in self.foreign:
            return list(self.foreign[pod])
        container = self._containers.get(pod)
        return list(container.lines) if container else []

    def ended(self, pod: str) -> bool:
        container = self._containers.get(pod)
        return container is None or container.ended

    def step(self) -> None:
        pods = self.store.all("pods")
        for pod in pods:
            node = pod["spec"].get("nodeName")
            managed = pod["metadata"]["name"] not in self.foreign
            if node and node not in self.lost_nodes and managed:
                self._pod(pod)
        # What was removed by force ends once its kubelet hears of it.
        for name in self._containers.keys() - {pod["metadata"]["name"] for pod in pods}:
            if not self.lost_nodes and not self._containers[name].ended:
                _signal(self._containers[name].process, signal.SIGKILL)
                self._containers[name].ended = True

    def kill_as(self, reason: str) -> None:
        """Kill every container, for a reason that will be in its state."""
        for container in self._containers.values():
            container.reason = reason
            _signal(container.process, signal.SIGKILL)

    def evict(self, why: str) -> None:
        """End every pod as a node under pressure does."""
        for name, container in self._containers.items():
            container.reason = "Error"

            def edit(pod: Object) -> None:
                pod["status"] |= {"reason": "Evicted", "message": why}

            self.store.change("pods", name, edit)
            _signal(container.process, signal.SIGTERM)

    def lose_node(self, node: str) -> None:
        """The node reports no more; what it runs goes on unseen."""
        self.lost_nodes.add(node)
        for pod in self.store.all("pods"):
            if pod["spec"].get("nodeName") == node:
                self.store.change(
                    "pods", pod["metadata"]["name"],
                    lambda item: set_condition(item, "Ready", "False"),
                )  # fmt: skip
                event(self.store, "Pod", pod, "Warning", "NodeNotReady", "Node is not ready")

    def processes(self) -> list[Running]:
        return [item.process for item in self._containers.values() if item.process.poll() is None]

    def stop(self) -> None:
        for process in self.processes():
            _signal(process, signal.SIGKILL)
            process.wait(10)

    def _pod(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        container = self._containers.get(name)
        deleted = "deletionTimestamp" in pod["metadata"]
        if container is None:
            if deleted:
                self.store.change("pods", name, _mark_removed)
            else:
                self._start(pod)
            return
        if deleted and not container.ended:
            self._end_soon(pod, container)
        if container.process.poll() is not None and not container.ended:
            self._ended(pod, container)
        if deleted and container.ended:
            self.store.change("pods", name, _mark_removed)

    def _start(self, pod: Object, restarts: int = 0) -> None:
        name = pod["metadata"]["name"]
        spec = pod["spec"]["containers"][0]
        if self.mount_problem:
            event(self.store, "Pod", pod, "Warning", "FailedMount", self.mount_problem)
            self._waiting(name, "ContainerCreating", "")
            return
        if spec["imagePullPolicy"] == "Never" and spec["image"] not in self.images:
            self._waiting(name, "ErrImageNeverPull", f"{spec['image']} is not present")
            return
        event(self.store, "Pod", pod, "Normal", "Pulling", f"Pulling image {spec['image']}")
        if spec["image"] not in self.images:
            event(self.store, "Pod", pod, "Warning", "Failed", "Failed to pull image")
            self._waiting(name, "ErrImagePull", f"{spec['image']}: not found")
            return
        event(self.store, "Pod", pod, "Normal", "Pulled", "Successfully pulled image")
        self._volumes(pod)
        process, port = self._run(pod)
        container = _Container(process, now(), port=port)
        container.reader = threading.Thread(target=_read, args=(container,), daemon=True)
        container.reader.start()
        self._containers[name] = container
        running = {"name": spec["name"], "state": {"running": {"startedAt": container.started_at}},
                   "imageID": f"{spec['image']}@fake", "restartCount": restarts}  # fmt: skip

        def edit(item: Object) -> None:
            item["status"] |= {"phase": "Running", "containerStatuses": [running]}
            set_condition(item, "Ready", "True")

        self.store.change("pods", name, edit)

    def _run(self, pod: Object) -> tuple[Running, int | None]:
        spec = pod["spec"]["containers"][0]
        if self.serve_pod is not None and "ports" in spec:
            served = self.serve_pod(pod)
            return served, served.port
        if self.serve is not None and "ports" in spec:
            served = self.serve()
            return served, served.port
        told = {item["name"]: item["value"] for item in spec["env"]}
        command = self.program(pod) if self.program else [sys.executable, *spec["command"][1:]]
        port = None
        if "ports" in spec:
            # All pods are on this machine's loopback: each gets a port of its own there.
            port = _free_port()
            wanted = str(spec["ports"][0]["containerPort"])
            command = [str(port) if word == wanted else word for word in command]
        kept = {k: v for k, v in os.environ.items()
                if k in ("PATH", "HOME", "LANG", "RESILIENCE_CRIU_PREFIX")}  # fmt: skip
        process = subprocess.Popen(
            command, text=True, cwd=self.repository, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=kept | {"PYTHONPATH": str(self.repository), "KUBERNETES_SERVICE_HOST": "x"} | told,
        )  # fmt: skip
        return process, port

    def _waiting(self, name: str, reason: str, message: str) -> None:
        container = self.store.get("pods", name)["spec"]["containers"][0]["name"]
        state = {"name": container, "state": {"waiting": {"reason": reason, "message": message}}}

        def edit(item: Object) -> None:
            item["status"]["containerStatuses"] = [state]

        self.store.change("pods", name, edit)

    def _volumes(self, pod: Object) -> None:
        volumes = {item["name"]: item for item in pod["spec"]["volumes"]}
        mounts = pod["spec"]["containers"][0]["volumeMounts"]
        for mount in sorted(mounts, key=lambda item: len(item["mountPath"])):
            if mount["name"] in self.unmounted:
                continue
            place = Path(mount["mountPath"])
            assert self.folder in place.parents, f"{place} is not below {self.folder}"
            volume = volumes[mount["name"]]
            if "emptyDir" in volume:
                place.mkdir(parents=True, exist_ok=True)
                continue
            source = Path(volume["hostPath"]["path"])
            assert self.folder in source.parents, f"{source} is not below {self.folder}"
            assert source.is_dir()
            if not place.is_symlink():
                place.symlink_to(source)

    def _end_soon(self, pod: Object, container: _Container) -> None:
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds")
        if container.term_sent_at is None:
            container.term_sent_at = time.monotonic()
            _signal(container.process, signal.SIGTERM)
        elif time.monotonic() - container.term_sent_at > (grace_s if grace_s is not None else 30):
            _signal(container.process, signal.SIGKILL)

    def _ended(self, pod: Object, container: _Container) -> None:
        assert container.reader is not None
        container.reader.join(2.0)
        code = container.process.returncode
        assert code is not None
        code = 128 - code if code < 0 else code
        state = {
            "exitCode": code,
            "reason": container.reason or ("Error" if code else "Completed"),
            "startedAt": container.started_at,
            "finishedAt": now(),
        }

        def edit(item: Object) -> None:
            item["status"]["phase"] = "Failed" if code else "Succeeded"
            item["status"]["containerStatuses"][0]["state"] = {"terminated": state}

        container.ended = True
        if pod["spec"]["restartPolicy"] == "OnFailure" and code and not _deleted(pod):
            found = pod["status"]["containerStatuses"][0]
            self._start(pod, int(found["restartCount"]) + 1)
            return
        self.store.change("pods", pod["metadata"]["name"], edit)


def _deleted(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _mark_removed(pod: Object) -> None:
    pod["metadata"]["removed"] = True


def _read(container: _Container) -> None:
    assert container.process.stdout is not None
    for line in container.process.stdout:
        container.lines.append((time.time(), line.rstrip("\n")))


def _signal(process: Running, number: int) -> None:
    if process.poll() is not None:
        return
    if isinstance(process, subprocess.Popen):
        os.killpg(process.pid, number)
    else:
        process.receive(number)
