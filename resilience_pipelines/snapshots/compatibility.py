"""The compatibility gate: may this image be restored on this machine?

What belongs here: typed reasons why not, found before any restore is tried. What does not: image
integrity (`store.verify`).

The gate predicts. A `blocking` incompatibility is one with which a restore is expected to fail or,
worse, to go on wrongly; others are differences that restores are known to survive.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from resilience_pipelines.snapshots.build_id import read_build_id
from resilience_pipelines.snapshots.manifest import SCHEMA_VERSION, Manifest, MappedFile
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.space import FIRST_WORKER_PID

CAPABILITY_NAMES: Final = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
"""Linux's, each at the number of its bit, without the prefix `CAP_`, as Kubernetes names them."""


class IncompatibilityCode(StrEnum):
    """What does not fit."""

    MANIFEST_SCHEMA = "manifest_schema"
    ARCHITECTURE = "architecture"
    CPU_FEATURES = "cpu_features"
    CRIU_OLDER = "criu_older"
    KERNEL = "kernel"
    GPU = "gpu"
    DRIVER = "driver"
    MAPPED_FILE = "mapped_file"
    MAPPED_FILE_TIME = "mapped_file_time"
    OPEN_PATH = "open_path"
    CAPABILITIES = "capabilities"
    PROCESS_ID = "process_id"
    ENGINE = "engine"


@dataclass(frozen=True)
class Incompatibility:
    """One difference between the image and this machine.

    Attributes:
        blocking: whether a restore must not be tried.
    """

    code: IncompatibilityCode
    blocking: bool
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.code}: the image wants {self.wanted}, this machine has {self.found}"


@dataclass(frozen=True)
class Host:
    """What the gate looks at on this machine."""

    stack: Stack
    cpu_features: frozenset[str]
    capabilities: int | None = None
    """What this process may do, a bit for each capability of Linux; None: not known."""


def read_cpu_features() -> tuple[str, ...]:
    """The CPU's flags as the kernel tells them, sorted; empty where it does not."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        label, _, value = line.partition(":")
        if label.strip() in ("flags", "Features"):
            return tuple(sorted(value.split()))
    return ()


def capabilities_of(pid: int) -> int:
    """What a process may do, as the kernel tells it: a bit for each capability.

    Raises:
        OSError: there is no such process.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        label, _, value = line.partition(":")
        if label == "CapPrm":
            return int(value, 16)
    return 0


def capability_names(bits: int) -> list[str]:
    """The capabilities in a set; one that is newer than `CAPABILITY_NAMES` by its number."""
    return [
        CAPABILITY_NAMES[bit] if bit < len(CAPABILITY_NAMES) else str(bit)
        for bit in range(bits.bit_length())
        if bits >> bit & 1
    ]


def this_host(stack: Stack) -> Host:
    """This machine, as this process may use it."""
    return Host(stack, frozenset(read_cpu_features()), capabilities_of(os.getpid()))


def check(manifest: Manifest, host: Host) -> list[Incompatibility]:
    """All differences that matter, blocking ones first."""
    found = [
        *_check_schema(manifest),
        *_check_processor(manifest, host),
        *_check_criu(manifest, host),
        *_check_gpu(manifest, host),
        *_check_software(manifest, host),
        *_check_process(manifest, host),
        *_check_files(manifest),
    ]
    return sorted(found, key=lambda item: not item.blocking)


def _check_schema(manifest: Manifest) -> list[Incompatibility]:
    if manifest.schema_version <= SCHEMA_VERSION:
        return []
    return [
        Incompatibility(
            IncompatibilityCode.MANIFEST_SCHEMA, True,
            f"manifest schema {manifest.schema_version}", f"up to {SCHEMA_VERSION}",
        )
    ]  # fmt: skip


def _check_processor(manifest: Manifest, host: Host) -> list[Incompatibility]:
    found = []
    if manifest.stack.architecture != host.stack.architecture:
        found.append(
            _differs(
                IncompatibilityCode.ARCHITECTURE, True,
                manifest.stack.architecture, host.stack.architecture,
            )
        )  # fmt: skip
    missing = sorted(set(manifest.cpu_features) - host.cpu_features)
    if missing:
        found.append(
            Incompatibility(
                IncompatibilityCode.CPU_FEATURES, True, " ".join(missing), "none of these"
            )
        )
    return found


def _check_criu(manifest: Manifest, host: Host) -> list[Incompatibility]:
    here = host.stack.criu_version
    if here is not None and _version(here) < _version(manifest.criu_version):
        return [
            _differs(
                IncompatibilityCode.CRIU_OLDER, True, f"{manifest.criu_version} or newer", here
            )
        ]
    return []


def _check_gpu(manifest: Manifest, host: Host) -> list[Incompatibility]:
    wanted, here = manifest.stack, host.stack
    if wanted.gpu_sku is None:
        return []  # the image holds no GPU state
    found = []
    if wanted.gpu_sku != here.gpu_sku:
        found.append(_differs(IncompatibilityCode.GPU, True, wanted.gpu_sku, here.gpu_sku))
    if wanted.driver_version != here.driver_version:
        found.append(
            _differs(IncompatibilityCode.DRIVER, True, wanted.driver_version, here.driver_version)
        )
    return found


def _check_software(manifest: Manifest, host: Host) -> list[Incompatibility]:
    found = []
    wanted, here = manifest.stack, host.stack
    if wanted.kernel_version != here.kernel_version:
        found.append(
            _differs(IncompatibilityCode.KERNEL, False, wanted.kernel_version, here.kernel_version)
        )
    if (wanted.engine, wanted.engine_version) != (here.engine, here.engine_version):
        found.append(
            _differs(
                IncompatibilityCode.ENGINE, False,
                f"{wanted.engine} {wanted.engine_version}", f"{here.engine} {here.engine_version}",
            )
        )  # fmt: skip
    return found


def _check_process(manifest: Manifest, host: Host) -> list[Incompatibility]:
    found = []
    if manifest.root_pid < FIRST_WORKER_PID:
        found.append(
            Incompatibility(
                IncompatibilityCode.PROCESS_ID, True,
                f"process id {manifest.root_pid}", f"its own processes below {FIRST_WORKER_PID}",
            )
        )  # fmt: skip
    if manifest.capabilities is not None and host.capabilities is not None:
        missing = manifest.capabilities & ~host.capabilities
        if missing:
            found.append(
                Incompatibility(
                    IncompatibilityCode.CAPABILITIES, True,
                    f"capabilities {' '.join(capability_names(missing))}", "none of these",
                )
            )  # fmt: skip
    return found


def _check_files(manifest: Manifest) -> list[Incompatibility]:
    return [
        *(problem for file in manifest.mapped_files if (problem := _check_file(file))),
        *(
            Incompatibility(IncompatibilityCode.OPEN_PATH, True, path, "no such file or folder")
            for path in manifest.open_paths
            if not os.path.lexists(path)
        ),
    ]


def _check_file(file: MappedFile) -> Incompatibility | None:
    try:
        facts = os.stat(file.path)  # noqa: PTH116
        same_size = facts.st_size == file.bytes
        build_id = read_build_id(Path(file.path)) if same_size and file.build_id else None
    except OSError as error:
        return Incompatibility(
            IncompatibilityCode.MAPPED_FILE, True, file.path, error.strerror or "no such file"
        )
    if not same_size:
        return Incompatibility(
            IncompatibilityCode.MAPPED_FILE, True,
            f"{file.path} of {file.bytes} bytes", f"{facts.st_size} bytes",
        )  # fmt: skip
    mode = stat.S_IMODE(facts.st_mode)
    if file.mode is not None and mode != file.mode:
        return Incompatibility(
            IncompatibilityCode.MAPPED_FILE, True,
            f"{file.path} of mode {file.mode:04o}", f"{mode:04o}",
        )  # fmt: skip
    if build_id != file.build_id:
        return Incompatibility(
            IncompatibilityCode.MAPPED_FILE, True,
            f"{file.path} of build {file.build_id}", f"build {build_id or 'unknown'}",
        )  # fmt: skip
    if facts.st_mtime_ns != file.mtime_ns:
        return Incompatibility(
            IncompatibilityCode.MAPPED_FILE_TIME, False,
            f"{file.path} as it was", "a later or earlier one of the same size",
        )  # fmt: skip
    return None


def _differs(
    code: IncompatibilityCode, blocking: bool, wanted: str | None, found: str | None
) -> Incompatibility:
    return Incompatibility(code, blocking, wanted or "unknown", found or "none")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
