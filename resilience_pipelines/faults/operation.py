"""A snapshot or a restore under way, as something that a fault can hit.

What belongs here: running one operation of the snapshot engine in a thread of its own, and what
holds for every injection into one: how it has to end, and that it leaves nothing. What does not:
any one fault (`snapshot_path`, `snapshot_device`), and the operations' steps (`snapshots.engine`).
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.operation_watch import OperationReport, OperationWatch
from resilience_pipelines.errors import DeadlineError, ResilienceError
from resilience_pipelines.faults.fault import FaultContext, Injection, ObstacleError, Target
from resilience_pipelines.records import Proof
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot
from resilience_pipelines.startup.arms import restore_worker

STAGE_DEADLINE_S = 60.0
"""How long an operation may take to come where a fault belongs."""
_END_DEADLINE_S = 180.0
_CRASHED = "crashed"


class Operation(ABC):
    """What is done in the thread."""

    @abstractmethod
    def run(self) -> tuple[str | None, str]:
        """Do it; returns the reason code of its failure, None for none, and its words.

        Raises:
            ResilienceError: it failed in another way than it reports failures.
        """

    @abstractmethod
    def left_behind(self) -> str | None:
        """What it left in a store; None when nothing is."""

    @abstractmethod
    def close(self) -> None:
        """Remove what it keeps. May be called twice."""


class Dump(Operation):
    """Taking a snapshot of the target, for a store of its own.

    Attributes:
        serving_after: whether the worker was reported as serving when it was over.
    """

    def __init__(self, context: FaultContext, engine: SnapshotEngine, target: Target) -> None:
        self._context = context
        self._target = target
        self._folder = Path(tempfile.mkdtemp(dir=context.scratch, prefix="hit-dump-"))
        self._engine = engine.with_store(SnapshotStore(self._folder / "store"))
        self.serving_after = False

    @property
    def store(self) -> Path:
        """The folder of its store."""
        return self._engine.store.root

    def run(self) -> tuple[str | None, str]:
        """See `Operation.run`."""
        found = self._engine.take(
            self._target.running,
            self._engine.host.stack,
            self._context.answer,
            measurement_id="hit-dump",
            sleep_level=self._context.worker.snapshot_sleep_level,
            evidence=self._context.evidence,
        ).measurement
        self.serving_after = bool(found.source_serving_after)
        return found.reason_code, found.detail

    def left_behind(self) -> str | None:
        """See `Operation.left_behind`."""
        left = sorted(path.name for path in self.store.glob("*"))
        return f"the failed snapshot left {', '.join(left)}" if left else None

    def close(self) -> None:
        """See `Operation.close`."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Restore(Operation):
    """A restore from a snapshot, beside the target."""

    def __init__(
        self, context: FaultContext, engine: SnapshotEngine, snapshot: StoredSnapshot
    ) -> None:
        self._context = context
        self._engine = engine
        self._snapshot = snapshot

    def run(self) -> tuple[str | None, str]:
        """See `Operation.run`. A worker that came back is stopped."""
        try:
            started = restore_worker(
                self._engine,
                self._snapshot,
                self._context.worker,
                evidence=self._context.evidence,
                name="hit-restore",
            )
        except SnapshotError as error:
            return error.code.value, str(error)
        started.running.stop()
        return None, ""

    def left_behind(self) -> str | None:
        """See `Operation.left_behind`. A restore stores nothing."""
        return None

    def close(self) -> None:
        """See `Operation.close`. It keeps nothing."""


def engine_of(context: FaultContext) -> SnapshotEngine:
    """The engine that the operation is done with.

    Raises:
        ObstacleError: there is none, or nothing can be restored here.
    """
    if context.engine is None:
        raise ObstacleError(SnapshotReason.NO_CRIU, context.no_engine_why)
    if not context.support.capsule:
        raise ObstacleError(SnapshotReason.NO_NAMESPACES, context.support.reason)
    return context.engine


class OperationInjection(Injection):
    """One operation that is under way when the fault comes, or has it in itself.

    Args:
        right_codes: as what the operation may fail.
    """

    hits_worker = False

    def __init__(self, context: FaultContext, right_codes: frozenset[str]) -> None:
        super().__init__(context)
        self._right_codes = right_codes
        self._operation: Operation | None = None
        self._thread: threading.Thread | None = None
        self._report = OperationReport()

    @property
    def ended(self) -> bool:
        """Whether the operation is over, in either way."""
        return self._report.ended

    def detectors(self) -> Sequence[Detector]:
        """Whoever asked for the operation, and reads how it ended."""
        return (OperationWatch(self._report),)

    def start(self, operation: Operation) -> None:
        """Start the operation, which then belongs to this injection."""
        self._operation = operation
        self._thread = threading.Thread(target=self._run, name="operation", daemon=True)
        self._thread.start()

    def missed(self, what: str) -> ResilienceError:
        """The error that says that the operation did not come where the fault belongs."""
        report = self._report
        if report.ended:
            ended = f"{report.code}: {report.detail}" if report.code else "success"
            return ResilienceError(f"{what}: the operation had ended before ({ended}).")
        return DeadlineError(f"{what} within {STAGE_DEADLINE_S:g} s.")

    def broken_expectation(self) -> str | None:
        """The operation has to report the failure as what it is, and leave nothing behind."""
        report = self._report
        if not report.wait(_END_DEADLINE_S):
            return f"the operation did not end within {_END_DEADLINE_S:g} s"
        if report.code is None:
            return "the operation says that it succeeded"
        if report.code not in self._right_codes:
            return f"it failed as {report.code}: {report.detail}"
        return self.left_behind()

    def left_behind(self) -> str | None:
        """What of the operation is left; None when nothing is."""
        return self._operation.left_behind() if self._operation is not None else None

    def roll_back(self) -> None:
        """Let the operation come to its end, and remove what it may have made in its own place."""
        self.finish()
        if self._operation is not None:
            self._operation.close()

    def prove_rollback(self) -> Proof:
        """The operation is over, and nothing partial is stored."""
        left = self.left_behind()
        if self._thread is not None and self._thread.is_alive():
            left = "the operation has not ended"
        return Proof(
            proved=left is None, source="process table and store", detail=left or "nothing is left"
        )

    def close(self) -> None:
        """See `Injection.close`."""
        OperationInjection.roll_back(self)

    def finish(self) -> None:
        """Wait for the end of the operation. A second call does nothing."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_END_DEADLINE_S)

    def _run(self) -> None:
        code: str | None = _CRASHED
        detail = "it ended without a result"
        assert self._operation is not None
        try:
            code, detail = self._operation.run()
        except ResilienceError as error:
            detail = str(error)
        finally:
            self._report.end(code, detail)
