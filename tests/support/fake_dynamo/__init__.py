"""A small simulated Dynamo Snapshot for the fake cluster: its operator and its agents.

It reads the same objects and annotations, writes the same conditions, holds the same finalizers and
logs the same lines as github.com/ai-dynamo/snapshot, and can be made to fail in the ways that the
real one does. It captures nothing: a restore lets a pod's stand-in serve that had kept silent.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.support import contract_server
from tests.support.fake_chaos.stand_in import PodServer
from tests.support.fake_kubernetes.cluster import FakeCluster
from tests.support.fake_kubernetes.controllers import set_condition
from tests.support.fake_kubernetes.store import Object

SNAPSHOTS, JOBS, CONTENTS = "podsnapshots", "snapshotjobs", "podsnapshotcontents"
FINALIZER = "nvidia.com/podsnapshotcontent-cleanup"
AGENT = "snapshot-agent-1"
RESTORE_S = 0.6
"""What a restore takes, a part of which the agent's log explains."""
RESTORE_FROM = "nvidia.com/restore-from"
STARTED = "2026-01-01T00:00:00Z resilience workload: starts a worker\n"
STANDBY = "2026-01-01T00:00:00Z resilience workload: waits to be restored into\n"


class Fails(StrEnum):
    NOT = "not"
    SILENTLY = "silently"
    """Nobody looks at anything."""
    CAPTURING = "capturing"
    RESTORING = "restoring"
    REFUSING = "refusing"
    """The agent's compatibility check."""
    FALLING_BACK = "falling back"
    """A pod that is to be restored into starts its worker itself."""
    CLAIMING = "claiming"
    """The same, and the agent says that it restored it."""
    CRASHING = "crashing"
    """The restored container ends."""
    REMOVING = "removing"
    """The finalizer stays."""
    LOGGING = "logging"
    """The agent's lines are of a form that nobody knows."""


class _Server(PodServer):
    """A pod's stand-in that says how it began; nobody finds it until it is let serve."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__()
        self.stdout = iter([STANDBY if silent else STARTED])
        self.real_port = self.port
        if silent:
            self.port = 1


@dataclass
class FakeDynamo:
    cluster: FakeCluster
    fails: Fails = Fails.NOT
    lines: list[tuple[float, str]] = field(default_factory=list)
    """The agent's log."""
    restored: set[str] = field(default_factory=set)
    since: dict[str, float] = field(default_factory=dict)
    """When the container of a pod to restore into was first seen to run."""

    def __post_init__(self) -> None:
        cluster = self.cluster
        cluster.server.groups.add("nvidia.com")
        cluster.controllers.custom.update((SNAPSHOTS, JOBS))
        cluster.operators.append(self)
        cluster.kubelet.unmounted.add("snapshot-control")
        cluster.kubelet.serve_pod = self._serve
        # Its own pod is run by this object.
        cluster.kubelet.foreign[AGENT] = self.lines
        cluster.store.add("pods", {
            "metadata": {
                "name": AGENT, "labels": {"app.kubernetes.io/component": "snapshot-agent"},
            },
            "spec": {"nodeName": "node-1", "containers": []},
            "status": {"phase": "Running"},
        })  # fmt: skip

    def step(self) -> None:
        """What the operator and the agent would do now."""
        if self.fails is Fails.SILENTLY:
            return
        for item in self.cluster.store.all(JOBS):
            self._job(item)
        for item in self.cluster.store.all(SNAPSHOTS):
            self._snapshot(item)
        for pod in self.cluster.store.all("pods"):
            if RESTORE_FROM in (pod["metadata"].get("annotations") or {}):
                self._restore(pod)

    def left(self) -> list[str]:
        """What is in the cluster besides the agent."""
        found = [f"{kind}/{item['metadata']['name']}" for kind in (SNAPSHOTS, JOBS, CONTENTS)
                 for item in self.cluster.store.all(kind)]  # fmt: skip
        return [*found, *(name for name in self.cluster.left() if name != f"pods/{AGENT}")]

    def _serve(self, pod: Object) -> PodServer:
        standby = RESTORE_FROM in (pod["metadata"].get("annotations") or {})
        cold = self.fails in (Fails.FALLING_BACK, Fails.CLAIMING)
        return _Server(silent=standby and not cold)

    def _job(self, item: Object) -> None:
        metadata, store = item["metadata"], self.cluster.store
        name, spec = metadata["name"], item["spec"]
        if "deletionTimestamp" in metadata or self._ended(item):
            return
        if all(job["metadata"]["name"] != name for job in store.all("jobs")):
            assert spec["podSnapshotTemplate"]["targetContainers"] == ["worker"]
            template = json.loads(json.dumps(spec["podTemplate"]))
            assert "readinessProbe" not in template["spec"]["containers"][0]
            template["metadata"]["labels"]["nvidia.com/snapshot-job"] = name
            store.add("jobs", {
                "metadata": {"name": name, "ownerReferences": [{"uid": metadata["uid"]}]},
                "spec": {"backoffLimit": 0, "template": template,
                         "activeDeadlineSeconds": spec["activeDeadlineSeconds"]},
            })  # fmt: skip
        pod = next((pod for pod in store.all("pods")
                    if pod["metadata"].get("labels", {}).get("nvidia.com/snapshot-job") == name),
                   None)  # fmt: skip
        made = f"{name}-snapshot"
        known = [snap for snap in store.all(SNAPSHOTS) if snap["metadata"]["name"] == made]
        if not known and pod is not None and self._quiet(pod):
            store.add(SNAPSHOTS, {
                "metadata": {"name": made, "labels": {"nvidia.com/snapshot-job": name}},
                "spec": {"source": {"podRef": {
                    "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
                    "containers": ["worker"],
                }}},
            })  # fmt: skip
        for kind, target in (("Ready", "Completed"), ("Failed", "Failed")):
            if known and self._condition(known[0], kind):
                self._say(JOBS, name, {target: "CaptureCompleted"}, podSnapshotName=made)

    def _snapshot(self, item: Object) -> None:
        metadata = item["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        if "deletionTimestamp" in metadata:
            if self.fails is not Fails.REMOVING:
                self.cluster.store.remove(CONTENTS, f"content-{uid}")
                self._change(SNAPSHOTS, name, lambda o: o["metadata"].update(finalizers=[]))
            return
        if FINALIZER not in metadata.get("finalizers", []):
            self._change(SNAPSHOTS, name, lambda o: o["metadata"].update(finalizers=[FINALIZER]))
            return
        if self._ended(item):
            return
        source = item["spec"]["source"]["podRef"]
        assert source["containers"] == ["worker"]
        pods = [pod for pod in self.cluster.store.all("pods")
                if pod["metadata"]["uid"] == source["uid"]]  # fmt: skip
        if not pods or self.fails is Fails.CAPTURING:
            reason = "CaptureFailed" if pods else "SourcePodNotFound"
            self._say(SNAPSHOTS, name, {"Failed": reason})
            return
        if not self._quiet(pods[0]):
            return
        begin = time.monotonic()
        content = f"content-{uid}"
        self.cluster.store.add(CONTENTS, {"metadata": {"name": content}})
        self.cluster.kubelet.kill(source["name"])
        dump_s = time.monotonic() - begin
        self._log("Checkpoint", {"content": content}, {"criu_dump": dump_s})
        self._say(SNAPSHOTS, name, {"Ready": "CaptureCompleted"}, boundSnapshotContentName=content)

    def _quiet(self, pod: Object) -> bool:
        """As the readiness gate of a source: its worker sleeps."""
        return bool(contract_server.STATE["asleep"]) and pod["status"].get("phase") == "Running"

    def _restore(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if name in self.restored or pod["status"].get("phase") != "Running":
            return
        if "deletionTimestamp" in pod["metadata"] or self.fails is Fails.FALLING_BACK:
            return
        begin = self.since.setdefault(name, time.monotonic())
        if time.monotonic() - begin < RESTORE_S:
            return
        container = pod["spec"]["containers"][0]
        assert {"name": "SNAPSHOT_RESTORE_STANDBY", "value": "1"} in container["env"]
        snapshot = self.cluster.store.get(SNAPSHOTS, pod["metadata"]["annotations"][RESTORE_FROM])
        assert self._condition(snapshot, "Ready")
        self.restored.add(name)
        refused = {Fails.RESTORING: "RestoreFailed", Fails.REFUSING: "RestoreIncompatible"}
        if self.fails in refused:
            self._restored(name, "False", refused[self.fails])
            return
        if self.fails is Fails.CRASHING:
            self.cluster.kubelet.kill(name)
            return
        server = self.cluster.kubelet.process(name)
        assert isinstance(server, _Server)
        self.cluster.kubelet.let_serve(name, server.real_port)
        self._log(
            "Restore",
            {"pod": f"resilience/{name}", "snapshot": snapshot["metadata"]["name"]},
            {"criu_restore": RESTORE_S / 4, "unaccounted": RESTORE_S / 8},
        )
        self._restored(name, "True", "RestoreSucceeded")

    def _restored(self, pod: str, status: str, reason: str) -> None:
        self.cluster.store.change("pods", pod, lambda item: set_condition(
            item, "nvidia.com/Restored", status, reason, "as the fake was told"
        ))  # fmt: skip

    def _log(self, act: str, subject: dict[str, str], phases: dict[str, float]) -> None:
        if self.fails is Fails.LOGGING:
            self.lines.append((time.time(), f"INFO {act} timing summary, all went well"))
            return
        timed: dict[str, Any] = {
            "duration": f"{sum(phases.values()):.9f}s",
            "phases": {name: f"{seconds:.9f}s" for name, seconds in phases.items()},
        }
        body = json.dumps(subject | {act.lower(): timed})
        line = f"2026-01-01T00:00:00Z INFO controller {act} timing summary {body}"
        self.lines.append((time.time(), line))

    def _say(self, kind: str, name: str, holds: dict[str, str], **status: str) -> None:
        conditions = [
            {"type": what, "status": "True", "reason": reason, "message": "as the fake was told"}
            for what, reason in holds.items()
        ]
        self._change(kind, name, lambda o: o.update(status={"conditions": conditions} | status))

    def _condition(self, item: Object, name: str) -> bool:
        conditions = item.get("status", {}).get("conditions", [])
        return any(found["type"] == name and found["status"] == "True" for found in conditions)

    def _ended(self, item: Object) -> bool:
        return any(self._condition(item, name) for name in ("Ready", "Completed", "Failed"))

    def _change(self, kind: str, name: str, edit: Any) -> None:
        self.cluster.store.change(kind, name, edit)
