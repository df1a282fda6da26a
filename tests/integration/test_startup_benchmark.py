"""The start-up benchmark over a worker that starts in milliseconds, with real CRIU."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from resilience_pipelines.errors import InputError, ResilienceError, Stopped
from resilience_pipelines.job import _end_on_signal
from resilience_pipelines.records import Arm, OracleVerdict, Outcome, PageCache, Phase
from resilience_pipelines.snapshots.device import DeviceEngine, NoDevice
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.startup.benchmark import (
    BenchmarkContext,
    PageCachePolicy,
    Progress,
    StartupPlan,
    StartupResult,
    prepare_source,
    run_startup,
)
from resilience_pipelines.stopwatch import Stopwatch
from resilience_pipelines.telemetry import Reading, Telemetry
from resilience_pipelines.workers.base import LaunchPlan
from resilience_pipelines.workers.space import SpaceSupport
from tests.support.snapshots import put
from tests.support.workers import ContractWorker


def context_of(
    tmp_path: Path,
    support: SpaceSupport,
    engine: SnapshotEngine | None,
    *traits: str,
    device: DeviceEngine | None = None,
) -> BenchmarkContext:
    folders = {name: tmp_path / name for name in ("cache", "evidence", "work")}
    for folder in folders.values():
        folder.mkdir()
    from resilience_pipelines.stack import Stack

    return BenchmarkContext(
        worker=ContractWorker(traits),
        stack=engine.host.stack if engine else Stack(engine="contract"),
        support=support,
        device=device or NoDevice(),
        engine=engine,
        no_engine_why="" if engine else "no CRIU here",
        warm_cache=folders["cache"],
        evidence=folders["evidence"],
        scratch=folders["work"],
        telemetry=Telemetry(0.01),
    )


def measure(context: BenchmarkContext, plan: StartupPlan) -> StartupResult:
    seen: list[tuple[int, int]] = []
    result = run_startup(plan, context, lambda _, done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    return result


def test_every_arm_is_measured_as_often_as_asked_with_an_equal_oracle(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, engine)
    result = measure(context, StartupPlan(repeats=2))
    assert [m.outcome for m in result.startups] == [Outcome.OK] * 8, result.startups
    assert [m.position for m in result.startups] == list(range(8))
    assert {m.arm for m in result.startups} == set(Arm)
    assert all(m.oracle.verdict is OracleVerdict.EQUAL for m in result.startups)
    assert all(m.throughput_tokens_per_s for m in result.startups)
    for m in result.startups:
        before = m.throughput_before_tokens_per_s
        assert (before is not None) == (m.arm in (Arm.RESTORE, Arm.SLEEP_WAKE))
        if m.arm is Arm.RESTORE:
            assert m.criu is not None
            assert m.criu.restore_s is not None
            assert m.snapshot_id == result.snapshots[0].snapshot_id
            assert m.page_cache_requested is PageCache.WARM
            assert m.page_cache_found is PageCache.WARM
    assert result.snapshots[0].source_serving_after is True
    assert len({m.measurement_id for m in result.startups}) == 8
    samples = context.telemetry.frame()
    assert set(samples["subject"]) <= {m.measurement_id for m in result.startups}
    assert set(samples["series"]) == {"worker_resident_memory", "worker_cpu_time"}
    assert list(context.scratch.iterdir()) == []


def stored(context: BenchmarkContext) -> StoredSnapshot:
    """A snapshot that an earlier run left in the store."""
    snapshot = prepare_source(context, snapshot=True).snapshot
    assert snapshot is not None
    return snapshot


def test_a_stored_snapshot_is_restored_and_nothing_else_is_started(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, engine)
    snapshot = stored(context)
    worker = CountedWorker()
    later = replace(context, worker=worker)
    result = measure(later, StartupPlan((Arm.RESTORE,), 2, snapshot=snapshot.manifest.snapshot_id))
    assert [(m.outcome, m.arm, m.variant) for m in result.startups] == [
        (Outcome.OK, Arm.RESTORE, None)
    ] * 2, result.startups
    assert {m.snapshot_id for m in result.startups} == {snapshot.manifest.snapshot_id}
    assert all(m.oracle.verdict is OracleVerdict.EQUAL for m in result.startups)
    assert result.snapshots == ()
    assert worker.ports == []


def test_all_arms_are_checked_with_the_stored_snapshot_s_answer(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, engine)
    snapshot = stored(context)
    wrong = snapshot.manifest.answer.model_copy(
        update={"token_ids": tuple(number + 1 for number in snapshot.manifest.answer.token_ids)}
    )
    manifest = snapshot.manifest.model_copy(update={"answer": wrong})
    (snapshot.folder / "manifest.json").write_text(manifest.model_dump_json())
    result = measure(
        context, StartupPlan((Arm.WARM_CACHE, Arm.RESTORE), 1, snapshot=manifest.snapshot_id)
    )
    assert {(m.arm, m.reason_code) for m in result.startups} == {
        (Arm.WARM_CACHE, SnapshotReason.WRONG_ANSWER), (Arm.RESTORE, SnapshotReason.WRONG_ANSWER),
    }  # fmt: skip


def test_a_snapshot_of_another_stack_has_a_series_of_its_own(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, engine)
    name = stored(context).manifest.snapshot_id
    moved = replace(context, stack=context.stack.model_copy(update={"storage_kind": "elsewhere"}))
    (start,) = measure(moved, StartupPlan((Arm.RESTORE,), 1, snapshot=name)).startups
    assert (start.outcome, start.variant) == (Outcome.OK, "other_stack")


def test_a_snapshot_that_is_not_there_or_not_this_worker_s_is_refused(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, engine)
    missing = "snap-20260101T000000Z-00000000"
    with pytest.raises(InputError, match="snapshot"):
        measure(context, StartupPlan((Arm.RESTORE,), 1, snapshot=missing))
    foreign = put(engine.store).manifest.snapshot_id
    with pytest.raises(InputError, match="of the worker reference"):
        measure(context, StartupPlan((Arm.RESTORE,), 1, snapshot=foreign))


class Stopping:
    """Device state of a process that it can't go on without: it is stopped while that is away."""

    name = "stopping"
    moves_state = True

    def __init__(self) -> None:
        self.suspended: list[list[int]] = []

    def warm_up(self) -> None:
        pass

    def suspend(self, pids: Sequence[int]) -> Sequence[Phase]:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.suspended.append(list(pids))
        return ()

    def resume(self, pids: Sequence[int]) -> Sequence[Phase]:
        watch = Stopwatch()
        with watch.phase("cuda_restore"):
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        return watch.phases

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class CountedWorker(ContractWorker):
    """Counts its launches; those after the first `good` ones end at once."""

    good: int = 99
    ports: list[int] = field(default_factory=list)

    def plan(self, port: int, cache: Path) -> LaunchPlan:
        self.ports.append(port)
        traits = ("exits",) if len(self.ports) > self.good else ()
        return ContractWorker(traits).plan(port, cache)


def test_wakes_are_of_the_worker_that_was_measured_as_a_warm_start(
    support: SpaceSupport, tmp_path: Path
) -> None:
    device = Stopping()
    context = context_of(tmp_path, support, None, device=device)
    context.worker = worker = CountedWorker()
    result = measure(context, StartupPlan(arms=(Arm.WARM_CACHE, Arm.SLEEP_WAKE), repeats=2))
    assert [m.outcome for m in result.startups] == [Outcome.OK] * 6, result.startups
    assert [(m.arm, m.variant) for m in result.startups[:3]] == [
        (Arm.WARM_CACHE, None), (Arm.SLEEP_WAKE, None), (Arm.SLEEP_WAKE, "cuda_suspend"),
    ]  # fmt: skip
    assert len(worker.ports) == 3, "the source and two warm starts"
    assert len(device.suspended) == 2
    last = result.startups[-1]
    assert [phase.name for phase in last.phases] == ["cuda_restore", "wake", "first_token"]


def test_a_warm_start_that_fails_fails_its_wakes_with_the_same_reason(
    support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, None)
    context.worker = CountedWorker(good=1)
    result = measure(context, StartupPlan(arms=(Arm.WARM_CACHE, Arm.SLEEP_WAKE), repeats=1))
    assert [(m.arm, m.reason_code) for m in result.startups] == [
        (Arm.WARM_CACHE, "worker_failed"), (Arm.SLEEP_WAKE, "worker_failed"),
    ]  # fmt: skip


def test_samples_of_the_machine_are_there_before_the_worker_is(
    support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, None)
    context.telemetry = Telemetry(0.01, machine=lambda: [Reading("gpu_power", "watts", 1.0)])
    measure(context, StartupPlan(arms=(Arm.WARM_CACHE,), repeats=1))
    samples = context.telemetry.frame()
    first = {
        series: samples.filter(series=series)["at_s"].min()
        for series in ("gpu_power", "worker_cpu_time")
    }
    assert first["gpu_power"] < first["worker_cpu_time"]


@pytest.mark.parametrize("level", [0, 7])
def test_a_snapshot_at_a_level_that_the_worker_has_not_is_an_error(
    support: SpaceSupport, tmp_path: Path, level: int
) -> None:
    context = context_of(tmp_path, support, None)
    with pytest.raises(InputError, match=f"sleep_level.*{level}"):
        prepare_source(context, snapshot=True, sleep_level=level)


def test_without_an_engine_the_restore_arm_is_unsupported_and_says_why(
    support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, SpaceSupport(False, "asked"), None)
    result = measure(context, StartupPlan(repeats=2))
    assert result.unsupported == {"restore": "no CRIU here"}
    by_arm = {
        arm: {m.outcome for m in result.startups if m.arm is arm} for arm in Arm
    }  # fmt: skip
    assert by_arm.pop(Arm.RESTORE) == {Outcome.UNSUPPORTED}
    assert all(outcomes == {Outcome.OK} for outcomes in by_arm.values())


def test_a_dump_that_fails_is_recorded_and_fails_the_restores_only(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, engine, "io_uring")
    result = measure(context, StartupPlan(arms=(Arm.WARM_CACHE, Arm.RESTORE), repeats=1))
    assert result.snapshots[0].reason_code == SnapshotReason.DUMP_FAILED
    by_arm = {m.arm: m for m in result.startups}
    assert by_arm[Arm.WARM_CACHE].outcome is Outcome.OK
    assert by_arm[Arm.RESTORE].outcome is Outcome.FAILED
    assert by_arm[Arm.RESTORE].reason_code == SnapshotReason.DUMP_FAILED
    assert list(context.evidence.iterdir())


def test_a_worker_that_answers_otherwise_each_time_fails_where_it_starts_anew(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    """Random memory: only a restore brings the same answer back."""
    context = context_of(tmp_path, support, engine, "random_memory")
    result = measure(context, StartupPlan(arms=(Arm.WARM_CACHE, Arm.RESTORE), repeats=1))
    by_arm = {m.arm: m for m in result.startups}
    assert by_arm[Arm.RESTORE].outcome is Outcome.OK
    assert by_arm[Arm.WARM_CACHE].outcome is Outcome.FAILED
    assert by_arm[Arm.WARM_CACHE].reason_code == SnapshotReason.WRONG_ANSWER
    assert by_arm[Arm.WARM_CACHE].total_s is not None


def test_another_page_cache_is_another_variant(support: SpaceSupport, tmp_path: Path) -> None:
    context = context_of(tmp_path, support, None)
    plan = StartupPlan(arms=(Arm.WARM_CACHE,), repeats=1, page_cache=PageCachePolicy.AS_FOUND)
    (found,) = measure(context, plan).startups
    assert found.variant == "page_cache_as_found"
    assert found.page_cache_requested is PageCache.UNKNOWN
    assert found.page_cache_fraction is not None


def test_a_source_that_does_not_start_is_an_error(support: SpaceSupport, tmp_path: Path) -> None:
    context = context_of(tmp_path, support, None, "exits")
    with pytest.raises(ResilienceError, match="ended before it was ready"):
        measure(context, StartupPlan(repeats=1))


def stop_at(start: int) -> Progress:
    def progress(_: str, done: int, total: int) -> None:
        if done == start:
            os.kill(os.getpid(), signal.SIGTERM)

    return progress


@pytest.fixture
def ends_on_signal() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, _end_on_signal)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_run_that_is_stopped_keeps_the_starts_that_were_finished(
    support: SpaceSupport, tmp_path: Path, ends_on_signal: None
) -> None:
    context = context_of(tmp_path, support, None)
    result = run_startup(StartupPlan(arms=(Arm.WARM_CACHE,), repeats=5), context, stop_at(2))
    assert [m.outcome for m in result.startups] == [Outcome.OK] * 2
    assert result.unsupported == {"rest of the run": "It was stopped after 2 of 5 starts."}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "while the result is written"
    assert list(context.scratch.iterdir()) == []


def test_a_run_that_is_stopped_before_its_first_start_has_no_result(
    support: SpaceSupport, tmp_path: Path, ends_on_signal: None
) -> None:
    context = context_of(tmp_path, support, None)
    with pytest.raises(Stopped) as stopped:
        run_startup(StartupPlan(repeats=1), context, stop_at(0))
    assert stopped.value.code == 128 + signal.SIGTERM


def test_the_worker_that_fills_the_caches_is_the_first_cold_start(
    support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, None)
    context.worker = worker = CountedWorker()
    result = measure(context, StartupPlan(arms=(Arm.COLD, Arm.WARM_CACHE), repeats=2))
    assert result.startups[0].arm is Arm.COLD
    assert Counter(m.arm for m in result.startups) == {Arm.COLD: 2, Arm.WARM_CACHE: 2}
    assert len({m.measurement_id for m in result.startups}) == 4
    assert all(m.oracle.verdict is OracleVerdict.EQUAL for m in result.startups)
    assert len(worker.ports) == 4, "no start that is not measured"


def test_a_source_that_finds_filled_caches_is_no_cold_start(
    support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, None)
    context.worker = worker = CountedWorker()
    (context.warm_cache / "compiled").touch()
    result = measure(context, StartupPlan(arms=(Arm.COLD, Arm.WARM_CACHE), repeats=2))
    assert Counter(m.arm for m in result.startups) == {Arm.COLD: 2, Arm.WARM_CACHE: 2}
    assert len(worker.ports) == 5
