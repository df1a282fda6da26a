"""The helper answers one line for each call, and is killed and replaced when it hangs."""

from __future__ import annotations

import ctypes
import enum
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.snapshots.cuda_driver import (
    CudaDriver,
    CudaLateError,
    CudaUnavailableError,
    DriverCalls,
    ProcessState,
    Reply,
    serve,
)

HELPER = """
import sys, time
from tests.unit.test_cuda_driver import FakeCuda
from resilience_pipelines.snapshots.cuda_driver import DriverCalls, serve
serve(DriverCalls(FakeCuda()), sys.stdin.buffer, sys.stdout.buffer)
"""
HANGING_PID = 666


class _Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2


class _Attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20


class _Struct:
    pass


class _Uuid:
    def __init__(self) -> None:
        self._raw = ctypes.create_string_buffer(16)

    @property
    def bytes(self) -> bytes:
        return self._raw.raw

    def getPtr(self) -> int:  # noqa: N802
        return ctypes.addressof(self._raw)


class FakeCuda:
    """`cuda.bindings.driver` for one process (pid 7) on two devices, the second one exclusive."""

    CUresult = _Result
    CUdevice_attribute = _Attribute
    CUcheckpointLockArgs = CUcheckpointRestoreArgs = CUcheckpointGpuPair = _Struct
    CUuuid = _Uuid

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.corrupt = False

    def cuInit(self, flags: int) -> tuple[_Result]:  # noqa: N802
        return (_Result.CUDA_SUCCESS,)

    def cuDeviceGetCount(self) -> tuple[_Result, int]:  # noqa: N802
        return _Result.CUDA_SUCCESS, 2

    def cuDeviceGet(self, index: int) -> tuple[_Result, int]:  # noqa: N802
        return _Result.CUDA_SUCCESS, index

    def cuDeviceGetAttribute(self, which: int, device: int) -> tuple[_Result, int]:  # noqa: N802
        return _Result.CUDA_SUCCESS, 3 if device == 1 else 0

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[_Result, str]:  # noqa: N802
        return _Result.CUDA_SUCCESS, f"context {device}"

    def cuCtxSetCurrent(self, context: str) -> tuple[_Result]:  # noqa: N802
        assert context == "context 0"
        return (_Result.CUDA_SUCCESS,)

    def cuMemGetInfo(self) -> tuple[_Result, int, int]:  # noqa: N802
        return _Result.CUDA_SUCCESS, 10, 100

    def cuMemAlloc(self, size: int) -> tuple[_Result, bytearray]:  # noqa: N802
        return _Result.CUDA_SUCCESS, bytearray(size)

    def cuMemsetD8(self, memory: bytearray, value: int, count: int) -> tuple[_Result]:  # noqa: N802
        memory[:count] = bytes([value]) * count
        if self.corrupt:
            memory[count // 2] ^= 1
        return (_Result.CUDA_SUCCESS,)

    def cuMemcpyDtoH(self, to: bytearray, memory: bytearray, count: int) -> tuple[_Result]:  # noqa: N802
        to[:count] = memory[:count]
        return (_Result.CUDA_SUCCESS,)

    def cuMemFree(self, memory: bytearray) -> tuple[_Result]:  # noqa: N802
        self.seen["freed"] = True
        return (_Result.CUDA_SUCCESS,)

    def cuCheckpointProcessGetRestoreThreadId(self, pid: int) -> tuple[_Result, int | None]:  # noqa: N802
        if pid == HANGING_PID:
            time.sleep(3600)
        if pid != 7:
            return _Result.CUDA_ERROR_INVALID_VALUE, None
        return _Result.CUDA_SUCCESS, 77

    def cuCheckpointProcessGetState(self, pid: int) -> tuple[_Result, ProcessState]:  # noqa: N802
        return _Result.CUDA_SUCCESS, ProcessState.CHECKPOINTED

    def cuCheckpointProcessLock(self, pid: int, arguments: Any) -> tuple[_Result]:  # noqa: N802
        self.seen["timeout_ms"] = arguments.timeoutMs
        return (_Result.CUDA_SUCCESS,)

    def cuCheckpointProcessCheckpoint(self, pid: int, arguments: Any) -> tuple[_Result]:  # noqa: N802
        return (_Result.CUDA_ERROR_OUT_OF_MEMORY,)

    def cuCheckpointProcessRestore(self, pid: int, arguments: Any) -> tuple[_Result]:  # noqa: N802
        self.seen["restore"] = arguments
        return (_Result.CUDA_SUCCESS,)

    def cuCheckpointProcessUnlock(self, pid: int, arguments: Any) -> tuple[_Result]:  # noqa: N802
        return (_Result.CUDA_SUCCESS,)


@pytest.fixture
def calls() -> DriverCalls:
    made = DriverCalls(FakeCuda())
    assert made.initialize().ok
    return made


def test_every_request_gets_one_line_after_the_word_that_it_is_ready() -> None:
    requests = io.BytesIO(
        b'{"call": "restore_thread", "pid": 7}\n{"call": "restore_thread", "pid": 8}\n'
        b'{"call": "checkpoint", "pid": 7}\n{"call": "free_bytes"}\n'
    )
    answers = io.BytesIO()
    serve(DriverCalls(FakeCuda()), requests, answers)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"error": "CUDA_SUCCESS", "value": None},
        {"error": "CUDA_SUCCESS", "value": 77},
        {"error": "CUDA_ERROR_INVALID_VALUE", "value": None},
        {"error": "CUDA_ERROR_OUT_OF_MEMORY", "value": None},
        {"error": "CUDA_SUCCESS", "value": 10},
    ]


def test_a_device_for_one_process_gets_no_context(calls: DriverCalls) -> None:
    assert calls.free_bytes() == Reply("CUDA_SUCCESS", 10)


def test_gpu_pairs_carry_both_uuids_as_bytes() -> None:
    cuda = FakeCuda()
    old = "GPU-00112233-4455-6677-8899-aabbccddeeff"
    new = "GPU-ffeeddcc-bbaa-9988-7766-554433221100"
    DriverCalls(cuda).restore(7, {old: new})
    (pair,) = cuda.seen["restore"].gpuPairs
    assert cuda.seen["restore"].gpuPairsCount == 1
    assert pair.oldUuid.bytes == bytes.fromhex("00112233445566778899aabbccddeeff")
    assert pair.newUuid.bytes == bytes.fromhex("ffeeddccbbaa99887766554433221100")


def test_without_a_gpu_map_the_driver_gets_no_arguments() -> None:
    cuda = FakeCuda()
    DriverCalls(cuda).restore(7, {})
    assert cuda.seen["restore"] is None


def test_the_probe_sees_a_bit_that_flipped_and_frees_its_memory() -> None:
    cuda = FakeCuda()
    calls = DriverCalls(cuda)
    calls.initialize()
    assert calls.probe().ok
    cuda.corrupt = True
    assert not calls.probe().ok
    assert cuda.seen["freed"]


def test_bindings_without_checkpoint_calls_are_named() -> None:
    assert "cuda-bindings" in DriverCalls(object()).initialize().error


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> CudaDriver:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return CudaDriver((sys.executable, "-c", HELPER))


def test_the_driver_gives_up_before_we_do(driver: CudaDriver) -> None:
    assert driver.lock(7, 5.0).ok
    driver.close()
    cuda = FakeCuda()
    DriverCalls(cuda).lock(7, timeout_ms=4500)
    assert cuda.seen["timeout_ms"] == 4500


def test_a_call_that_hangs_ends_at_its_deadline_and_the_next_one_works(driver: CudaDriver) -> None:
    driver.wait_ready()
    assert driver._helper is not None
    first = driver._helper.pid
    with pytest.raises(CudaLateError):
        driver.restore_thread(HANGING_PID, 0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert driver.restore_thread(7, 5.0) == Reply("CUDA_SUCCESS", 77)
    driver.close()


def test_the_helper_ends_with_its_owner(driver: CudaDriver) -> None:
    driver.wait_ready()
    helper = driver._helper
    assert helper is not None
    driver.close()
    assert helper.returncode == 0


def test_a_helper_that_dies_is_reported_with_its_exit_code() -> None:
    driver = CudaDriver(("sh", "-c", "exit 3"))
    with pytest.raises(CudaUnavailableError, match="exit code 3"):
        driver.wait_ready()


def test_a_driver_that_can_not_be_initialized_is_reported_with_its_words() -> None:
    answer = '{"error": "CUDA_ERROR_NO_DEVICE"}'
    driver = CudaDriver(("echo", answer))
    with pytest.raises(CudaUnavailableError, match="CUDA_ERROR_NO_DEVICE"):
        driver.wait_ready()
