"""How much device memory processes hold, as NVML tells it.

What belongs here: that question. What does not: what follows from the answer (`cuda`).
"""

from __future__ import annotations

from collections.abc import Iterable


def gpu_bytes_of(pids: Iterable[int]) -> int | None:
    """Device memory that these processes hold together, in bytes.

    Args:
        pids: process ids as the driver sees them.

    Returns:
        None where NVML does not tell: no driver, or a driver that keeps it from containers.
    """
    import pynvml

    wanted = set(pids)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        held = [
            process.usedGpuMemory
            for index in range(pynvml.nvmlDeviceGetCount())
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(
                pynvml.nvmlDeviceGetHandleByIndex(index)
            )
            if process.pid in wanted
        ]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    if not held or any(used is None for used in held):
        return None
    return sum(int(used) for used in held)
