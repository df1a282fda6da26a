"""Many processes on one data home: jobs, loaders, publishers and readers, all at once."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import psutil

from benchmarks.kill_points import Runner
from benchmarks.platform_crashes import (
    PRELOAD,
    counts_of,
    expected_counts,
    leftovers,
    processes_left,
    step_land,
    step_load,
)
from resilience_pipelines.errors import BusyError
from resilience_pipelines.home import Home
from resilience_pipelines.warehouse.connection import open_warehouse
from resilience_pipelines.warehouse.landing import INCOMING, find_landings
from resilience_pipelines.warehouse.publish import publish
from tests.factories import RecordFactory, land, make_home

ROOT = Path(__file__).resolve().parents[2]
JOBS = 32
LOADERS = 4
READERS = 4


def make_mart(home: Home, rows: int) -> None:
    """A mart whose every row says how many there are."""
    with open_warehouse(home.warehouse) as connection:
        connection.execute(f"create or replace table mart as select {rows} as n from range({rows})")


def test_jobs_and_loaders_that_race_on_a_new_home_count_each_run_once(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    runner = Runner(PRELOAD)
    landing = threading.Event()
    landing.set()

    def keep_loading(_: int) -> list[str | None]:
        errors = []
        while landing.is_set():
            errors.append(runner.run(step_load, home.root, 0).error)
        return errors

    with ThreadPoolExecutor(JOBS + LOADERS) as pool:
        loaders = [pool.submit(keep_loading, number) for number in range(LOADERS)]
        jobs = [pool.submit(runner.run, step_land, home.root, seed) for seed in range(JOBS)]
        errors = [job.result(240).error for job in jobs]
        landing.clear()
        errors += [error for loader in loaders for error in loader.result(240)]
    assert [error for error in errors if error] == []
    assert runner.run(step_load, home.root, 0).error is None
    assert len(list(find_landings(home.landing))) == JOBS
    wanted = expected_counts(home)
    assert wanted["runs"] == JOBS
    assert counts_of(home.warehouse, "raw", wanted) == wanted
    assert list((home.landing / INCOMING).iterdir()) == []
    assert leftovers(home) == []


def test_readers_see_a_whole_file_and_never_an_older_one_while_publishers_race(
    tmp_path: Path,
) -> None:
    home = make_home(tmp_path / "home")
    make_mart(home, 1)
    publish(home)
    done = threading.Event()

    def read(_: int) -> list[int]:
        seen = []
        while not done.is_set():
            with duckdb.connect(str(home.published), read_only=True) as connection:
                [(count, low, high)] = connection.sql(
                    "select count(*), min(n), max(n) from mart"
                ).fetchall()
            assert count == low == high
            seen.append(count)
        return seen

    publisher = textwrap.dedent("""
        import sys
        from pathlib import Path
        from resilience_pipelines.home import Home
        from resilience_pipelines.warehouse.publish import publish
        for _ in range(8):
            publish(Home(Path(sys.argv[1])))
    """)
    with ThreadPoolExecutor(READERS) as pool:
        readers = [pool.submit(read, number) for number in range(READERS)]
        publishers = [
            subprocess.Popen(
                [sys.executable, "-c", publisher, str(home.root)], cwd=ROOT, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for _ in range(2)
        ]  # fmt: skip
        try:
            for rows in itertools.count(2):
                try:
                    make_mart(home, rows * 1000)
                except BusyError:
                    continue
                if all(process.poll() is not None for process in publishers):
                    break
            outputs = [process.communicate(timeout=120)[0] for process in publishers]
        finally:
            done.set()
            for process in publishers:
                process.kill()
                process.wait(30)
        seen = [reader.result(60) for reader in readers]
    assert [process.returncode for process in publishers] == [0, 0], outputs
    assert all(len(set(counts)) > 1 for counts in seen), "a reader saw one file only"
    assert all(counts == sorted(counts) for counts in seen), "an older file came back"
    assert leftovers(home) == []


def test_dbt_ends_with_whoever_started_it(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    land(home.landing, RecordFactory(1).startup_record(1))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from resilience_pipelines.home import Home\n"
        "from resilience_pipelines.warehouse.transform import build\n"
        "build(Home(Path(sys.argv[1])))\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(home.root)], cwd=ROOT)
    try:
        end = time.monotonic() + 60
        while not (found := psutil.Process(starter.pid).children(recursive=True)):
            assert time.monotonic() < end, "no dbt was started"
            assert starter.poll() is None, "it ended without dbt"
            time.sleep(0.05)
        time.sleep(1)  # dbt is past its first lines, wherever it is then
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait(30)
    assert psutil.wait_procs(found, timeout=20)[1] == []
    assert processes_left(home.root) == []
