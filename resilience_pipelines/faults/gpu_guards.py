"""Guards of faults that touch a GPU.

What belongs here: one class for each condition, asked through NVML. What does not: guards of every
fault (`guards`), and guards of DCGM's cache (`dcgm`).

Before the worker is started there is nothing to say: the GPU is the worker's own, and `prepare`
finds out whether there is one at all.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from resilience_pipelines.errors import InputError
from resilience_pipelines.faults.fault import Guard, Target
from resilience_pipelines.faults.gpu_device import gpu_of
from resilience_pipelines.nvml import Gpu, Nvml

MAX_TEMPERATURE_C = 83
"""A burn ends here, below what datacenter GPUs of the last generations slow down at."""
HEADROOM_C = 10
ALONE_VARIABLE = "RESILIENCE_GPU_ALONE"
"""Set to 1 by an operator who knows that nobody else can use the GPU, where NVML can't tell."""
MOST_GPUS_VARIABLE = "RESILIENCE_FAULT_GPUS"
"""How many GPUs one fault may touch; 1 when not set."""


class GpuGuard(ABC):
    """A guard that asks NVML about the GPU of the worker."""

    def objection(self, target: Target | None) -> str | None:
        """See `Guard.objection`."""
        if target is None:
            return None
        with Nvml() as nvml:
            return self._objection(nvml, gpu_of(target, nvml), target)

    @abstractmethod
    def _objection(self, nvml: Nvml, gpu: Gpu, target: Target) -> str | None:
        """Why not; None when nothing speaks against it."""


@dataclass(frozen=True)
class NoForeignProcesses(GpuGuard):
    """Nobody computes on the GPU but what this process has started."""

    name: str = "no_foreign_gpu_processes"

    def _objection(self, nvml: Nvml, gpu: Gpu, target: Target) -> str | None:  # noqa: ARG002
        listed = nvml.processes(gpu)
        if not listed and os.environ.get(ALONE_VARIABLE) != "1":
            return (
                "NVML lists not even the worker's own process, as in some containers, so it would "
                f"not list another one either; set {ALONE_VARIABLE}=1 where there can be none"
            )
        own = psutil.Process()
        foreign = listed - {own.pid, *(child.pid for child in own.children(recursive=True))}
        if not foreign:
            return None
        return f"processes {sorted(foreign)} compute on GPU {gpu.index} and are not this job's"


@dataclass(frozen=True)
class NoRepairDue(GpuGuard):
    """No repair of the GPU's memory is due or has failed: a fault would blur what is there."""

    name: str = "no_gpu_repair_due"

    def _objection(self, nvml: Nvml, gpu: Gpu, target: Target) -> str | None:  # noqa: ARG002
        repairs = nvml.repairs(gpu)
        due = [name for name, value in vars(repairs).items() if value]
        return f"GPU {gpu.index}: {', '.join(due)}" if due else None


@dataclass(frozen=True)
class TemperatureHeadroom(GpuGuard):
    """The GPU is well below the temperature at which a fault would be ended."""

    name: str = "gpu_temperature_headroom"

    def _objection(self, nvml: Nvml, gpu: Gpu, target: Target) -> str | None:  # noqa: ARG002
        now = nvml.temperature_c(gpu)
        if now is None:
            return f"GPU {gpu.index} does not tell its temperature"
        slowdown = nvml.slowdown_c(gpu)
        limit = min(MAX_TEMPERATURE_C, MAX_TEMPERATURE_C if slowdown is None else slowdown)
        if now <= limit - HEADROOM_C:
            return None
        return f"GPU {gpu.index} has {now} degrees Celsius, {limit - HEADROOM_C} are allowed"


@dataclass(frozen=True)
class MostGpus(GpuGuard):
    """The worker, and so the fault, uses no more GPUs than the operator allows."""

    name: str = "most_gpus_touched"

    def _objection(self, nvml: Nvml, gpu: Gpu, target: Target) -> str | None:  # noqa: ARG002
        used = nvml.used_by([member.pid for member in target.members])
        most = most_gpus()
        if len(used) <= most:
            return None
        return f"the worker uses {len(used)} GPUs, {MOST_GPUS_VARIABLE} allows {most}"


def most_gpus() -> int:
    """How many GPUs one fault may touch.

    Raises:
        InputError: the variable holds no such number.
    """
    text = os.environ.get(MOST_GPUS_VARIABLE, "1")
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            MOST_GPUS_VARIABLE, text, "not a number of GPUs", mend="Give 1 or more, or unset it."
        )
    return int(text)


def of_a_gpu() -> Sequence[Guard]:
    """The guards of every fault that touches a GPU."""
    return (NoForeignProcesses(), NoRepairDue(), TemperatureHeadroom(), MostGpus())
