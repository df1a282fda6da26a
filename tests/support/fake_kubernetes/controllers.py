"""Controllers: jobs get a pod and end, what has no owner goes, pods get a node."""

from __future__ import annotations

import copy
import uuid
from datetime import UTC, datetime
from typing import Any

from tests.support.fake_kubernetes.store import Object, Store, now


class Controllers:
    """`step` does what each would do now. `running` False: nobody does anything."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pod_quota_message = ""
        """The job controller may make no pod, for that reason."""
        self.collects = True
        self.replaces_deleted_pods = False
        """As before pod failure policies: a deleted pod gets a successor."""
        self.custom: set[str] = set()
        """Custom resources that it collects, too."""
        self._had_pod: set[str] = set()

    def step(self) -> None:
        for job in self.store.all("jobs"):
            self._job(job)
        if self.collects:
            self._collect()
        for pod in self.store.all("pods"):
            if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                self._schedule(pod)

    def _job(self, job: Object) -> None:
        metadata = job["metadata"]
        conditions = {item["type"]: item for item in job.get("status", {}).get("conditions", [])}
        if conditions:
            ttl = job["spec"].get("ttlSecondsAfterFinished")
            [ended] = conditions.values()
            if ttl is not None and _age_s(ended["lastTransitionTime"]) > ttl:
                self.store.delete("jobs", metadata["name"])
            return
        if "deletionTimestamp" in metadata:
            return
        pods = [pod for pod in self.store.all("pods") if _owned(pod, metadata["uid"])]
        limit = job["spec"].get("activeDeadlineSeconds")
        if limit is not None and _age_s(metadata["creationTimestamp"]) >= limit:
            for pod in pods:
                self.store.delete("pods", pod["metadata"]["name"], _grace(pod))
            self._end(job, "Failed", "DeadlineExceeded", "Job was active longer than its deadline")
        elif any(pod["status"].get("phase") == "Succeeded" for pod in pods):
            self._end(job, "Complete", "", "")
        elif any(pod["status"].get("phase") == "Failed" for pod in pods):
            self._end(job, "Failed", "BackoffLimitExceeded", "Job has reached the backoff limit")
        elif not pods:
            self._pod(job)

    def _pod(self, job: Object) -> None:
        uid = job["metadata"]["uid"]
        replaces = self.replaces_deleted_pods or job["spec"]["backoffLimit"] > 0
        if uid in self._had_pod and not replaces:
            self._end(job, "Failed", "BackoffLimitExceeded", "Job has reached the backoff limit")
            return
        if self.pod_quota_message:
            event(self.store, "Job", job, "Warning", "FailedCreate", self.pod_quota_message)
            return
        self._had_pod.add(uid)
        template = copy.deepcopy(job["spec"]["template"])
        name = job["metadata"]["name"]
        template["metadata"] |= {
            "name": f"{name}-{uuid.uuid4().hex[:5]}",
            "ownerReferences": [{"kind": "Job", "name": name, "uid": uid, "controller": True}],
        }
        template["status"] = {"phase": "Pending", "conditions": []}
        self.store.add("pods", template)

    def _end(self, job: Object, kind: str, reason: str, message: str) -> None:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message,
                     "lastTransitionTime": now()}  # fmt: skip

        def edit(item: Object) -> None:
            item["status"] = {"conditions": [condition]}

        self.store.change("jobs", job["metadata"]["name"], edit)

    def _collect(self) -> None:
        uids = {item["metadata"]["uid"] for kind in ("jobs", "pods", *self.custom) for item in
                self.store.all(kind)}  # fmt: skip
        for kind in ("pods", "jobs", *self.custom):
            for item in self.store.all(kind):
                owners = item["metadata"].get("ownerReferences", [])
                gone = owners and not any(owner["uid"] in uids for owner in owners)
                if gone and "deletionTimestamp" not in item["metadata"]:
                    grace_s = _grace(item) if kind == "pods" else 0
                    self.store.delete(kind, item["metadata"]["name"], grace_s)

    def _schedule(self, pod: Object) -> None:
        nodes = self.store.all("nodes")
        fitting = [node for node in nodes if _fits(pod, node)]
        name = pod["metadata"]["name"]
        if fitting:
            node = fitting[0]["metadata"]["name"]

            def bind(item: Object) -> None:
                item["spec"]["nodeName"] = node
                set_condition(item, "PodScheduled", "True")

            self.store.change("pods", name, bind)
            event(self.store, "Pod", pod, "Normal", "Scheduled", f"assigned to {node}")
            return
        why = f"0/{len(nodes)} nodes are available: {_why(pod, nodes)}."

        def refuse(item: Object) -> None:
            set_condition(item, "PodScheduled", "False", "Unschedulable", why)

        self.store.change("pods", name, refuse)
        event(self.store, "Pod", pod, "Warning", "FailedScheduling", why)


def event(store: Store, kind: str, about: Object, level: str, reason: str, message: str) -> None:
    """Report something, once for each reason."""
    metadata = about["metadata"]
    for found in store.all("events"):
        if found["involvedObject"]["uid"] == metadata["uid"] and found["reason"] == reason:
            return
    store.add("events", {
        "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:8]}"},
        "involvedObject": {"kind": kind, "name": metadata["name"], "uid": metadata["uid"]},
        "type": level, "reason": reason, "message": message,
        "firstTimestamp": now(), "lastTimestamp": now(), "count": 1, "source": {},
    })  # fmt: skip


def set_condition(pod: Object, kind: str, status: str, reason: str = "", message: str = "") -> None:
    conditions = pod["status"].setdefault("conditions", [])
    for item in conditions:
        if item["type"] == kind:
            if item["status"] != status:
                item["lastTransitionTime"] = now()
            item |= {"status": status, "reason": reason, "message": message}
            return
    conditions.append(
        {"type": kind, "status": status, "reason": reason, "message": message,
         "lastTransitionTime": now()}
    )  # fmt: skip


def _owned(pod: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", []))


def _grace(pod: Object) -> int:
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30))


def _age_s(text: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()


def _fits(pod: Object, node: Object) -> bool:
    return not _why(pod, [node])


def _likes(pod: Object, node: Object) -> bool:
    """The node affinity: any of its terms, each as a whole."""
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )  # fmt: skip
    labels: dict[str, Any] = node["metadata"].get("labels", {})
    # The one field that the real scheduler takes.
    fields = {"metadata.name": node["metadata"]["name"]}
    return required is None or any(
        all(_matches(labels, item) for item in term.get("matchExpressions", ()))
        and all(_matches(fields, item) for item in term.get("matchFields", ()))
        for term in required["nodeSelectorTerms"]
    )


def _matches(values: dict[str, Any], requirement: Object) -> bool:
    found = values.get(requirement["key"]) in requirement["values"]
    return {"In": found, "NotIn": not found}[requirement["operator"]]


def _why(pod: Object, nodes: list[Object]) -> str:
    reasons: set[str] = set()
    for node in nodes:
        labels: dict[str, Any] = node["metadata"].get("labels", {})
        wanted = pod["spec"].get("nodeSelector", {})
        if any(labels.get(name) != value for name, value in wanted.items()) or not _likes(
            pod, node
        ):
            reasons.add("node(s) didn't match Pod's node affinity/selector")
            continue
        keys = {item.get("key") for item in pod["spec"].get("tolerations", [])}
        for taint in node.get("spec", {}).get("taints", []):
            if taint["key"] not in keys and None not in keys:
                reasons.add(f"node(s) had taint {{{taint['key']}: }}")
        for name, amount in pod["spec"]["containers"][0]["resources"].get("limits", {}).items():
            if "/" in name and int(node["status"]["allocatable"].get(name, 0)) < int(amount):
                reasons.add(f"Insufficient {name}")
    return ", ".join(sorted(reasons))
