"""The warehouse under many processes: writers at once, kills at any point, locks, a full disk."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from resilience_pipelines.errors import BusyError
from resilience_pipelines.home import Home
from resilience_pipelines.warehouse.landing import INCOMING, find_landings
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.transform import build
from tests.factories import RecordFactory, land, make_home
from tests.support.small_disk import small_disk

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0

WRITERS = 32
PROCESSES = 4
RUNS_EACH = 2


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


@contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # type: ignore[call-overload]
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def raw_counts(home: Home) -> dict[str, int]:
    tables = ("runs", "startups", "startup_phases", "snapshots", "faults", "evidence", "samples")
    with duckdb.connect(str(home.warehouse)) as connection:
        return {
            table: connection.sql(f"select count(*) from raw.{table}").fetchall()[0][0]
            for table in tables
        }


WRITER = """
    import sys, threading
    from pathlib import Path
    from tests.factories import RecordFactory, land
    landing, process, threads, runs = Path(sys.argv[1]), *map(int, sys.argv[2:])
    gate = threading.Barrier(threads)
    def write(thread):
        factory = RecordFactory(1000 + process * threads + thread)
        gate.wait(60)
        for _ in range(runs):
            record = factory.startup_record(2)
            land(landing, record, samples=factory.samples(record))
    writers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
    for writer in writers: writer.start()
    for writer in writers: writer.join(120)
    print("done")
"""


def test_writers_loader_publisher_and_readers_all_at_once(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    land(home.landing, RecordFactory(1).startup_record(2))
    load(home)
    build(home)
    publish(home)

    stop = threading.Event()
    seen: list[int] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.wait(0.1):
                seen.append(query(home, "select count(*) n from startup_measurements")["n"][0])
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    threads = WRITERS // PROCESSES
    writers = [
        subprocess.Popen(
            python(WRITER, str(home.landing), str(number), str(threads), str(RUNS_EACH)),
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    loaded = 0
    deadline = time.monotonic() + DEADLINE_S
    try:
        while any(writer.poll() is None for writer in writers):
            assert time.monotonic() < deadline
            report = load(home)
            assert report.rejected == ()
            loaded += len(report.loaded)
        outputs = [writer.communicate(timeout=30)[0] for writer in writers]
        assert all(output.strip() == "done" for output in outputs), outputs
        loaded += len(load(home).loaded)
        build(home)
        publish(home)
        final = query(home, "select count(*) n from startup_measurements")["n"][0]
    finally:
        stop.set()
        for reader in readers:
            reader.join(60)
        for writer in writers:
            writer.kill()
            writer.wait(30)
    assert errors == []
    runs = WRITERS * RUNS_EACH
    assert loaded == runs
    assert final == (runs + 1) * 8
    assert seen == sorted(seen), "a reader never sees less than before"
    assert set(seen) <= {8, final}, "a reader sees a whole publication or the one before"
    assert raw_counts(home) == {
        "runs": runs + 1, "startups": (runs + 1) * 8, "startup_phases": (runs + 1) * 28,
        "snapshots": runs + 1, "faults": 0, "evidence": runs * 2 + 1, "samples": runs * 40,
    }  # fmt: skip
    assert list((home.landing / INCOMING).iterdir()) == []


# A loader that says when it begins, loads in small batches, and kills itself at a given write.
LOADER = """
    import os, signal, sys
    from pathlib import Path
    from resilience_pipelines.home import Home
    from resilience_pipelines.warehouse import load as module
    module.BATCH_RUNS = 3
    left = int(sys.argv[2])
    real = module._Loader._append
    def append(self, *arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, *arguments, **options)
    module._Loader._append = append
    print("begin", flush=True)
    report = module.load(Home(Path(sys.argv[1])))
    print(len(report.loaded), len(report.already), len(report.rejected))
"""
RUNS = 20


@pytest.fixture
def full_home(tmp_path: Path) -> Home:
    home = make_home(tmp_path / "home")
    factory = RecordFactory(9)
    for _ in range(RUNS):
        record = factory.startup_record(2)
        land(home.landing, record, samples=factory.samples(record))
    return home


def whole_runs(home: Home) -> int:
    """How many runs are loaded, after a check that each of them is whole."""
    counts = raw_counts(home)
    runs = counts["runs"]
    assert counts == {
        "runs": runs, "startups": runs * 8, "startup_phases": runs * 28, "snapshots": runs,
        "faults": 0, "evidence": runs * 2, "samples": runs * 40,
    }  # fmt: skip
    return runs


def test_a_loader_that_is_killed_between_any_two_writes_leaves_whole_runs(full_home: Home) -> None:
    partial = 0
    for write in (1, 4, 7, 9, 15):
        done = subprocess.run(
            python(LOADER, str(full_home.root), str(write)),
            cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode == -signal.SIGKILL:
            if full_home.warehouse.exists():
                partial += 0 < whole_runs(full_home) < RUNS
        else:
            assert done.returncode == 0, done.stdout + done.stderr
    assert partial, "no kill fell between two batches"
    load(full_home)
    assert whole_runs(full_home) == RUNS


def test_a_loader_that_is_killed_at_random_moments_loads_each_run_once(full_home: Home) -> None:
    moments = random.Random(3)
    kills = 0
    before = 0
    for _ in range(8):
        with running(python(LOADER, str(full_home.root), "0")) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "begin"
            try:
                process.wait(moments.uniform(0.02, 0.5))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)
                kills += 1
        if full_home.warehouse.exists() and _has_tables(full_home):
            now = whole_runs(full_home)
            assert now >= before, "a run that was loaded is never lost"
            before = now
    assert kills, "every loader was done before it could be killed"
    report = load(full_home)
    assert len(report.loaded) + len(report.already) == RUNS
    assert whole_runs(full_home) == RUNS


def _has_tables(home: Home) -> bool:
    with duckdb.connect(str(home.warehouse)) as connection:
        found = connection.sql(
            "select count(*) from duckdb_tables() where schema_name = 'raw' "
            "and table_name = 'samples'"
        ).fetchall()
    return found == [(1,)]


def test_a_writer_that_is_killed_leaves_nothing_to_load(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    code = """
        import sys, time
        from pathlib import Path
        from tests.factories import RecordFactory
        from resilience_pipelines.warehouse.landing import LandingWriter
        record = RecordFactory(1).startup_record(1)
        with LandingWriter(Path(sys.argv[1]), record.run_id) as writer:
            writer.path("a.log").write_text("half")
            print("inside", flush=True)
            time.sleep(120)
    """
    with running(python(code, str(home.landing))) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "inside"
        process.kill()
        process.wait(30)
    assert len(list((home.landing / INCOMING).iterdir())) == 1
    assert list(find_landings(home.landing)) == []
    assert load(home).loaded == ()
    # Its run can be landed again by nobody else, and its folder goes once it is old.
    from resilience_pipelines.warehouse.landing import clean_incoming

    assert clean_incoming(home.landing) == [], "it is young"
    assert len(clean_incoming(home.landing, older_than_s=0.0)) == 1


HOLDER = """
    import duckdb, sys, time
    connection = duckdb.connect(sys.argv[1])
    print("open", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("action", [load, build, publish])
def test_a_warehouse_that_another_process_has_open_names_that_process(
    tmp_path: Path, action: object
) -> None:
    home = make_home(tmp_path / "home")
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create table mart as select 1 as x")
    with running(python(HOLDER, str(home.warehouse), "120")) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "open"
        with pytest.raises(BusyError, match=f"process {holder.pid}") as caught:
            action(home, lock_wait_s=0.5)  # type: ignore[operator]
        assert caught.value.exit_code == 4


def test_a_lock_that_is_given_back_in_time_is_waited_for(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    land(home.landing, RecordFactory(1).startup_record(1))
    with running(python(HOLDER, str(home.warehouse), "1.5")) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "open"
        assert len(load(home, lock_wait_s=60).loaded) == 1


def test_readers_do_not_mind_a_locked_warehouse(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create table mart as select 1 as x")
    publish(home)
    with running(python(HOLDER, str(home.warehouse), "120")) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "open"
        assert query(home, "select x from mart").rows() == [(1,)]


REPORT_ERROR = """
    import json, sys
    from pathlib import Path
    from resilience_pipelines.errors import StorageError
    def attempt(action):
        try:
            action()
        except StorageError as error:
            return {"reason": error.reason, "mend": error.mend}
        return {"reason": "", "mend": ""}
"""


@pytest.mark.parametrize("what", ["samples", "evidence", "run_file"])
def test_landing_on_a_full_disk_leaves_nothing_half(tmp_path: Path, what: str) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    code = (
        REPORT_ERROR
        + """
    import os
    import polars as pl
    from tests.factories import RecordFactory, land
    from resilience_pipelines.samples import SAMPLES_SCHEMA
    from resilience_pipelines.warehouse.landing import LandingWriter, find_landings
    landing, what = Path(sys.argv[1]), sys.argv[2]
    factory = RecordFactory(1)
    small = land(landing, factory.startup_record(1))
    record = factory.startup_record(300 if what == "run_file" else 1)
    noise = os.urandom(2**21)
    def big():
        with LandingWriter(landing, record.run_id) as writer:
            if what == "evidence":
                writer.path("core.bin").write_bytes(noise)
            if what == "samples":
                values = [float(b) * index for index, b in enumerate(noise[:300_000])]
                writer.write_samples(pl.DataFrame(
                    {"subject": "cold-0", "at_s": values, "series": "s", "unit": "u",
                     "value": values}, schema=SAMPLES_SCHEMA))
            writer.finish(record)
    found = attempt(big)
    found["landed"] = [path.name for path in find_landings(landing)]
    found["expected"] = [small.name]
    found["incoming"] = len(list((landing / ".incoming").iterdir()))
    print(json.dumps(found))
    """
    )
    done = small_disk(landing, "600k", code, str(landing), what)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert "No space left" in found["reason"]
    assert "Free space" in found["mend"]
    assert found["landed"] == found["expected"]
    assert found["incoming"] == 0


def test_publishing_on_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create table mart as select 1 as x")
    code = (
        REPORT_ERROR
        + """
    import duckdb
    from resilience_pipelines.home import Home
    from resilience_pipelines.warehouse.publish import publish
    from resilience_pipelines.warehouse.query import query
    home = Home(Path(sys.argv[1]))
    publish(home)
    before = home.published.read_bytes()
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create or replace table mart as "
                           "select uuid() as x from range(400000)")
    found = attempt(lambda: publish(home))
    found["same"] = home.published.read_bytes() == before
    found["rows"] = query(home, "select count(*) n from mart")["n"][0]
    found["files"] = [path.name for path in home.published.parent.iterdir()]
    print(json.dumps(found))
    """
    )
    done = small_disk(home.published.parent, "4m", code, str(home.root))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert "No space left" in found["reason"] or "disk space" in found["reason"]
    assert "Free space" in found["mend"]
    assert found["same"]
    assert found["rows"] == 1
    assert found["files"] == ["resilience.duckdb"]


def test_loading_on_a_full_disk_keeps_what_was_loaded(tmp_path: Path) -> None:
    source = tmp_path / "source"
    factory = RecordFactory(1)
    for _ in range(3):
        land(source / "few", factory.startup_record(1))
    for _ in range(40):
        record = factory.startup_record(20)
        land(source / "many", record, samples=factory.samples(record, 500))
    root = tmp_path / "home"
    root.mkdir()
    code = (
        REPORT_ERROR
        + """
    import duckdb
    from resilience_pipelines.home import open_home
    from resilience_pipelines.warehouse.load import load
    home, source = open_home(sys.argv[1]), Path(sys.argv[2])
    load(home, [source / "few"])
    found = attempt(lambda: load(home, [source / "many"]))
    with duckdb.connect(str(home.warehouse), read_only=True) as connection:
        found["runs"] = connection.sql("select count(*) from raw.runs").fetchall()[0][0]
        found["orphans"] = connection.sql(
            "select count(*) from raw.samples where run_id not in (select run_id from raw.runs)"
        ).fetchall()[0][0]
    print(json.dumps(found))
    """
    )
    done = small_disk(root, "10m", code, str(root), str(source))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert "No space left" in found["reason"] or "disk space" in found["reason"]
    assert "Free space" in found["mend"]
    assert found["runs"] >= 3
    assert found["orphans"] == 0
