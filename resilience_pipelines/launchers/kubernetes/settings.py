"""Settings of the Kubernetes launcher: what an operator says about the cluster.

What belongs here: the settings, their defaults and reading them from TOML. What does not: anything
that a job's specification says, and any secret; pull secrets are named only.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from resilience_pipelines.errors import InputError
from resilience_pipelines.releases.catalogue import FEEDS

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AbsolutePath = Annotated[str, Field(pattern=r"^/.+")]

_DIGEST: Final = re.compile(r"@(sha256:[0-9a-f]{64})$")
_DRIVER: Final = r"^[0-9]+(\.[0-9]+){0,2}$"


Profile = Literal["RuntimeDefault", "Unconfined"]

SNAPSHOT_CAPABILITIES: Final = (
    "NET_ADMIN", "SETPCAP", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE", "SYS_TIME",
)  # fmt: skip
"""The least with which a container takes and restores snapshots of the reference worker.
docs/kubernetes.md says what fails without each."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VolumeSettings(_Settings):
    """A volume that outlives a pod: a claim, or a folder of the node."""

    claim: Text | None = None
    """Name of a PersistentVolumeClaim in the namespace."""
    host_path: AbsolutePath | None = None
    """A folder of the node; for clusters of one node."""
    sub_path: Text | None = None
    """A folder within the claim."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.claim is None) == (self.host_path is None):
            raise ValueError("give either claim or host_path")
        if self.sub_path is not None and self.host_path is not None:
            raise ValueError("sub_path goes with claim: name the folder in host_path")
        return self


class LandingSettings(VolumeSettings):
    """The volume that results come back through."""

    here: AbsolutePath | None = None
    """Where the launcher sees it; the data home's own `landing` when not set."""


class GpuSettings(_Settings):
    """Which GPUs a job gets. Labels are those of NVIDIA's GPU feature discovery."""

    count: int = Field(default=0, ge=0)
    resource: Text = "nvidia.com/gpu"
    product: Text | None = None
    """Value of the label `nvidia.com/gpu.product`, e.g. `NVIDIA-H200`."""
    driver_version: Annotated[str, Field(pattern=_DRIVER)] | None = None
    """The driver, by as many of its parts as matter: `580`, `580.159` or `580.159.04`."""


class TolerationSettings(_Settings):
    """A taint that a job's pod tolerates."""

    key: Text | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    seconds: int | None = Field(default=None, ge=0)


class SecuritySettings(_Settings):
    """What a job's container may do. Without privileges a job measures all but what needs them."""

    privileged: bool = False
    capabilities: tuple[Text, ...] = ()
    """Without the prefix `CAP_`. `SNAPSHOT_CAPABILITIES` are the least that snapshots need."""
    seccomp: Profile | None = None
    """None: as the node has it. Of no account where the container is privileged."""
    apparmor: Profile | None = None
    """None: as the node has it. API servers before 1.30 don't know it."""
    run_as_user: int | None = Field(default=None, ge=0)


class DeadlineSettings(_Settings):
    """How long each wait may take, in seconds."""

    pending_s: Seconds = 900.0
    """Until the pod has a node, and again until its container has started."""
    image_pull_s: Seconds = 300.0
    """Within which a failing image pull may still succeed."""
    run_s: Seconds = 6 * 3600.0
    """activeDeadlineSeconds of the job: counts from its creation."""
    node_lost_s: Seconds = 300.0
    """Within which a node that stopped reporting may come back."""
    api_lost_s: Seconds = 600.0
    """Within which a lost API server may come back."""
    landing_s: Seconds = 60.0
    """Within which a result has to be seen once the pod has ended: shared file systems cache."""
    grace_s: int = Field(default=60, ge=1)
    """For a job that is told to end: it undoes its fault and lands what it has."""
    cleanup_s: Seconds = 180.0
    """Within which a job and its pods have to be gone once they were deleted."""
    request_s: Seconds = 20.0
    """One answer of the API server."""
    poll_s: Seconds = 10.0
    """Between two looks at a job when no watch tells of a change."""


class DynamoSnapshotSettings(_Settings):
    """How NVIDIA Dynamo Snapshot is used, where the cluster has it."""

    capture: Literal["pod_snapshot", "snapshot_job"] = "pod_snapshot"
    """Whether a worker's pod is captured by a PodSnapshot, or run and captured by a SnapshotJob."""
    agent_namespace: DnsLabel | None = None
    """Where its agents run; None: their log is not read, so that a restore is one phase."""
    seccomp_profile: Text | None = "profiles/block-iouring.json"
    """Its profile on the nodes, which refuses io_uring; None where they refuse it otherwise."""
    ready_s: Seconds = 120.0
    """Until a quiet worker's pod says that it may be captured."""
    capture_s: Seconds = 1800.0
    """Until a snapshot is taken."""
    restore_s: Seconds = 1800.0
    """Until a pod whose container has started is restored."""


class KubernetesSettings(_Settings):
    """All settings of the launcher."""

    image: Text
    """Image of the job; by digest if the stack shall name it."""
    images: dict[str, dict[Text, Text]] = Field(default_factory=dict)
    """Feed -> version -> the image that has this release, where it is another one."""
    landing: LandingSettings
    snapshots: VolumeSettings | None = None
    """None: snapshots live as long as the pod."""
    cache: VolumeSettings | None = None
    """None: weights and compile caches live as long as the pod."""
    kubeconfig: AbsolutePath | None = None
    """None: the pod's own service account, else KUBECONFIG, else ~/.kube/config."""
    context: Text | None = None
    namespace: DnsLabel = "resilience"
    service_account: DnsLabel = "resilience-job"
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[DnsLabel, ...] = ()
    """Names of Secrets; their content stays in the cluster."""
    python: Text = "python"
    """The Python of the image that has this package."""
    home: AbsolutePath = "/var/lib/resilience"
    """The data home inside the pod."""
    cpu: Text | None = None
    """Request and limit, e.g. `8`."""
    memory: Text | None = None
    """Request and limit, e.g. `64Gi`."""
    gpu: GpuSettings = GpuSettings()
    runtime_class: DnsLabel | None = None
    node_selector: dict[Text, str] = Field(default_factory=dict)
    tolerations: tuple[TolerationSettings, ...] = ()
    restore_node: Literal["any", "same", "other"] = "any"
    """Where a stored snapshot is restored: anywhere, on the node that it was taken on, or on any
    but that one."""
    security: SecuritySettings = SecuritySettings()
    deadlines: DeadlineSettings = DeadlineSettings()
    ttl_s: int = Field(default=3600, ge=0)
    """ttlSecondsAfterFinished: for a finished job whose launcher was killed."""
    dynamo_snapshot: DynamoSnapshotSettings = DynamoSnapshotSettings()
    read_nodes: bool = True
    """Whether to ask for nodes, which a ClusterRole has to allow: for the container runtime and
    for the drivers that the cluster offers."""

    @field_validator("images")
    @classmethod
    def _are_of_feeds(cls, images: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        known = sorted(name for name, feed in FEEDS.items() if feed.in_image)
        for name in images:
            if name not in known:
                raise ValueError(f"no image brings {name!r}: choose from {', '.join(known)}")
        return images

    def directed(
        self, *, image: str | None = None, driver_version: str | None = None
    ) -> KubernetesSettings:
        """The settings of a job that shall measure a release: its image, or nodes with its driver.

        Raises:
            InputError: the settings name no such image, or that is no version of a driver.
        """
        settings = self
        if image is not None:
            named = {item for versions in self.images.values() for item in versions.values()}
            if image not in named:
                raise InputError(
                    "image", image, "the launcher's settings name it for no release",
                    mend="Name it under [images] as docs/kubernetes.md shows, or use one of "
                    f"{', '.join(sorted(named)) or 'none yet'}.",
                )  # fmt: skip
            settings = settings.model_copy(update={"image": image})
        if driver_version is not None:
            if not re.fullmatch(_DRIVER, driver_version):
                raise InputError(
                    "driver", driver_version, "it is no version of a driver",
                    mend="Write it as nvidia-smi does: 580.159.04.",
                )  # fmt: skip
            gpu = settings.gpu.model_copy(update={"driver_version": driver_version})
            settings = settings.model_copy(update={"gpu": gpu})
        return settings


def image_digest(image: str) -> str | None:
    """The digest that an image is named by; None where it is named by a tag."""
    found = _DIGEST.search(image)
    return found[1] if found else None


def read_settings(path: Path) -> KubernetesSettings:
    """Read settings from a TOML file.

    Raises:
        InputError: it can't be read, or names the first setting that is wrong.
    """
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(
            "Kubernetes settings", str(path), f"the file can't be read ({error.strerror})",
            mend="Write it as docs/kubernetes.md shows, or name another one.",
        ) from error  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise InputError(
            "Kubernetes settings", str(path), f"it is no TOML ({error})",
            mend="Write it as docs/kubernetes.md shows.",
        ) from error  # fmt: skip
    try:
        return KubernetesSettings.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{path}: {field}", first.get("input"), first["msg"].lower(),
            mend="docs/kubernetes.md lists the settings.",
        ) from error  # fmt: skip
