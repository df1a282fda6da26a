"""A started worker: its processes, its output and the client that speaks with it.

What belongs here: starting, waiting for readiness, collecting output, stopping. What does not:
measuring (`startup`) and snapshots.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from resilience_pipelines.errors import BusyError, DeadlineError, ResilienceError
from resilience_pipelines.workers.base import LaunchPlan, OutputLine, Worker
from resilience_pipelines.workers.client import WorkerClient
from resilience_pipelines.workers.space import HostSpace, Process, Space

DEFAULT_PORT = 8000
READY_POLL_S = 0.005
OUTPUT_LINES_KEPT = 20_000

# A worker gets no other variable of the host: its environment ends up in every snapshot of it.
INHERITED_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ", "HOME",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_HOME",
)  # fmt: skip


class WorkerFailedError(ResilienceError):
    """The worker ended, or never became ready. `output` is the tail of what it wrote."""

    def __init__(self, reason: str, output: str) -> None:
        super().__init__(reason if not output else f"{reason} Its last output:\n{output}")
        self.output = output


class WorkerOutput:
    """Reads the pipe that is a worker's standard output, in a thread of its own.

    A pipe, because a log file that has grown since a dump makes the next restore fail.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self.inode = os.fstat(self._read_end).st_ino
        self._lines: deque[OutputLine] = deque(maxlen=OUTPUT_LINES_KEPT)
        self._thread = threading.Thread(target=self._read, name="worker-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with os.fdopen(self._read_end, "rb") as pipe:
            for raw in pipe:
                text = raw.decode(errors="replace").rstrip("\n")
                self._lines.append(OutputLine(time.monotonic_ns(), text))

    def close_write_end(self) -> None:
        """Call once a worker holds the other copy, so that the reader ends with the worker."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def lines(self) -> list[OutputLine]:
        """What was read so far (the last `OUTPUT_LINES_KEPT` lines)."""
        return list(self._lines)

    def tail(self, count: int = 15) -> str:
        """The last lines as text."""
        return "\n".join(line.text for line in list(self._lines)[-count:])

    def join(self, timeout_s: float) -> None:
        """Wait until the pipe is read to its end."""
        self._thread.join(timeout_s)


@dataclass
class RunningWorker:
    """A worker's processes in their space. A context manager: leaving it ends them.

    Attributes:
        launched_ns: CLOCK_MONOTONIC just before it was started, in nanoseconds.
    """

    worker: Worker
    space: Space
    process: Process
    client: WorkerClient
    output: WorkerOutput
    plan: LaunchPlan
    launched_ns: int

    def wait_ready(self, deadline_s: float | None = None) -> int:
        """Poll `/health` until it says yes; returns CLOCK_MONOTONIC of that answer.

        Raises:
            WorkerFailedError: the process ended before.
            DeadlineError: it did not get ready in time.
        """
        limit = deadline_s or self.worker.start_deadline_s
        end = time.monotonic() + limit
        while True:
            if self.client.healthy():
                return time.monotonic_ns()
            if not self.process.alive():
                self.output.join(1.0)
                raise WorkerFailedError(
                    f"The worker {self.worker.name} ended before it was ready.", self.output.tail()
                )
            if time.monotonic() > end:
                raise DeadlineError(
                    f"The worker {self.worker.name} was not ready within {limit:g} s. "
                    f"Its last output:\n{self.output.tail()}"
                )
            time.sleep(READY_POLL_S)

    def stop(self) -> None:
        """End its processes and wait for them."""
        self.space.close()
        self.process.close()
        self.output.close_write_end()
        self.output.join(1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def launch(worker: Worker, space: Space, cache: Path, *, port: int | None = None) -> RunningWorker:
    """Start a worker in a space. It owns the space from then on, also when this fails.

    Args:
        cache: folder with its compile caches, empty for a cold start.
        port: where it shall listen; by default 8000 in a capsule and a free port on the host.

    Raises:
        BusyError: the port is taken.
    """
    output = WorkerOutput()
    try:
        chosen = _choose_port(space, port)
        plan = worker.plan(chosen, cache)
        launched_ns = time.monotonic_ns()
        process = space.spawn(plan.argv, env=worker_environment(plan), output=output.write_end)
    except BaseException:
        space.close()
        output.close_write_end()
        raise
    output.close_write_end()
    client = WorkerClient(space, chosen, worker.model)
    return RunningWorker(worker, space, process, client, output, plan, launched_ns)


def worker_environment(plan: LaunchPlan) -> Mapping[str, str]:
    """The whole environment of a worker: a few of the host's variables and the plan's."""
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return inherited | dict(plan.env)


def _choose_port(space: Space, asked: int | None) -> int:
    if not isinstance(space, HostSpace):
        return asked or DEFAULT_PORT
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", asked or 0))
        except OSError as error:
            raise BusyError(
                f"Port {asked} on 127.0.0.1 can't be used ({error.strerror}).",
                mend="Choose another with --port, or end the program that holds it.",
            ) from error
        return int(probe.getsockname()[1])
