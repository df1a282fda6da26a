"""The objects that are made on a cluster: Jobs of one pod each, a PodSnapshot, a SnapshotJob.

What belongs here: building them. What does not: sending them (`engine`).

All lies in the container's own file system: a snapshot has that and the memory, and no volume.
The source's Job owns the PodSnapshot and the Jobs that are restored from it, so that the cluster
removes all of it once the Job goes: by our hand, by its own clock, or with the pod that this
platform runs in. A SnapshotJob makes its Job itself, and the PodSnapshot it makes has no owner.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    CONTROL_PATH,
    CONTROL_VARIABLE,
    CONTROL_VOLUME,
    READY_FILE,
    RESTORE_FROM,
    RESTORED_FILE,
    SERVING_FILE,
    SOURCE_LABEL,
    STANDBY_VARIABLE,
)
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.pod import CONTAINER, PodSettings, target_job
from resilience_pipelines.workers.process import DEFAULT_PORT

RUN_LABEL: Final = "resilience-pipelines/pods-of-run"
HOME_LABEL: Final = "resilience-pipelines/pods-of-home"
_PROGRAM: Final = "resilience_pipelines.launchers.dynamo_snapshot.workload"
_GATE_FAILURES: Final = 1800

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Marks:
    """What tells whose objects they are, to whoever cleans up."""

    run_id: str
    home_id: str

    @property
    def labels(self) -> dict[str, str]:
        """Of every object of a run."""
        return {RUN_LABEL: self.run_id, HOME_LABEL: self.home_id}


@dataclass(frozen=True)
class Shape:
    """How pods are made.

    Attributes:
        seccomp: a profile of the node that refuses io_uring, which CRIU can't dump; None where the
            node refuses it otherwise.
        lifetime_s: after which the cluster ends a run's first Job, and again until it removes it.
        gpus: how many of `gpu_resource` a container gets.
    """

    marks: Marks
    seccomp: str | None
    lifetime_s: int
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"


def source_job(worker: Worker, name: str, settings: PodSettings, shape: Shape) -> Manifest:
    """The Job of a worker that is started, asked, and captured."""
    job = _job(worker, name, settings, shape)
    job["spec"] |= {
        "activeDeadlineSeconds": shape.lifetime_s,
        # Its capture ends it; what it owns is restored long after that.
        "ttlSecondsAfterFinished": shape.lifetime_s,
    }
    job["spec"]["template"]["metadata"]["labels"][SOURCE_LABEL] = "true"
    _container(job)["readinessProbe"] = _file_probe(READY_FILE)
    return job


def restore_job(
    worker: Worker,
    name: str,
    settings: PodSettings,
    shape: Shape,
    snapshot: str,
    owner: Mapping[str, Any] | None,
) -> Manifest:
    """The Job of a pod that a PodSnapshot is restored into."""
    job = _job(worker, name, settings, shape)
    if owner is not None:
        job["metadata"]["ownerReferences"] = [dict(owner)]
    job["spec"]["template"]["metadata"]["annotations"] = {RESTORE_FROM: snapshot}
    container = _container(job)
    container["env"].append({"name": STANDBY_VARIABLE, "value": "1"})
    container["startupProbe"] = _file_probe(RESTORED_FILE) | {"failureThreshold": _GATE_FAILURES}
    container["readinessProbe"] = _file_probe(SERVING_FILE)
    return job


def snapshot_spec(pod: str, uid: str) -> Manifest:
    """The specification of a PodSnapshot."""
    return {"source": {"podRef": {"name": pod, "uid": uid, "containers": [CONTAINER]}}}


def snapshot_job_spec(source: Manifest, deadline_s: int) -> Manifest:
    """The specification of a SnapshotJob that runs the pod of a source's Job."""
    template = copy.deepcopy(source["spec"]["template"])
    # Its controller adds these itself.
    template["metadata"]["labels"].pop(SOURCE_LABEL)
    container = template["spec"]["containers"][0]
    del container["readinessProbe"]
    return {
        "podTemplate": template,
        "podSnapshotTemplate": {"targetContainers": [CONTAINER]},
        "activeDeadlineSeconds": deadline_s,
    }


def _job(worker: Worker, name: str, settings: PodSettings, shape: Shape) -> Manifest:
    job = target_job(worker, name, settings)
    job["metadata"]["labels"] |= shape.marks.labels
    template = job["spec"]["template"]
    template["metadata"]["labels"] = dict(job["metadata"]["labels"])
    # A pod or container that comes in the place of another would be one more cold start.
    job["spec"]["backoffLimit"] = 0
    template["spec"]["restartPolicy"] = "Never"
    template["spec"]["volumes"] = [{"name": CONTROL_VOLUME, "emptyDir": {}}]
    container = _container(job)
    container["command"] = [
        settings.python, "-m", _PROGRAM, "--home", settings.home, "--worker", worker.name,
        "--port", str(DEFAULT_PORT),
    ]  # fmt: skip
    container["env"] = [{"name": CONTROL_VARIABLE, "value": CONTROL_PATH}]
    container["volumeMounts"] = [
        {"name": CONTROL_VOLUME, "mountPath": CONTROL_PATH, "subPath": CONTAINER}
    ]
    if shape.gpus:
        container["resources"]["limits"][shape.gpu_resource] = shape.gpus
    if shape.seccomp is not None:
        container["securityContext"]["seccompProfile"] = {
            "type": "Localhost", "localhostProfile": shape.seccomp,
        }  # fmt: skip
    return job


def _container(job: Manifest) -> Manifest:
    found: Manifest = job["spec"]["template"]["spec"]["containers"][0]
    return found


def _file_probe(name: str) -> Manifest:
    return {
        "exec": {"command": ["cat", f"{CONTROL_PATH}/{name}"]},
        "timeoutSeconds": 1, "periodSeconds": 1, "successThreshold": 1,
    }  # fmt: skip
