"""A program of `gpu_programs` from the platform's side: starting it, letting it act, ending it.

What belongs here: its processes and its reports. What does not: any one program.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from resilience_pipelines import strict_json
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults.gpu_programs.protocol import GO
from resilience_pipelines.workers.base import LaunchPlan
from resilience_pipelines.workers.process import WorkerOutput, worker_environment
from resilience_pipelines.workers.space import HostSpace, wait_until

PROGRAMS = Path(__file__).parent / "gpu_programs"
READY_DEADLINE_S = 120.0
_STEP_S = 0.01
_JOIN_S = 1.0

Report = Mapping[str, Any]


class GpuProgram:
    """One started program on one GPU. It ends with `end`, and with this process whatever happens.

    Args:
        program: a file of the folder `gpu_programs`.
        uuid: the GPU; it sees no other.
        arguments: its command line.

    Raises:
        ResilienceError: it did not get ready; nothing that was started stays.
    """

    def __init__(self, program: Path, uuid: str, *arguments: str) -> None:
        self._output = WorkerOutput()
        self._space = HostSpace()
        plan = LaunchPlan(
            (sys.executable, "-P", str(program), *arguments), 0, {"CUDA_VISIBLE_DEVICES": uuid}
        )
        try:
            self._process = self._space.spawn(
                plan.argv, env=worker_environment(plan), output=self._output.write_end
            )
        except BaseException:
            self._space.close()
            self._output.close_write_end()
            raise
        self._output.close_write_end()
        self._ended = False
        try:
            self.wait_for("ready", READY_DEADLINE_S)
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it has not ended."""
        return not self._ended and self._process.alive()

    def go(self) -> None:
        """Let it act."""
        self._process.send(GO)

    def reports(self, event: str) -> list[Report]:
        """What it has reported so far under this name, in order."""
        found = (_parse(line.text) for line in self._output.lines())
        return [report for report in found if report is not None and report["event"] == event]

    def wait_for(
        self, event: str, deadline_s: float, holds: Callable[[Report], bool] = lambda _: True
    ) -> Report:
        """Wait for a report of this name for which `holds` is true.

        Raises:
            ResilienceError: it ended before.
            DeadlineError: it did not come in time.
        """
        found: list[Report] = []

        def came() -> bool:
            ended = not self.alive()
            if ended:
                self._output.join(_JOIN_S)
            found.extend(report for report in self.reports(event) if holds(report))
            if ended and not found:
                raise ResilienceError(
                    f"A program on the GPU ended. Its last output:\n{self._output.tail()}"
                )
            return bool(found)

        wait_until(came, deadline_s, f"A report {event!r} of a program on the GPU", _STEP_S)
        return found[0]

    def wait_ended(self, deadline_s: float) -> bool:
        """Wait until it has ended by itself; False if it has not in time."""
        if not self._process.wait_gone(deadline_s):
            return False
        self._output.join(_JOIN_S)
        return True

    def end(self) -> None:
        """End it and wait for that. A second call does nothing."""
        if not self._ended:
            self._space.close()
            self._ended = True
            self._process.close()
            self._output.join(_JOIN_S)


def missing_module(name: str) -> str | None:
    """Why programs that need a module can't run here; None when they can."""
    import importlib.util

    with contextlib.suppress(ImportError, ValueError):
        if importlib.util.find_spec(name) is not None:
            return None
    return f"the Python package {name} is not installed"


def _parse(line: str) -> Report | None:
    """A line of the protocol; None for anything else that was written."""
    try:
        found = strict_json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def newest(reports: Sequence[Report], field: str) -> Any:
    """A field of the last report; None where there is none."""
    return reports[-1].get(field) if reports else None
