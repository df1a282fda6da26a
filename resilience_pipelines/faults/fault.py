"""What a fault is to an experiment: its definition, and one injection of it into one worker.

What belongs here: the protocol of a fault, the base of an injection, the worker it hits and what an
experiment works with. What does not: any one fault (a module for each strategy), and the order of
an experiment's steps (`experiment`).
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psutil

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.telemetry import Telemetry
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.oracle import RecordedAnswer
from resilience_pipelines.workers.pod import PodPlace
from resilience_pipelines.workers.process import RunningWorker
from resilience_pipelines.workers.space import SpaceSupport


class ObstacleError(ResilienceError):
    """An experiment can't be made.

    Args:
        code: the reason code that the record gets.
        reason: why, in words.
        applicable: False: this machine can't do it. True: it could, and something is missing now.
    """

    def __init__(self, code: str, reason: str, *, applicable: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.applicable = applicable


@dataclass(frozen=True)
class FaultContext:
    """What an experiment works with.

    Attributes:
        answer: the oracle's answer, recorded from a worker that was well.
        engine: None where snapshots can't be restored here; `no_engine_why` says why.
        snapshot: None where none was taken; `no_snapshot_why` says why.
        warm_cache: the folder of filled compile caches.
        evidence: a folder for logs of what failed.
        scratch: a folder for what lives as long as one experiment.
        port: where workers in a capsule shall listen.
        abort: an operator sets it to end the run; what was injected is rolled back first.
        deadline_s: limit of one experiment; by default one that follows from the worker's own.
        cluster: where workers may be started in pods; None where that is not allowed or not
            possible, and `no_cluster_why` says why.
        backend: what the ranks of training jobs shall speak through; None: what suits the machine.
    """

    worker: Worker
    support: SpaceSupport
    answer: RecordedAnswer
    engine: SnapshotEngine | None
    no_engine_why: str
    snapshot: StoredSnapshot | None
    no_snapshot_why: str
    warm_cache: Path
    evidence: Path
    scratch: Path
    telemetry: Telemetry
    port: int | None = None
    abort: threading.Event = field(default_factory=threading.Event)
    deadline_s: float | None = None
    cluster: PodPlace | None = None
    no_cluster_why: str = ""
    backend: str | None = None

    def limit_s(self) -> float:
        """The limit of one experiment, in seconds: two starts, some requests and a minute."""
        if self.deadline_s is not None:
            return self.deadline_s
        return 2 * self.worker.start_deadline_s + 5 * self.worker.request_deadline_s + 60


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended (a zombie has)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Target:
    """The worker that a fault is injected into, with all processes that it had then.

    Attributes:
        clients: what speaks with it; closed before it is stopped.
    """

    def __init__(self, running: RunningWorker) -> None:
        self.running = running
        self.clients = ExitStack()
        self.members = tuple(running.process.tree())
        self._stopped = False

    @property
    def on_this_machine(self) -> bool:
        """Whether its processes are this kernel's."""
        return self.running.space.on_this_machine

    def alive(self) -> bool:
        """Whether its root process lives, if only stopped by a signal."""
        return not self._stopped and self.running.process.alive()

    def living(self) -> list[psutil.Process]:
        """Those of its processes that have not ended (a zombie has)."""
        return [member for member in self.members if lives(member)]

    def end_survivors(self) -> None:
        """End what is left of a worker whose root has died, as it may hold memory or a device."""
        for member in self.living():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()

    def stop(self) -> None:
        """End everything in its space. Detectors that watch it have to be stopped before."""
        if not self._stopped:
            self._stopped = True
            self.clients.close()
            self.running.stop()


@dataclass(frozen=True)
class Elsewhere:
    """A worker that was started on another machine.

    Attributes:
        context: what its experiment works with: its own answer is the oracle's, since another
            CPU may round otherwise.
    """

    running: RunningWorker
    context: FaultContext


class Injection(ABC):
    """One use of a fault. It owns what it puts in place, and `close` removes it whatever happened.

    The order of calls: made by `Fault.prepare`; `attach` once the worker serves; `inject` (not in a
    control arm), `prove_effect`; `broken_expectation`; `roll_back`, `prove_rollback`; `close`.
    """

    hits_worker: ClassVar[bool] = True
    """Whether the worker itself is lost, so that recovering replaces or repairs it."""

    def __init__(self, context: FaultContext) -> None:
        self.context = context
        self._target: Target | None = None

    @property
    def worker(self) -> Worker:
        """The worker to start as target, where a fault needs it started in some special way."""
        return self.context.worker

    @property
    def target(self) -> Target:
        """The worker it is attached to."""
        assert self._target is not None, "attach comes first"
        return self._target

    def start_elsewhere(self) -> Elsewhere | None:
        """Start the worker to hit, where that is not one of this machine's (None).

        Raises:
            ResilienceError: it did not start, and nothing that was started stays.
        """
        return None

    @property
    def hidden_by_recovery(self) -> bool:
        """Whether recovering hides the fault from the detectors: what it hit lives on until then,
        and has to be ended or continued.
        """
        return self.hits_worker and self.target.alive()

    @property
    def cgroup(self) -> Path | None:
        """The memory cgroup that holds the target alone, where it has one."""
        return None

    @property
    def helpers(self) -> Collection[int]:
        """Processes of its own, beside the worker's, that the kernel's log may name."""
        return ()

    def attach(self, target: Target) -> None:
        """Get to know the worker, which serves.

        Raises:
            ObstacleError: the fault can't be injected into it.
        """
        self._target = target

    def detectors(self) -> Sequence[Detector]:
        """Detectors for what this injection alone touches."""
        return ()

    def unavailable_detectors(self) -> Mapping[str, str]:
        """Detectors that are for this fault and can't work here, and why of each."""
        return {}

    def parameters(self) -> Mapping[str, Any]:
        """Values for the record that became known while it was made."""
        return {}

    @abstractmethod
    def inject(self) -> None:
        """The act.

        Raises:
            OSError, ResilienceError, psutil.Error: it could not be done, or only in part.
        """

    @abstractmethod
    def prove_effect(self) -> Proof:
        """Evidence of the effect, from another source than the act; waits for it for a while."""

    def broken_expectation(self) -> str | None:
        """What should hold while the fault is in place and does not; None when all is as it should.

        Called as the first step of the recovery.
        """
        return None

    def come_back(self) -> tuple[int, bool]:
        """Bring back what was hit, where that is not the worker: the recovery `checkpoint`.

        Returns:
            CLOCK_MONOTONIC in ns of its first result after that, and whether that is right.

        Raises:
            ResilienceError, OSError: it did not come back.
        """
        raise NotImplementedError

    @abstractmethod
    def roll_back(self) -> None:
        """Undo the act. Called also when it was not done or failed, and in control arms."""

    @abstractmethod
    def prove_rollback(self) -> Proof:
        """Evidence that nothing of the fault is left, from another source than the undoing."""

    def close(self) -> None:  # noqa: B027 - not every one owns something
        """Let go of everything, also when the rollback failed. May be called twice."""


class Guard(Protocol):
    """A condition without which nothing is injected."""

    @property
    def name(self) -> str:
        """What it guards."""
        ...

    def objection(self, target: Target | None) -> str | None:
        """Why not; None when nothing speaks against it.

        Args:
            target: the worker; None before it is started.
        """


class Fault(Protocol):
    """A fault as the catalogue knows it; immutable."""

    @property
    def name(self) -> str:
        """How a user names it, in snake case."""
        ...

    @property
    def strategy(self) -> str:
        """How it is injected; faults of one strategy share a module."""
        ...

    @property
    def layer(self) -> Layer:
        """How deep it reaches."""
        ...

    @property
    def description(self) -> str:
        """One line for the catalogue."""
        ...

    @property
    def expected(self) -> Mapping[str, float]:
        """Detectors that have to see it, and within how many seconds."""
        ...

    @property
    def recoveries(self) -> tuple[str, ...]:
        """The ways to recover that make sense for it (`recovery.RECOVERIES`)."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What sets it apart from other faults of its strategy, for the record."""
        ...

    def guards(self, context: FaultContext) -> Sequence[Guard]:
        """Conditions beside those that hold for every fault (`guards.common`)."""
        ...

    def prepare(self, context: FaultContext) -> Injection:
        """Make ready for one injection, before the worker is started.

        Raises:
            ObstacleError: it can't be done on this machine.
            OSError, ResilienceError: it failed; nothing that was made stays.
        """
        ...
