"""Doctor: what this machine can do for the platform, found out by trying.

What belongs here: one probe for each capability, and how the findings are shown. What does not:
acting on them; each part of the platform checks for itself what it needs.

A probe tries the thing rather than looking for its files wherever a try is cheap and leaves nothing
behind. All probes run at once, each in a thread of its own: a driver that hangs in the kernel costs
its own line and nothing else.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.home import DEFAULT as DEFAULT_HOME
from resilience_pipelines.home import ENVIRONMENT_VARIABLE as HOME_VARIABLE
from resilience_pipelines.snapshots.criu_binary import find_criu
from resilience_pipelines.snapshots.criu_probe import probe_dump_restore, probe_pycriu
from resilience_pipelines.workers.space import probe_spaces

PROBE_TIMEOUT_S: Final = 10.0
"""Within which every probe has to answer, in seconds."""
COMMAND_TIMEOUT_S: Final = 5.0
KUBERNETES_TIMEOUT_S: Final = 3.0

MINIMUM_CHECKPOINT_DRIVER: Final = 570
"""The first NVIDIA driver branch whose library can checkpoint a process from outside."""
PYTHON_VERSIONS: Final = ((3, 11), (3, 12), (3, 13))
SMALL_MEMORY_BYTES: Final = 4 * 2**30
"""Below this much available memory, workers and their images crowd each other out."""
SMALL_DISK_BYTES: Final = 5 * 2**30
"""Below this much free space, a few images of the reference worker fill the data home."""

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

Status = Literal["available", "degraded", "unavailable"]


@dataclass(frozen=True)
class Capability:
    """What was found out about one thing.

    `degraded` means that it works in part; `reason` then says what is missing.
    """

    name: str
    status: Status
    detail: str = ""
    """What was found, for a reader."""
    version: str | None = None
    reason: str = ""
    """Why it is not fully available; empty where it is."""
    mend: str = ""
    """What would make it available; empty where nothing is missing or nothing helps."""


@dataclass(frozen=True)
class Diagnosis:
    """All capabilities, in the order in which they are shown."""

    capabilities: tuple[Capability, ...]
    duration_s: float

    def __getitem__(self, name: str) -> Capability:
        """The capability of a name.

        Raises:
            KeyError: there is none.
        """
        for capability in self.capabilities:
            if capability.name == name:
                return capability
        raise KeyError(name)

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=2)


Probe = Callable[[], Capability]


def diagnose(
    home: Path | None = None,
    *,
    probes: Mapping[str, Probe] | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> Diagnosis:
    """Try everything at once.

    Args:
        home: the data home whose disk counts; None means RESILIENCE_HOME, else `.resilience`.
        probes: what to try, by name; None means `all_probes(home)`.
        timeout_s: within which each probe has to answer, in seconds. One that does not, or that
            raises, is reported as unavailable.
    """
    chosen = all_probes(home) if probes is None else probes
    started_s = time.monotonic()
    answers: queue.SimpleQueue[Capability] = queue.SimpleQueue()
    for name, probe in chosen.items():
        # Daemons: one that hangs in a system call must not keep this process from ending.
        threading.Thread(
            target=lambda name, probe: answers.put(_guarded(name, probe)),
            args=(name, probe),
            name=f"doctor-{name}",
            daemon=True,
        ).start()
    found: dict[str, Capability] = {}
    while len(found) < len(chosen):
        left_s = started_s + timeout_s - time.monotonic()
        try:
            capability = answers.get(timeout=max(left_s, 0))
        except queue.Empty:
            break
        found[capability.name] = capability
    return Diagnosis(
        tuple(found.get(name) or _silent(name, timeout_s) for name in chosen),
        time.monotonic() - started_s,
    )


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Show a diagnosis as a table, with the reason and the mend under what is missing."""
    colours = {"available": "green", "degraded": "yellow", "unavailable": "red"}
    table = Table(title="What this machine can do", title_justify="left", expand=False)
    table.add_column("Capability", no_wrap=True)
    table.add_column("Status", no_wrap=True)
    table.add_column("Version", overflow="fold")
    table.add_column("Found", overflow="fold")
    for capability in diagnosis.capabilities:
        lines = [
            (capability.detail, ""),
            (capability.reason, colours[capability.status]),
            (capability.mend, "dim"),
        ]
        # Text, not markup: what programs say may contain brackets.
        found = Text("\n").join(Text(line, style) for line, style in lines if line)
        status = Text(capability.status, colours[capability.status])
        table.add_row(Text(capability.name), status, Text(capability.version or ""), found)
    console.print(table)


def _guarded(name: str, probe: Probe) -> Capability:
    try:
        return probe()
    except ResilienceError as error:
        return Capability(name, "unavailable", reason=error.reason, mend=error.mend)
    except Exception as error:  # noqa: BLE001 - one probe's failure is a finding about one line
        return Capability(name, "unavailable", reason=f"{type(error).__name__}: {error}")


def _silent(name: str, timeout_s: float) -> Capability:
    return Capability(name, "unavailable", reason=f"gave no answer within {timeout_s:g} s")


def _python() -> Capability:
    version, running = platform.python_version(), sys.version_info[:2]
    detail = f"{platform.python_implementation()}, {sys.executable}"
    if running in PYTHON_VERSIONS:
        return Capability("python", "available", detail, version)
    wanted = ", ".join(".".join(map(str, each)) for each in PYTHON_VERSIONS)
    return Capability(
        "python", "degraded", detail, version, "not a tested version", f"Use one of {wanted}."
    )


def _memory() -> Capability:
    memory = psutil.virtual_memory()
    detail = f"{_gib(memory.available)} available of {_gib(memory.total)}"
    limit_bytes = _cgroup_memory_limit_bytes()
    available_bytes = memory.available
    if limit_bytes is not None and limit_bytes < memory.total:
        detail += f", limited to {_gib(limit_bytes)} by the control group"
        available_bytes = min(available_bytes, limit_bytes)
    if available_bytes < SMALL_MEMORY_BYTES:
        return Capability(
            "memory",
            "degraded",
            detail,
            reason=f"less than {_gib(SMALL_MEMORY_BYTES)}",
            mend="Free memory, or run fewer repeats with smaller workers.",
        )
    return Capability("memory", "available", detail)


def _disk(home: Path | None) -> Capability:
    home = Path(home or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()
    folder = next(path for path in (home, *home.parents) if path.exists())
    usage = shutil.disk_usage(folder)
    detail = f"{_gib(usage.free)} free of {_gib(usage.total)} for {home}"
    if not os.access(folder, os.W_OK):
        return Capability(
            "disk",
            "unavailable",
            detail,
            reason=f"{folder} can't be written by this user",
            mend=f"Set {HOME_VARIABLE} to a folder that can.",
        )
    if usage.free < SMALL_DISK_BYTES:
        return Capability(
            "disk",
            "degraded",
            detail,
            reason=f"less than {_gib(SMALL_DISK_BYTES)} free",
            mend=f"Make room, or set {HOME_VARIABLE} to a folder with more.",
        )
    return Capability("disk", "available", detail)


def _criu() -> Capability:
    installation = find_criu()
    with tempfile.TemporaryDirectory(prefix="resilience-doctor-") as workdir:
        result = probe_dump_restore(installation, Path(workdir), PROBE_TIMEOUT_S - 2)
    where = f"{installation.origin}, {installation.argv[-1]}"
    if not result.ok:
        return Capability(
            "criu",
            "unavailable",
            where,
            installation.version,
            result.reason,
            "Run `make setup` as root to get a CRIU that works here.",
        )
    detail = f"{where}; a process was dumped and restored, and went on"
    return Capability("criu", "available", detail, installation.version)


def _pycriu() -> Capability:
    installation = find_criu()
    with tempfile.TemporaryDirectory(prefix="resilience-doctor-") as workdir:
        result = probe_pycriu(installation, Path(workdir), PROBE_TIMEOUT_S - 2)
    where = str(installation.pycriu_path or "")
    if not result.ok:
        return Capability("pycriu", "unavailable", where, reason=result.reason)
    return Capability("pycriu", "available", where, installation.version)


def _namespaces() -> Capability:
    support = probe_spaces()
    if support.capsule:
        return Capability(
            "namespaces", "available", "PID, mount, IPC and network namespaces were made"
        )
    return Capability(
        "namespaces",
        "unavailable",
        reason=support.reason,
        mend="Run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN.",
    )


def _seccomp() -> Capability:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text(encoding="ascii").split()
    detail = f"filters may {', '.join(actions)}"
    if "errno" in actions:
        return Capability("seccomp", "available", detail)
    return Capability(
        "seccomp",
        "unavailable",
        detail,
        reason="the kernel offers no filter that answers with an error",
        mend="Set kernel.io_uring_disabled=2, so that workers open no io_uring without a filter.",
    )


def _io_uring() -> Capability:
    setting = Path("/proc/sys/kernel/io_uring_disabled")
    if not setting.exists():
        detail = "the kernel has no setting for it; workers run under a filter that refuses it"
        return Capability("io_uring", "available", detail)
    value = setting.read_text(encoding="ascii").strip()
    meaning = {
        "0": "open to every process; workers run under a filter that refuses it",
        "1": "open to privileged processes; workers run under a filter that refuses it",
        "2": "off for all, as snapshots want it",
    }
    return Capability(
        "io_uring",
        "available",
        f"kernel.io_uring_disabled={value}: {meaning.get(value, 'unknown')}",
    )


def _cgroup() -> Capability:
    memberships = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    paths = {controllers: path for _, controllers, path in (m.split(":", 2) for m in memberships)}
    legacy = next((c for c in paths if "memory" in c.split(",")), None)
    mount = _mount_of("cgroup", "memory") if legacy is not None else _mount_of("cgroup2")
    if mount is None:
        return Capability("cgroup", "unavailable", reason="no control group hierarchy is mounted")
    version = "1" if legacy is not None else "2"
    # Inside a container, the path in /proc may lie outside of what is mounted.
    own = mount / paths.get(legacy or "", "/").lstrip("/")
    folder = own if own.is_dir() else mount
    if version == "2" and "memory" not in (folder / "cgroup.controllers").read_text().split():
        return Capability(
            "cgroup",
            "unavailable",
            str(folder),
            version,
            "the memory controller is not delegated to this group",
            "Start this process in a delegated group, e.g. `systemd-run --property=Delegate=yes`.",
        )
    try:
        Path(tempfile.mkdtemp(prefix="resilience-doctor-", dir=folder)).rmdir()
    except OSError as error:
        return Capability(
            "cgroup",
            "unavailable",
            str(folder),
            version,
            f"no group can be made: {error.strerror or error}",
            "Run as root on a machine or in a container with writable control groups.",
        )
    return Capability("cgroup", "available", f"memory controller, groups below {folder}", version)


def _numa() -> Capability:
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    if len(nodes) > 1:
        return Capability("numa", "available", f"{len(nodes)} nodes")
    return Capability(
        "numa",
        "degraded",
        f"{len(nodes)} node" if nodes else "the kernel lists no nodes",
        reason="with one node, NUMA placement makes no difference and is recorded not_applicable",
    )


def _gpu() -> Capability:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _no_driver("gpu", f"NVML: {error}")
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            gpus.append(f"{index}: {pynvml.nvmlDeviceGetName(handle)}, {_gib(memory.total)}")
    finally:
        pynvml.nvmlShutdown()
    if not gpus:
        return Capability("gpu", "unavailable", reason="the driver lists no GPU")
    return Capability("gpu", "available", "; ".join(gpus))


def _driver() -> Capability:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _no_driver("driver", f"NVML: {error}")
    try:
        version = str(pynvml.nvmlSystemGetDriverVersion())
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    finally:
        pynvml.nvmlShutdown()
    detail = f"CUDA up to {cuda // 1000}.{cuda % 1000 // 10}"
    if _branch(version) >= MINIMUM_CHECKPOINT_DRIVER:
        return Capability("driver", "available", detail, version)
    return Capability(
        "driver",
        "degraded",
        detail,
        version,
        f"below {MINIMUM_CHECKPOINT_DRIVER}, GPU processes can't be checkpointed",
        f"Install driver {MINIMUM_CHECKPOINT_DRIVER} or newer.",
    )


def _cuda_checkpoint() -> Capability:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _no_driver("cuda_checkpoint", str(error))
    if not hasattr(library, "cuCheckpointProcessCheckpoint"):
        return Capability(
            "cuda_checkpoint",
            "unavailable",
            reason="libcuda.so.1 has no checkpoint calls",
            mend=f"Install driver {MINIMUM_CHECKPOINT_DRIVER} or newer.",
        )
    try:
        version = importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return Capability(
            "cuda_checkpoint",
            "unavailable",
            "libcuda.so.1 has the checkpoint calls",
            reason="cuda-bindings is not installed",
            mend="pip install resilience-pipelines[gpu]",
        )
    return Capability("cuda_checkpoint", "available", "through libcuda.so.1", version)


def _vllm() -> Capability:
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return Capability(
            "vllm",
            "unavailable",
            reason="not installed; the reference worker stands for it",
            mend="pip install resilience-pipelines[gpu], on a machine with a GPU",
        )
    return Capability("vllm", "available", "installed", version)


def _dcgm() -> Capability:
    engine, client = shutil.which("nv-hostengine"), shutil.which("dcgmi")
    if engine is None or client is None:
        missing = " and ".join(
            name for name, path in (("nv-hostengine", engine), ("dcgmi", client)) if path is None
        )
        return Capability(
            "dcgm", "unavailable", reason=f"{missing} not on PATH", mend="Install DCGM."
        )
    said = _output([client, "--version"])
    match = re.search(r"\d+\.\d+\.\d+", said)
    version = match.group() if match else None
    try:
        _output([client, "discovery", "-l"])
    except _CommandError as error:
        return Capability(
            "dcgm",
            "degraded",
            f"{engine}, {client}",
            version,
            f"the host engine does not answer: {error.reason}",
            "Start nv-hostengine.",
        )
    return Capability("dcgm", "available", "the host engine answers", version)


def _kubernetes() -> Capability:
    named = os.environ.get("KUBECONFIG") or "~/.kube/config"
    configured = any(Path(part).expanduser().is_file() for part in named.split(os.pathsep) if part)
    if not configured and not SERVICE_ACCOUNT.is_file():
        return Capability(
            "kubernetes",
            "unavailable",
            reason="no kubeconfig, and not inside a cluster; nothing was contacted",
            mend="Set KUBECONFIG to use a cluster. Everything but pod launches works without.",
        )
    from kubernetes import client, config

    configuration = client.Configuration()
    if configured:
        config.load_kube_config(named, client_configuration=configuration)
    else:
        config.load_incluster_config(client_configuration=configuration)
    configuration.retries = False
    with client.ApiClient(configuration) as api:
        try:
            answer = client.VersionApi(api).get_code(_request_timeout=KUBERNETES_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - urllib3's and the client's own, unrelated types
            return Capability(
                "kubernetes",
                "unavailable",
                configuration.host,
                reason=f"the API server does not answer: {error}"[:500],
                mend="Check that the cluster is up and that KUBECONFIG is current.",
            )
    return Capability("kubernetes", "available", configuration.host, str(answer.git_version))


def _chrome() -> Capability:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    paths = [path for path in map(shutil.which, names) if path is not None]
    if not paths:
        return Capability(
            "chrome",
            "unavailable",
            reason="neither Chromium nor Chrome is on PATH",
            mend="Install the package chromium for PNG export and the browser tests.",
        )
    match = re.search(r"\d+(?:\.\d+)+", _output([paths[0], "--version"]))
    return Capability("chrome", "available", paths[0], match.group() if match else None)


def all_probes(home: Path | None = None) -> dict[str, Probe]:
    """Every probe, by the name of its capability, in the order in which they are shown."""
    return {
        "python": _python,
        "memory": _memory,
        "disk": lambda: _disk(home),
        "criu": _criu,
        "pycriu": _pycriu,
        "namespaces": _namespaces,
        "cgroup": _cgroup,
        "seccomp": _seccomp,
        "io_uring": _io_uring,
        "numa": _numa,
        "gpu": _gpu,
        "driver": _driver,
        "cuda_checkpoint": _cuda_checkpoint,
        "vllm": _vllm,
        "dcgm": _dcgm,
        "kubernetes": _kubernetes,
        "chrome": _chrome,
    }


class _CommandError(ResilienceError):
    """A program ended with an error or not at all."""


def _output(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _CommandError(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-300:] or "nothing"
        raise _CommandError(f"{argv[0]} ended with exit status {done.returncode} and said: {said}")
    return done.stdout


def _no_driver(name: str, reason: str) -> Capability:
    return Capability(
        name,
        "unavailable",
        reason=reason,
        mend="Needs an NVIDIA GPU with its driver; results here come from the reference worker.",
    )


def _branch(driver_version: str) -> int:
    """The first number of a driver's version, e.g. 580 of 580.159.04."""
    return int(driver_version.partition(".")[0])


def _mount_of(kind: str, option: str | None = None) -> Path | None:
    """Where a file system of this kind, with this option, is mounted."""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, found, options, *_ = line.split()
        if found == kind and (option is None or option in options.split(",")):
            return Path(point)
    return None


def _cgroup_memory_limit_bytes() -> int | None:
    """The limit that a container's own group sets, None where there is none."""
    for place in ("memory.max", "memory/memory.limit_in_bytes"):
        file = Path("/sys/fs/cgroup") / place
        if file.is_file():
            value = file.read_text(encoding="ascii").strip()
            return int(value) if value.isdigit() else None
    return None


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
