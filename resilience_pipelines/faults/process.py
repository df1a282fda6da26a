"""Faults by signals to a worker's processes: killed, and hung.

What belongs here: the strategy `process_signal`. What does not: faults of what processes use.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, Target
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.client import WorkerRequestError
from resilience_pipelines.workers.space import holds_within

STRATEGY = "process_signal"
EFFECT_DEADLINE_S = 5.0
PROBE_TIMEOUT_S = 0.5
_STEP_S = 0.005


@dataclass(frozen=True)
class WorkerKilled:
    """The worker's root process is killed, as by a crash or an impatient supervisor."""

    name: str = "worker_killed"
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE
    description: str = "SIGKILL to the worker's root process"
    expected: Mapping[str, float] = field(
        default_factory=lambda: {"process_watch": 1.0, "health_probe": 3.0, "canary": 5.0}
    )
    recoveries: tuple[str, ...] = (Recovery.COLD, Recovery.WARM_CACHE, Recovery.RESTORE)
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"signal": "SIGKILL"})

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return ()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        return KillInjection(context)


class KillInjection(Injection):
    """One kill."""

    def inject(self) -> None:
        """See `Injection.inject`."""
        self.target.running.process.send(signal.SIGKILL)

    def prove_effect(self) -> Proof:
        """The process has ended, and nobody listens on its port any more."""
        running = self.target.running

        def lost() -> bool:
            return not self.target.alive() and connection_refused(self.target)

        source = "pidfd and TCP connect"
        if not holds_within(lost, EFFECT_DEADLINE_S, _STEP_S):
            state = "lives" if self.target.alive() else "has ended, but its port still answers"
            return Proof(proved=False, source=source, detail=f"{running.process.pid} {state}")
        return Proof(
            proved=True, source=source, detail=f"{running.process.pid} ended, connection refused"
        )

    def roll_back(self) -> None:
        """A kill can't be undone; what is left of the worker is ended."""
        if not self.target.alive():
            self.target.stop()

    def prove_rollback(self) -> Proof:
        """See `Injection.prove_rollback`."""
        return prove_no_remains(self.target)


@dataclass(frozen=True)
class WorkerHung:
    """All of the worker's processes stop, as in a deadlock: it accepts connections, no more."""

    name: str = "worker_hung"
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE
    description: str = "SIGSTOP to all processes of the worker; connections are still accepted"
    expected: Mapping[str, float] = field(
        default_factory=lambda: {"health_probe": 3.0, "canary": 5.0}
    )
    recoveries: tuple[str, ...] = (Recovery.WARM_CACHE, Recovery.RESTORE, Recovery.RESUME)
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"signal": "SIGSTOP"})

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return ()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        return StopInjection(context)


class StopInjection(Injection):
    """One stop."""

    def inject(self) -> None:
        """See `Injection.inject`."""
        self.target.running.process.signal_tree(signal.SIGSTOP)

    def prove_effect(self) -> Proof:
        """All tasks are in state T, and a completion does not come back."""
        source = "/proc/PID/task/*/stat and client"

        def stopped() -> bool:
            states = self._states()
            return bool(states) and set(states) == {"T"}

        if not holds_within(stopped, EFFECT_DEADLINE_S, _STEP_S):
            return Proof(
                proved=False, source=source, detail=f"states {''.join(self._states()) or 'unknown'}"
            )
        answered = completes(self.target, PROBE_TIMEOUT_S)
        return Proof(
            proved=not answered,
            source=source,
            detail=f"{len(self._states())} tasks in state T, "
            + (f"{'an' if answered else 'no'} answer within {PROBE_TIMEOUT_S:g} s"),
        )

    def roll_back(self) -> None:
        """Let whatever is left of it go on."""
        if self.target.alive():
            self.target.running.process.signal_tree(signal.SIGCONT)

    def prove_rollback(self) -> Proof:
        """No task of the worker is stopped any more; all have gone where it was replaced."""

        def none_stopped() -> bool:
            return "T" not in self._states()

        source = "/proc/PID/task/*/stat"
        if not holds_within(none_stopped, EFFECT_DEADLINE_S, _STEP_S):
            return Proof(proved=False, source=source, detail=f"states {''.join(self._states())}")
        return Proof(proved=True, source=source, detail=f"{len(self._states())} tasks, none in T")

    def _states(self) -> list[str]:
        return [state for member in self.target.living() for state in task_states(member.pid)]


def task_states(pid: int) -> list[str]:
    """The state letter of each task (thread) of a process; empty when it has ended."""
    states = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # The name in parentheses may hold anything, parentheses and spaces included.
                states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def connection_refused(target: Target) -> bool:
    """Whether nobody listens on the worker's port."""
    with target.running.space.socket() as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(("127.0.0.1", target.running.plan.port))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def completes(target: Target, timeout_s: float) -> bool:
    """Whether the worker gives any completion in time."""
    try:
        target.running.client.complete("Are you there?", 1, timeout_s=timeout_s)
    except WorkerRequestError:
        return False
    return True


def prove_no_remains(target: Target) -> Proof:
    """Either the worker lives as before, or none of its processes is left."""
    source = "/proc"
    if not holds_within(lambda: target.alive() or not target.living(), EFFECT_DEADLINE_S, _STEP_S):
        pids = ", ".join(str(member.pid) for member in target.living())
        return Proof(proved=False, source=source, detail=f"still there: {pids}")
    detail = "the worker lives" if target.alive() else "none of its processes is left"
    return Proof(proved=True, source=source, detail=detail)
