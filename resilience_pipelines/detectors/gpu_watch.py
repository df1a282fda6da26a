"""Detectors that ask NVML about one GPU: free memory, other tenants, the power limit, the clocks.

What belongs here: one class for each question. What does not: events, which NVML tells by itself
(`nvml_events`), and DCGM's view (`dcgm`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection

from resilience_pipelines.detectors.base import PollingDetector
from resilience_pipelines.nvml import Gpu, Nvml

INTERVAL_S = 0.1
MIN_FREE_BYTES = 512 * 2**20

THERMAL_OR_BRAKE = 0x08 | 0x20 | 0x40 | 0x80
"""Reasons for lower clocks that a load alone does not explain: hardware slowdown, software thermal,
hardware thermal, power brake. The power cap (0x04) is what a full load meets on a healthy GPU."""


class GpuWatch(PollingDetector):
    """Asks NVML about one GPU again and again."""

    def __init__(self, gpu: Gpu, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._gpu = gpu
        self._nvml: Nvml | None = None

    def _open(self) -> None:
        self._nvml = Nvml()

    def _close(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.close()

    def _look(self) -> str | None:
        assert self._nvml is not None
        return self._ask(self._nvml)

    @abstractmethod
    def _ask(self, nvml: Nvml) -> str | None:
        """See `PollingDetector._look`."""


class GpuMemory(GpuWatch):
    """Raises an alarm when little device memory is free.

    Args:
        min_bytes: how much has to be free.
    """

    name = "gpu_memory"

    def __init__(self, gpu: Gpu, min_bytes: int = MIN_FREE_BYTES) -> None:
        super().__init__(gpu)
        self._min_bytes = min_bytes

    def _ask(self, nvml: Nvml) -> str | None:
        free, total = nvml.memory_bytes(self._gpu)
        if free >= self._min_bytes:
            return None
        return f"{free} of {total} bytes of device memory are free"


class GpuTenants(GpuWatch):
    """Raises an alarm when a process computes on the GPU that is not the worker's.

    Args:
        own: the worker's processes, as they are now.
    """

    name = "gpu_tenants"

    def __init__(self, gpu: Gpu, own: Callable[[], Collection[int]]) -> None:
        super().__init__(gpu)
        self._own = own

    def _open(self) -> None:
        super()._open()
        assert self._nvml is not None
        if not self._nvml.processes(self._gpu):
            self._close()
            raise RuntimeError("NVML lists no process on a GPU that the worker uses")

    def _ask(self, nvml: Nvml) -> str | None:
        foreign = nvml.processes(self._gpu) - set(self._own())
        if not foreign:
            return None
        return f"other processes on the GPU: {', '.join(str(pid) for pid in sorted(foreign))}"


class GpuPowerLimit(GpuWatch):
    """Raises an alarm when the power limit in force is lower than it was at the start."""

    name = "gpu_power_limit"

    def _open(self) -> None:
        super()._open()
        assert self._nvml is not None
        self._before = self._nvml.enforced_power_limit_mw(self._gpu)

    def _ask(self, nvml: Nvml) -> str | None:
        now = nvml.enforced_power_limit_mw(self._gpu)
        if now is None or self._before is None:
            raise RuntimeError("NVML tells no power limit of this GPU")
        if now >= self._before:
            return None
        return f"the power limit fell from {self._before} to {now} mW"


class GpuClocks(GpuWatch):
    """Raises an alarm when heat or a power brake holds the clocks down."""

    name = "gpu_clocks"

    def _ask(self, nvml: Nvml) -> str | None:
        reasons = nvml.clock_reasons(self._gpu) & THERMAL_OR_BRAKE
        return f"clocks are held down, reasons {reasons:#04x}" if reasons else None
