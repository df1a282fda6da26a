"""Faults of device memory: taken by another process while the worker serves, or before a restore.

What belongs here: the strategy `gpu_memory`. What does not: the program that takes it
(`gpu_programs.take_memory`), and host memory (`memory`).

While it serves, an engine that took its memory at the start has to serve on. A restore has to be
refused with a reason, and leave nothing. The program keeps taking what gets free, so that the
memory of a worker that was stopped is gone when a restore is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.gpu_watch import GpuMemory
from resilience_pipelines.faults import gpu_guards
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError, Target
from resilience_pipelines.faults.gpu_device import GpuInjection, need_gpu
from resilience_pipelines.faults.gpu_program import PROGRAMS, GpuProgram, missing_module, newest
from resilience_pipelines.faults.process import completes, prove_no_remains
from resilience_pipelines.faults.recovery import Recovery, check_possible
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.startup.arms import restore_worker
from resilience_pipelines.workers.space import holds_within, wait_until

STRATEGY = "gpu_memory"
PROGRAM = PROGRAMS / "take_memory.py"
HEADROOM_BYTES = 64 * 2**20
TAKEN_BYTES = 256 * 2**20
"""With less than this free, memory counts as taken."""
TAKE_LIMIT_S = 300.0
EFFECT_DEADLINE_S = 60.0
_STEP_S = 0.05

REFUSALS = frozenset(
    {
        SnapshotReason.CUDA_NO_MEMORY,
        SnapshotReason.CUDA_RESTORE_FAILED,
        SnapshotReason.WAKE_FAILED,
        SnapshotReason.NO_ANSWER,
    }
)
"""Ways in which a restore may say that there is no room."""


class Moment(StrEnum):
    """When the memory is missed."""

    SERVING = "serving"
    RESTORE = "restore"


@dataclass(frozen=True)
class DeviceMemoryTaken:
    """Another process takes all memory of the GPU that is free."""

    moment: Moment
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    expected: Mapping[str, float] = field(default_factory=lambda: {"gpu_memory": 30.0})

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"device_memory_taken_{self.moment}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        if self.moment is Moment.SERVING:
            return "another process takes all free device memory; the worker has to serve on"
        return "device memory is taken when a restore is tried, which has to be refused"

    @property
    def recoveries(self) -> tuple[str, ...]:
        """See `Fault.recoveries`."""
        serving = self.moment is Moment.SERVING
        return (Recovery.RESUME,) if serving else (Recovery.WARM_CACHE, Recovery.RESTORE)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"moment": self.moment.value, "headroom_bytes": HEADROOM_BYTES}

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return gpu_guards.of_a_gpu()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        need_gpu()
        if (problem := missing_module("torch")) is not None:
            raise ObstacleError(FaultReason.NO_TORCH, problem)
        if self.moment is Moment.SERVING:
            return TakenServing(context)
        check_possible(Recovery.RESTORE, context)
        return TakenAtRestore(context)


class TakenServing(GpuInjection):
    """One program that takes memory, beside a worker that serves on."""

    hits_worker = False

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._program: GpuProgram | None = None
        self._free_before = 0

    def attach(self, target: Target) -> None:
        """Start the program, which waits; in a control arm it stays at that."""
        super().attach(target)
        self._free_before, _ = self.nvml.memory_bytes(self.gpu)
        self._program = GpuProgram(
            PROGRAM, self.gpu.uuid,
            "--headroom-bytes", str(HEADROOM_BYTES), "--seconds", str(TAKE_LIMIT_S),
        )  # fmt: skip

    def detectors(self) -> Sequence[Detector]:
        """What watches the free memory."""
        return (GpuMemory(self.gpu),)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        taken = [] if self._program is None else self._program.reports("taken")
        return {"taken_bytes": newest(taken, "bytes"), "free_before_bytes": self._free_before}

    def inject(self) -> None:
        """Let it take."""
        assert self._program is not None
        self._program.go()

    def prove_effect(self) -> Proof:
        """NVML says that little is free."""
        return self._proof(proved=self._becomes_taken())

    def broken_expectation(self) -> str | None:
        """The worker has to answer without any more memory."""
        if completes(self.target, self.context.worker.request_deadline_s):
            return None
        return "the worker does not answer without free device memory"

    def roll_back(self) -> None:
        """End the program: the driver gives its memory back."""
        if self._program is not None:
            self._program.end()

    def prove_rollback(self) -> Proof:
        """NVML says that memory is free again, and nothing of a lost worker is left."""
        if not holds_within(lambda: not self._is_taken(), EFFECT_DEADLINE_S, _STEP_S):
            return self._proof(proved=False)
        remains = prove_no_remains(self.target)
        return self._proof(proved=remains.proved, also=f", {remains.detail}")

    def close(self) -> None:
        """See `Injection.close`."""
        self.roll_back()
        super().close()

    def _becomes_taken(self) -> bool:
        return holds_within(self._is_taken, EFFECT_DEADLINE_S, _STEP_S)

    def _is_taken(self) -> bool:
        return self.nvml.memory_bytes(self.gpu)[0] < TAKEN_BYTES

    def _proof(self, *, proved: bool, also: str = "") -> Proof:
        free, total = self.nvml.memory_bytes(self.gpu)
        return Proof(proved=proved, source="NVML", detail=f"{free} of {total} bytes are free{also}")


class TakenAtRestore(TakenServing):
    """The same, with a restore that is tried once the worker was stopped."""

    hits_worker = True

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._at_restore: str | None = None

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {**super().parameters(), "at_restore": self._at_restore}

    def broken_expectation(self) -> str | None:
        """A restore has to be refused. Then the memory gets free, so that a recovery finds some."""
        try:
            if not self._becomes_taken():
                return "the memory of the worker that was stopped could not be taken"
            return self._try_restore()
        finally:
            self.roll_back()
            wait_until(
                lambda: not self._is_taken(), EFFECT_DEADLINE_S, "Memory is free again", _STEP_S
            )

    def _try_restore(self) -> str | None:
        context = self.context
        assert context.engine is not None
        assert context.snapshot is not None
        try:
            started = restore_worker(
                context.engine, context.snapshot, context.worker, evidence=context.evidence,
                name="no-device-memory",
            )  # fmt: skip
        except SnapshotError as error:
            self._at_restore = error.code.value
            if error.code in REFUSALS:
                return None
            return f"it failed as {error.code}, not for want of memory: {error.reason}"
        started.running.stop()
        self._at_restore = "restored"
        return "a worker was restored where there is no device memory for it"
