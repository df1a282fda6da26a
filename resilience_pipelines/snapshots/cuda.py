"""CUDA state of a process tree: into host memory before a dump, back onto a GPU after a restore.

suspend: find CUDA processes -> room in host memory? -> lock all -> checkpoint each. resume: free
device memory? -> restore each -> unlock all -> probe.

What belongs here: the order of these steps, and what happens when one fails: the processes run on
the GPU again, and the failure has a reason code made of the step and the driver's error. What does
not: the driver's calls themselves and their deadlines (`cuda_driver`).

All processes are locked before the first is checkpointed, because processes that work together (one
for each GPU of a model) would otherwise wait for one that is already gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import psutil

from resilience_pipelines.errors import InputError
from resilience_pipelines.records import Phase
from resilience_pipelines.snapshots.cuda_driver import (
    CudaDriver,
    CudaLateError,
    CudaUnavailableError,
    ProcessState,
    Reply,
)
from resilience_pipelines.snapshots.gpu_memory import gpu_bytes_of
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.stopwatch import Stopwatch


class Step(StrEnum):
    """A step of suspend or resume; its name is that of the phase."""

    FIND = "cuda_find"
    HOST_MEMORY = "host_memory_check"
    LOCK = "cuda_lock"
    CHECKPOINT = "cuda_checkpoint"
    MEMORY = "gpu_memory_check"
    RESTORE = "cuda_restore"
    UNLOCK = "cuda_unlock"
    PROBE = "gpu_probe"


_FAILED = {
    Step.FIND: SnapshotReason.CUDA_UNAVAILABLE,
    Step.HOST_MEMORY: SnapshotReason.CUDA_NO_HOST_MEMORY,
    Step.LOCK: SnapshotReason.CUDA_LOCK_FAILED,
    Step.CHECKPOINT: SnapshotReason.CUDA_CHECKPOINT_FAILED,
    Step.MEMORY: SnapshotReason.CUDA_UNAVAILABLE,
    Step.RESTORE: SnapshotReason.CUDA_RESTORE_FAILED,
    Step.UNLOCK: SnapshotReason.CUDA_UNLOCK_FAILED,
    Step.PROBE: SnapshotReason.GPU_PROBE_FAILED,
}

_LATE = {
    Step.LOCK: SnapshotReason.CUDA_LOCK_TIMEOUT,
    Step.CHECKPOINT: SnapshotReason.CUDA_CHECKPOINT_TIMEOUT,
    Step.RESTORE: SnapshotReason.CUDA_RESTORE_TIMEOUT,
    Step.UNLOCK: SnapshotReason.CUDA_UNLOCK_TIMEOUT,
}

# What an error means whatever the step.
_BY_ERROR = {
    "CUDA_ERROR_OUT_OF_MEMORY": SnapshotReason.CUDA_NO_MEMORY,
    "CUDA_ERROR_NOT_SUPPORTED": SnapshotReason.CUDA_NOT_SUPPORTED,
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": SnapshotReason.CUDA_UNAVAILABLE,
}

_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# The driver's own word for a lock that it could not get in the time it was given.
_LOCK_LATE = "CUDA_ERROR_NOT_READY"


@dataclass(frozen=True)
class Deadlines:
    """How long one call of the driver may take for one process, in seconds."""

    find_s: float = 10.0
    lock_s: float = 30.0
    checkpoint_s: float = 120.0
    restore_s: float = 120.0
    unlock_s: float = 30.0
    probe_s: float = 30.0


@dataclass
class CudaEngine:
    """Moves the device state of CUDA processes. Implements `DeviceEngine`.

    Args:
        gpu_map: for restores onto other GPUs: UUID of each GPU at the checkpoint -> UUID now.
    """

    driver: CudaDriver = field(default_factory=CudaDriver)
    gpu_map: Mapping[str, str] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    device_bytes_of: Callable[[Sequence[int]], int | None] = gpu_bytes_of
    host_free_bytes: Callable[[], int] = lambda: psutil.virtual_memory().available
    name: str = "criu+cuda"
    moves_state: bool = True
    held_bytes: int | None = None
    """Device memory that the last suspend freed, which a resume needs again."""

    def __post_init__(self) -> None:
        for uuid in (*self.gpu_map, *self.gpu_map.values()):
            if not _GPU_UUID.fullmatch(uuid):
                raise InputError(
                    "gpu_map", uuid, "this is no GPU UUID", mend="`nvidia-smi -L` lists them."
                )

    def warm_up(self) -> None:
        """Start initializing the driver, without waiting for it."""
        self.driver.start()

    def suspend(self, pids: Sequence[int]) -> Sequence[Phase]:
        """See `DeviceEngine.suspend`.

        Raises:
            SnapshotError: with the step and reason; all processes run again, or `source_lost`.
        """
        watch = Stopwatch()
        found = self._find(pids, watch)
        with watch.phase(Step.HOST_MEMORY):
            self._require_host_memory(found)
        free_before = self._free_bytes()
        try:
            with watch.phase(Step.LOCK):
                for pid in found:
                    self._do(Step.LOCK, pid, lambda pid: self.driver.lock(pid, self._lock_s))
            with watch.phase(Step.CHECKPOINT):
                for pid in found:
                    self._do(Step.CHECKPOINT, pid, self._checkpoint)
        except SnapshotError as error:
            self._undo(found, error)
            raise
        free_after = self._free_bytes()
        if free_before is not None and free_after is not None:
            self.held_bytes = max(0, free_after - free_before)
        return watch.phases

    def resume(self, pids: Sequence[int]) -> Sequence[Phase]:
        """See `DeviceEngine.resume`.

        Raises:
            SnapshotError: with the step and reason.
        """
        watch = Stopwatch()
        found = self._find(pids, watch)
        with watch.phase(Step.MEMORY):
            self._require_memory()
        with watch.phase(Step.RESTORE):
            for pid in found:
                self._do(Step.RESTORE, pid, self._restore)
        with watch.phase(Step.UNLOCK):
            for pid in found:
                self._do(Step.UNLOCK, pid, self._unlock)
        with watch.phase(Step.PROBE):
            self._require_running(found)
            self._do(Step.PROBE, None, lambda _: self.driver.probe(self.deadlines.probe_s))
        return watch.phases

    def close(self) -> None:
        """End the helper."""
        self.driver.close()

    @property
    def _lock_s(self) -> float:
        return self.deadlines.lock_s

    def _checkpoint(self, pid: int) -> Reply:
        return self.driver.checkpoint(pid, self.deadlines.checkpoint_s)

    def _restore(self, pid: int) -> Reply:
        return self.driver.restore(pid, self.deadlines.restore_s, self.gpu_map)

    def _unlock(self, pid: int) -> Reply:
        return self.driver.unlock(pid, self.deadlines.unlock_s)

    def _find(self, pids: Sequence[int], watch: Stopwatch) -> list[int]:
        """The processes that have a CUDA restore thread."""
        with watch.phase(Step.FIND):
            try:
                found = [
                    pid for pid in pids if self.driver.restore_thread(pid, self.deadlines.find_s).ok
                ]
            except (CudaUnavailableError, CudaLateError) as error:
                raise SnapshotError(
                    SnapshotReason.CUDA_UNAVAILABLE, Step.FIND, error.reason, mend=error.mend
                ) from error
        if not found:
            raise SnapshotError(
                SnapshotReason.CUDA_NO_PROCESS,
                Step.FIND,
                f"None of the processes {list(pids)} is a CUDA process that the driver knows.",
                mend="Is the worker using the GPU, and is the driver of release 570 or newer?",
            )
        return found

    def _do(self, step: Step, pid: int | None, call: Callable[[int], Reply]) -> Reply:
        """One call for one process, its failure turned into a reason."""
        subject = "" if pid is None else f" process {pid}"
        try:
            reply = call(pid or 0)
        except CudaLateError as error:
            code = _LATE.get(step, _FAILED[step])
            raise SnapshotError(code, step, f"{step}{subject}: {error.reason}") from error
        except CudaUnavailableError as error:
            raise SnapshotError(
                SnapshotReason.CUDA_UNAVAILABLE,
                step,
                f"{step}{subject}: {error.reason}",
                mend=error.mend,
            ) from error
        if not reply.ok:
            if step is Step.LOCK and reply.error == _LOCK_LATE:
                code = SnapshotReason.CUDA_LOCK_TIMEOUT
            else:
                code = _BY_ERROR.get(reply.error, _FAILED[step])
            raise SnapshotError(code, step, f"{step}{subject}: {reply.error}")
        return reply

    def _free_bytes(self) -> int | None:
        """Free device memory; None where the driver does not tell."""
        try:
            reply = self.driver.free_bytes(self.deadlines.find_s)
        except (CudaLateError, CudaUnavailableError):
            return None
        return reply.value if reply.ok else None

    def _require_memory(self) -> None:
        """The driver would find out too, but after it began, and would leave a failed process."""
        if self.held_bytes is None:
            return  # a snapshot of another process: only the driver knows what it needs
        free = self._free_bytes()
        if free is not None and free < self.held_bytes:
            raise SnapshotError(
                SnapshotReason.CUDA_NO_MEMORY,
                Step.MEMORY,
                f"{self.held_bytes} bytes of device memory are needed, {free} are free.",
                mend="End what else uses the GPU; nvidia-smi lists it.",
            )

    def _require_host_memory(self, pids: Sequence[int]) -> None:
        """The driver would fill the host's memory, fail, and take the process with it.

        Seen with driver 580.159.04: 126 GiB of KV cache on a host of 126 GiB ended in
        CUDA_ERROR_OPERATING_SYSTEM, with the process lost and the page cache empty.
        """
        held = self.device_bytes_of(pids)
        free = self.host_free_bytes()
        if held is not None and held > free:
            raise SnapshotError(
                SnapshotReason.CUDA_NO_HOST_MEMORY,
                Step.HOST_MEMORY,
                f"{held} bytes of device memory have to move to the host, {free} are available.",
                mend="Put the worker to sleep first, or give it less of the device.",
            )

    def _require_running(self, pids: Sequence[int]) -> None:
        for pid in pids:
            reply = self._do(
                Step.PROBE, pid, lambda pid: self.driver.state(pid, self.deadlines.probe_s)
            )
            if reply.value != ProcessState.RUNNING:
                raise SnapshotError(
                    SnapshotReason.CUDA_RESTORE_FAILED,
                    Step.PROBE,
                    f"Process {pid} is in state {_state_name(reply.value)} after its restore.",
                )

    def _undo(self, pids: Sequence[int], cause: SnapshotError) -> None:
        """Bring every process back to running, from whatever state it is in.

        Raises:
            SnapshotError: `source_lost`, when one does not come back.
        """
        problems = []
        for pid in pids:
            try:
                self._bring_back(pid, cause)
            except SnapshotError as error:
                problems.append(error.reason)
        if problems:
            raise SnapshotError(
                SnapshotReason.SOURCE_LOST,
                cause.phase,
                f"{cause.reason} Bringing the source back failed: {'; '.join(problems)}",
            ) from cause

    def _bring_back(self, pid: int, cause: SnapshotError) -> None:
        limit = self.deadlines.find_s
        state = self._do(Step.FIND, pid, lambda pid: self.driver.state(pid, limit)).value
        if state == ProcessState.CHECKPOINTED:
            self._do(Step.RESTORE, pid, self._restore)
        if state in (ProcessState.CHECKPOINTED, ProcessState.LOCKED):
            self._do(Step.UNLOCK, pid, self._unlock)
        elif state != ProcessState.RUNNING:
            raise SnapshotError(
                SnapshotReason.SOURCE_LOST,
                cause.phase,
                f"process {pid} is in state {_state_name(state)}",
            )


def _state_name(number: int | None) -> str:
    try:
        return ProcessState(number if number is not None else -1).name.lower()
    except ValueError:
        return f"{number}"
