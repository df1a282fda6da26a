"""The plan of a fan-out, and what is measured of the disk, without any restore."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from resilience_pipelines.errors import InputError, Stopped, UnsupportedError
from resilience_pipelines.job_spec import FanoutSpec, parse_spec
from resilience_pipelines.records import Oracle, OracleVerdict, Outcome, PageCache
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.startup import fanout, page_cache
from resilience_pipelines.startup.arms import Started
from resilience_pipelines.startup.benchmark import BenchmarkContext, Progress
from resilience_pipelines.startup.fanout import (
    FanoutPlan,
    FanoutResult,
    available_memory_bytes,
    read_bandwidth,
    run_fanout,
)
from resilience_pipelines.workers.process import RunningWorker
from tests.support.snapshots import put


def test_every_width_meets_every_page_cache_in_every_repeat() -> None:
    plan = FanoutPlan(widths=(1, 4), repeats=3)
    schedule = plan.schedule()
    assert len(schedule) == len(set(schedule)) == 2 * 2 * 3
    assert next(width for repeat, _, width in schedule if repeat == 0) == 1
    assert next(width for repeat, _, width in schedule if repeat == 1) == 4


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("widths", {"widths": ()}),
        ("widths", {"widths": (0,)}),
        ("widths", {"widths": (2, 2)}),
        ("page_caches", {"page_caches": ()}),
        ("page_caches", {"page_caches": (PageCache.MIXED,)}),
        ("page_caches", {"page_caches": (PageCache.COLD, PageCache.COLD)}),
        ("repeats", {"repeats": 0}),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=field):
        FanoutPlan(**values)


def test_the_specification_has_the_plans_defaults() -> None:
    spec = parse_spec('{"kind": "fanout"}')
    assert isinstance(spec, FanoutSpec)
    plan = FanoutPlan()
    assert (spec.widths, spec.page_caches, spec.repeats) == (
        plan.widths, plan.page_caches, plan.repeats,
    )  # fmt: skip


def test_reading_all_files_brings_them_into_the_page_cache(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    files[0].write_bytes(bytes(9 << 20))
    files[1].write_bytes(b"x")
    assert read_bandwidth(files) > 0
    assert page_cache.resident_fraction(files) == 1.0


def test_available_memory_is_what_the_kernel_says() -> None:
    text = "MemTotal:       100 kB\nMemAvailable:    42 kB\n"
    assert available_memory_bytes(text) == 42 * 1024
    with pytest.raises(ValueError, match="MemAvailable"):
        available_memory_bytes("MemTotal: 100 kB\n")


THREE = FanoutPlan((3,), (PageCache.WARM,), 1)


def nothing(what: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


def wave_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    restore: Callable[[str], Started],
    plan: FanoutPlan = THREE,
    progress: Progress = nothing,
) -> FanoutResult:
    """The waves of a plan whose restores are `restore(name)`."""
    worker = SimpleNamespace(weight_files=list, logprob_tolerance=0.0, request_deadline_s=1.0)
    context = cast(
        BenchmarkContext, SimpleNamespace(engine=object(), worker=worker, evidence=tmp_path)
    )
    snapshot = put(SnapshotStore(tmp_path / "store"))
    equal = Oracle(verdict=OracleVerdict.EQUAL, tokens=1)
    monkeypatch.setattr(fanout, "restore_worker", lambda *_, name, **__: restore(name))
    monkeypatch.setattr(fanout, "check_answer", lambda *_, **__: equal)
    return run_fanout(plan, snapshot, context, progress)


class Stand:
    """Started workers that say whether they were stopped."""

    def __init__(self) -> None:
        self.stopped: list[str] = []

    def started(self, name: str) -> Started:
        running = SimpleNamespace(client=None, stop=lambda: self.stopped.append(name))
        return Started(cast(RunningWorker, running), 0.5, (), 0.5, True)


def test_a_wave_begins_together_and_all_its_workers_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand, together = Stand(), threading.Barrier(3)

    def restore(name: str) -> Started:
        together.wait(5)  # passes only where all three are under way at the same time
        assert not stand.stopped
        return stand.started(name)

    result = wave_of(tmp_path, monkeypatch, restore)
    assert [item.outcome for item in result.restores] == [Outcome.OK] * 3
    assert len({item.wave_s for item in result.restores}) == 1
    names = [item.measurement_id for item in result.restores]
    assert sorted(stand.stopped) == names == [f"fanout-3-warm-0-{place}" for place in range(3)]


def test_one_restore_that_fails_leaves_the_others_their_times_and_the_wave_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand()

    def restore(name: str) -> Started:
        if name.endswith("-1"):
            raise SnapshotError(SnapshotReason.RESTORE_FAILED, "restore", "CRIU could not")
        return stand.started(name)

    result = wave_of(tmp_path, monkeypatch, restore)
    assert [item.total_s for item in result.restores] == [0.5, None, 0.5]
    assert result.restores[1].reason_code == SnapshotReason.RESTORE_FAILED
    assert {item.wave_s for item in result.restores} == {None}
    assert len(stand.stopped) == 2


def test_an_unforeseen_error_still_ends_the_workers_of_its_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand()

    def restore(name: str) -> Started:
        if name.endswith("-0"):
            raise OSError("no more descriptors")
        return stand.started(name)

    with pytest.raises(OSError, match="descriptors"):
        wave_of(tmp_path, monkeypatch, restore)
    assert sorted(stand.stopped) == ["fanout-3-warm-0-1", "fanout-3-warm-0-2"]


def test_a_wave_that_memory_has_no_room_for_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "available_memory_bytes", lambda _: 1)
    result = wave_of(tmp_path, monkeypatch, Stand().started)
    assert result.restores == ()
    assert list(result.unsupported) == ["3 restores at once"]


def test_a_run_that_is_stopped_keeps_its_finished_waves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand()

    def stop_in_the_second(what: str, done: int, total: int) -> None:
        if done == 1:
            raise Stopped(130)

    result = wave_of(
        tmp_path, monkeypatch, stand.started, FanoutPlan((1, 2), (PageCache.WARM,), 1),
        stop_in_the_second,
    )  # fmt: skip
    assert [item.width for item in result.restores] == [1]
    assert result.unsupported == {"rest of the run": "It was stopped after 1 of 2 waves."}


def test_a_machine_that_can_not_restore_says_so(tmp_path: Path) -> None:
    context = cast(BenchmarkContext, SimpleNamespace(engine=None, no_engine_why="no CRIU here"))
    snapshot = put(SnapshotStore(tmp_path / "store"))
    with pytest.raises(UnsupportedError, match="no CRIU here"):
        run_fanout(FanoutPlan(), snapshot, context, lambda *_: None)
