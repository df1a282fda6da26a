"""The GPU that an experiment touches: the worker's own, and no other.

What belongs here: obstacles that all faults of a GPU share, and the base of their injections. What
does not: guards of a GPU (`gpu_guards`) and any one fault.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import psutil

from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.faults.fault import FaultContext, Injection, ObstacleError, Target
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.nvml import Gpu, Nvml

_DEVICE = re.compile(r"/dev/nvidia\d+")


def need_gpu() -> None:
    """See that there is a GPU.

    Raises:
        ObstacleError: there is none.
    """
    try:
        with Nvml() as nvml:
            if not nvml.gpus():
                raise ObstacleError(FaultReason.NO_GPU, "The driver lists no GPU.")
    except UnsupportedError as error:
        raise ObstacleError(FaultReason.NO_GPU, error.reason) from error


def gpu_of(target: Target, nvml: Nvml) -> Gpu:
    """The GPU that the worker uses, the first of several.

    Raises:
        ObstacleError: it uses none, as far as can be seen.
    """
    used = nvml.used_by([member.pid for member in target.members])
    if used:
        return used[0]
    # A driver may keep process ids from containers: then an open device tells, if there is but one.
    gpus = nvml.gpus()
    if len(gpus) == 1 and any(_has_device_open(member) for member in target.members):
        return gpus[0]
    raise ObstacleError(
        FaultReason.NO_GPU_WORKER, "No process of the worker computes on a GPU that NVML lists."
    )


def _has_device_open(process: psutil.Process) -> bool:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if _DEVICE.fullmatch(str(entry.readlink())):
                    return True
    return False


class GpuInjection(Injection):
    """An injection into the GPU of the worker, or beside it. To be made after `need_gpu`."""

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self.nvml = Nvml()
        self._gpu: Gpu | None = None
        self._residents: frozenset[int] = frozenset()

    @property
    def gpu(self) -> Gpu:
        """The GPU, once it is attached."""
        assert self._gpu is not None, "attach comes first"
        return self._gpu

    def attach(self, target: Target) -> None:
        """Find the worker's GPU, and who is on it before anything was done."""
        super().attach(target)
        self._gpu = gpu_of(target, self.nvml)
        self._residents = self.nvml.processes(self._gpu)

    def own_pids(self) -> frozenset[int]:
        """Processes that belong on the GPU: the worker's as they are now, and who was there before.

        Guards see to it that those were this platform's own, such as what moves device state.
        """
        worker = frozenset(member.pid for member in self.target.running.process.tree())
        return worker | self._residents

    def close(self) -> None:
        """See `Injection.close`."""
        self.nvml.close()
