"""A stand-in for `pynvml`: one GPU whose answers a test sets. Nothing read from it is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil

GIB = 2**30


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
    pass


class NVMLError_Timeout(NVMLError):  # noqa: N801, N818
    pass


@dataclasses.dataclass
class FakeGpu:
    """What the one GPU answers.

    Attributes:
        pids: processes with a context; those that have ended are not listed.
        takers: while one of these lives, hardly any memory is free.
        burners: while one of these lives, the GPU is busy and listed for it.
        affinity: CPU and memory affinity masks, in words of 64 bits.
    """

    pids: set[int] = dataclasses.field(default_factory=set)
    takers: set[int] = dataclasses.field(default_factory=set)
    burners: set[int] = dataclasses.field(default_factory=set)
    free_bytes: int = 100 * GIB
    temperature_c: int | None = 40
    slowdown_c: int | None = 90
    rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    pages_pending: int | None = 0
    ecc: tuple[int, int] | None = (1, 1)
    reasons: int = 1
    limit_mw: int = 700_000
    lowest_mw: int = 200_000
    obeys: bool = True
    cpus: tuple[int, ...] = (0b11,)
    nodes: tuple[int, ...] = (0b1,)
    events: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    gpus: int = 1

    def xid(self, code: int) -> None:
        for queue in self.events.values():
            queue.append(code)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class FakeNvml:
    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_Timeout = NVMLError_Timeout
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_AFFINITY_SCOPE_NODE = 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, gpu: FakeGpu | None = None, *, driver: bool = True) -> None:
        self.gpu = gpu or FakeGpu()
        self.driver = driver
        self.opened = 0
        self.no_events = False
        self.uuid = "GPU-0"
        self.driver_version = "1.0"
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: self.gpu.gpus,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlSystemGetDriverVersion": lambda: self.driver_version,
            "nvmlDeviceGetUUID": lambda handle: self.uuid,
            "nvmlDeviceGetName": lambda handle: "NVIDIA Fake",
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(domain=0, bus=0x3B, device=0),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
                free=16 * 2**20 if any(map(alive, self.gpu.takers)) else self.gpu.free_bytes,
                total=140 * GIB,
            ),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(
                gpu=99 if any(map(alive, self.gpu.burners)) else 3
            ),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=pid)
                for pid in self.gpu.pids | self.gpu.burners | self.gpu.takers
                if alive(pid) and handle == 0
            ],
            "nvmlDeviceGetTemperature": lambda handle, sensor: _or_absent(self.gpu.temperature_c),
            "nvmlDeviceGetTemperatureThreshold": lambda handle, which: _or_absent(
                self.gpu.slowdown_c
            ),
            "nvmlDeviceGetRemappedRows": lambda handle: _or_absent(self.gpu.rows),
            "nvmlDeviceGetRetiredPagesPendingStatus": lambda handle: _or_absent(
                self.gpu.pages_pending
            ),
            "nvmlDeviceGetEccMode": lambda handle: list(_or_absent(self.gpu.ecc)),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: self.gpu.reasons,
            "nvmlDeviceGetPowerManagementLimit": lambda handle: self.gpu.limit_mw,
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: self.gpu.limit_mw,
            "nvmlDeviceGetPowerManagementLimitConstraints": lambda handle: [
                self.gpu.lowest_mw, 700_000,
            ],
            "nvmlDeviceGetCpuAffinityWithinScope": lambda handle, size, scope: list(self.gpu.cpus),
            "nvmlDeviceGetMemoryAffinity": lambda handle, size, scope: list(self.gpu.nodes),
        }  # fmt: skip
        for name, answer in answers.items():
            setattr(self, name, answer)

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceSetPowerManagementLimit(self, handle: int, limit_mw: int) -> None:  # noqa: N802
        if self.gpu.obeys:
            self.gpu.limit_mw = limit_mw

    def nvmlEventSetCreate(self) -> int:  # noqa: N802
        if self.no_events:
            raise NVMLError_NotSupported("Not Supported")
        number = len(self.gpu.events)
        self.gpu.events[number] = []
        return number

    def nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: int) -> None:  # noqa: N802
        assert kind == self.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events: int, timeout_ms: int) -> Any:  # noqa: N802
        queue = self.gpu.events[events]
        if not queue:
            raise NVMLError_Timeout("Timeout")
        return SimpleNamespace(eventData=queue.pop(0))

    def nvmlEventSetFree(self, events: int) -> None:  # noqa: N802
        del self.gpu.events[events]


def _or_absent(value: Any) -> Any:
    if value is None:
        raise NVMLError_NotSupported("Not Supported")
    return value
