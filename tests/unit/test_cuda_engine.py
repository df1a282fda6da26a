"""Suspend is all or nothing, resume proves itself, and every failure says step and cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from resilience_pipelines.errors import InputError
from resilience_pipelines.snapshots.cuda import CudaEngine, Step
from resilience_pipelines.snapshots.cuda_driver import (
    SUCCESS,
    CudaDriver,
    CudaLateError,
    CudaUnavailableError,
    ProcessState,
    Reply,
)
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason

PROCESSES = (10, 11, 12, 13)
CUDA_PROCESSES = (11, 13)
PER_PROCESS_BYTES = 1000


class FakeDriver(CudaDriver):
    """A driver with the states and the rules of the real one, that fails where it is told to."""

    def __init__(self) -> None:
        super().__init__(("false",))
        self.states = dict.fromkeys(CUDA_PROCESSES, ProcessState.RUNNING)
        self.calls: list[tuple[str, int]] = []
        self.fail: dict[tuple[str, int], str | Exception] = {}
        self.capacity_bytes = 5000
        self.others_bytes = 0
        self.gpu_map: Mapping[str, str] | None = None

    def _answer(
        self, name: str, pid: int, wanted: ProcessState | None, then: ProcessState | None
    ) -> Reply:
        self.calls.append((name, pid))
        failure = self.fail.get((name, pid))
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            return Reply(failure)
        if pid not in self.states:
            return Reply("CUDA_ERROR_INVALID_VALUE")
        if wanted is not None and self.states[pid] != wanted:
            return Reply("CUDA_ERROR_ILLEGAL_STATE")
        if then is not None:
            self.states[pid] = then
        return Reply(SUCCESS, int(self.states[pid]))

    def restore_thread(self, pid: int, deadline_s: float) -> Reply:
        return self._answer("restore_thread", pid, None, None)

    def state(self, pid: int, deadline_s: float) -> Reply:
        return self._answer("state", pid, None, None)

    def lock(self, pid: int, deadline_s: float) -> Reply:
        return self._answer("lock", pid, ProcessState.RUNNING, ProcessState.LOCKED)

    def checkpoint(self, pid: int, deadline_s: float) -> Reply:
        return self._answer("checkpoint", pid, ProcessState.LOCKED, ProcessState.CHECKPOINTED)

    def restore(self, pid: int, deadline_s: float, gpu_map: Mapping[str, str]) -> Reply:
        self.gpu_map = gpu_map
        return self._answer("restore", pid, ProcessState.CHECKPOINTED, ProcessState.LOCKED)

    def unlock(self, pid: int, deadline_s: float) -> Reply:
        return self._answer("unlock", pid, ProcessState.LOCKED, ProcessState.RUNNING)

    def free_bytes(self, deadline_s: float) -> Reply:
        on_device = sum(state != ProcessState.CHECKPOINTED for state in self.states.values())
        used = on_device * PER_PROCESS_BYTES + self.others_bytes
        return Reply(SUCCESS, self.capacity_bytes - used)

    def probe(self, deadline_s: float) -> Reply:
        failure = self.fail.get(("probe", 0))
        if isinstance(failure, Exception):
            raise failure
        return Reply(failure or SUCCESS)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def engine(driver: FakeDriver) -> CudaEngine:
    return CudaEngine(driver, device_bytes_of=lambda _: None)


def _all_running(driver: FakeDriver) -> bool:
    return set(driver.states.values()) == {ProcessState.RUNNING}


def test_all_are_locked_before_the_first_is_checkpointed(
    engine: CudaEngine, driver: FakeDriver
) -> None:
    phases = engine.suspend(PROCESSES)
    work = [call for call in driver.calls if call[0] in ("lock", "checkpoint")]
    assert work == [("lock", 11), ("lock", 13), ("checkpoint", 11), ("checkpoint", 13)]
    assert [phase.name for phase in phases] == [
        Step.FIND, Step.HOST_MEMORY, Step.LOCK, Step.CHECKPOINT,
    ]  # fmt: skip


def test_resume_after_suspend_leaves_everything_running(
    engine: CudaEngine, driver: FakeDriver
) -> None:
    engine.suspend(PROCESSES)
    phases = engine.resume(PROCESSES)
    assert _all_running(driver)
    assert [phase.name for phase in phases] == [
        Step.FIND, Step.MEMORY, Step.RESTORE, Step.UNLOCK, Step.PROBE,
    ]  # fmt: skip


@pytest.mark.parametrize("pid", CUDA_PROCESSES)
@pytest.mark.parametrize(
    ("step", "error", "code"),
    [
        ("lock", "CUDA_ERROR_UNKNOWN", SnapshotReason.CUDA_LOCK_FAILED),
        ("lock", "CUDA_ERROR_NOT_READY", SnapshotReason.CUDA_LOCK_TIMEOUT),
        ("lock", CudaLateError("late"), SnapshotReason.CUDA_LOCK_TIMEOUT),
        ("checkpoint", "CUDA_ERROR_OUT_OF_MEMORY", SnapshotReason.CUDA_NO_MEMORY),
        ("checkpoint", "CUDA_ERROR_NOT_SUPPORTED", SnapshotReason.CUDA_NOT_SUPPORTED),
        ("checkpoint", "CUDA_ERROR_UNKNOWN", SnapshotReason.CUDA_CHECKPOINT_FAILED),
        ("checkpoint", CudaLateError("late"), SnapshotReason.CUDA_CHECKPOINT_TIMEOUT),
        ("checkpoint", CudaUnavailableError("gone"), SnapshotReason.CUDA_UNAVAILABLE),
    ],
)
def test_a_failed_suspend_leaves_every_process_running(
    engine: CudaEngine,
    driver: FakeDriver,
    step: str,
    pid: int,
    error: str | Exception,
    code: SnapshotReason,
) -> None:
    driver.fail[step, pid] = error
    with pytest.raises(SnapshotError) as caught:
        engine.suspend(PROCESSES)
    assert caught.value.code is code
    assert caught.value.phase == f"cuda_{step}"
    assert str(pid) in caught.value.reason
    assert _all_running(driver)


def test_a_source_that_does_not_come_back_is_called_lost_and_the_others_are_brought_back(
    engine: CudaEngine, driver: FakeDriver
) -> None:
    driver.fail["checkpoint", 13] = "CUDA_ERROR_UNKNOWN"
    driver.fail["restore", 11] = "CUDA_ERROR_UNKNOWN"
    with pytest.raises(SnapshotError) as caught:
        engine.suspend(PROCESSES)
    assert caught.value.code is SnapshotReason.SOURCE_LOST
    assert "cuda_checkpoint process 13" in caught.value.reason
    assert "cuda_restore process 11" in caught.value.reason
    assert driver.states[13] is ProcessState.RUNNING


@pytest.mark.parametrize(
    ("step", "error", "code"),
    [
        ("restore", "CUDA_ERROR_OUT_OF_MEMORY", SnapshotReason.CUDA_NO_MEMORY),
        ("restore", "CUDA_ERROR_INVALID_DEVICE", SnapshotReason.CUDA_RESTORE_FAILED),
        ("restore", CudaLateError("late"), SnapshotReason.CUDA_RESTORE_TIMEOUT),
        ("unlock", "CUDA_ERROR_UNKNOWN", SnapshotReason.CUDA_UNLOCK_FAILED),
        ("unlock", CudaLateError("late"), SnapshotReason.CUDA_UNLOCK_TIMEOUT),
    ],
)
def test_a_failed_resume_names_its_step(
    engine: CudaEngine,
    driver: FakeDriver,
    step: str,
    error: str | Exception,
    code: SnapshotReason,
) -> None:
    engine.suspend(PROCESSES)
    driver.fail[step, 13] = error
    with pytest.raises(SnapshotError) as caught:
        engine.resume(PROCESSES)
    assert caught.value.code is code
    assert caught.value.phase == f"cuda_{step}"


def test_a_gpu_that_does_not_answer_after_the_restore_is_a_failure(
    engine: CudaEngine, driver: FakeDriver
) -> None:
    engine.suspend(PROCESSES)
    driver.fail["probe", 0] = "CUDA_ERROR_ECC_UNCORRECTABLE"
    with pytest.raises(SnapshotError, match="ECC") as caught:
        engine.resume(PROCESSES)
    assert caught.value.code is SnapshotReason.GPU_PROBE_FAILED


def test_too_little_free_memory_is_found_before_anything_is_touched(
    engine: CudaEngine, driver: FakeDriver
) -> None:
    engine.suspend(PROCESSES)
    assert engine.held_bytes == len(CUDA_PROCESSES) * PER_PROCESS_BYTES
    driver.others_bytes = 4000
    with pytest.raises(SnapshotError) as caught:
        engine.resume(PROCESSES)
    assert caught.value.code is SnapshotReason.CUDA_NO_MEMORY
    assert "restore" not in [name for name, _ in driver.calls]


def test_too_little_host_memory_is_found_before_anything_is_touched(driver: FakeDriver) -> None:
    asked: list[list[int]] = []

    def held(pids: Sequence[int]) -> int:
        asked.append(list(pids))
        return 1001

    engine = CudaEngine(driver, device_bytes_of=held, host_free_bytes=lambda: 1000)
    with pytest.raises(SnapshotError, match=r"1001 bytes.*1000") as caught:
        engine.suspend(PROCESSES)
    assert caught.value.code is SnapshotReason.CUDA_NO_HOST_MEMORY
    assert asked == [[11, 13]]
    assert _all_running(driver)
    assert "lock" not in [name for name, _ in driver.calls]


def test_a_tree_without_cuda_processes_is_an_error(engine: CudaEngine) -> None:
    with pytest.raises(SnapshotError) as caught:
        engine.suspend([10, 12])
    assert caught.value.code is SnapshotReason.CUDA_NO_PROCESS


OLD_GPU = "GPU-00112233-4455-6677-8899-aabbccddeeff"
NEW_GPU = "GPU-ffeeddcc-bbaa-9988-7766-554433221100"


def test_the_gpu_map_reaches_the_driver(driver: FakeDriver) -> None:
    engine = CudaEngine(driver, gpu_map={OLD_GPU: NEW_GPU})
    engine.suspend(PROCESSES)
    engine.resume(PROCESSES)
    assert driver.gpu_map == {OLD_GPU: NEW_GPU}


@pytest.mark.parametrize("bad", ["0", "GPU-xyz", "MIG-" + OLD_GPU, OLD_GPU + "0"])
def test_a_gpu_map_with_something_else_than_uuids_is_refused(driver: FakeDriver, bad: str) -> None:
    with pytest.raises(InputError, match="no GPU UUID"):
        CudaEngine(driver, gpu_map={OLD_GPU: bad})
