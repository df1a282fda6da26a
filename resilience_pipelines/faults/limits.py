"""Faults by limits of a process: an address space that may not grow, no more file descriptors.

What belongs here: the strategy `resource_limit`. What does not: memory cgroups (`memory`).

A limit holds in the worker's own processes alone. Only soft limits are lowered: a hard one could
not be raised again.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

from resilience_pipelines.faults.fault import (
    FaultContext,
    Guard,
    Injection,
    ObstacleError,
    Target,
)
from resilience_pipelines.faults.process import completes, prove_no_remains
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.space import holds_within

STRATEGY = "resource_limit"
HELD_CONNECTIONS = 32
EFFECT_DEADLINE_S = 10.0
_PROBE_TIMEOUT_S = 1.0
_STEP_S = 0.01
_SETTLING_S = 0.2


@dataclass(frozen=True)
class AddressSpaceExhausted:
    """The worker may not map any more memory: allocations and new threads fail inside it."""

    name: str = "address_space_exhausted"
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE
    description: str = "RLIMIT_AS below what the worker has mapped, under many open connections"
    expected: Mapping[str, float] = field(
        default_factory=lambda: {"health_probe": 3.0, "canary": 5.0}
    )
    recoveries: tuple[str, ...] = (Recovery.WARM_CACHE, Recovery.RESTORE)
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"connections": HELD_CONNECTIONS})

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return ()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        return AddressSpaceInjection(context)


@dataclass(frozen=True)
class FileDescriptorsExhausted:
    """The worker may not open anything any more: it can't accept the next connection."""

    name: str = "file_descriptors_exhausted"
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE
    description: str = "RLIMIT_NOFILE at what the worker has open: no connection can be accepted"
    expected: Mapping[str, float] = field(
        default_factory=lambda: {"health_probe": 3.0, "canary": 5.0}
    )
    recoveries: tuple[str, ...] = (Recovery.WARM_CACHE, Recovery.RESTORE)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return ()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        return FileDescriptorsInjection(context)


class LimitInjection(Injection):
    """One lowered soft limit of all of a worker's processes."""

    resource: ClassVar[int]
    label: ClassVar[str]
    """How /proc/PID/limits names it."""

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._before: dict[psutil.Process, tuple[int, int]] = {}
        self._limit: int | None = None

    @abstractmethod
    def new_limit(self) -> int:
        """What the limit is lowered to."""

    @abstractmethod
    def used(self, root: psutil.Process) -> int:
        """How much of what is limited the worker's root process has in use, from /proc."""

    def attach(self, target: Target) -> None:
        """See that the limits can be set, and remember them.

        Raises:
            ObstacleError: they can't.
        """
        super().attach(target)
        for member in target.members:
            limits = resource.prlimit(member.pid, self.resource)
            try:
                resource.prlimit(member.pid, self.resource, limits)
            except OSError as error:
                raise ObstacleError(
                    FaultReason.NO_RESOURCE_LIMIT,
                    f"{self.label} of process {member.pid} can't be set ({error.strerror})",
                ) from error
            self._before[member] = limits

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {"limit": self._limit}

    def inject(self) -> None:
        """Lower the soft limit of every process."""
        self._limit = self.new_limit()
        for member, (_, hard) in self._before.items():
            resource.prlimit(member.pid, self.resource, (self._limit, hard))

    def prove_effect(self) -> Proof:
        """The limit in force is used up, and the worker does not answer."""
        source = "/proc/PID and client"

        def lost() -> bool:
            if not self.target.alive():
                return True
            root = self.target.members[0]
            try:
                limit = read_limit(root.pid, self.label)
                used = self.used(root)
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                return False  # it is ending: the next look says so
            limited = limit is not None and limit <= used
            return limited and not completes(self.target, _PROBE_TIMEOUT_S)

        if not holds_within(lost, EFFECT_DEADLINE_S, _STEP_S):
            return Proof(proved=False, source=source, detail="the worker answers")
        state = "does not answer" if self.target.alive() else "has ended"
        return Proof(
            proved=True, source=source, detail=f"{self.label} is {self._limit}, the worker {state}"
        )

    def roll_back(self) -> None:
        """Give a worker that lives its limits back."""
        if not self.target.alive():
            self.target.stop()
        for member in self.target.living():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(member.pid, self.resource, self._before[member])

    def prove_rollback(self) -> Proof:
        """No process has the limit any more."""
        source = "/proc/PID/limits"
        for member in self.target.living():
            soft = self._before[member][0]
            wanted = None if soft == resource.RLIM_INFINITY else soft
            found = read_limit(member.pid, self.label)
            if found != wanted:
                return Proof(
                    proved=False, source=source, detail=f"{member.pid}: limit {found}, not {wanted}"
                )
        return prove_no_remains(self.target)


class AddressSpaceInjection(LimitInjection):
    """RLIMIT_AS, and the load under which the worker needs more."""

    resource = resource.RLIMIT_AS
    label = "Max address space"

    def attach(self, target: Target) -> None:
        """Open the connections: the control arm has them too, so that they are not the fault."""
        super().attach(target)
        target.clients.callback(_HeldConnections(target, HELD_CONNECTIONS).close)

    def new_limit(self) -> int:
        """Half of what is mapped, in bytes."""
        mapped: int = self.target.members[0].memory_info().vms
        return mapped // 2

    def used(self, root: psutil.Process) -> int:
        """Bytes that are mapped."""
        mapped: int = root.memory_info().vms
        return mapped

    def roll_back(self) -> None:
        """Close the connections too."""
        self.target.clients.close()
        super().roll_back()


class FileDescriptorsInjection(LimitInjection):
    """RLIMIT_NOFILE. The numbers of new descriptors have to be below it, the open ones stay."""

    resource = resource.RLIMIT_NOFILE
    label = "Max open files"

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._lowest_free = 0

    def attach(self, target: Target) -> None:
        """Find the lowest number that is free while nobody is connected."""
        super().attach(target)
        end = time.monotonic() + _SETTLING_S
        root = target.members[0]
        # A connection of the last answer may still be closing: the lowest of several looks counts.
        found = [lowest_free_descriptor(root.pid)]
        while time.monotonic() < end:
            time.sleep(_STEP_S)
            found.append(lowest_free_descriptor(root.pid))
        self._lowest_free = min(found)

    def new_limit(self) -> int:
        """The lowest free number: the next descriptor would get it, and may not."""
        return self._lowest_free

    def used(self, root: psutil.Process) -> int:
        """The number that the next descriptor would get."""
        return lowest_free_descriptor(root.pid)


def lowest_free_descriptor(pid: int) -> int:
    """The number that a process's next file descriptor would get without a limit.

    Raises:
        OSError: it has ended.
    """
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def read_limit(pid: int, label: str) -> int | None:
    """A soft limit of a process, as /proc/PID/limits names it; None when it has none.

    Raises:
        OSError: it has ended.
    """
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        if line.startswith(label):
            word = line.removeprefix(label).split()[0]
            return None if word == "unlimited" else int(word)
    raise OSError(f"/proc/{pid}/limits has no line {label!r}")


class _HeldConnections:
    """Keeps connections open that ask nothing, as clients with keep-alive do."""

    _STEP_S = 0.05

    def __init__(self, target: Target, count: int) -> None:
        self._target = target
        self._stopping = threading.Event()
        self._sockets: list[socket.socket] = []
        self._pool = ThreadPoolExecutor(1, "held-connections")
        for _ in range(count):
            self._sockets.append(self._connect())
        self._kept: Future[None] = self._pool.submit(self._keep)

    def _connect(self) -> socket.socket:
        connection = self._target.running.space.socket()
        connection.setblocking(False)
        # What becomes of it shows later: one that is refused or reset is tried again.
        connection.connect_ex(("127.0.0.1", self._target.running.plan.port))
        return connection

    def _keep(self) -> None:
        while not self._stopping.wait(self._STEP_S):
            # The worker never has anything to say: what is readable has been closed.
            poller = select.poll()
            for connection in self._sockets:
                poller.register(connection, select.POLLIN)
            closed = {handle for handle, _ in poller.poll(0)}
            for place, connection in enumerate(self._sockets):
                if connection.fileno() in closed:
                    connection.close()
                    self._sockets[place] = self._connect()

    def close(self) -> None:
        """Close all of them. Raises what ended the thread, if anything did."""
        self._stopping.set()
        try:
            self._kept.result(EFFECT_DEADLINE_S)
        finally:
            self._pool.shutdown(wait=False)
            for connection in self._sockets:
                connection.close()
