"""A query reads the published tables and reaches nothing else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import duckdb
import polars as pl
import pytest

from resilience_pipelines.errors import CorruptError, DeadlineError, InputError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.warehouse.query import query
from tests.factories import make_home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = make_home(tmp_path / "it's a home")
    with duckdb.connect(str(home.published)) as connection:
        connection.execute(
            "create table numbers as select i, timestamptz '2026-01-01 00:00:00+00' as seen_at "
            "from range(5) t(i)"
        )
    return home


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select sum(i) from numbers", [(10,)]),
        ("from numbers select count(*)", [(5,)]),
        ("with a as (select 1 as x) select x from a", [(1,)]),
        ("show tables", [("numbers",)]),
        ("select count(*) from numbers;", [(5,)]),
        ("-- a comment\nselect 1", [(1,)]),
        ("select column_name from (describe numbers)", [("i",), ("seen_at",)]),
        ("select i from numbers where false", []),
    ],
)
def test_what_reads_is_answered(home: Home, sql: str, rows: list[tuple[object, ...]]) -> None:
    assert query(home, sql).rows() == rows


def test_explain_is_answered(home: Home) -> None:
    assert len(query(home, "explain select * from numbers")) >= 1


def test_times_are_in_utc(home: Home) -> None:
    frame = query(home, "select seen_at from numbers limit 1")
    assert frame.schema["seen_at"] == pl.Datetime("us", "UTC")


FORBIDDEN = [
    "copy numbers to '{out}'",
    "copy (select 1) to '{out}' (format parquet)",
    "export database '{out}'",
    "attach '{out}' as other",
    "attach '{db}' as other",
    "from read_csv('/etc/passwd')",
    "from read_text('/etc/passwd')",
    "from read_blob('/etc/passwd')",
    "from read_parquet('/etc/passwd')",
    "from read_json('/etc/passwd')",
    "from '/etc/passwd'",
    "from glob('/etc/*')",
    "from sniff_csv('/etc/passwd')",
    "select getenv('HOME')",
    "select * from duckdb_secrets()",
    "install httpfs",
    "load httpfs",
    "from read_csv('http://127.0.0.1:9/x.csv')",
    "set enable_external_access = true",
    "set lock_configuration = false",
    "reset lock_configuration",
    "pragma enable_profiling",
    "set memory_limit = '1TB'",
    "insert into numbers values (1, now())",
    "update numbers set i = 1",
    "delete from numbers",
    "drop table numbers",
    "create table other as select 1",
    "create table memory.main.other as select 1",
    "create temp table other as select 1",
    "create macro m() as 1",
    "detach resilience",
    "use memory",
    "checkpoint",
    "begin",
    "call pragma_version()",
    "prepare p as select 1",
    "select 1; copy numbers to '{out}'",
    "select 1; select 2",
    "explain analyze copy numbers to '{out}'",
    "explain analyze insert into numbers values (1, now())",
    "from query('copy numbers to ''{out}''')",
    "from sqlite_scan('{db}', 'x')",
]


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_what_reaches_further_is_refused(home: Home, tmp_path: Path, sql: str) -> None:
    out = tmp_path / "out"
    before = home.published.read_bytes()
    with pytest.raises(InputError):
        query(home, sql.format(out=out, db=str(home.warehouse).replace("'", "''")))
    assert not out.exists()
    assert not home.warehouse.exists()
    assert home.published.read_bytes() == before


def test_variables_of_this_program_are_out_of_reach(home: Home) -> None:
    secret = pl.DataFrame({"x": [1]})
    assert len(secret) == 1
    with pytest.raises(InputError, match="secret"):
        query(home, "select * from secret")


def test_a_bad_statement_is_answered_with_what_and_where(home: Home) -> None:
    with pytest.raises(InputError, match=r'(?s)syntax error at or near "selec".*LINE 1: selec 1'):
        query(home, "selec 1")
    with pytest.raises(InputError, match=r"LINE 2:"):
        query(home, "select i\nfrom numbers were i = 1")


@pytest.mark.parametrize("sql", ["", "  ;", "-- nothing"])
def test_no_statement_is_refused(home: Home, sql: str) -> None:
    with pytest.raises(InputError, match="one statement"):
        query(home, sql)


def test_an_error_in_the_data_is_the_askers(home: Home) -> None:
    with pytest.raises(InputError, match="Conversion"):
        query(home, "select 'x'::integer from numbers")


def test_a_query_that_takes_too_long_is_ended(home: Home) -> None:
    with pytest.raises(DeadlineError):
        query(
            home,
            "select count(*) from range(1000000000000) t(i) where hash(i) = 3",
            deadline_s=0.3,
        )


def test_before_publishing_the_mend_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing has been published.*resilience publish"):
        query(make_home(tmp_path), "select 1")


def test_a_file_that_is_no_database_is_told_so(home: Home) -> None:
    home.published.write_text("nonsense " * 10_000)
    with pytest.raises(CorruptError):
        query(home, "select 1")


def test_many_threads_ask_at_once_beside_another_reader(home: Home) -> None:
    answers: list[list[tuple[object, ...]]] = []

    def ask() -> None:
        for _ in range(5):
            answers.append(query(home, "select sum(i) from numbers").rows())

    with duckdb.connect(str(home.published), read_only=True):
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert answers == [[(10,)]] * 40


def test_asking_leaves_no_file(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    query(home, "select count(distinct hash(i)) from range(1000000) t(i)")
    assert os.listdir(folder) == []
    assert os.listdir(home.published.parent) == [home.published.name]


def test_an_answer_without_end_ends(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience_pipelines.warehouse.query.MAX_ANSWER_BYTES", 2**24)
    with pytest.raises(StorageError, match="more than"):
        query(home, "from range(100000000000)")


def test_an_empty_answer_has_its_columns(home: Home) -> None:
    frame = query(home, "select 1::bigint as a, 'x' as b where false")
    assert (frame.schema, len(frame)) == ({"a": pl.Int64, "b": pl.String}, 0)


def test_text_that_is_none_is_refused(home: Home) -> None:
    with pytest.raises(InputError, match="no text"):
        query(home, "select '\udcff'")


def test_columns_of_one_name_are_told_apart(home: Home) -> None:
    assert query(home, "select 1 as a, 2 as a, 3 as b").rows() == [(1, 2, 3)]
    assert query(home, "select 1 as a, 2 as a").columns == ["a", "a_1"]
