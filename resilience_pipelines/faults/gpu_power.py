"""Adverse conditions of a GPU: its power limit lowered, as a proxy for heat and a weak supply.

What belongs here: the strategy `gpu_power`, the middle rung of a ladder. The one below is a value
that is only injected (`dcgm_injection`: temperature, thermal and power violation), the one above a
burn that ends when it gets too hot (`gpu_load`). Cooling is never touched.

It changes a setting of the card, so nothing is done without an operator's flag. The old value is
read first; a watchdog outside of this process sets it back and reads it back, whatever happens to
everything else. Clocks are not locked here: what they were locked to before can't be read, so it
could not be put back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.gpu_watch import GpuClocks, GpuPowerLimit
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults import gpu_guards
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError, Target
from resilience_pipelines.faults.gpu_device import GpuInjection, need_gpu
from resilience_pipelines.faults.gpu_program import PROGRAMS
from resilience_pipelines.faults.lease import Lease
from resilience_pipelines.faults.process import completes, prove_no_remains
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.space import holds_within

STRATEGY = "gpu_power"
PROGRAM = PROGRAMS / "restore_power.py"
VARIABLE = "RESILIENCE_GPU_SETTERS"
"""Set to 1 by an operator who allows experiments to change settings of the GPU for a while."""
EFFECT_DEADLINE_S = 10.0
RESTORE_DEADLINE_S = 30.0
_STEP_S = 0.05
_TRIES = 5

# Tried again: a driver that is busy may refuse once.
_UNDO = f"""
for try in {" ".join(str(number) for number in range(_TRIES))}; do
    "$1" -P "$2" "$3" "$4" && exit 0
    sleep 1
done
exit 1
"""


@dataclass(frozen=True)
class GpuPowerLimited:
    """The GPU's power limit falls to the lowest that it allows."""

    name: str = "gpu_power_limited"
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    description: str = "the GPU's power limit at its lowest; needs an operator's flag"
    expected: Mapping[str, float] = field(default_factory=lambda: {"gpu_power_limit": 3.0})
    recoveries: tuple[str, ...] = (Recovery.RESUME,)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return gpu_guards.of_a_gpu()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        need_gpu()
        if os.environ.get(VARIABLE) != "1":
            raise ObstacleError(
                FaultReason.SETTERS_NOT_ALLOWED,
                f"Settings of a GPU are only changed where {VARIABLE}=1 allows it.",
            )
        return PowerInjection(context)


class PowerInjection(GpuInjection):
    """One lowered limit, and the watchdog that puts the old one back."""

    hits_worker = False

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._old_mw = 0
        self._new_mw = 0
        self._lease: Lease | None = None

    def attach(self, target: Target) -> None:
        """Read the limit that is set and the lowest that can be.

        Raises:
            ObstacleError: there is no lower one.
        """
        super().attach(target)
        old, lowest = self.nvml.power_limit_mw(self.gpu), self.nvml.lowest_power_limit_mw(self.gpu)
        if old is None or lowest is None or lowest >= old:
            raise ObstacleError(
                FaultReason.NO_POWER_LIMIT, f"Its limit is {old} mW, the lowest {lowest} mW."
            )
        self._old_mw, self._new_mw = old, lowest

    def detectors(self) -> Sequence[Detector]:
        """What watches the limit in force, and the reasons for lower clocks."""
        return (GpuPowerLimit(self.gpu), GpuClocks(self.gpu))

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {"limit_before_mw": self._old_mw, "limit_mw": self._new_mw}

    def inject(self) -> None:
        """Have the watchdog ready, then set the limit."""
        self._lease = restoring(PROGRAM, self.gpu.uuid, self._old_mw)
        self.nvml.set_power_limit_mw(self.gpu, self._new_mw)

    def prove_effect(self) -> Proof:
        """The limit in force, which is not the one that was set where another is lower."""
        return self._prove(self._new_mw)

    def broken_expectation(self) -> str | None:
        """The worker has to answer, if slower."""
        if completes(self.target, self.context.worker.request_deadline_s):
            return None
        return "the worker does not answer under the lowest power limit"

    def roll_back(self) -> None:
        """Let the watchdog put the old limit back."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release(RESTORE_DEADLINE_S)

    def prove_rollback(self) -> Proof:
        """The limit in force is the old one."""
        proof = self._prove(self._old_mw)
        remains = prove_no_remains(self.target)
        return Proof(
            proved=proof.proved and remains.proved, source=proof.source,
            detail=f"{proof.detail}, {remains.detail}",
        )  # fmt: skip

    def close(self) -> None:
        """See `Injection.close`."""
        try:
            self.roll_back()
        finally:
            super().close()

    def _prove(self, wanted_mw: int) -> Proof:
        source = "NVML's enforced power limit"

        def found() -> int | None:
            return self.nvml.enforced_power_limit_mw(self.gpu)

        if not holds_within(lambda: found() == wanted_mw, EFFECT_DEADLINE_S, _STEP_S):
            return Proof(
                proved=False, source=source, detail=f"{found()} mW are in force, not {wanted_mw}"
            )
        return Proof(proved=True, source=source, detail=f"{wanted_mw} mW are in force")


def restoring(program: Path, uuid: str, limit_mw: int) -> Lease:
    """A watchdog that sets a GPU's power limit when released, or when this process dies.

    Raises:
        ResilienceError: it could not be started.
    """
    try:
        return Lease(
            f"The power limit of {uuid}", _UNDO, sys.executable, str(program), uuid, str(limit_mw)
        )
    except OSError as error:
        raise ResilienceError(f"The watchdog could not be started: {error}.") from error
