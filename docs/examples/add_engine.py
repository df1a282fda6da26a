"""A snapshot engine for a device: what has to happen before a dump, and after a restore.

CRIU knows nothing of a device's memory, so an engine moves it into host memory first and back
afterwards (`snapshots.cuda` does it for GPUs). The "device" of this example is a file that belongs
to no image. The worker's program keeps its table there; on SIGUSR1 it takes it into its own memory
and empties the file, on SIGUSR2 it writes it back. The engine sends the signals, waits for what
they do, and gives each step as a phase.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.examples.add_worker import TableWorker, load, serve
from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.records import Phase
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.workers.base import LaunchPlan
from resilience_pipelines.workers.space import wait_until

DEADLINE_S = 5.0
STEP_S = 0.001


class FileDevice:
    """Moves the content of a file into the process that uses it, and back.

    Args:
        file: the device. One process uses it.
    """

    name = "criu+file"
    """Becomes the stack's `snapshot_engine`: results with and without it are never mixed."""
    moves_state = True

    def __init__(self, file: Path) -> None:
        self._file = file

    def warm_up(self) -> None:
        """Nothing to begin with."""

    def suspend(self, pids: Sequence[int]) -> Sequence[Phase]:
        """From the device to host memory. After a failure everything is on the device again."""
        try:
            return self._move(
                "file_to_memory", SnapshotReason.DUMP_FAILED, pids, signal.SIGUSR1,
                lambda: self._file.stat().st_size == 0,
            )  # fmt: skip
        except SnapshotError:
            self._send(pids, signal.SIGUSR2)
            raise

    def resume(self, pids: Sequence[int]) -> Sequence[Phase]:
        """And back."""
        before_ns = self._file.stat().st_mtime_ns
        return self._move(
            "memory_to_file", SnapshotReason.RESTORE_FAILED, pids, signal.SIGUSR2,
            lambda: self._file.stat().st_mtime_ns > before_ns and self._file.stat().st_size > 0,
        )  # fmt: skip

    def close(self) -> None:
        """Nothing was started."""

    def _move(
        self,
        name: str,
        code: SnapshotReason,
        pids: Sequence[int],
        number: int,
        done: Callable[[], bool],
    ) -> Sequence[Phase]:
        begin = time.monotonic()
        self._send(pids, number)
        try:
            wait_until(done, DEADLINE_S, f"{name} of {self._file}", STEP_S)
        except DeadlineError as error:
            raise SnapshotError(code, error.reason, phase=name) from error
        return (
            Phase(
                name=name, start_s=0.0, duration_s=time.monotonic() - begin,
                clock="host_monotonic", resolution_s=STEP_S,
            ),
        )  # fmt: skip

    def _send(self, pids: Sequence[int], number: int) -> None:
        for pid in pids:
            os.kill(pid, number)


@dataclass(frozen=True)
class DeviceTableWorker(TableWorker):
    """The worker of `add_worker` with its table on the device."""

    @property
    def device(self) -> Path:
        """The file."""
        return self.folder / "device"

    def plan(self, port: int, cache: Path) -> LaunchPlan:  # noqa: ARG002
        """This file's program; it imports the package, so it gets where that lies."""
        argv = (sys.executable, __file__, str(port), str(self.weights), str(self.device))
        return LaunchPlan(argv, port, {"PYTHONPATH": os.pathsep.join(sys.path)})


def main(port: int, weights: Path, device: Path) -> None:
    """The program."""
    held: list[bytes] = []
    device.write_bytes(load(weights))

    def to_memory(*_: object) -> None:
        held.append(device.read_bytes())
        device.write_bytes(b"")

    def to_device(*_: object) -> None:
        if held:
            device.write_bytes(held.pop())

    signal.signal(signal.SIGUSR1, to_memory)
    signal.signal(signal.SIGUSR2, to_device)
    serve(port, device.read_bytes)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
