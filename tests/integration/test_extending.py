"""The examples of docs/extending.md do what the page says, each with the real parts."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from docs.examples.add_detector import StateWatch
from docs.examples.add_engine import DeviceTableWorker, FileDevice
from docs.examples.add_fault import WorkerAskedToEnd
from docs.examples.add_feed import FEED, parse_tags
from docs.examples.add_worker import TableWorker
from resilience_pipelines.faults.experiment import run_experiment
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.records import Arm, OracleVerdict, Outcome, Verdict
from resilience_pipelines.releases.catalogue import Feed
from resilience_pipelines.releases.formats import FeedFormatError
from resilience_pipelines.releases.ledger import refresh, remembered
from resilience_pipelines.releases.states import ReleaseState, SeenStacks, states_of
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.stack import Stack
from resilience_pipelines.startup.arms import restore_worker
from resilience_pipelines.startup.benchmark import BenchmarkContext, StartupPlan, run_startup
from resilience_pipelines.telemetry import Telemetry
from resilience_pipelines.workers.oracle import RecordedAnswer, check_answer, record_answer
from resilience_pipelines.workers.process import RunningWorker, launch
from resilience_pipelines.workers.space import SpaceSupport, open_space, wait_until
from tests.factories import make_home, make_stack
from tests.integration.fault_support import make_context

DOCS = Path(__file__).parents[2] / "docs"


@contextmanager
def serving(
    worker: TableWorker, support: SpaceSupport, cache: Path
) -> Iterator[tuple[RunningWorker, RecordedAnswer]]:
    worker.prepare()
    with launch(worker, open_space(support), cache) as running:
        running.wait_ready()
        yield running, record_answer(running.client, timeout_s=5)


def is_right(running: RunningWorker, answer: RecordedAnswer) -> bool:
    oracle = check_answer(running.client, answer, tolerance=0, timeout_s=5)
    return oracle.verdict is OracleVerdict.EQUAL


def test_the_page_names_every_example_and_every_example_is_tested_here() -> None:
    page = (DOCS / "extending.md").read_text()
    examples = sorted(path.name for path in (DOCS / "examples").glob("add_*.py"))
    assert sorted(set(re.findall(r"\(examples/(\w+\.py)\)", page))) == examples
    text = Path(__file__).read_text()
    assert all(f"docs.examples.{name.removesuffix('.py')} import" in text for name in examples)


def test_the_files_that_the_page_names_are_there() -> None:
    page = (DOCS / "extending.md").read_text()
    named = re.findall(r"`((?:resilience_pipelines|tests|dbt)/[\w/.]+)`", page)
    assert len(named) > 5
    assert [path for path in named if not (DOCS.parent / path).exists()] == []


def test_the_worker_goes_through_every_arm_with_the_right_answer(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    for name in ("cache", "evidence", "work"):
        (tmp_path / name).mkdir()
    context = BenchmarkContext(
        worker=TableWorker(tmp_path / "weights"), stack=engine.host.stack, support=support,
        device=engine.device, engine=engine, no_engine_why="", warm_cache=tmp_path / "cache",
        evidence=tmp_path / "evidence", scratch=tmp_path / "work", telemetry=Telemetry(0.05),
    )  # fmt: skip
    result = run_startup(StartupPlan(repeats=1), context, lambda *_: None)
    assert {m.arm: m.outcome for m in result.startups} == dict.fromkeys(Arm, Outcome.OK)
    assert all(m.oracle.verdict is OracleVerdict.EQUAL for m in result.startups)
    cold = next(m for m in result.startups if m.arm is Arm.COLD)
    assert "load_weights" in {phase.name for phase in cold.phases}


def test_the_engine_takes_what_is_on_the_device_along(
    engine: SnapshotEngine, criu: Criu, support: SpaceSupport, tmp_path: Path
) -> None:
    worker = DeviceTableWorker(tmp_path / "weights")
    own = SnapshotEngine(
        SnapshotStore(tmp_path / "own"), criu, FileDevice(worker.device), engine.host,
        tmp_path,
    )  # fmt: skip
    with serving(worker, support, tmp_path) as (running, answer):
        taken = own.take(running, own.host.stack, answer, measurement_id="m", sleep_level=1)
        assert taken.snapshot is not None, taken.measurement.detail
        assert {"file_to_memory", "memory_to_file"} <= {p.name for p in taken.measurement.phases}
        assert taken.measurement.engine == "criu+file"
        assert is_right(running, answer), "the source serves on, with its table on the device"
    # As on another machine: nothing of the table is there but what the image holds.
    worker.device.write_bytes(b"")
    started = restore_worker(own, taken.snapshot, worker)
    with started.running as restored:
        assert "memory_to_file" in {phase.name for phase in started.phases}
        assert worker.device.read_bytes() == worker.weights.read_bytes()
        assert is_right(restored, answer)


def test_the_detector_tells_a_stop_and_that_it_is_over(
    support: SpaceSupport, tmp_path: Path
) -> None:
    with (
        serving(TableWorker(tmp_path / "weights"), support, tmp_path) as (running, _),
        StateWatch(running) as watch,
    ):
        wait_until(lambda: watch.looked_since(1), 10, "the first look", 0.01)
        assert watch.alarms == ()
        running.process.signal_tree(signal.SIGSTOP)
        wait_until(lambda: watch.alarmed, 10, "an alarm", 0.01)
        running.process.signal_tree(signal.SIGCONT)
        wait_until(lambda: not watch.alarmed, 10, "all is well", 0.01)
    assert watch.failure is None
    [alarm] = watch.alarms
    assert "is stopped" in alarm.detail


@pytest.mark.parametrize("recovery", [Recovery.COLD, None])
def test_the_fault_is_proved_seen_and_recovered_from(
    support: SpaceSupport, tmp_path: Path, recovery: Recovery | None
) -> None:
    worker = TableWorker(tmp_path / "weights")
    with serving(worker, support, tmp_path) as (_, answer):
        pass
    context = make_context(tmp_path, support, None, answer, None, worker=worker)
    made = run_experiment(WorkerAskedToEnd(), recovery, context, repeat=0, control=recovery is None)
    assert made.verdict is Verdict.PASS, made.detail
    seen = {item.detector for item in made.detections if item.detected}
    if recovery is None:
        assert seen == set()
        return
    assert {"process_watch", "state_watch"} <= seen
    assert made.effect is not None
    assert made.effect.proved
    assert made.rollback is not None
    assert made.rollback.proved
    assert made.oracle.verdict is OracleVerdict.EQUAL


def feed_of(path: Path, entries: Any) -> Feed:
    path.write_text(json.dumps(entries))
    return Feed(FEED.name, FEED.product, FEED.dimension, path.as_uri(), FEED.parse, FEED.engine)


def test_the_feed_is_remembered_and_tells_how_far_each_release_has_come(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    page = tmp_path / "tags.json"
    tags = [{"name": "v1.9.0", "date": "2026-01-31"}, {"name": "v1.10.0rc1", "date": "soon"}]
    assert {r.version for r in refresh(home, feed_of(page, tags)).new} == {"1.9.0", "1.10.0rc1"}
    again = refresh(home, feed_of(page, [*tags, {"name": "v1.10.0"}]))
    assert [release.version for release in again.new] == ["1.10.0"]
    known = remembered(home, FEED.name).releases
    assert {r.version: r.prerelease for r in known} == {
        "1.9.0": False, "1.10.0rc1": True, "1.10.0": False,
    }  # fmt: skip
    measured: Stack = make_stack(engine="table", engine_version="1.9.0")
    states = states_of(FEED, known, SeenStacks(measured=(measured,)))
    assert {s.release.version: s.state for s in states} == {
        "1.9.0": ReleaseState.MEASURED,
        "1.10.0rc1": ReleaseState.KNOWN,
        "1.10.0": ReleaseState.KNOWN,
    }


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"[1]", b'[{"name": ""}]', b"<html>"])
def test_what_is_no_list_of_tags_is_refused_whole(body: bytes) -> None:
    with pytest.raises(FeedFormatError):
        parse_tags(body)
