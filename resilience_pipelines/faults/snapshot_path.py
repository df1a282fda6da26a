"""Faults of a snapshot or a restore under way: CRIU killed half-way, the worker killed beneath it.

What belongs here: the strategy `snapshot_path`: running one operation to a point in its middle and
ending one of its processes there. What does not: the operation (`operation`) and what it does about
a failure (`snapshots.engine`), and a store or an image that is damaged (`snapshot_store`,
`snapshot_image`).

CRIU is stopped and continued in short steps until it is where the fault belongs: on a fast machine
a dump is over before a process that waits for it wakes up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, lives
from resilience_pipelines.faults.guards import FreeDisk
from resilience_pipelines.faults.lease import Lease
from resilience_pipelines.faults.operation import (
    STAGE_DEADLINE_S,
    Dump,
    Operation,
    OperationInjection,
    Restore,
    engine_of,
)
from resilience_pipelines.faults.recovery import Recovery, check_possible
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.workers.space import holds_within, wait_until

STRATEGY = "snapshot_path"
FAMILY = "snapshot_cut_short"
EFFECT_DEADLINE_S = 5.0
_LEASE_DEADLINE_S = 10.0
_CONTINUE_DEADLINE_S = 5.0
_STEP_S = 0.0005
_SPARE_BYTES = 256 * 2**20

# A CRIU that was stopped when the platform died would never end by itself.
_UNDO = """
if grep -qz swrk "/proc/$1/cmdline" 2>/dev/null; then kill -KILL -- "-$1"; fi
true
"""


class Cut(StrEnum):
    """Which process is killed, and in the middle of what."""

    CRIU_IN_DUMP = "criu_in_dump"
    WORKER_IN_DUMP = "worker_in_dump"
    CRIU_IN_RESTORE = "criu_in_restore"


_DESCRIPTIONS = {
    Cut.CRIU_IN_DUMP: "CRIU killed while it writes memory pages; the worker has to serve on",
    Cut.WORKER_IN_DUMP: "the worker killed while CRIU writes its memory pages",
    Cut.CRIU_IN_RESTORE: "CRIU killed when it has made the first process of a restore",
}


@dataclass(frozen=True)
class SnapshotCutShort:
    """A snapshot or a restore is under way, and a process of it is killed."""

    cut: Cut
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    expected: Mapping[str, float] = field(default_factory=lambda: {"operation_watch": 30.0})

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"{FAMILY}_{self.cut}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return f"{_DESCRIPTIONS[self.cut]}; nothing partial may stay"

    @property
    def recoveries(self) -> tuple[str, ...]:
        """See `Fault.recoveries`."""
        if self.cut is Cut.CRIU_IN_DUMP:
            return (Recovery.RESUME,)
        return (Recovery.WARM_CACHE, Recovery.RESTORE)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"cut": self.cut.value}

    def guards(self, context: FaultContext) -> Sequence[Guard]:
        """See `Fault.guards`. A dump that is cut short has written part of an image."""
        image = context.snapshot.manifest.image_bytes if context.snapshot else 0
        return (FreeDisk(context.scratch, 2 * image + _SPARE_BYTES),)

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        engine = engine_of(context)
        if self.cut is Cut.CRIU_IN_RESTORE:
            check_possible(Recovery.RESTORE, context)
            assert context.snapshot is not None
            return RestoreCut(context, engine, context.snapshot)
        if self.cut is Cut.CRIU_IN_DUMP:
            return DumpCut(context, engine)
        return WorkerCut(context, engine)


class _CutInjection(OperationInjection):
    """One operation that is cut short."""

    def __init__(self, context: FaultContext, right_codes: frozenset[str]) -> None:
        super().__init__(context, right_codes)
        self._lease: Lease | None = None
        self._victims: list[psutil.Process] = []
        self._progress = ""

    def inject(self) -> None:
        """Run the operation to its middle and kill."""
        self.start(self._make_operation())
        session = self._find_session()
        self._lease = Lease(f"CRIU's session {session.pid}", _UNDO, str(session.pid))
        self._stop_in_the_middle(session)
        try:
            self._victims = self._kill(session)
        finally:
            _continue(session)

    def prove_effect(self) -> Proof:
        """The killed processes are gone, and the operation had begun and was not done."""
        holds_within(lambda: not self._alive(), EFFECT_DEADLINE_S, _STEP_S)
        alive = len(self._alive())
        ended = len(self._victims) - alive
        return Proof(
            proved=ended > 0 and not alive and bool(self._progress),
            source="process table",
            detail=f"{ended} processes ended, {alive} did not; {self._progress}",
        )

    def left_behind(self) -> str | None:
        """Also, no process of the operation may live."""
        alive = self._alive()
        return f"processes {alive} still live" if alive else super().left_behind()

    def prove_rollback(self) -> Proof:
        """Also, nobody waits any more for this process to die."""
        if self._lease is not None:
            detail = "the watchdog of the operation is still there"
            return Proof(proved=False, source="process table", detail=detail)
        return super().prove_rollback()

    def finish(self) -> None:
        """Also, let the watchdog go."""
        super().finish()
        if self._lease is not None:
            self._lease.release(_LEASE_DEADLINE_S)
            self._lease = None

    def _find_session(self) -> psutil.Process:
        end = time.monotonic() + STAGE_DEADLINE_S
        while time.monotonic() < end and not self.ended:
            pid = _criu_session()
            if pid is not None:
                return psutil.Process(pid)
            time.sleep(_STEP_S)
        raise self.missed("no CRIU was seen")

    def _stop_in_the_middle(self, session: psutil.Process) -> None:
        """Leave CRIU stopped where the fault belongs."""
        end = time.monotonic() + STAGE_DEADLINE_S
        while time.monotonic() < end and not self.ended:
            # Before, CRIU tries out the kernel with children that must not be seen stopped.
            if self._begun(session):
                _signal_all(session, signal.SIGSTOP)
                self._progress = self._in_the_middle(session)
                if self._progress:
                    return
                _continue(session)
            time.sleep(_STEP_S)
        raise self.missed("CRIU was never where it was to be killed")

    @abstractmethod
    def _make_operation(self) -> Operation:
        """The operation to cut short."""

    @abstractmethod
    def _begun(self, session: psutil.Process) -> bool:
        """Whether CRIU has begun with the processes themselves."""

    @abstractmethod
    def _in_the_middle(self, session: psutil.Process) -> str:
        """What shows that the stopped CRIU is where it is to be; empty when it is not there."""

    def _kill(self, session: psutil.Process) -> list[psutil.Process]:
        """Kill CRIU with all it has forked; returns what was killed."""
        victims = [session]
        for pid in _below(session.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                victims.append(psutil.Process(pid))
        _signal_all(session, signal.SIGKILL)
        return victims

    def _alive(self) -> list[int]:
        return [process.pid for process in self._victims if lives(process)]


class DumpCut(_CutInjection):
    """A snapshot for a store of its own, of which CRIU is killed."""

    def __init__(
        self,
        context: FaultContext,
        engine: SnapshotEngine,
        right_codes: frozenset[str] = frozenset({SnapshotReason.DUMP_FAILED}),
    ) -> None:
        super().__init__(context, right_codes)
        self._engine = engine
        self._dump: Dump | None = None

    @property
    def dump(self) -> Dump:
        """The snapshot that is taken, once it is."""
        assert self._dump is not None, "inject comes first"
        return self._dump

    def broken_expectation(self) -> str | None:
        """Also, the worker has to serve afterwards."""
        broken = super().broken_expectation()
        if broken is None and not self.dump.serving_after:
            return "the worker does not serve after the snapshot failed"
        return broken

    def _make_operation(self) -> Operation:
        self._dump = Dump(self.context, self._engine, self.target)
        return self._dump

    def _begun(self, session: psutil.Process) -> bool:  # noqa: ARG002
        return any(self.dump.store.glob(".partial-*/images/*.img"))

    def _in_the_middle(self, session: psutil.Process) -> str:  # noqa: ARG002
        written = sum(
            path.stat().st_size for path in self.dump.store.glob(".partial-*/images/pages-*.img")
        )
        return f"{written} bytes of memory pages were written" if written else ""


class WorkerCut(DumpCut):
    """A snapshot of which the worker itself is killed."""

    hits_worker = True

    def __init__(self, context: FaultContext, engine: SnapshotEngine) -> None:
        # CRIU can't dump what is gone; if it could, the source would not wake.
        codes = frozenset({SnapshotReason.DUMP_FAILED, SnapshotReason.SOURCE_LOST})
        super().__init__(context, engine, codes)

    def broken_expectation(self) -> str | None:
        """The worker is lost, and must not be reported as serving."""
        broken = _CutInjection.broken_expectation(self)
        if broken is None and self.dump.serving_after:
            return "the worker that was killed is reported as serving"
        return broken

    def _kill(self, session: psutil.Process) -> list[psutil.Process]:  # noqa: ARG002
        victims = self.target.living()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        return victims


class RestoreCut(_CutInjection):
    """A restore from the snapshot of which CRIU is killed."""

    def __init__(
        self, context: FaultContext, engine: SnapshotEngine, snapshot: StoredSnapshot
    ) -> None:
        super().__init__(context, frozenset({SnapshotReason.RESTORE_FAILED}))
        self._engine = engine
        self._snapshot = snapshot

    def _make_operation(self) -> Operation:
        return Restore(self.context, self._engine, self._snapshot)

    def _begun(self, session: psutil.Process) -> bool:
        root = self._snapshot.manifest.root_pid
        return any(_inner_pid(pid) == root for pid in _below(session.pid))

    def _in_the_middle(self, session: psutil.Process) -> str:
        if self.ended or not self._begun(session):
            return ""
        return "the root of the restored processes was made"


def _criu_session() -> int | None:
    """The process that this one started as CRIU's; None while there is none."""
    for pid in _children(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"swrk" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
    return None


def _inner_pid(pid: int) -> int | None:
    """Its number in the innermost PID namespace; None when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


def _children(pid: int) -> list[int]:
    """What the threads of a process have forked; nothing when it has ended.

    From the kernel's own list: a look at all processes of the machine takes longer than what is to
    be seen lasts.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                found += map(int, (task / "children").read_text().split())
    return found


def _below(pid: int) -> list[int]:
    """All processes below one, its children first."""
    found = _children(pid)
    return found + [deeper for child in found for deeper in _below(child)]


def _continue(session: psutil.Process) -> None:
    """Continue CRIU's session until its leader waits for CRIU again.

    The leader is `nsenter`, which stops itself when it has seen its child stopped, and that may be
    after the signal. Left stopped, it would never tell how CRIU ended.

    Raises:
        DeadlineError: it does not go on.
    """

    def goes_on() -> bool:
        _signal_all(session, signal.SIGCONT)
        try:
            return session.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_RUNNING)
        except psutil.NoSuchProcess:
            return True

    wait_until(goes_on, _CONTINUE_DEADLINE_S, "CRIU goes on", _STEP_S)


def _signal_all(session: psutil.Process, number: signal.Signals) -> None:
    """To CRIU's whole session, which leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session.pid, number)
