"""The manifest: the batch/v1 Job that a specification becomes.

What belongs here: building it, and telling which of its fields a server did not store. What does
not: sending it (`client`), and its settings (`settings`).

One object is all that a run makes. The specification is in the container's environment, so that
there is no ConfigMap that could be left behind or come too late. Nothing in it is secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from resilience_pipelines import job_environment
from resilience_pipelines.job_spec import JobSpec
from resilience_pipelines.launchers.kubernetes.nodes import affinity, wanted_labels
from resilience_pipelines.launchers.kubernetes.origin import NodeRule
from resilience_pipelines.launchers.kubernetes.settings import (
    KubernetesSettings,
    TolerationSettings,
    VolumeSettings,
    image_digest,
)

CONTAINER: Final = "job"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "resilience-pipelines"
RUN_LABEL: Final = "resilience-pipelines/run-id"
HOME_LABEL: Final = "resilience-pipelines/home"
WORKER_LABEL: Final = "resilience-pipelines/worker"
OUTCOMES: Final = ".outcomes"
"""A folder of the landing volume, which readers of landing zones skip: `<run_id>.json` each."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Owner:
    """The pod that a job belongs to: when it goes, the cluster removes the job."""

    pod_name: str
    pod_uid: str


@dataclass(frozen=True)
class ClusterFacts:
    """What was read from the cluster before the job is made; None where it isn't known.

    Attributes:
        simulated: why no figure from there is a measurement, where that is so.
    """

    kubernetes_version: str | None
    container_runtime: str | None
    simulated: str | None = None


def job_name(run_id: str) -> str:
    """The name of a run's Job."""
    return f"resilience-{run_id.lower()}"


def owner_reference(owner: Owner) -> Manifest:
    """How an object says that it belongs to a pod."""
    return {
        "apiVersion": "v1", "kind": "Pod", "name": owner.pod_name, "uid": owner.pod_uid,
        "blockOwnerDeletion": False, "controller": False,
    }  # fmt: skip


def selector(**labels: str) -> str:
    """A label selector of this platform's objects. Keys: `run_id`, `home`."""
    names = {"run_id": RUN_LABEL, "home": HOME_LABEL}
    pairs = {MANAGED_BY_LABEL: MANAGED_BY} | {names[k]: v for k, v in labels.items()}
    return ",".join(f"{name}={value}" for name, value in pairs.items())


def build_job(
    spec: JobSpec,
    run_id: str,
    home_id: str,
    settings: KubernetesSettings,
    facts: ClusterFacts,
    owner: Owner | None = None,
    rule: NodeRule | None = None,
) -> Manifest:
    """The Job of one run. Its one pod is never replaced: a repeated measurement is another run.

    Args:
        rule: which nodes by name, besides what the settings say of nodes.
    """
    labels = {
        MANAGED_BY_LABEL: MANAGED_BY,
        RUN_LABEL: run_id,
        HOME_LABEL: home_id,
        WORKER_LABEL: spec.worker,
    }
    metadata: Manifest = {
        "name": job_name(run_id),
        "namespace": settings.namespace,
        "labels": labels,
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": math.ceil(settings.deadlines.run_s),
            "ttlSecondsAfterFinished": settings.ttl_s,
            # A disrupted pod ends the job. Without this an evicted pod gets a successor, which
            # would measure again under the same name.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": CONTAINER,
                            "operator": "NotIn",
                            "values": [0],
                        },
                    },
                ]
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod(spec, run_id, settings, facts, rule),
            },
        },
    }


def _pod(
    spec: JobSpec,
    run_id: str,
    settings: KubernetesSettings,
    facts: ClusterFacts,
    rule: NodeRule | None,
) -> Manifest:
    volumes, mounts = _volumes(settings)
    amounts: dict[str, str] = {}
    if settings.cpu is not None:
        amounts["cpu"] = settings.cpu
    if settings.memory is not None:
        amounts["memory"] = settings.memory
    if settings.gpu.count:
        amounts[settings.gpu.resource] = str(settings.gpu.count)
    pod: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": settings.service_account,
        # A job asks nothing of the API server, and its workers shall not be able to.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.deadlines.grace_s,
        "volumes": volumes,
        "containers": [
            {
                "name": CONTAINER,
                "image": settings.image,
                "imagePullPolicy": settings.image_pull_policy,
                "command": [
                    settings.python, "-m", "resilience_pipelines.job", "--home", settings.home,
                ],
                "env": [
                    {"name": name, "value": value}
                    for name, value in _environment(spec, run_id, settings, facts).items()
                ],
                "resources": {"requests": amounts, "limits": dict(amounts)} if amounts else {},
                "volumeMounts": mounts,
                "securityContext": _security(settings),
            }
        ],
    }  # fmt: skip
    pod |= placement(settings, rule)
    return pod


def placement(settings: KubernetesSettings, rule: NodeRule | None = None) -> Manifest:
    """The part of a pod's specification that says where it runs and what it is pulled with."""
    found: Manifest = {}
    if labels := wanted_labels(settings):
        found["nodeSelector"] = labels
    if (wanted := affinity(settings, rule)) is not None:
        found["affinity"] = wanted
    if settings.runtime_class is not None:
        found["runtimeClassName"] = settings.runtime_class
    if settings.tolerations:
        found["tolerations"] = [_toleration(item) for item in settings.tolerations]
    if settings.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return found


def _environment(
    spec: JobSpec, run_id: str, settings: KubernetesSettings, facts: ClusterFacts
) -> dict[str, str]:
    told = {
        job_environment.SPEC: spec.model_dump_json(),
        job_environment.RUN_ID: run_id,
        job_environment.OUTCOME: f"{settings.home}/landing/{OUTCOMES}/{run_id}.json",
        job_environment.LAUNCHED_BY: "kubernetes",
        job_environment.KUBERNETES_VERSION: facts.kubernetes_version,
        job_environment.CONTAINER_RUNTIME: facts.container_runtime,
        job_environment.IMAGE_DIGEST: image_digest(settings.image),
        job_environment.SIMULATED: facts.simulated,
    }
    return {name: value for name, value in told.items() if value is not None}


def _volumes(settings: KubernetesSettings) -> tuple[list[Manifest], list[Manifest]]:
    volumes: list[Manifest] = [{"name": "home", "emptyDir": {}}]
    mounts: list[Manifest] = [{"name": "home", "mountPath": settings.home}]
    for name in ("landing", "snapshots", "cache"):
        volume: VolumeSettings | None = getattr(settings, name)
        if volume is None:
            continue
        mount = {"name": name, "mountPath": f"{settings.home}/{name}"}
        if volume.sub_path is not None:
            mount["subPath"] = volume.sub_path
        mounts.append(mount)
        volumes.append(
            {"name": name, "persistentVolumeClaim": {"claimName": volume.claim}}
            if volume.claim is not None
            else {"name": name, "hostPath": {"path": volume.host_path, "type": "Directory"}}
        )
    return volumes, mounts


def _security(settings: KubernetesSettings) -> Manifest:
    security = settings.security
    context: Manifest = {"privileged": security.privileged}
    if not security.privileged:
        context["capabilities"] = {"drop": ["ALL"], "add": list(security.capabilities)}
        context["allowPrivilegeEscalation"] = "SYS_ADMIN" in security.capabilities
        for field, kind in (
            ("seccompProfile", security.seccomp), ("appArmorProfile", security.apparmor),
        ):  # fmt: skip
            if kind is not None:
                context[field] = {"type": kind}
    if security.run_as_user is not None:
        context["runAsUser"] = security.run_as_user
    return context


def _toleration(item: TolerationSettings) -> Manifest:
    fields = {
        "key": item.key, "operator": item.operator, "value": item.value, "effect": item.effect,
        "tolerationSeconds": item.seconds,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def dropped_fields(sent: object, stored: object) -> list[str]:
    """Paths of what was sent and is not in what a server says that it stored.

    An empty object or list may be dropped without meaning anything. A changed value is the
    server's business (defaults, admission) and no loss.
    """
    return list(_dropped(sent, stored, ""))


def _dropped(sent: object, stored: object, path: str) -> Iterator[str]:
    if isinstance(sent, Mapping):
        for name, value in sent.items():
            below = f"{path}.{name}" if path else str(name)
            found = stored.get(name) if isinstance(stored, Mapping) else None
            if found is None and value not in ({}, [], None, False, 0, ""):
                yield below
            elif found is not None:
                yield from _dropped(value, found, below)
    elif isinstance(sent, Sequence) and not isinstance(sent, str):
        if isinstance(stored, Sequence) and len(stored) >= len(sent):
            for number, (value, found) in enumerate(zip(sent, stored, strict=False)):
                yield from _dropped(value, found, f"{path}[{number}]")
        else:
            yield path
