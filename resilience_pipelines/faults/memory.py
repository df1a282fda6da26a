"""Faults of memory: the kernel's OOM killer, and an address space that may not grow.

What belongs here: the strategy `memory_pressure`. What does not: cgroups as such (`cgroup`).

Both keep the pressure inside: the first in a memory cgroup that holds nothing but the worker and a
helper, the second in the worker's own address space. The machine's memory is never at stake.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.cgroup_events import CgroupEvents, read_oom_kills
from resilience_pipelines.errors import DeadlineError, ResilienceError, UnsupportedError
from resilience_pipelines.faults.cgroup import ENTER, MemoryCgroup, find_place, inside
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
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.space import wait_until

STRATEGY = "memory_pressure"
HEADROOM_BYTES = 16 * 2**20
HELD_CONNECTIONS = 32
EFFECT_DEADLINE_S = 10.0
_PROBE_TIMEOUT_S = 1.0
_STEP_S = 0.01
_END_GRACE_S = 0.5
_HELPER_DEADLINE_S = 10.0

# Takes as many bytes as the line says, and keeps them until its input ends: when this process lets
# go of it, or dies.
_EAT = """
import sys
sys.stdout.write("ready\\n")
sys.stdout.flush()
kept = []
for _ in range(int(sys.stdin.readline() or 0) >> 20):
    kept.append(bytearray(1 << 20))
sys.stdin.read()
"""


@dataclass(frozen=True)
class MemoryExhausted:
    """The worker's memory cgroup has no room left, and the kernel kills."""

    name: str = "memory_exhausted"
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    description: str = "the worker's own memory cgroup filled up until the kernel's OOM killer acts"
    expected: Mapping[str, float] = field(
        default_factory=lambda: {
            "cgroup_events": 2.0,
            "kernel_log": 2.0,
            "process_watch": 3.0,
            "health_probe": 5.0,
            "canary": 7.0,
        }
    )
    recoveries: tuple[str, ...] = (Recovery.WARM_CACHE, Recovery.RESTORE)
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"headroom_bytes": HEADROOM_BYTES}
    )

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`. The common ones are enough: the limit keeps the pressure inside."""
        return ()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        try:
            cgroup = MemoryCgroup(find_place())
        except (UnsupportedError, OSError) as error:
            raise ObstacleError(FaultReason.NO_MEMORY_CGROUP, str(error)) from error
        return OomInjection(context, cgroup)


class OomInjection(Injection):
    """One memory cgroup, and a helper in it that eats."""

    def __init__(self, context: FaultContext, cgroup: MemoryCgroup) -> None:
        super().__init__(context)
        self._cgroup = cgroup
        self._helper: subprocess.Popen[str] | None = None
        self._kills_before = 0
        self._limit_bytes: int | None = None

    @property
    def worker(self) -> Worker:
        """The worker, started inside the cgroup, so that its memory is charged there."""
        return inside(self.context.worker, self._cgroup.folder)

    @property
    def cgroup(self) -> Path:
        """See `Injection.cgroup`."""
        return self._cgroup.folder

    def attach(self, target: Target) -> None:
        """Start the helper, which waits; in a control arm it stays at that."""
        super().attach(target)
        outside = {member.pid for member in target.members} - set(self._cgroup.pids())
        if outside:
            raise ResilienceError(f"Processes {sorted(outside)} of the worker left its cgroup.")
        self._kills_before = read_oom_kills(self._cgroup.folder)
        self._helper = subprocess.Popen(
            ["sh", "-c", ENTER, "sh", str(self._cgroup.folder),
             sys.executable, "-I", "-S", "-c", _EAT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, start_new_session=True, cwd="/",
        )  # fmt: skip
        assert self._helper.stdout is not None
        ready, _, _ = select.select([self._helper.stdout], [], [], _HELPER_DEADLINE_S)
        if not ready or self._helper.stdout.readline() != "ready\n":
            raise ResilienceError("The helper could not be started inside the memory cgroup.")

    def detectors(self) -> Sequence[Detector]:
        """The kernel's count for this cgroup."""
        return (CgroupEvents(self._cgroup.folder),)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {"cgroup_version": self._cgroup.version, "limit_bytes": self._limit_bytes}

    def inject(self) -> None:
        """Lower the limit to little more than what is used, then let the helper eat the rest."""
        self._limit_bytes = self._cgroup.set_limit_near_usage(HEADROOM_BYTES)
        assert self._helper is not None
        assert self._helper.stdin is not None
        self._helper.stdin.write(f"{self._limit_bytes}\n")
        self._helper.stdin.flush()

    def prove_effect(self) -> Proof:
        """The kernel counts a kill in the cgroup, and the worker is gone or no longer answers."""
        source = "kernel's count of OOM kills in the cgroup, and the worker"

        def killed() -> int:
            return read_oom_kills(self._cgroup.folder) - self._kills_before

        try:
            wait_until(lambda: killed() > 0, EFFECT_DEADLINE_S, "An OOM kill", _STEP_S)
            wait_until(self._lost, EFFECT_DEADLINE_S, "The worker is lost", _STEP_S)
        except DeadlineError:
            return Proof(
                proved=False, source=source, detail=f"{killed()} kills, and the worker serves"
            )
        state = "does not answer" if self.target.alive() else "has ended"
        return Proof(proved=True, source=source, detail=f"{killed()} kills, the worker {state}")

    def _lost(self) -> bool:
        # It takes a moment from the kill to the end of a process with much memory.
        gone = self.target.running.process.wait_gone(_END_GRACE_S)
        return gone or not completes(self.target, _PROBE_TIMEOUT_S)

    def roll_back(self) -> None:
        """Let a worker that lives go on without the limit, and remove the cgroup."""
        self._end_helper()
        if self.target.alive():
            self._cgroup.lift()
        else:
            self.target.stop()
        self._cgroup.remove()

    def prove_rollback(self) -> Proof:
        """The cgroup is gone, and nothing of a worker that died is left."""
        if self._cgroup.folder.exists():
            return Proof(
                proved=False, source="/sys/fs/cgroup", detail=f"{self._cgroup.folder} is there"
            )
        remains = prove_no_remains(self.target)
        return Proof(
            proved=remains.proved,
            source="/sys/fs/cgroup and /proc",
            detail=f"the cgroup is removed, {remains.detail}",
        )

    def close(self) -> None:
        """See `Injection.close`."""
        self._end_helper()
        self._cgroup.remove()

    def _end_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        helper.kill()
        for pipe in (helper.stdin, helper.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        helper.wait(_HELPER_DEADLINE_S)


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


class AddressSpaceInjection(Injection):
    """One lowered limit, and the load under which the worker needs more."""

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._before: dict[psutil.Process, tuple[int, int]] = {}
        self._limit_bytes: int | None = None

    def attach(self, target: Target) -> None:
        """Open the connections: the control arm has them too, so that they are not the fault."""
        super().attach(target)
        for member in target.members:
            limits = resource.prlimit(member.pid, resource.RLIMIT_AS)
            try:
                resource.prlimit(member.pid, resource.RLIMIT_AS, limits)
            except OSError as error:
                raise ObstacleError(
                    FaultReason.NO_RESOURCE_LIMIT,
                    f"RLIMIT_AS of process {member.pid} can't be set ({error.strerror})",
                ) from error
            self._before[member] = limits
        target.clients.callback(_HeldConnections(target, HELD_CONNECTIONS).close)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {"limit_bytes": self._limit_bytes}

    def inject(self) -> None:
        """Lower the soft limit alone: a hard limit could not be raised again."""
        self._limit_bytes = self.target.members[0].memory_info().vms // 2
        for member, (_, hard) in self._before.items():
            resource.prlimit(member.pid, resource.RLIMIT_AS, (self._limit_bytes, hard))

    def prove_effect(self) -> Proof:
        """More is mapped than the limit in force allows, and the worker does not answer."""
        source = "/proc/PID/limits, /proc/PID/statm and client"

        def lost() -> bool:
            if not self.target.alive():
                return True
            root = self.target.members[0]
            try:
                limit = read_address_space_limit(root.pid)
                mapped = root.memory_info().vms
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                return False  # it is ending: the next look says so
            limited = limit is not None and limit < mapped
            return limited and not completes(self.target, _PROBE_TIMEOUT_S)

        try:
            wait_until(lost, EFFECT_DEADLINE_S, "Allocations fail", _STEP_S)
        except DeadlineError:
            return Proof(proved=False, source=source, detail="the worker answers")
        state = "does not answer" if self.target.alive() else "has ended"
        return Proof(proved=True, source=source, detail=f"the worker {state}")

    def roll_back(self) -> None:
        """Close the connections, and give a worker that lives its limit back."""
        self.target.clients.close()
        if not self.target.alive():
            self.target.stop()
        for member in self.target.living():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(member.pid, resource.RLIMIT_AS, self._before[member])

    def prove_rollback(self) -> Proof:
        """No process has the limit any more."""
        source = "/proc/PID/limits"
        for member in self.target.living():
            soft = self._before[member][0]
            wanted = None if soft == resource.RLIM_INFINITY else soft
            found = read_address_space_limit(member.pid)
            if found != wanted:
                return Proof(
                    proved=False, source=source, detail=f"{member.pid}: limit {found}, not {wanted}"
                )
        return prove_no_remains(self.target)


def read_address_space_limit(pid: int) -> int | None:
    """The soft RLIMIT_AS of a process in bytes; None when it has none.

    Raises:
        OSError: it has ended.
    """
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        if line.startswith("Max address space"):
            word = line.removeprefix("Max address space").split()[0]
            return None if word == "unlimited" else int(word)
    raise OSError(f"/proc/{pid}/limits has no line for the address space")


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
