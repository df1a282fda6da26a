"""One stored snapshot on this machine: does it fit, and does its worker come back?

What belongs here: putting a snapshot, its worker and this machine together for a look or a restore.
What does not: the gate's rules (`snapshots.compatibility`), the restore itself (`startup.arms`),
and restores that are recorded (`startup.compatibility`, `startup.benchmark`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resilience_pipelines.context import make_worker, open_machine, read_machine
from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.home import Home
from resilience_pipelines.records import Oracle, OracleVerdict, Phase
from resilience_pipelines.snapshots.compatibility import (
    Incompatibility,
    check,
    this_host,
)
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.manifest import Manifest
from resilience_pipelines.snapshots.settings import open_store
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.startup.arms import restore_worker
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.oracle import check_answer


@dataclass(frozen=True)
class Inspection:
    """A snapshot, and what the gate says of it on this machine."""

    manifest: Manifest
    incompatibilities: tuple[Incompatibility, ...]

    @property
    def restorable(self) -> bool:
        """Whether the gate lets it be restored here."""
        return not any(item.blocking for item in self.incompatibilities)

    def as_dict(self) -> dict[str, Any]:
        """The manifest and the gate's words, ready for JSON."""
        return self.manifest.model_dump(mode="json") | {
            "restorable_here": self.restorable,
            "incompatibilities": [
                {"code": item.code, "blocking": item.blocking, "wanted": item.wanted,
                 "found": item.found}
                for item in self.incompatibilities
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Restore:
    """One restore, after which the worker was ended again.

    Attributes:
        total_s: from the decision to restore to the first token.
        oracle: whether the worker answers as before the snapshot.
    """

    total_s: float
    phases: tuple[Phase, ...]
    oracle: Oracle

    @property
    def right(self) -> bool:
        """Whether the answer is the one from before."""
        return self.oracle.verdict is OracleVerdict.EQUAL

    def as_dict(self) -> dict[str, Any]:
        """Seconds of the whole and of each phase, and the oracle's verdict, ready for JSON."""
        phases = {phase.name: round(phase.duration_s, 4) for phase in self.phases}
        return {"total_s": round(self.total_s, 4), **phases, "oracle": self.oracle.verdict}


def inspect(home: Home, snapshot_id: str) -> Inspection:
    """Look at a snapshot of the local store, and at this machine with the gate's eyes.

    Raises:
        InputError: there is no such snapshot.
        SnapshotError: its manifest can't be used.
        UnsupportedError: its worker can't run on this machine.
    """
    manifest = open_store(home).get(snapshot_id).manifest
    machine = read_machine(make_worker(manifest.worker, home), home)
    return Inspection(manifest, tuple(check(manifest, this_host(machine.stack))))


def restore(home: Home, snapshot_id: str, *, times: int = 1) -> tuple[Restore, ...]:
    """Restore a snapshot, ask the oracle and end the worker, `times` times one after the other.

    Raises:
        InputError: there is no such snapshot, or nothing would be restored.
        UnsupportedError: this machine can't restore.
        SnapshotError: a restore failed; with phase and reason.
        WorkerRequestError, DeadlineError: the worker does not answer.
    """
    if times < 1:
        raise InputError("times", times, "nothing would be restored", mend="Give 1 or more.")
    snapshot = open_store(home).get(snapshot_id)
    worker = make_worker(snapshot.manifest.worker, home)
    with open_machine(worker, home) as machine:
        if machine.engine is None:
            raise UnsupportedError(machine.no_engine_why, mend="`resilience doctor` says more.")
        return tuple(_restore(machine.engine, snapshot, worker) for _ in range(times))


def _restore(engine: SnapshotEngine, snapshot: StoredSnapshot, worker: Worker) -> Restore:
    started = restore_worker(engine, snapshot, worker)
    with started.running as running:
        oracle = check_answer(
            running.client, snapshot.manifest.answer,
            tolerance=worker.logprob_tolerance, timeout_s=worker.request_deadline_s,
        )  # fmt: skip
    return Restore(started.total_s, started.phases, oracle)
