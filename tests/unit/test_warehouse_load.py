"""Every landing folder is loaded exactly once, and one that can't be stops no other."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import duckdb
import polars as pl
import pytest

from resilience_pipelines.errors import BusyError, CorruptError, InputError
from resilience_pipelines.home import Home
from resilience_pipelines.records import RunKind
from resilience_pipelines.samples import SAMPLES_SCHEMA
from resilience_pipelines.warehouse import load as module
from resilience_pipelines.warehouse.connection import open_warehouse
from resilience_pipelines.warehouse.landing import INCOMING, LandingWriter
from resilience_pipelines.warehouse.load import load
from tests.factories import RecordFactory, land, make_home, make_stack
from tests.unit.test_warehouse_landing import CORRUPTIONS, edit


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


def ask(home: Home, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(home.warehouse), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def count(home: Home, table: str) -> object:
    return ask(home, f"select count(*) from raw.{table}")[0][0]


def test_what_was_landed_is_in_the_raw_tables(home: Home) -> None:
    factory = RecordFactory(1)
    startup, fault = factory.startup_record(3), factory.fault_record(2)
    samples = factory.samples(startup)
    folder = land(home.landing, startup, samples=samples)
    land(home.landing, fault)
    report = load(home)
    assert len(report.loaded) == 2
    assert report.rejected == ()
    assert report.already == ()

    rows = ask(home, "select measurement_id, total_s, started_at from raw.startups order by all")
    expected = sorted((m.measurement_id, m.total_s, m.started_at) for m in startup.startups)
    assert rows == expected
    phases = ask(home, "select measurement_id, name, duration_s from raw.startup_phases")
    assert sorted(phases) == sorted(
        (m.measurement_id, phase.name, phase.duration_s)
        for m in startup.startups
        for phase in m.phases
    )
    assert sorted(ask(home, "select fault, verdict, control from raw.faults")) == sorted(
        (m.fault, m.verdict, m.control) for m in fault.faults
    )
    assert ask(home, "select sum(value), count(*) from raw.samples") == [
        (samples["value"].sum(), len(samples))
    ]
    assert ask(home, "select distinct run_id from raw.samples") == [(startup.run_id,)]
    [(parameters, folder_name)] = ask(
        home, f"select parameters, folder from raw.runs where run_id = '{startup.run_id}'"
    )
    assert json.loads(str(parameters)) == startup.parameters
    assert folder_name == str(folder)
    assert {path for (path,) in ask(home, "select path from raw.evidence")} == {
        "worker.log",
        "samples.parquet",
    }


def test_loading_again_loads_nothing(home: Home) -> None:
    factory = RecordFactory(1)
    land(home.landing, factory.startup_record(1))
    first = load(home)
    second = load(home)
    assert second.loaded == ()
    assert second.already == first.loaded
    land(home.landing, factory.startup_record(1))
    third = load(home)
    assert (len(third.loaded), len(third.already)) == (1, 1)
    assert count(home, "runs") == 2
    assert count(home, "startups") == 8


def test_a_home_without_results_loads_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    report = load(home)
    assert report == module.LoadReport((), (), ())
    assert count(home, "runs") == 0


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupt_folder_is_set_aside_and_stops_no_other(home: Home, kind: str) -> None:
    factory = RecordFactory(5)
    before, spoiled, after = (factory.startup_record(1) for _ in range(3))
    land(home.landing, before)
    folder = land(home.landing, spoiled, samples=factory.samples(spoiled))
    land(home.landing, after)
    CORRUPTIONS[kind][0](folder)
    report = load(home)
    assert [path.name for path in report.loaded] == sorted([before.run_id, after.run_id])
    [(rejected, reason)] = report.rejected
    assert rejected == folder
    assert ask(home, "select folder, reason from raw.rejected") == [(str(folder), reason)]
    assert load(home).rejected == report.rejected, "an unchanged folder stays rejected"
    assert count(home, "runs") == 2


def test_a_rejected_folder_is_loaded_once_it_is_mended(home: Home) -> None:
    factory = RecordFactory(1)
    folder = land(home.landing, factory.startup_record(1))
    content = (folder / "worker.log").read_bytes()
    (folder / "worker.log").write_bytes(b"spoiled")
    assert len(load(home).rejected) == 1
    (folder / "worker.log").write_bytes(content)
    report = load(home)
    assert report.loaded == (folder,)
    assert report.rejected == ()
    assert count(home, "rejected") == 0


def test_an_unchanged_rejected_folder_is_not_read_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = land(home.landing, RecordFactory(1).startup_record(1))
    (folder / "x").write_text("1")
    first = load(home)

    def never(folder: Path) -> object:
        raise AssertionError(f"{folder} was read again")

    monkeypatch.setattr(module, "read_landing", never)
    assert load(home).rejected == first.rejected


def test_a_rejected_folder_that_was_removed_is_forgotten(home: Home) -> None:
    folder = land(home.landing, RecordFactory(1).startup_record(1))
    (folder / "x").write_text("1")
    load(home)
    shutil.rmtree(folder)
    assert load(home).rejected == ()
    assert count(home, "rejected") == 0


def test_a_number_that_no_column_holds_is_rejected(home: Home) -> None:
    factory = RecordFactory(1)
    good = land(home.landing, factory.startup_record(1))
    folder = land(home.landing, factory.startup_record(1))
    edit(folder, lambda run: run["snapshots"][0].update(image_bytes=2**70))
    report = load(home)
    assert report.loaded == (good,)
    assert report.rejected[0][0] == folder


def test_samples_that_can_not_be_inserted_reject_their_run_alone(home: Home) -> None:
    factory = RecordFactory(1)
    good = [land(home.landing, factory.startup_record(1)) for _ in range(3)]
    bad = pl.DataFrame({name: [None] for name in SAMPLES_SCHEMA}, schema=SAMPLES_SCHEMA)
    record = factory.startup_record(1)
    folder = land(home.landing, record, samples=bad)
    report = load(home)
    assert sorted(report.loaded) == sorted(good)
    assert [path for path, _ in report.rejected] == [folder]
    assert count(home, "runs") == 3
    assert count(home, "startups") == 12, "no row of the rejected run is left"


def test_a_copy_of_a_run_is_known_and_another_content_is_refused(
    home: Home, tmp_path: Path
) -> None:
    record = RecordFactory(1).startup_record(1)
    folder = land(home.landing, record)
    copy = tmp_path / "copied" / folder.parent.name / folder.name
    shutil.copytree(folder, copy)
    both = [home.landing, tmp_path / "copied"]
    first = load(home, both)
    assert (first.loaded, first.already) == ((folder,), (copy,))
    other = land(tmp_path / "other", record, evidence={"other.log": b"2"})
    report = load(home, [tmp_path / "other"])
    assert [path for path, _ in report.rejected] == [other]
    assert str(folder) in report.rejected[0][1]
    assert count(home, "runs") == 1


def test_a_moved_home_loads_nothing_twice(tmp_path: Path) -> None:
    home = make_home(tmp_path / "a")
    land(home.landing, RecordFactory(1).startup_record(1))
    load(home)
    moved = Home(home.root.rename(tmp_path / "b"))
    report = load(moved)
    assert (len(report.loaded), len(report.already), report.rejected) == (0, 1, ())


def test_paths_are_no_patterns(tmp_path: Path) -> None:
    home = make_home(tmp_path / "it's [odd] * {a,b} %20 #1")
    factory = RecordFactory(1)
    record = factory.startup_record(1)
    land(home.landing, record, samples=factory.samples(record))
    assert len(load(home).loaded) == 1
    assert count(home, "samples") == 20


def test_a_path_that_duckdb_can_not_have_is_named(tmp_path: Path) -> None:
    home = make_home(tmp_path / "what?")
    with pytest.raises(InputError, match=r"what\?.*question mark"):
        load(home)


def test_published_results_load_beside_the_landing_zone(home: Home, tmp_path: Path) -> None:
    factory = RecordFactory(1)
    land(home.landing, factory.startup_record(1))
    land(tmp_path / "results" / "machine-2026-03-02", factory.startup_record(1))
    report = load(home, [home.landing, tmp_path / "results"])
    assert len(report.loaded) == 2


def test_what_is_still_being_written_is_not_loaded(home: Home) -> None:
    record = RecordFactory(1).startup_record(1)
    with LandingWriter(home.landing, record.run_id) as writer:
        writer.path("a.log").write_text("1")
        assert load(home).loaded == ()
        assert (home.landing / INCOMING / record.run_id).is_dir()
        writer.finish(record)
    assert len(load(home).loaded) == 1


def test_runs_of_one_stack_share_its_row(home: Home) -> None:
    factory = RecordFactory(1)
    for cpu_count in (2, 2, 4):
        land(home.landing, factory.startup_record(1, stack=make_stack(cpu_count=cpu_count)))
        load(home)
    assert sorted(ask(home, "select cpu_count from raw.stacks")) == [(2,), (4,)]


def test_small_batches_load_the_same(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_RUNS", 2)
    factory = RecordFactory(1)
    for _ in range(5):
        land(home.landing, factory.startup_record(1))
    assert len(load(home).loaded) == 5
    assert count(home, "startups") == 20


def test_a_run_id_in_two_sources_of_one_load_is_loaded_once(home: Home, tmp_path: Path) -> None:
    record = RecordFactory(1).startup_record(1)
    for name in ("a", "b"):
        land(tmp_path / name, record)
    report = load(home, [tmp_path / "a", tmp_path / "b"])
    assert (len(report.loaded), len(report.already), report.rejected) == (1, 1, ())


def test_a_source_that_is_no_folder_is_named(home: Home, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        load(home, [tmp_path / "nowhere"])


def test_a_file_that_is_no_database_is_told_so(home: Home) -> None:
    home.warehouse.write_text("this is no database" * 1000)
    with pytest.raises(CorruptError, match=r"warehouse\.duckdb.*load again"):
        load(home)


def test_another_thread_in_the_warehouse_is_waited_for_within_bounds(home: Home) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with open_warehouse(home.warehouse):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert inside.wait(30)
        with pytest.raises(BusyError, match="thread"):
            load(home, lock_wait_s=0.1)
    finally:
        leave.set()
        thread.join(30)
    assert load(home, lock_wait_s=30).loaded == ()


def test_fault_and_snapshot_runs_load_like_startup_runs(home: Home) -> None:
    factory = RecordFactory(3)
    land(home.landing, factory.record(RunKind.SNAPSHOT, snapshots=[factory.snapshot()]))
    land(home.landing, factory.record(RunKind.FAULT, unsupported={"restore": "no CRIU"}))
    load(home)
    assert count(home, "snapshots") == 1
    assert count(home, "snapshot_phases") == 3
    rows = ask(home, "select kind, unsupported from raw.runs order by kind")
    assert rows == [("fault", '{"restore":"no CRIU"}'), ("snapshot", "{}")]
