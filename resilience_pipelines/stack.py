"""Stack: what hardware and software a result was measured on, and the key that names it.

What belongs here: the dimensions, how each is read from this machine, and how two stacks differ.
What does not: anything about a run (`records`), and whether a snapshot may cross from one stack to
another (`snapshots.compatibility`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from resilience_pipelines import job_environment

Text = Annotated[str, Field(min_length=1, max_length=200)]


class Stack(BaseModel):
    """Every dimension that can change a result. One that could not be read is None, never guessed.

    Fields named in `HARDWARE` describe the machine, all others the software on it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    HARDWARE: ClassVar[frozenset[str]] = frozenset(
        {
            "gpu_sku", "gpu_count", "gpu_memory_mib",
            "cpu_model", "cpu_count", "memory_mib", "storage_kind", "architecture",
        }
    )  # fmt: skip

    gpu_sku: Text | None = None
    gpu_count: int | None = Field(default=None, ge=0, le=2**63 - 1)
    gpu_memory_mib: int | None = Field(default=None, ge=0, le=2**63 - 1)
    cpu_model: Text | None = None
    cpu_count: int | None = Field(default=None, ge=1, le=2**63 - 1)
    memory_mib: int | None = Field(default=None, ge=0, le=2**63 - 1)
    storage_kind: Text | None = None
    architecture: Text | None = None

    driver_version: Text | None = None
    cuda_version: Text | None = None
    kernel_version: Text | None = None
    criu_version: Text | None = None
    snapshot_engine: Text | None = None
    container_runtime: Text | None = None
    kubernetes_version: Text | None = None
    engine: Text
    engine_version: Text | None = None
    torch_version: Text | None = None
    nccl_version: Text | None = None
    python_version: Text | None = None
    image_digest: Text | None = None
    model: Text | None = None
    model_precision: Text | None = None

    @property
    def key(self) -> str:
        """16 hexadecimal digits that are equal exactly when every dimension is."""
        return self._digest(self.model_dump())

    @property
    def hardware_key(self) -> str:
        """The key over the hardware dimensions alone."""
        return self._digest({k: v for k, v in self.model_dump().items() if k in self.HARDWARE})

    @property
    def software_key(self) -> str:
        """The key over the software dimensions alone."""
        return self._digest({k: v for k, v in self.model_dump().items() if k not in self.HARDWARE})

    @property
    def hardware_label(self) -> str:
        """A short name of the machine that a person recognizes, usable as a partition key."""
        if self.gpu_sku:
            return _slug(f"{self.gpu_count or '?'}x {self.gpu_sku}")
        return _slug(f"cpu {self.cpu_count or '?'}x {self.cpu_model or 'unknown'}")

    @property
    def software_label(self) -> str:
        """A short name of the software that a person recognizes, usable as a partition key."""
        parts = [f"{self.engine} {self.engine_version or 'unknown'}"]
        if self.driver_version:
            parts.append(f"driver {self.driver_version}")
        if self.criu_version:
            parts.append(f"criu {self.criu_version}")
        return _slug("-".join(parts))

    def differences(self, other: Stack) -> dict[str, tuple[str | int | None, str | int | None]]:
        """The dimensions in which two stacks differ: name -> (this one's value, the other's)."""
        mine, theirs = self.model_dump(), other.model_dump()
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}

    @staticmethod
    def _digest(values: Mapping[str, object]) -> str:
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def read_host(storage: Path | None = None) -> dict[str, str | int | None]:
    """The dimensions that this machine's operating system tells, ready for `Stack(**...)`.

    Args:
        storage: a folder on the medium that snapshots are kept on.
    """
    return {
        "cpu_model": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_mib": _memory_mib(),
        "storage_kind": storage_kind(storage) if storage else None,
        "architecture": platform.machine() or None,
        "kernel_version": platform.release() or None,
        "container_runtime": _container_runtime(),
        "kubernetes_version": job_environment.told(job_environment.KUBERNETES_VERSION),
        "python_version": platform.python_version(),
    }


def read_gpu() -> dict[str, str | int | None]:
    """The dimensions that NVML tells; all None where there is no driver or no GPU."""
    import pynvml

    unknown: dict[str, str | int | None] = {
        "gpu_sku": None, "gpu_count": None, "gpu_memory_mib": None,
        "driver_version": None, "cuda_version": None,
    }  # fmt: skip
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return unknown
    try:
        count = pynvml.nvmlDeviceGetCount()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        found = unknown | {
            "gpu_count": count,
            "driver_version": str(pynvml.nvmlSystemGetDriverVersion()),
            "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        if count:
            first = pynvml.nvmlDeviceGetHandleByIndex(0)
            found["gpu_sku"] = str(pynvml.nvmlDeviceGetName(first))
            found["gpu_memory_mib"] = pynvml.nvmlDeviceGetMemoryInfo(first).total // 2**20
        return found
    finally:
        pynvml.nvmlShutdown()


def storage_kind(folder: Path) -> str | None:
    """The kind of medium below a folder: a file system's name and, for a disk, how it is attached.

    Returns None where /proc/mounts does not tell. Example: `ext4/virtio`, `tmpfs`, `nfs4`.
    """
    resolved = folder.resolve()
    best: tuple[int, str, str] | None = None
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount_point, kind, *_ = line.split()
        point = Path(mount_point.replace("\\040", " "))
        if (resolved == point or point in resolved.parents) and (
            best is None or len(point.parts) >= best[0]
        ):
            best = (len(point.parts), device, kind)
    if best is None:
        return None
    name = best[1].removeprefix("/dev/")
    attachment = next(
        (label for prefix, label in (("nvme", "nvme"), ("vd", "virtio"), ("sd", "scsi"))
         if name.startswith(prefix)),
        None,
    )  # fmt: skip
    return f"{best[2]}/{attachment}" if attachment else best[2]


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        label, _, value = line.partition(":")
        if label.strip() == "model name":
            return value.strip() or None
    return None


def _memory_mib() -> int | None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            # Firmware and kernel keep a little that varies from boot to boot: GiB steps keep one
            # machine one stack.
            return round(int(line.split()[1]) / 2**20) * 1024
    return None


def _container_runtime() -> str | None:
    if told := job_environment.told(job_environment.CONTAINER_RUNTIME):
        return told
    if Path("/run/.containerenv").exists():
        return "podman"
    if Path("/.dockerenv").exists():
        return "docker"
    return None
