"""Compatibility by experiment: which snapshots come back on this stack, and did the gate know?

What belongs here: restoring stored snapshots whatever the gate predicts, and recording both. What
does not: the prediction (`snapshots.compatibility`) and the restore itself (`arms`).

One run is one column of the matrix "snapshot of stack A, restored on stack B": B is the stack that
it runs on, and every stored snapshot brings its own A. Other columns come from running it under
another CRIU, engine, driver or machine that shares the store. Rows that no machine at hand could
bring come from edited copies of a snapshot (`snapshots.image_edits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from resilience_pipelines.errors import InputError, ResilienceError, UnsupportedError
from resilience_pipelines.records import CompatibilityTrial, OracleVerdict, Outcome
from resilience_pipelines.snapshots.compatibility import check
from resilience_pipelines.snapshots.copies import edited_copy
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.image_edits import ImageEdit, NotInImageError
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.startup.arms import restore_worker
from resilience_pipelines.startup.benchmark import (
    BenchmarkContext,
    Progress,
    reason_of,
    require_worker,
)
from resilience_pipelines.stopwatch import Stopwatch
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.oracle import NOT_CHECKED, check_answer
from resilience_pipelines.workers.process import RunningWorker


@dataclass(frozen=True)
class CompatibilityResult:
    """What came of a run.

    Attributes:
        unsupported: edited copies that could not be made -> why.
    """

    trials: tuple[CompatibilityTrial, ...]
    unsupported: Mapping[str, str]


@dataclass(frozen=True)
class _Image:
    """What is restored: a stored snapshot, or an edited copy of it."""

    snapshot: StoredSnapshot
    edit: ImageEdit | None

    @property
    def name(self) -> str:
        stored = self.snapshot.manifest.snapshot_id
        return stored if self.edit is None else f"{stored}+{self.edit}"

    @contextmanager
    def open(self, engine: SnapshotEngine, scratch: Path) -> Iterator[StoredSnapshot]:
        if self.edit is None:
            yield self.snapshot
            return
        with edited_copy(self.snapshot, self.edit, engine.criu, scratch) as copy:
            yield copy


def run_compatibility(
    snapshots: Sequence[str],
    repeats: int,
    context: BenchmarkContext,
    progress: Progress,
    *,
    edits: Sequence[ImageEdit] = (),
) -> CompatibilityResult:
    """Restore each snapshot, and each of its edits, `repeats` times, in turn. One that fails is a
    result.

    Args:
        snapshots: ids; all of this worker that the store has when empty.
        edits: what to change in copies of each, which are restored after it.

    Raises:
        UnsupportedError: this machine can't restore at all.
        InputError: a snapshot is of another worker, or there is no such one.
        SnapshotError: the manifest of a named snapshot can't be read.
    """
    if context.engine is None:
        raise UnsupportedError(context.no_engine_why, mend="`resilience doctor` says more.")
    chosen = _choose(snapshots, context.engine, context.worker)
    images = [_Image(snapshot, edit) for snapshot in chosen for edit in (None, *edits)]
    total = repeats * len(images)
    trials = []
    unsupported = {}
    for done in range(total):
        repeat, index = divmod(done, len(images))
        image = images[index]
        progress(image.name, done, total)
        try:
            with image.open(context.engine, context.scratch) as snapshot:
                trials.append(
                    _try(context, context.engine, snapshot, image.name, f"restore-{done}", repeat)
                )
        except NotInImageError as error:
            unsupported[image.name] = error.reason
    progress("finished", total, total)
    return CompatibilityResult(tuple(trials), unsupported)


def _choose(names: Sequence[str], engine: SnapshotEngine, worker: Worker) -> list[StoredSnapshot]:
    if not names:
        chosen = [item for item in engine.store.all() if item.manifest.worker == worker.name]
        if not chosen:
            raise InputError(
                "snapshots", "all", f"the store has none of the worker {worker.name}",
                mend=f"Take one first: `resilience snapshot create --worker {worker.name}`.",
            )  # fmt: skip
        return chosen
    chosen = [engine.store.get(name) for name in names]
    for item in chosen:
        require_worker(item, worker)
    return chosen


def _try(
    context: BenchmarkContext,
    engine: SnapshotEngine,
    snapshot: StoredSnapshot,
    name: str,
    measurement_id: str,
    repeat: int,
) -> CompatibilityTrial:
    manifest = snapshot.manifest
    seen = check(manifest, engine.host)
    facts: dict[str, object] = {
        "measurement_id": measurement_id,
        "snapshot_id": name,
        "source_stack": manifest.stack,
        "source_stack_key": manifest.stack.key,
        "repeat": repeat,
        "started_at": datetime.now(UTC),
        "predicted_compatible": not any(item.blocking for item in seen),
        # A hundred mapped files are one finding.
        "predictions": tuple(dict.fromkeys(item.code.value for item in seen)),
    }
    watch = Stopwatch()
    try:
        started = restore_worker(
            engine, snapshot, context.worker,
            gate=False, evidence=context.evidence, name=measurement_id,
        )  # fmt: skip
        with started.running as running:
            facts["elapsed_s"] = started.total_s
            facts |= _judge(context, snapshot, running)
    except ResilienceError as error:
        facts.setdefault("elapsed_s", watch.elapsed_s())
        facts |= {
            "outcome": Outcome.FAILED,
            "reason_code": reason_of(error),
            "failed_phase": error.phase if isinstance(error, SnapshotError) else None,
            "detail": str(error)[:4000],
            "oracle": NOT_CHECKED,
        }
    return CompatibilityTrial.model_validate(facts)


def _judge(
    context: BenchmarkContext, snapshot: StoredSnapshot, running: RunningWorker
) -> dict[str, object]:
    worker = context.worker
    oracle = check_answer(
        running.client, snapshot.manifest.answer,
        tolerance=worker.logprob_tolerance, timeout_s=worker.request_deadline_s,
    )  # fmt: skip
    if oracle.verdict is OracleVerdict.EQUAL:
        return {"outcome": Outcome.OK, "oracle": oracle}
    return {
        "outcome": Outcome.FAILED,
        "reason_code": SnapshotReason.WRONG_ANSWER,
        "failed_phase": "oracle",
        "detail": oracle.detail,
        "oracle": oracle,
    }
