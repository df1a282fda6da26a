"""Snapshots are restored on this stack whatever the gate predicts, with real CRIU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.records import Outcome
from resilience_pipelines.snapshots.compatibility import Host
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.startup.arms import restore_worker
from resilience_pipelines.startup.benchmark import BenchmarkContext, prepare_source
from resilience_pipelines.startup.compatibility import run_compatibility
from resilience_pipelines.workers.space import SpaceSupport
from tests.integration.test_startup_benchmark import context_of


def elsewhere(engine: SnapshotEngine, **stack: str) -> SnapshotEngine:
    """The same tools on a machine that says other things of itself."""
    host = replace(engine.host, stack=engine.host.stack.model_copy(update=stack))
    return with_host(engine, host)


def with_host(engine: SnapshotEngine, host: Host) -> SnapshotEngine:
    return SnapshotEngine(engine.store, engine.criu, engine.device, host, engine._scratch)


@pytest.fixture
def context(engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path) -> BenchmarkContext:
    context = context_of(tmp_path, support, engine)
    assert prepare_source(context, snapshot=True).snapshot is not None
    return context


def test_a_snapshot_at_home_comes_back_as_predicted(context: BenchmarkContext) -> None:
    told: list[tuple[int, int]] = []
    trials = run_compatibility((), 2, context, lambda _, *step: told.append(step)).trials
    assert [trial.outcome for trial in trials] == [Outcome.OK] * 2, trials
    assert [trial.repeat for trial in trials] == [0, 1]
    assert all(trial.predicted_compatible and not trial.predictions for trial in trials)
    assert all(trial.source_stack == context.stack for trial in trials)
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_what_the_gate_would_refuse_is_tried_and_shows_a_gate_too_strict(
    context: BenchmarkContext,
) -> None:
    assert context.engine is not None
    context.engine = elsewhere(context.engine, criu_version="0.1", kernel_version="0.1")
    (trial,) = run_compatibility((), 1, context, lambda *_: None).trials
    assert not trial.predicted_compatible
    assert trial.predictions == ("criu_older", "kernel"), "blocking ones first"
    assert trial.outcome is Outcome.OK
    with pytest.raises(SnapshotError) as refused:
        restore_worker(context.engine, context.engine.store.all()[0], context.worker)
    assert refused.value.code is SnapshotReason.INCOMPATIBLE


def test_a_failure_that_the_gate_did_not_see_has_its_phase_and_reason(
    context: BenchmarkContext,
) -> None:
    assert context.engine is not None
    snapshot = context.engine.store.all()[0]
    pages = next(snapshot.images.glob("pages-*.img"))
    data = bytearray(pages.read_bytes())
    data[len(data) // 2] ^= 1
    pages.write_bytes(data)
    (trial,) = run_compatibility((), 1, context, lambda *_: None).trials
    assert trial.predicted_compatible
    assert trial.outcome is Outcome.FAILED
    assert trial.reason_code == SnapshotReason.IMAGE_CORRUPT
    assert trial.failed_phase == "verify"
    assert trial.elapsed_s > 0


def test_a_store_without_a_snapshot_of_the_worker_is_an_error(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="snapshots"):
        run_compatibility((), 1, context_of(tmp_path, support, engine), lambda *_: None)


def test_a_machine_without_criu_says_so(support: SpaceSupport, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no CRIU here"):
        run_compatibility((), 1, context_of(tmp_path, support, None), lambda *_: None)
