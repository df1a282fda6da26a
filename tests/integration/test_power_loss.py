"""After a power failure at any moment: nothing half is believed, and nothing promised is gone.

`tests.support.power_loss` says what is simulated and what is not.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from resilience_pipelines.home import Home
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.trends.decisions import decisions
from resilience_pipelines.warehouse.landing import find_landings, read_landing
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from tests.factories import RecordFactory, land, make_home
from tests.support.power_loss import Disk, record

ROOT = Path(__file__).resolve().parents[2]

States = Iterator[tuple[str, Path]]


def states(folder: Path, code: str) -> States:
    """Run a program on `folder`; what its disk may hold after each of its operations.

    The last one is `at the end`: the program has ended, so all that it promised counts.
    """
    disk = Disk(folder)
    log = folder.with_suffix(".log")
    operations = record([sys.executable, "-c", textwrap.dedent(code), str(folder)], log, ROOT)
    done = 0
    for operation in operations:
        if not disk.apply(operation):
            continue
        done += 1
        # Only a sync changes what is surely there, and a write changes nothing that is.
        for journal in {"sync": (False, True), "write": (), "truncate": ()}.get(
            operation.call, (True,)
        ):
            name = f"{done} {operation.call} {operation.paths[-1]} {'journal' if journal else ''}"
            state = folder.with_name(f"state-{done}-{journal}")
            disk.write(state, journal=journal)
            yield name, state
    assert done > 3, "the program did nothing"
    state = folder.with_name("state-end")
    disk.write(state, journal=False)
    yield "at the end", state


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def test_a_landing_folder_is_whole_or_absent_and_there_once_it_was_finished(disk: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from resilience_pipelines.home import open_home
        from tests.factories import RecordFactory, land
        home = open_home(Path(sys.argv[1]) / "some" / "home")
        factory = RecordFactory(1)
        for _ in range(2):
            record = factory.startup_record(1)
            land(home.landing, record, samples=factory.samples(record))
    """
    seen = set()
    for moment, state in states(disk, code):
        landing = state / "some" / "home" / "landing"
        found = list(find_landings(landing)) if landing.exists() else []
        for folder in found:
            assert read_landing(folder), moment
        seen.add(len(found))
    assert seen == {0, 1, 2}
    assert len(found) == 2, "a run that was landed is lost"


def test_a_warehouse_opens_with_whole_runs_and_loads_the_rest(disk: Path) -> None:
    home = make_home(disk)
    factory = RecordFactory(1)
    for _ in range(4):
        record = factory.startup_record(1)
        land(home.landing, record, samples=factory.samples(record))
    code = """
        import sys
        from pathlib import Path
        from resilience_pipelines.home import Home
        from resilience_pipelines.warehouse import load as module
        module.BATCH_RUNS = 2
        module.load(Home(Path(sys.argv[1])))
    """
    seen = set()
    for _, state in states(disk, code):
        home = Home(state)
        seen.add(whole_runs(home))
        load(home)
        assert whole_runs(home) == 4
    assert {0, 4} <= seen


def whole_runs(home: Home) -> int:
    if not home.warehouse.exists():
        return 0
    with duckdb.connect(str(home.warehouse)) as connection:
        tables = ("runs", "startups", "samples")
        known = connection.sql("select table_name from duckdb_tables() where schema_name = 'raw'")
        if not {(table,) for table in tables} <= set(known.fetchall()):
            return 0
        counts = [
            connection.sql(f"select count(*) from raw.{table}").fetchall()[0][0] for table in tables
        ]
    assert counts == [counts[0], 4 * counts[0], 20 * counts[0]]
    return int(counts[0])


def test_a_published_file_is_the_old_one_or_the_new_one(disk: Path) -> None:
    home = make_home(disk)
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create table mart as select 1 as x")
    publish(home)
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create or replace table mart as select 2 as x")
    code = """
        import sys
        from pathlib import Path
        from resilience_pipelines.home import Home
        from resilience_pipelines.warehouse.publish import publish
        publish(Home(Path(sys.argv[1])))
    """
    seen = []
    for moment, state in states(disk, code):
        with duckdb.connect(str(Home(state).published), read_only=True) as connection:
            [(x,)] = connection.sql("select x from mart").fetchall()
        assert x in (1, 2), moment
        seen.append(x)
    assert seen[-1] == 2


@pytest.mark.parametrize(
    ("code", "promised"),
    [
        (
            """
            for number in range(3):
                decide(home, f"{number:012x}", Choice.NOTED, "", "me")
            """,
            lambda home: len(decisions(home)),
        ),
        (
            """
            for number in range(3):
                replace_text(home.root / "kept" / "number", str(number + 1))
            """,
            lambda home: int(kept.read_text()) if (kept := home.root / "kept/number").exists()
            else 0,
        ),
        (
            """
            store = SnapshotStore(home.snapshots)
            for number in range(3):
                moment = datetime(2026, 1, 1 + number, tzinfo=UTC)
                make_snapshot(store, moment, "1", [b"p" * 5000, b"c"])
            """,
            lambda home: verified(SnapshotStore(home.snapshots)),
        ),
    ],
    ids=["decisions", "small files", "snapshots"],
)  # fmt: skip
def test_what_was_kept_stays_and_nothing_half_is_seen(
    disk: Path, code: str, promised: Callable[[Home], int]
) -> None:
    make_home(disk)
    start = """
        import sys
        from datetime import UTC, datetime
        from pathlib import Path
        from benchmarks.snapshot_crashes import make_snapshot
        from resilience_pipelines.durability import replace_text
        from resilience_pipelines.home import Home
        from resilience_pipelines.snapshots.store import SnapshotStore
        from resilience_pipelines.trends.decisions import Choice, decide
        home = Home(Path(sys.argv[1]))
    """
    seen = {}
    for moment, state in states(disk, textwrap.dedent(start) + textwrap.dedent(code)):
        make_home(state)  # as every start does: rights of a folder are not part of the model
        seen[moment] = promised(Home(state))
    # The states of a journal are ahead of the strict ones.
    strict = [count for moment, count in seen.items() if not moment.endswith("journal")]
    assert strict == sorted(strict), "what was there once stays"
    assert set(seen.values()) == {0, 1, 2, 3}
    assert seen["at the end"] == 3


def verified(store: SnapshotStore) -> int:
    for folder in store.root.iterdir():
        folder.chmod(0o700)
    for snapshot in store.all():
        store.verify(snapshot)
    assert store.unreadable() == []
    return len(store.all())
