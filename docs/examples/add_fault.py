"""A fault: what is done, how its effect is proved, and how it is undone and that proved.

This one asks a worker to end, as an orchestrator does that moves it: SIGTERM, and nothing else. A
worker that ends is gone; one that ignores it has no effect to show, and the experiment says
`not_injected`, not `pass`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from docs.examples.add_detector import StateWatch
from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.space import wait_until

EFFECT_DEADLINE_S = 5.0


@dataclass(frozen=True)
class WorkerAskedToEnd:
    """The definition, as the catalogue has it (`faults.fault.Fault`)."""

    name: str = "worker_asked_to_end"
    strategy: str = "process_signal"
    layer: Layer = Layer.USERSPACE
    description: str = "SIGTERM to the worker's root process"
    expected: Mapping[str, float] = field(
        default_factory=lambda: {"process_watch": 2.0, "state_watch": 2.0}
    )
    recoveries: tuple[str, ...] = (Recovery.COLD, Recovery.WARM_CACHE, Recovery.RESTORE)
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"signal": "SIGTERM"})

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """Nothing beside what holds for every fault."""
        return ()

    def prepare(self, context: FaultContext) -> Injection:
        """Nothing to make ready."""
        return AskToEnd(context)


class AskToEnd(Injection):
    """One injection."""

    def detectors(self) -> Sequence[Detector]:
        """What watches besides the detectors that watch every experiment."""
        return (StateWatch(self.target.running),)

    def inject(self) -> None:
        """The act."""
        self.target.running.process.send(signal.SIGTERM)

    def prove_effect(self) -> Proof:
        """From another source than the act: the kernel's list of processes."""
        source = "/proc"
        pid = self.target.running.process.pid
        try:
            wait_until(self._ended, EFFECT_DEADLINE_S, "The worker ends", 0.01)
        except DeadlineError:
            return Proof(proved=False, source=source, detail=f"{pid} lives on")
        return Proof(proved=True, source=source, detail=f"{pid} has ended")

    def roll_back(self) -> None:
        """An end can't be undone: what is left of the worker is ended too."""
        if not self.target.alive():
            self.target.stop()

    def prove_rollback(self) -> Proof:
        """Nothing of it is left, or, in a control arm, it lives as before."""
        living = [process.pid for process in self.target.living()]
        left = living if not self.target.alive() else []
        return Proof(proved=not left, source="/proc", detail=f"still there: {left or 'none'}")

    def _ended(self) -> bool:
        pid = self.target.running.process.pid
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
