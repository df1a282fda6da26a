"""The CUDA driver's checkpoint calls, made from a process of their own that can be killed.

A call of the driver can hang for ever, in a process that it was asked about as well as in the
caller, and a thread that hangs inside a C library can't be ended: it would keep the driver's locks
and stop the job from exiting. So the calls are made by a helper process which is killed when one is
late, and replaced. The helper also keeps the driver initialized (`cuInit` takes from a quarter of a
second to several) and holds a context for the probe, so that neither falls into a measured restore.

What belongs here: the helper, its protocol (one JSON line for each call and answer) and deadlines.
What does not: the order of calls and what a failure means (`cuda`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, BinaryIO, Final

from resilience_pipelines.errors import DeadlineError, UnsupportedError

SUCCESS: Final = "CUDA_SUCCESS"

HELPER: Final = (sys.executable, "-m", __name__)
"""How the helper process is started."""

START_DEADLINE_S: Final = 60.0
_END_DEADLINE_S: Final = 5.0
_PROBE_BYTES: Final = 1 << 20
_PROBE_PATTERN: Final = 0x5A


class ProcessState(IntEnum):
    """State of a CUDA process, with the driver's numbers (`CUprocessState`)."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


@dataclass(frozen=True)
class Reply:
    """What the driver said.

    Attributes:
        error: the driver's name of its result, `CUDA_SUCCESS` when it worked.
        value: what the call returns: a thread id, a state, bytes.
    """

    error: str
    value: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.error == SUCCESS


class CudaUnavailableError(UnsupportedError):
    """The driver can't be used here: none, too old, or its helper does not start."""


class CudaLateError(DeadlineError):
    """The driver gave no answer in time; its helper was killed."""


class CudaDriver:
    """Makes driver calls through the helper process, which ends with this object and its process.

    Args:
        command: how the helper is started; `HELPER` when not given.

    One call at a time: not for use by several threads at once.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = command or HELPER
        self._helper: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._buffer = b""

    def start(self) -> None:
        """Start the helper without waiting until it is ready; nothing to do when it runs."""
        if self._helper is not None and self._helper.poll() is None:
            return
        self.close()
        self._helper = subprocess.Popen(
            list(self._command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the keyboard must not hit it mid-restore
        )  # fmt: skip

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until the driver is initialized.

        Raises:
            CudaUnavailableError: it can't be.
            CudaLateError
        """
        self.start()
        if self._ready:
            return
        answer = self._read("cuInit", deadline_s)
        if answer.get("error") != SUCCESS:
            self.close()
            raise CudaUnavailableError(
                f"The CUDA driver can't be used: {answer.get('error')}.",
                mend="A driver of release 570 or newer and the package cuda-bindings are needed: "
                "pip install 'resilience-pipelines[gpu]'.",
            )
        self._ready = True

    def restore_thread(self, pid: int, deadline_s: float) -> Reply:
        """The id of a process's CUDA restore thread; succeeds only for CUDA processes."""
        return self._call("restore_thread", deadline_s, pid=pid)

    def state(self, pid: int, deadline_s: float) -> Reply:
        """A CUDA process's `ProcessState`."""
        return self._call("state", deadline_s, pid=pid)

    def lock(self, pid: int, deadline_s: float) -> Reply:
        """Block further CUDA calls of a process. The driver itself gives up a little earlier."""
        own_limit_ms = max(1, int(deadline_s * 900))
        return self._call("lock", deadline_s, pid=pid, timeout_ms=own_limit_ms)

    def checkpoint(self, pid: int, deadline_s: float) -> Reply:
        """Move a locked process's device state into its host memory."""
        return self._call("checkpoint", deadline_s, pid=pid)

    def restore(self, pid: int, deadline_s: float, gpu_map: Mapping[str, str]) -> Reply:
        """Move a process's state back to a device; it stays locked.

        Args:
            gpu_map: UUID of each GPU it was on -> UUID of the one it shall be on; empty for the
                same ones.
        """
        return self._call("restore", deadline_s, pid=pid, gpu_map=dict(gpu_map))

    def unlock(self, pid: int, deadline_s: float) -> Reply:
        """Let a locked process make CUDA calls again."""
        return self._call("unlock", deadline_s, pid=pid)

    def free_bytes(self, deadline_s: float) -> Reply:
        """Free memory of all visible devices together, in bytes."""
        return self._call("free_bytes", deadline_s)

    def probe(self, deadline_s: float) -> Reply:
        """Write, read back and compare a little memory on each visible device."""
        return self._call("probe", deadline_s)

    def close(self) -> None:
        """End the helper. One that hangs in the kernel is left behind after a few seconds."""
        helper, self._helper, self._ready, self._buffer = self._helper, None, False, b""
        if helper is None:
            return
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            helper.wait(_END_DEADLINE_S)
            return
        helper.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            helper.wait(_END_DEADLINE_S)

    def _kill(self) -> None:
        if self._helper is not None:
            self._helper.kill()
        self.close()

    def _call(self, name: str, deadline_s: float, **arguments: object) -> Reply:
        self.wait_ready()
        assert self._helper is not None
        assert self._helper.stdin is not None
        request = json.dumps({"call": name, **arguments})
        try:
            self._helper.stdin.write(f"{request}\n".encode())
            self._helper.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise CudaUnavailableError("The helper of the CUDA driver ended.") from None
        answer = self._read(name, deadline_s)
        value = answer.get("value")
        return Reply(str(answer.get("error")), int(value) if value is not None else None)

    def _read(self, what: str, deadline_s: float) -> dict[str, Any]:
        assert self._helper is not None
        assert self._helper.stdout is not None
        handle = self._helper.stdout.fileno()
        end = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([handle], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self._kill()
                raise CudaLateError(
                    f"The CUDA driver gave no answer to {what} within {deadline_s:g} s."
                )
            chunk = os.read(handle, 65536)
            if not chunk:
                code = self._helper.wait(_END_DEADLINE_S)
                self.close()
                raise CudaUnavailableError(
                    f"The helper of the CUDA driver ended during {what} with exit code {code}.",
                    mend="Is the package cuda-bindings installed? "
                    "pip install 'resilience-pipelines[gpu]'",
                )
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


# What follows runs in the helper.


class DriverCalls:
    """The calls, on `cuda.bindings.driver` or something that looks like it.

    Args:
        cuda: the module.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._contexts: list[Any] = []

    def initialize(self) -> Reply:
        """`cuInit`, and a context on each device that may be shared."""
        cuda = self._cuda
        if not hasattr(cuda, "cuCheckpointProcessLock"):
            return Reply("cuda-bindings is older than 12.8")
        try:
            (result,) = cuda.cuInit(0)
        except Exception as error:  # noqa: BLE001 - the bindings' own, where there is no driver
            return Reply(f"{type(error).__name__}: {error}")
        if result != cuda.CUresult.CUDA_SUCCESS:
            return self._reply(result)
        result, count = cuda.cuDeviceGetCount()
        if result != cuda.CUresult.CUDA_SUCCESS:
            return self._reply(result)
        mode = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
        for index in range(count):
            result, device = cuda.cuDeviceGet(index)
            result, value = cuda.cuDeviceGetAttribute(mode, device)
            if result == cuda.CUresult.CUDA_SUCCESS and value != 0:
                continue  # a device for one process: a context here would keep the worker out
            result, context = cuda.cuDevicePrimaryCtxRetain(device)
            if result != cuda.CUresult.CUDA_SUCCESS:
                return self._reply(result)
            self._contexts.append(context)
        return Reply(SUCCESS)

    def restore_thread(self, pid: int) -> Reply:
        """See `CudaDriver.restore_thread`."""
        return self._reply(*self._cuda.cuCheckpointProcessGetRestoreThreadId(pid))

    def state(self, pid: int) -> Reply:
        """See `CudaDriver.state`."""
        return self._reply(*self._cuda.cuCheckpointProcessGetState(pid))

    def lock(self, pid: int, timeout_ms: int) -> Reply:
        """See `CudaDriver.lock`."""
        arguments = self._cuda.CUcheckpointLockArgs()
        arguments.timeoutMs = timeout_ms
        return self._reply(*self._cuda.cuCheckpointProcessLock(pid, arguments))

    def checkpoint(self, pid: int) -> Reply:
        """See `CudaDriver.checkpoint`."""
        return self._reply(*self._cuda.cuCheckpointProcessCheckpoint(pid, None))

    def restore(self, pid: int, gpu_map: Mapping[str, str]) -> Reply:
        """See `CudaDriver.restore`."""
        return self._reply(*self._cuda.cuCheckpointProcessRestore(pid, self._pairs(gpu_map)))

    def unlock(self, pid: int) -> Reply:
        """See `CudaDriver.unlock`."""
        return self._reply(*self._cuda.cuCheckpointProcessUnlock(pid, None))

    def free_bytes(self) -> Reply:
        """See `CudaDriver.free_bytes`."""
        return self._on_each_device(self._free_bytes)

    def probe(self) -> Reply:
        """See `CudaDriver.probe`."""
        return self._on_each_device(self._probe)

    def _pairs(self, gpu_map: Mapping[str, str]) -> Any:
        if not gpu_map:
            return None
        cuda = self._cuda
        pairs = []
        for old, new in gpu_map.items():
            pair = cuda.CUcheckpointGpuPair()
            pair.oldUuid, pair.newUuid = self._uuid(old), self._uuid(new)
            pairs.append(pair)
        arguments = cuda.CUcheckpointRestoreArgs()
        arguments.gpuPairs = pairs
        arguments.gpuPairsCount = len(pairs)
        return arguments

    def _uuid(self, text: str) -> Any:
        """From `GPU-xxxxxxxx-xxxx-...` as NVML and nvidia-smi write it."""
        raw = bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))
        uuid = self._cuda.CUuuid()
        # The bindings let `bytes` be read only.
        ctypes.memmove(uuid.getPtr(), raw, len(raw))
        return uuid

    def _on_each_device(self, action: Callable[[], Reply]) -> Reply:
        cuda, total = self._cuda, 0
        for context in self._contexts:
            (result,) = cuda.cuCtxSetCurrent(context)
            if result != cuda.CUresult.CUDA_SUCCESS:
                return self._reply(result)
            reply = action()
            if not reply.ok:
                return reply
            total += reply.value or 0
        return Reply(SUCCESS, total if self._contexts else None)

    def _free_bytes(self) -> Reply:
        result, free, _ = self._cuda.cuMemGetInfo()
        return self._reply(result, free)

    def _probe(self) -> Reply:
        cuda = self._cuda
        result, memory = cuda.cuMemAlloc(_PROBE_BYTES)
        if result != cuda.CUresult.CUDA_SUCCESS:
            return self._reply(result)
        try:
            (result,) = cuda.cuMemsetD8(memory, _PROBE_PATTERN, _PROBE_BYTES)
            if result != cuda.CUresult.CUDA_SUCCESS:
                return self._reply(result)
            found = bytearray(_PROBE_BYTES)
            (result,) = cuda.cuMemcpyDtoH(found, memory, _PROBE_BYTES)
            if result != cuda.CUresult.CUDA_SUCCESS:
                return self._reply(result)
        finally:
            cuda.cuMemFree(memory)
        if found != bytes([_PROBE_PATTERN]) * _PROBE_BYTES:
            return Reply("what was read from the device is not what was written to it")
        return Reply(SUCCESS)

    def _reply(self, result: Any, value: Any = None) -> Reply:
        name = getattr(result, "name", None)
        return Reply(name if isinstance(name, str) else str(result), self._number(value))

    @staticmethod
    def _number(value: Any) -> int | None:
        return None if value is None else int(value)


def serve(calls: DriverCalls, requests: BinaryIO, answers: BinaryIO) -> None:
    """Initialize, say so, and answer calls until the requests end."""

    def answer(reply: Reply) -> None:
        answers.write(json.dumps({"error": reply.error, "value": reply.value}).encode() + b"\n")
        answers.flush()

    ready = calls.initialize()
    answer(ready)
    if not ready.ok:
        return
    for line in requests:
        request = json.loads(line)
        name = request.pop("call")
        answer(getattr(calls, name)(**request))


def main() -> int:
    """The helper process."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        from cuda.bindings import driver
    except ImportError as error:
        answers.write(json.dumps({"error": f"cuda.bindings: {error}"}).encode() + b"\n")
        answers.flush()
        return 1
    serve(DriverCalls(driver), sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
