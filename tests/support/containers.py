"""A pod's container as a real OCI container of this machine, by runc and without a cluster.

What belongs here: from a pod's specification to what a node's runtime makes of it: namespaces,
capabilities, seccomp, masked paths, mounts. What does not: pulling images (the root is an overlay
over this machine's own file system, thrown away afterwards) and networks (loopback only).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from resilience_pipelines.snapshots.compatibility import CAPABILITY_NAMES, capability_names
from resilience_pipelines.snapshots.criu_provision import running_release
from resilience_pipelines.snapshots.debian_archive import (
    ArchiveError,
    PrivateApt,
    read_archives,
    release_archives,
)
from resilience_pipelines.workers.space import wait_until

PACKAGES: Final = ("runc", "golang-github-containers-common")
"""Debian's; the second has the seccomp profile that container engines set by default."""

DEFAULT_CAPABILITIES: Final = frozenset(
    {
        "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID",
        "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
    }
)  # fmt: skip
"""What containerd gives a container that asks for nothing."""

_MASKED: Final = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
_READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_NAMESPACES: Final = ("pid", "ipc", "uts", "mount", "network", "cgroup")

# The processes of a container are all in a namespace whose first one the kernel ends with whoever
# started it, so that none outlives a test that is killed.
_OWNED: Final = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--pid", "--fork", "--kill-child", "--mount", "--propagation", "private",
    "--mount-proc", "sh", "-ec",
)  # fmt: skip
_START: Final = """
mount -t tmpfs layer "$1/layer"
mkdir "$1/layer/upper" "$1/layer/work"
mount -t overlay -o lowerdir=/,upperdir="$1/layer/upper",workdir="$1/layer/work" root "$1/root"
exec "$2" --root "$1/state" run --bundle "$1" "$3"
"""

Object = dict[str, Any]


@dataclass(frozen=True)
class Engine:
    """A runc, and the profile that it sets where a pod asks for the runtime's default."""

    runc: Path
    seccomp: Path

    @property
    def prefix(self) -> str:
        """What the names of its containers begin with, and those of nobody else's."""
        return f"resilience-test-{hashlib.sha256(bytes(self.runc)).hexdigest()[:12]}-"

    def left(self) -> list[Path]:
        """What its containers have left."""
        return cgroups(f"{self.prefix}*")


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    code: int
    output: str


def find_engine(folder: Path) -> Engine:
    """A runc from the running release's packages, unpacked below a folder; nothing is installed.

    Raises:
        ArchiveError: they can't be had.
    """
    archives = release_archives(read_archives(), running_release())
    if not archives:
        raise ArchiveError("None of this machine's apt sources is of its own release.")
    scratch, root = folder / "apt", folder / "root"
    scratch.mkdir()
    apt = PrivateApt(archives[0], scratch, timeout_s=120.0)
    apt.update()
    apt.unpack(PACKAGES, root)
    programs = (root / "usr/sbin/runc", root / "usr/bin/runc")
    runc = next(path for path in programs if path.is_file())
    return Engine(runc, root / "usr/share/containers/seccomp.json")


def pod_program(engine: Engine, folder: Path) -> Callable[[Object], list[str]]:
    """What the fake's kubelet runs for a pod, so that its container is a real one.

    Args:
        folder: for bundles and for what a pod's `emptyDir` volumes hold.
    """

    def program(pod: Object) -> list[str]:
        own = folder / pod["metadata"]["name"]
        own.mkdir(parents=True)
        (own / "pod.json").write_text(json.dumps(pod))
        return [
            sys.executable, "-m", "tests.support.containers",
            str(engine.runc), str(engine.seccomp), str(own),
        ]  # fmt: skip

    return program


def run_pod(engine: Engine, own: Path) -> Ended:
    """Run the container of a pod whose specification is in `pod.json` of a folder of its own."""
    spec = json.loads((own / "pod.json").read_text())["spec"]
    volumes = {}
    for item in spec["volumes"]:
        volumes[item["name"]] = (
            Path(item["hostPath"]["path"]) if "hostPath" in item else own / item["name"]
        )
        volumes[item["name"]].mkdir(exist_ok=True)
    bundle = own / "bundle"
    bundle.mkdir()
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "RESILIENCE_CRIU_PREFIX")
            if name in os.environ}  # fmt: skip
    [container] = spec["containers"]
    return run_container(
        engine, container, volumes, bundle, timeout_s=300.0,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | kept,
    )  # fmt: skip


def machine_capabilities() -> list[str]:
    """What root may do here at most, without the prefix CAP_."""
    text = Path("/proc/self/status").read_text()
    mask = int(next(line for line in text.splitlines() if line.startswith("CapBnd")).split()[1], 16)
    return [name for name in capability_names(mask) if name in CAPABILITY_NAMES]


def run_container(
    engine: Engine,
    container: Mapping[str, Any],
    volumes: Mapping[str, Path],
    folder: Path,
    *,
    env: Mapping[str, str],
    timeout_s: float,
) -> Ended:
    """Run a container of a pod's specification to its end.

    Args:
        volumes: the folder of this machine behind each volume.
        folder: an empty folder for the bundle.
        env: what the image would set.
    """
    name = f"{engine.prefix}{secrets.token_hex(6)}"
    config = oci_config(engine, container, volumes, env, name)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "root").mkdir()
    (folder / "layer").mkdir()
    try:
        with _owned([*_OWNED, _START, "sh", str(folder), str(engine.runc), name]) as process:
            output, _ = process.communicate(timeout=timeout_s)
    finally:
        wait_until(partial(_without_cgroups, name), 30.0, "a killed container is gone", 0.05)
    return Ended(process.returncode, output)


def _without_cgroups(name: str) -> bool:
    """Remove what a container that was killed leaves; False while a process of it still ends."""
    for group in cgroups(name):
        with suppress(OSError):
            group.rmdir()
    return not cgroups(name)


def cgroups(name: str) -> list[Path]:
    """Control groups of that name, or pattern, in each of the kernel's hierarchies."""
    root = Path("/sys/fs/cgroup")
    return [*root.glob(name), *root.glob(f"*/{name}")]


@contextmanager
def _owned(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def oci_config(
    engine: Engine,
    container: Mapping[str, Any],
    volumes: Mapping[str, Path],
    env: Mapping[str, str],
    name: str,
) -> Object:
    """What a node's runtime makes of a container's specification."""
    security = container["securityContext"]
    privileged = bool(security["privileged"])
    capabilities = [f"CAP_{item}" for item in _capabilities(security)]
    told = dict(env) | {item["name"]: item["value"] for item in container["env"]}
    linux: Object = {
        "namespaces": [{"type": kind} for kind in _NAMESPACES],
        "cgroupsPath": f"/{name}",
        "resources": {"devices": [{"allow": privileged, "access": "rwm"}]},
    }
    if not privileged:
        linux |= {"maskedPaths": list(_MASKED), "readonlyPaths": list(_READ_ONLY)}
        if security.get("seccompProfile", {}).get("type") == "RuntimeDefault":
            linux["seccomp"] = resolved_profile(engine.seccomp, capabilities)
    return {
        "ociVersion": "1.0.2",
        "hostname": "pod",
        "root": {"path": "root"},
        "process": {
            "user": {"uid": security.get("runAsUser", 0), "gid": 0},
            "args": container["command"],
            "env": [f"{key}={value}" for key, value in told.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": not security.get("allowPrivilegeEscalation", True),
        },
        "mounts": [*_system_mounts(privileged), *_volume_mounts(container, volumes)],
        "linux": linux,
    }  # fmt: skip


def resolved_profile(path: Path, capabilities: Sequence[str]) -> Object:
    """A profile in the engines' form as runc takes it: for these capabilities and this machine."""
    found = json.loads(path.read_text())
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    rules = []
    for rule in found["syscalls"]:
        wants, unless = rule.get("includes") or {}, rule.get("excludes") or {}
        if "arches" in wants and machine not in wants["arches"]:
            continue
        if not set(wants.get("caps", ())) <= set(capabilities):
            continue
        if set(unless.get("caps", ())) & set(capabilities):
            continue
        kept = {"names": rule["names"], "action": rule["action"], "args": rule.get("args") or []}
        if "errnoRet" in rule:
            kept["errnoRet"] = rule["errnoRet"]
        rules.append(kept)
    architecture = {"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}[machine]
    return {
        "defaultAction": found["defaultAction"], "defaultErrnoRet": found["defaultErrnoRet"],
        "architectures": [architecture], "syscalls": rules,
    }  # fmt: skip


def _capabilities(security: Mapping[str, Any]) -> list[str]:
    here = machine_capabilities()
    if security["privileged"]:
        return here
    wanted = security.get("capabilities", {})
    kept = set() if "ALL" in wanted.get("drop", ()) else set(DEFAULT_CAPABILITIES)
    return [name for name in here if name in kept | set(wanted.get("add", ()))]


def _system_mounts(privileged: bool) -> list[Object]:
    quiet = ["nosuid", "noexec", "nodev"]

    def mount(place: str, kind: str, options: list[str]) -> Object:
        return {"destination": place, "type": kind, "source": kind, "options": options}

    return [
        mount("/proc", "proc", quiet),
        mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666"]),
        mount("/dev/mqueue", "mqueue", quiet),
        mount("/dev/shm", "tmpfs", [*quiet, "mode=1777", "size=65536k"]),
        mount("/sys", "sysfs", [*quiet, "rw" if privileged else "ro"]),
    ]


def _volume_mounts(container: Mapping[str, Any], volumes: Mapping[str, Path]) -> list[Object]:
    return [
        {
            "destination": item["mountPath"], "type": "bind", "source": str(volumes[item["name"]]),
            "options": ["rbind", "rprivate", "rw"],
        }
        for item in sorted(container["volumeMounts"], key=lambda item: len(item["mountPath"]))
    ]  # fmt: skip


if __name__ == "__main__":
    # Told to end, it ends its container.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    _runc, _seccomp, _own = map(Path, sys.argv[1:])
    _ended = run_pod(Engine(_runc, _seccomp), _own)
    print(_ended.output, flush=True)
    sys.exit(_ended.code)
