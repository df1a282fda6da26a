"""What NVML tells of this machine's GPUs, as plain values, and the few things that it can set.

What belongs here: opening NVML, naming GPUs, and one method for each question that faults,
detectors and guards ask. What does not: sampling (`telemetry_nvml`) and what an answer means.

A value that a GPU or driver does not have is None, never zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from resilience_pipelines.errors import ResilienceError, UnsupportedError

_ABSENT: Final = ("NVMLError_NotSupported", "NVMLError_FunctionNotFound", "NVMLError_NoPermission")
_BITS: Final = 64
_MASK_WORDS: Final = 64
"""Room for 4096 CPUs or nodes in what NVML writes."""


class NvmlError(ResilienceError):
    """NVML answered with an error."""


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: its number in NVML's order.
        uuid: what `CUDA_VISIBLE_DEVICES` accepts.
        bus_id: its PCI address as the kernel writes it, e.g. `0000:3b:00.0`.
    """

    index: int
    uuid: str
    name: str
    bus_id: str


@dataclass(frozen=True)
class Repairs:
    """Repairs of a GPU's memory that are due or have failed; None where it has no such thing.

    Attributes:
        remap_pending: rows are to be remapped at the next reset.
        remap_failed: a row could not be remapped: the GPU is to be replaced.
        pages_pending: pages are to be retired at the next start of the driver.
        ecc_pending: ECC is to be switched at the next start.
    """

    remap_pending: bool | None
    remap_failed: bool | None
    pages_pending: bool | None
    ecc_pending: bool | None


def library() -> Any:
    """The module `pynvml`."""
    import pynvml

    return pynvml


class Nvml:
    """NVML, opened. A context manager; opening it again in the same process is cheap.

    Raises:
        UnsupportedError: there is no driver.
    """

    def __init__(self) -> None:
        self._library = library()
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            raise UnsupportedError(f"There is no NVIDIA driver here (NVML: {error}).") from error
        self._closed = False

    def close(self) -> None:
        """Let go of it. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._library.nvmlShutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def driver_version(self) -> str:
        """The driver's release, e.g. `580.159.04`."""
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs that the driver lists."""
        return tuple(self._gpu(index) for index in range(self._ask("nvmlDeviceGetCount")))

    def _gpu(self, index: int) -> Gpu:
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        return Gpu(
            index,
            _text(self._ask("nvmlDeviceGetUUID", handle)),
            _text(self._ask("nvmlDeviceGetName", handle)),
            f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        )

    def memory_bytes(self, gpu: Gpu) -> tuple[int, int]:
        """Free and all device memory, in bytes."""
        found = self._ask("nvmlDeviceGetMemoryInfo", self._handle(gpu))
        return int(found.free), int(found.total)

    def utilization(self, gpu: Gpu) -> int:
        """Share of the last sample period in which a kernel ran, in percent."""
        return int(self._ask("nvmlDeviceGetUtilizationRates", self._handle(gpu)).gpu)

    def temperature_c(self, gpu: Gpu) -> int | None:
        """Its temperature in degrees Celsius."""
        sensor = self._library.NVML_TEMPERATURE_GPU
        return _int(self._maybe("nvmlDeviceGetTemperature", self._handle(gpu), sensor))

    def slowdown_c(self, gpu: Gpu) -> int | None:
        """The temperature at which the hardware slows it down, in degrees Celsius."""
        which = self._library.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return _int(self._maybe("nvmlDeviceGetTemperatureThreshold", self._handle(gpu), which))

    def clock_reasons(self, gpu: Gpu) -> int:
        """Why its clocks are not higher: a bit mask of `nvmlClocksEventReason...`."""
        return int(self._ask("nvmlDeviceGetCurrentClocksEventReasons", self._handle(gpu)))

    def processes(self, gpu: Gpu) -> frozenset[int]:
        """The processes with a compute context on it, as NVML tells them."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle(gpu))
        return frozenset(int(process.pid) for process in found)

    def used_by(self, pids: Collection[int]) -> tuple[Gpu, ...]:
        """The GPUs on which any of these processes has a compute context."""
        return tuple(gpu for gpu in self.gpus() if self.processes(gpu) & set(pids))

    def repairs(self, gpu: Gpu) -> Repairs:
        """Repairs of its memory that are due or have failed."""
        handle = self._handle(gpu)
        rows = self._maybe("nvmlDeviceGetRemappedRows", handle)
        ecc = self._maybe("nvmlDeviceGetEccMode", handle)
        pages = self._maybe("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        return Repairs(
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            pages_pending=None if pages is None else bool(pages),
            ecc_pending=None if ecc is None else ecc[0] != ecc[1],
        )

    def cpus_near(self, gpu: Gpu) -> frozenset[int]:
        """The CPUs of its own NUMA node."""
        return self._affinity("nvmlDeviceGetCpuAffinityWithinScope", gpu)

    def memory_nodes_near(self, gpu: Gpu) -> frozenset[int]:
        """The NUMA nodes whose memory is nearest to it; empty where NVML does not tell."""
        return self._affinity("nvmlDeviceGetMemoryAffinity", gpu)

    def _affinity(self, call: str, gpu: Gpu) -> frozenset[int]:
        scope = self._library.NVML_AFFINITY_SCOPE_NODE
        words = self._maybe(call, self._handle(gpu), _MASK_WORDS, scope)
        return frozenset() if words is None else bits(words)

    def power_limit_mw(self, gpu: Gpu) -> int | None:
        """The power limit that was set, in milliwatts."""
        return _int(self._maybe("nvmlDeviceGetPowerManagementLimit", self._handle(gpu)))

    def enforced_power_limit_mw(self, gpu: Gpu) -> int | None:
        """The power limit that is in force, whoever set it, in milliwatts."""
        return _int(self._maybe("nvmlDeviceGetEnforcedPowerLimit", self._handle(gpu)))

    def lowest_power_limit_mw(self, gpu: Gpu) -> int | None:
        """The lowest power limit that can be set, in milliwatts."""
        found = self._maybe("nvmlDeviceGetPowerManagementLimitConstraints", self._handle(gpu))
        return None if found is None else int(found[0])

    def set_power_limit_mw(self, gpu: Gpu, limit_mw: int) -> None:
        """Set the power limit, in milliwatts. Needs root."""
        self._ask("nvmlDeviceSetPowerManagementLimit", self._handle(gpu), limit_mw)

    def listen(self, gpu: Gpu) -> XidListener:
        """Listen to XID errors of a GPU from now on. Whoever asks closes it.

        Raises:
            UnsupportedError: this driver reports no events.
        """
        return XidListener(self._library, [self._handle(gpu)])

    def _handle(self, gpu: Gpu) -> Any:
        return self._ask("nvmlDeviceGetHandleByIndex", gpu.index)

    def _ask(self, call: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, call)(*arguments)
        except self._library.NVMLError as error:
            raise NvmlError(f"{call}: {error}") from error

    def _maybe(self, call: str, *arguments: Any) -> Any:
        """Ask, with None as the answer where there is no such value."""
        try:
            return getattr(self._library, call)(*arguments)
        except absent_errors(self._library):
            return None
        except self._library.NVMLError as error:
            raise NvmlError(f"{call}: {error}") from error


def absent_errors(library: Any) -> tuple[type[Exception], ...]:
    """The errors of `pynvml` that mean "this GPU or driver has no such value"."""
    return tuple(getattr(library, name) for name in _ABSENT if hasattr(library, name))


class XidListener:
    """XID errors of GPUs, in the order in which the driver reports them.

    Args:
        library: the module `pynvml`, initialized, or something that looks like it.
        handles: its handles of the GPUs.

    Raises:
        UnsupportedError: this driver reports no events.
    """

    def __init__(self, library: Any, handles: Sequence[Any]) -> None:
        self._library = library
        self._set: Any = None
        try:
            self._set = library.nvmlEventSetCreate()
            kind = library.nvmlEventTypeXidCriticalError
            for handle in handles:
                library.nvmlDeviceRegisterEvents(handle, kind, self._set)
        except library.NVMLError as error:
            self.close()
            raise UnsupportedError(f"This driver reports no XID events ({error}).") from error

    def wait(self, timeout_s: float) -> int | None:
        """The next XID; None when none came in time.

        Raises:
            NvmlError: the driver can't be asked, as when the GPU has fallen off the bus.
        """
        try:
            event = self._library.nvmlEventSetWait_v2(self._set, int(timeout_s * 1000))
        except self._library.NVMLError_Timeout:
            return None
        except self._library.NVMLError as error:
            raise NvmlError(f"nvmlEventSetWait: {error}") from error
        return int(event.eventData)

    def close(self) -> None:
        """Stop listening. A second call does nothing."""
        events, self._set = self._set, None
        if events is not None:
            with contextlib.suppress(self._library.NVMLError):
                self._library.nvmlEventSetFree(events)


def bits(words: Collection[int]) -> frozenset[int]:
    """The numbers of the bits that are set in a mask of 64-bit words, the lowest word first."""
    return frozenset(
        word_index * _BITS + bit
        for word_index, word in enumerate(words)
        for bit in range(_BITS)
        if word >> bit & 1
    )


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
