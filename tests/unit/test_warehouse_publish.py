"""The published file is a whole copy of the marts, put in place at once."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import duckdb
import polars as pl
import pytest

from resilience_pipelines.errors import BusyError, CorruptError, InputError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.owned_folder import LOCK_NAME
from resilience_pipelines.warehouse import publish as module
from resilience_pipelines.warehouse.connection import open_warehouse
from resilience_pipelines.warehouse.publish import publish
from tests.factories import make_home


def make_marts(home: Home, rows: int = 3) -> None:
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create schema if not exists raw; create schema if not exists staging")
        connection.execute("create or replace table raw.secret as select 1 as x")
        connection.execute("create or replace view staging.v as select 1 as x")
        connection.execute(
            "create or replace table numbers as "
            f"select i::bigint as i, i / 2 as half, 'it''s ' || i as name from range({rows}) t(i)"
        )
        connection.execute("comment on table numbers is 'It''s a \"mart\".'")
        connection.execute("comment on column numbers.half is 'Half of it.'")
        connection.execute('create or replace table "odd ""name" as select null::double as "a b"')


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = make_home(tmp_path / "it's a home")
    make_marts(home)
    return home


def read(home: Home, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(home.published), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def leftovers(home: Home) -> list[str]:
    return [path.name for path in home.published.parent.iterdir() if path != home.published]


def test_marts_are_copied_with_rows_types_and_comments(home: Home) -> None:
    assert publish(home) == home.published
    assert read(home, "select schema_name, table_name from duckdb_tables() order by all") == [
        ("main", "numbers"),
        ("main", 'odd "name'),
    ]
    assert read(home, "from numbers order by i") == [
        (0, 0.0, "it's 0"), (1, 0.5, "it's 1"), (2, 1.0, "it's 2"),
    ]  # fmt: skip
    assert read(home, "select comment from duckdb_tables() where table_name = 'numbers'") == [
        ('It\'s a "mart".',)
    ]
    assert read(
        home,
        "select column_name, data_type, comment from duckdb_columns() "
        "where table_name = 'numbers' order by column_index",
    ) == [("i", "BIGINT", None), ("half", "DOUBLE", "Half of it."), ("name", "VARCHAR", None)]
    assert leftovers(home) == []


def test_the_file_is_one_that_older_duckdb_reads(home: Home) -> None:
    publish(home)
    [(tags,)] = read(home, "select tags from duckdb_databases() where database_name = 'resilience'")
    assert isinstance(tags, dict)
    assert str(tags["storage_version"]).startswith("v1.0.0")


def test_publishing_again_shows_the_new_marts(home: Home) -> None:
    publish(home)
    make_marts(home, 10)
    publish(home)
    assert read(home, "select count(*) from numbers") == [(10,)]


def test_a_reader_keeps_the_file_it_opened(home: Home, tmp_path: Path) -> None:
    publish(home)
    with home.published.open("rb") as old:
        before = old.read()
        make_marts(home, 10)
        publish(home)
        old.seek(0)
        assert old.read() == before
    kept = tmp_path / "kept.duckdb"
    kept.write_bytes(before)
    with duckdb.connect(str(kept), read_only=True) as connection:
        assert connection.execute("select count(*) from numbers").fetchall() == [(3,)]


def test_parquet_files_hold_the_same_rows(home: Home) -> None:
    publish(home, parquet=True)
    frame = pl.read_parquet(home.published.parent.joinpath("parquet", "numbers.parquet").open("rb"))
    assert frame.sort("i").rows() == read(home, "from numbers order by i")


def test_a_home_without_marts_is_told_what_to_do(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    with pytest.raises(InputError, match="resilience load"):
        publish(home)
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create schema raw")
    with pytest.raises(InputError, match=r"no marts.*resilience load"):
        publish(home)
    assert not home.published.exists()
    assert leftovers(home) == []


def test_a_copy_that_differs_is_not_put_in_place(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(home)
    make_marts(home, 10)
    real = module._checksum

    def off_by_one(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[int, int | None]:
        rows, total = real(connection, table)
        return (rows, total) if table.startswith("warehouse") else (rows - 1, total)

    monkeypatch.setattr(module, "_checksum", off_by_one)
    with pytest.raises(CorruptError, match="numbers"):
        publish(home)
    assert read(home, "select count(*) from numbers") == [(3,)]
    assert leftovers(home) == []


def test_a_failure_leaves_the_old_file(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(home)
    before = home.published.read_bytes()

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "sync", full)
    with pytest.raises(StorageError, match="No space left"):
        publish(home)
    assert home.published.read_bytes() == before
    assert leftovers(home) == []


def test_what_a_killed_publisher_left_is_removed(home: Home) -> None:
    left = home.published.parent / ".publishing-0000"
    left.mkdir()
    (left / LOCK_NAME).touch()
    (left / "resilience.duckdb").write_text("half")
    publish(home)
    assert leftovers(home) == []


def test_a_loader_in_another_thread_is_waited_for_within_bounds(home: Home) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with open_warehouse(home.warehouse):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert inside.wait(30)
        with pytest.raises(BusyError):
            publish(home, lock_wait_s=0.1)
    finally:
        leave.set()
        thread.join(30)
    publish(home)


def test_a_publisher_that_copied_earlier_does_not_bring_an_older_file_back(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_is_done = threading.Event()
    first_has_copied = threading.Event()
    sync = module.sync

    def slow_sync(path: Path) -> None:
        if not first_has_copied.is_set():
            first_has_copied.set()
            second_is_done.wait(1.0)
        sync(path)

    def publish_newer() -> None:
        first_has_copied.wait(30)
        with duckdb.connect(str(home.warehouse)) as connection:
            connection.execute("create table newer as select 1 as x")
        publish(home)
        second_is_done.set()

    monkeypatch.setattr(module, "sync", slow_sync)
    second = threading.Thread(target=publish_newer)
    second.start()
    publish(home)
    second.join(60)
    assert read(home, "select x from newer") == [(1,)]


def test_whoever_publishes_is_waited_for_within_bounds(home: Home) -> None:
    home.published.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(home.published.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="has been publishing"):
            publish(home, lock_wait_s=0.1)
    finally:
        os.close(handle)
    publish(home)
