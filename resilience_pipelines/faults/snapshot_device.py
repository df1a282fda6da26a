"""Faults between a snapshot and its GPU: a lock that does not come, a wrong map, a wrong driver.

What belongs here: the strategy `snapshot_device`: snapshots and restores whose device part is bound
to fail. What does not: moving device state and what it does about a failure (`snapshots.cuda`), the
gate (`snapshots.compatibility`), and device memory that is missing (`gpu_memory`).

Each has to be refused under its own reason code: an operator who reads `cuda_restore_failed` where
the image's driver is another one would look in the wrong place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import psutil

from resilience_pipelines.faults import gpu_guards
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError, Target
from resilience_pipelines.faults.gpu_device import gpu_of, need_gpu
from resilience_pipelines.faults.guards import FreeDisk
from resilience_pipelines.faults.lease import Lease
from resilience_pipelines.faults.operation import (
    STAGE_DEADLINE_S,
    Dump,
    OperationInjection,
    Restore,
    engine_of,
)
from resilience_pipelines.faults.recovery import Recovery, check_possible
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.nvml import Nvml
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.snapshots.cuda import CudaEngine, Deadlines
from resilience_pipelines.snapshots.cuda_driver import CudaDriver, Reply
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.workers.space import holds_within

STRATEGY = "snapshot_device"
LOCK_S = 3.0
"""What the driver is given for the lock that it can't get."""
EFFECT_DEADLINE_S = 5.0
_LEASE_DEADLINE_S = 10.0
_STEP_S = 0.01
_SPARE_BYTES = 256 * 2**20
OTHER_DRIVER = "1.0"
"""No driver that can checkpoint was ever called so."""

# What was stopped when the platform died would never go on.
_UNDO = 'kill -CONT "$1" 2>/dev/null || true'


class Mistake(StrEnum):
    """What is wrong."""

    LOCK_TIMEOUT = "lock_timeout"
    MAP_TO_NO_GPU = "map_to_no_gpu"
    MAP_FROM_NO_GPU = "map_from_no_gpu"
    OTHER_DRIVER = "other_driver"


_DESCRIPTIONS = {
    Mistake.LOCK_TIMEOUT: (
        "the worker's CUDA process does not let itself be locked for a snapshot; the snapshot has "
        "to be given up in time, and the worker has to serve on"
    ),
    Mistake.MAP_TO_NO_GPU: "a restore is told to use a GPU that is not there: to be refused",
    Mistake.MAP_FROM_NO_GPU: (
        "a restore is told where the state of another GPU shall go, and not that of its own: to be "
        "refused"
    ),
    Mistake.OTHER_DRIVER: (
        "a snapshot says that it was taken with another driver; its restore has to be refused "
        "before anything is started"
    ),
}


@dataclass(frozen=True)
class SnapshotDeviceFault:
    """A snapshot that can't leave its GPU, or a restore that can't come onto one."""

    mistake: Mistake
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    expected: Mapping[str, float] = field(default_factory=lambda: {"operation_watch": 30.0})

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"snapshot_{self.mistake}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return _DESCRIPTIONS[self.mistake]

    @property
    def recoveries(self) -> tuple[str, ...]:
        """See `Fault.recoveries`."""
        if self.mistake is Mistake.LOCK_TIMEOUT:
            return (Recovery.RESUME,)
        return (Recovery.WARM_CACHE, Recovery.RESTORE)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        if self.mistake is Mistake.LOCK_TIMEOUT:
            return {"mistake": self.mistake.value, "lock_s": LOCK_S}
        return {"mistake": self.mistake.value}

    def guards(self, context: FaultContext) -> Sequence[Guard]:
        """See `Fault.guards`."""
        image = context.snapshot.manifest.image_bytes if context.snapshot else 0
        return (*gpu_guards.of_a_gpu(), FreeDisk(context.scratch, 2 * image + _SPARE_BYTES))

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        engine = engine_of(context)
        need_gpu()
        if not engine.device.moves_state:
            raise ObstacleError(
                FaultReason.NO_GPU_WORKER,
                f"The worker {context.worker.name} has no state on a GPU that a snapshot moves.",
            )
        if self.mistake is Mistake.LOCK_TIMEOUT:
            return LockTimeout(context, engine)
        check_possible(Recovery.RESTORE, context)
        assert context.snapshot is not None
        if self.mistake is Mistake.OTHER_DRIVER:
            return OtherDriver(context, engine, context.snapshot)
        return WrongMap(context, engine, context.snapshot, self.mistake)


class StoppingDriver(CudaDriver):
    """Stops a process for as long as the driver is asked to lock it: a real lock that is late.

    Attributes:
        stopped: the process that is stopped now; None when none is.
        locks: how often a lock was asked for.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        super().__init__(command)
        self.stopped: psutil.Process | None = None
        self.locks = 0

    def lock(self, pid: int, deadline_s: float) -> Reply:
        """See `CudaDriver.lock`."""
        process = psutil.Process(pid)
        lease = Lease(f"The stop of process {pid}", _UNDO, str(pid))
        try:
            process.suspend()
            # The signal is on its way: a lock that overtakes it would come.
            holds_within(lambda: _is_stopped(process), EFFECT_DEADLINE_S, _STEP_S)
            self.stopped = process
            self.locks += 1
            return super().lock(pid, deadline_s)
        finally:
            self.stopped = None
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
            lease.release(_LEASE_DEADLINE_S)


class LockTimeout(OperationInjection):
    """A snapshot whose lock is late."""

    def __init__(self, context: FaultContext, engine: SnapshotEngine) -> None:
        super().__init__(context, frozenset({SnapshotReason.CUDA_LOCK_TIMEOUT}))
        self._driver = StoppingDriver()
        self._device = CudaEngine(self._driver, deadlines=Deadlines(lock_s=LOCK_S))
        self._engine = engine.with_device(self._device)
        self._dump: Dump | None = None

    def inject(self) -> None:
        """Take a snapshot."""
        self._device.warm_up()
        self._dump = Dump(self.context, self._engine, self.target)
        self.start(self._dump)
        holds_within(lambda: self._driver.locks > 0 or self.ended, STAGE_DEADLINE_S, _STEP_S)
        if not self._driver.locks:
            raise self.missed("the driver was not asked for a lock")

    def prove_effect(self) -> Proof:
        """The kernel says that the process is stopped while the driver tries to lock it."""
        holds_within(lambda: self._is_stopped() or self.ended, EFFECT_DEADLINE_S, _STEP_S)
        stopped = self._driver.stopped
        proved = self._is_stopped()
        detail = f"process {stopped.pid} is stopped" if stopped and proved else "none is stopped"
        return Proof(proved=proved, source="process table", detail=f"{detail} during the lock")

    def broken_expectation(self) -> str | None:
        """Also, the worker has to serve afterwards."""
        broken = super().broken_expectation()
        assert self._dump is not None
        if broken is None and not self._dump.serving_after:
            return "the worker does not serve after the snapshot was given up"
        return broken

    def prove_rollback(self) -> Proof:
        """Also, no process of the worker is stopped."""
        stopped = [member.pid for member in self.target.living() if _is_stopped(member)]
        if stopped:
            detail = f"processes {stopped} are still stopped"
            return Proof(proved=False, source="process table", detail=detail)
        return super().prove_rollback()

    def close(self) -> None:
        """See `Injection.close`."""
        super().close()
        self._device.close()

    def _is_stopped(self) -> bool:
        return self._driver.stopped is not None and _is_stopped(self._driver.stopped)


class WrongMap(OperationInjection):
    """A restore with a map of GPUs that does not fit this machine."""

    def __init__(
        self,
        context: FaultContext,
        engine: SnapshotEngine,
        snapshot: StoredSnapshot,
        mistake: Mistake,
    ) -> None:
        super().__init__(context, frozenset({SnapshotReason.CUDA_RESTORE_FAILED}))
        self._engine = engine
        self._snapshot = snapshot
        self._mistake = mistake
        self._absent = f"GPU-{uuid.uuid4()}"
        self._map: dict[str, str] = {}
        self._device: CudaEngine | None = None

    def attach(self, target: Target) -> None:
        """Find the worker's GPU."""
        super().attach(target)
        with Nvml() as nvml:
            own = gpu_of(target, nvml).uuid
        to_none = self._mistake is Mistake.MAP_TO_NO_GPU
        self._map = {own: self._absent} if to_none else {self._absent: own}

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {"gpu_map": dict(self._map)}

    def inject(self) -> None:
        """Restore with the map."""
        self._device = CudaEngine(gpu_map=self._map)
        self._device.warm_up()
        engine = self._engine.with_device(self._device)
        self.start(Restore(self.context, engine, self._snapshot))

    def prove_effect(self) -> Proof:
        """NVML does not list a GPU that the map names."""
        with Nvml() as nvml:
            listed = {gpu.uuid for gpu in nvml.gpus()}
        unlisted = sorted({*self._map, *self._map.values()} - listed)
        return Proof(
            proved=bool(unlisted), source="NVML",
            detail=f"not on this machine: {', '.join(unlisted) or 'none of the map'}",
        )  # fmt: skip

    def close(self) -> None:
        """See `Injection.close`."""
        super().close()
        if self._device is not None:
            self._device.close()


class OtherDriver(OperationInjection):
    """A restore of a snapshot whose manifest names another driver."""

    def __init__(
        self, context: FaultContext, engine: SnapshotEngine, snapshot: StoredSnapshot
    ) -> None:
        super().__init__(context, frozenset({SnapshotReason.INCOMPATIBLE}))
        self._engine = engine
        stack = snapshot.manifest.stack.model_copy(update={"driver_version": OTHER_DRIVER})
        manifest = snapshot.manifest.model_copy(update={"stack": stack})
        self._snapshot = dataclasses.replace(snapshot, manifest=manifest)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {"driver_in_manifest": OTHER_DRIVER}

    def inject(self) -> None:
        """Restore it."""
        self.start(Restore(self.context, self._engine, self._snapshot))

    def prove_effect(self) -> Proof:
        """NVML names another driver than the manifest."""
        with Nvml() as nvml:
            here = nvml.driver_version()
        wanted = self._snapshot.manifest.stack.driver_version
        return Proof(
            proved=here != wanted,
            source="NVML",
            detail=f"driver {here}, the manifest says {wanted}",
        )


def _is_stopped(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False
