"""GPU telemetry through NVML: a `telemetry.Source` for each GPU that a worker may use.

What belongs here: which NVML values are sampled, and their units. What does not: the sampling
thread (`telemetry`) and what a value means for a fault (`detectors`).

A value that this GPU or driver does not have is left out of the sample, never written as zero. The
time that a sample itself took is a series too, so that its overhead can be told from the data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.nvml import NvmlError, XidListener, absent_errors
from resilience_pipelines.telemetry import Reading, Source

OVERHEAD_SERIES: Final = "gpu_telemetry_read_time"


@contextlib.contextmanager
def gpu_telemetry() -> Iterator[Source | None]:
    """A source of all GPUs for as long as the block runs; None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        xids = XidEvents(pynvml, devices)
        try:
            yield gpu_source(pynvml, devices, xids)
        finally:
            xids.close()
    finally:
        pynvml.nvmlShutdown()


class XidEvents:
    """XID errors as NVML reports them, collected without waiting.

    Args:
        nvml: the module `pynvml` or something that looks like it.
        devices: handles of the GPUs to listen to.
    """

    def __init__(self, nvml: Any, devices: Sequence[Any]) -> None:
        self._listener: XidListener | None = None
        # A driver that has no events: then there is no series, not a zero.
        with contextlib.suppress(UnsupportedError):
            self._listener = XidListener(nvml, devices)

    def collect(self) -> list[int]:
        """Codes that arrived since the last call, oldest first."""
        codes: list[int] = []
        if self._listener is not None:
            with contextlib.suppress(NvmlError):  # what came before counts all the same
                while (code := self._listener.wait(0)) is not None:
                    codes.append(code)
        return codes

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()


def gpu_source(
    nvml: ModuleType | Any, devices: Sequence[Any], xids: XidEvents | None = None
) -> Source:
    """Memory, utilization, clocks, temperature, power, reasons to clock down, ECC, XID.

    Args:
        nvml: the module `pynvml`, initialized, or something that looks like it.
        devices: handles, in the order of their index.

    Series of the first GPU have plain names; those of others end in its index (`gpu_power_1`).
    """
    absent = absent_errors(nvml)
    probes = _probes(nvml)

    def read() -> list[Reading]:
        begin = time.monotonic()
        readings = []
        for index, device in enumerate(devices):
            suffix = f"_{index}" if index else ""
            for series, unit, probe in probes:
                with contextlib.suppress(*absent):
                    readings.append(Reading(f"gpu_{series}{suffix}", unit, float(probe(device))))
        if xids is not None:
            readings.extend(Reading("gpu_xid_event", "xid", float(code)) for code in xids.collect())
        readings.append(Reading(OVERHEAD_SERIES, "seconds", time.monotonic() - begin))
        return readings

    return read


def measure_overhead(source: Source, samples: int = 50) -> float:
    """Seconds that one sample takes on average, read back to back."""
    begin = time.monotonic()
    for _ in range(samples):
        source()
    return (time.monotonic() - begin) / samples


def _probes(nvml: Any) -> tuple[tuple[str, str, Callable[[Any], float]], ...]:
    volatile = nvml.NVML_VOLATILE_ECC
    return (
        ("memory_used", "bytes", lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used),
        ("utilization", "percent", lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
        (
            "memory_utilization", "percent",
            lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,
        ),
        (
            "sm_clock", "megahertz",
            lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        ),
        (
            "memory_clock", "megahertz",
            lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        ),
        (
            "temperature", "celsius",
            lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        ),
        ("power", "watts", lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
        (
            "clock_event_reasons", "bit mask",
            lambda gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        ),
        (
            "ecc_corrected_volatile", "errors",
            lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(
                gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile
            ),
        ),
        (
            "ecc_uncorrected_volatile", "errors",
            lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(
                gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile
            ),
        ),
    )  # fmt: skip
