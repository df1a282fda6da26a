"""A helper of the CUDA driver without CUDA: each process has state on one GPU, that never moves.

It speaks the protocol of `snapshots.cuda_driver`, with states, waiting and errors as those of the
real driver. A process that is stopped can't be locked. Nothing done with it is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from resilience_pipelines.snapshots.cuda_driver import (
    SUCCESS,
    DriverCalls,
    ProcessState,
    Reply,
    serve,
)

GPU = "GPU-00000000-0000-0000-0000-000000000000"


class Calls(DriverCalls):
    def __init__(self) -> None:
        super().__init__(None)
        self._states: dict[int, ProcessState] = {}

    def initialize(self) -> Reply:
        return Reply(SUCCESS)

    def restore_thread(self, pid: int) -> Reply:
        return Reply(SUCCESS, pid)

    def state(self, pid: int) -> Reply:
        return Reply(SUCCESS, self._states.get(pid, ProcessState.RUNNING))

    def lock(self, pid: int, timeout_ms: int) -> Reply:
        end = time.monotonic() + timeout_ms / 1000
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            if time.monotonic() > end:
                return Reply("CUDA_ERROR_NOT_READY")
            time.sleep(0.01)
        return self._go(pid, ProcessState.RUNNING, ProcessState.LOCKED)

    def checkpoint(self, pid: int) -> Reply:
        return self._go(pid, ProcessState.LOCKED, ProcessState.CHECKPOINTED)

    def restore(self, pid: int, gpu_map: Mapping[str, str]) -> Reply:
        if gpu_map and gpu_map != {GPU: GPU}:
            return Reply("CUDA_ERROR_INVALID_VALUE")
        # A process that CRIU has just made is checkpointed, and not known here.
        self._states.setdefault(pid, ProcessState.CHECKPOINTED)
        return self._go(pid, ProcessState.CHECKPOINTED, ProcessState.LOCKED)

    def unlock(self, pid: int) -> Reply:
        return self._go(pid, ProcessState.LOCKED, ProcessState.RUNNING)

    def free_bytes(self) -> Reply:
        return Reply(SUCCESS, 1 << 30)

    def probe(self) -> Reply:
        return Reply(SUCCESS)

    def _go(self, pid: int, wanted: ProcessState, then: ProcessState) -> Reply:
        if self._states.get(pid, ProcessState.RUNNING) is not wanted:
            return Reply("CUDA_ERROR_ILLEGAL_STATE")
        self._states[pid] = then
        return Reply(SUCCESS)


if __name__ == "__main__":
    serve(Calls(), sys.stdin.buffer, sys.stdout.buffer)
