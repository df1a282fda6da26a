"""A disk that is full at any write: a named error, nothing half, nothing left; later it goes on.

Each step is done again and again on a small file system that has no page free, then one, then two
and so on, until it succeeds: whichever of its writes needs the first page that is not there fails.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.small_disk import small_disk

PROGRAM = """
import json, os, sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from benchmarks.snapshot_crashes import make_snapshot
from resilience_pipelines.baselines.baseline import Baseline
from resilience_pipelines.baselines.keep import keep, read_imported
from resilience_pipelines.errors import ResilienceError, StorageError
from resilience_pipelines.home import open_home
from resilience_pipelines.snapshots.reasons import SnapshotError
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.trends.decisions import FILE, Choice, decide, decisions
from resilience_pipelines.warehouse.landing import INCOMING, find_landings, read_landing
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from tests.factories import RecordFactory, land

PAGE = 4096
home = open_home(sys.argv[1])
factory = RecordFactory(1)
filler = home.root / "filler"


def step_land():
    record = factory.startup_record(2)
    land(home.landing, record, samples=factory.samples(record, 200))

def seen_land():
    return len([read_landing(folder) for folder in find_landings(home.landing)])

def step_decide():
    decide(home, f"{seen_decide():012x}", Choice.NOTED, "n" * 1500, "me")

def seen_decide():
    return len(decisions(home))

def step_keep():
    keep(home, [Baseline(source="s", product="p", figure="f", value=seen_keep(), unit="s",
                         detail="d" * 1900)])

def seen_keep():
    return len(read_imported(home))

def step_store():
    store = SnapshotStore(home.snapshots)
    try:
        make_snapshot(store, datetime.now(UTC), "1", [os.urandom(9000), os.urandom(500)])
    except OSError as error:
        # Writing the image is CRIU's part.
        raise StorageError(str(error), mend="") from error

def seen_store():
    store = SnapshotStore(home.snapshots)
    assert store.unreadable() == []
    for snapshot in store.all():
        store.verify(snapshot)
    return len(store.all())

def step_load():
    load(home)

def seen_load():
    if not home.warehouse.exists():
        return 0
    with duckdb.connect(str(home.warehouse), read_only=True) as connection:
        try:
            runs, starts, samples = connection.sql(
                "select (select count(*) from raw.runs), (select count(*) from raw.startups), "
                "(select count(*) from raw.samples)").fetchall()[0]
        except duckdb.CatalogException:
            return 0
    assert (starts, samples) == (8 * runs, 1600 * runs), (runs, starts, samples)
    return 1 if runs else 0

def step_publish():
    publish(home, parquet=True)

def seen_publish():
    if not home.published.exists():
        return 0
    with duckdb.connect(str(home.published), read_only=True) as connection:
        assert connection.sql("select count(*) from mart").fetchall() == [(50_000,)]
    return 1


what = sys.argv[2]
if what == "load":
    for _ in range(5):
        step_land()
if what == "publish":
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create table mart as select uuid() as x from range(50000)")
step, seen = globals()["step_" + what], globals()["seen_" + what]

def files():
    found = {path for path in home.root.rglob("*") if path.is_file() or path.name.startswith(".")}
    # These are gone on with by the next one.
    return found - {filler, home.landing / INCOMING, home.warehouse, home.root / FILE,
                    home.warehouse.with_name("warehouse.duckdb.wal")}

before, found_before = files(), seen()
failures, problems, pages = [], [], 0
while True:
    free = os.statvfs(home.root)
    size = free.f_bavail * free.f_frsize - pages * PAGE
    if size <= 0:
        problems.append("it never succeeded")
        break
    with filler.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, size)
    try:
        step()
    except ResilienceError as error:
        failures.append(error.reason)
        # A snapshot that could not be stored is a measurement's failure.
        if error.exit_code != 5 and not isinstance(error, SnapshotError):
            problems.append(f"{pages} pages: exit code {error.exit_code}: {error}")
    except BaseException as error:
        problems.append(f"{pages} pages: {type(error).__name__}: {error}")
    else:
        break
    finally:
        filler.unlink()
    try:
        if seen() != found_before:
            problems.append(f"{pages} pages: it failed, and {seen()} are there")
    except BaseException as error:
        problems.append(f"{pages} pages: afterwards: {type(error).__name__}: {error}")
    if left := files() - before:
        problems.append(f"{pages} pages: {sorted(map(str, left))} is left")
    pages += 1 if pages < 16 else pages // 8
if seen() != found_before + 1:
    problems.append(f"it succeeded, and {seen()} are there")
print(json.dumps({"failures": failures, "problems": problems, "pages": pages}))
"""


@pytest.mark.parametrize("what", ["land", "decide", "keep", "store", "load", "publish"])
def test_a_step_on_a_full_disk_fails_by_name_and_succeeds_once_there_is_space(
    tmp_path: Path, what: str
) -> None:
    root = tmp_path / "home"
    root.mkdir()
    done = small_disk(root, "48m", PROGRAM, str(root), what)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["failures"], "no write failed"
