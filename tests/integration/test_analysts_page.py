"""docs/analysts.md tells what is so: its queries run, on this DuckDB and on the oldest that may."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest

from resilience_pipelines.home import Home
from resilience_pipelines.warehouse.query import query

ROOT = Path(__file__).parents[2]
LTS = ROOT / ".duckdb-lts"
BLOCKS = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "analysts.md").read_text(), re.DOTALL)
MACROS = ("median_interval", "latest_stacks", "stack_differences", "compare_stacks")

ASK = """
import json, sys, duckdb
blocks, path = json.load(sys.stdin), sys.argv[1]
with duckdb.connect(path, read_only=True) as connection:
    counts = [len(connection.execute(f"select count(*) over () from ({sql}\\n)").fetchall())
              for sql in blocks]
print(json.dumps([duckdb.__version__, counts]))
"""


def may_be_empty(sql: str) -> bool:
    return sql.rstrip().splitlines()[-1].startswith("-- no row")


def test_there_are_blocks_of_both_kinds() -> None:
    assert len(BLOCKS) > 15
    assert 0 < sum(map(may_be_empty, BLOCKS)) < len(BLOCKS) / 2


@pytest.mark.parametrize("sql", BLOCKS)
def test_a_query_of_the_page_runs_and_gives_rows(results_home: Home, sql: str) -> None:
    rows = len(query(results_home, sql))
    assert rows or may_be_empty(sql)


def test_the_oldest_duckdb_that_may_read_the_file_gives_as_many_rows(results_home: Home) -> None:
    if not LTS.is_dir():
        pytest.skip(f"no DuckDB 1.4 in {LTS.name}: `make test` installs it")
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(results_home.published)], input=json.dumps(BLOCKS),
        capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(LTS)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version, counts = json.loads(done.stdout)
    assert version.startswith("1.4.")
    assert duckdb.__version__ != version
    assert counts == [len(query(results_home, sql)) for sql in BLOCKS]


def test_the_page_names_every_table_and_every_macro(results_home: Home) -> None:
    text = (ROOT / "docs" / "analysts.md").read_text()
    tables = query(results_home, "select table_name from duckdb_tables()")["table_name"].to_list()
    assert [name for name in (*tables, *MACROS) if f"`{name}" not in text] == []
    found = query(
        results_home,
        "select function_name, comment from duckdb_functions() "
        "where database_name = current_database()",
    )
    assert set(found["function_name"]) == set(MACROS)
    assert all(found["comment"])


def test_every_table_is_there_as_a_parquet_file_with_the_same_rows(results_home: Home) -> None:
    folder = results_home.published.parent / "parquet"
    tables = query(results_home, "select table_name from duckdb_tables()")["table_name"].to_list()
    assert sorted(path.stem for path in folder.glob("*.parquet")) == sorted(tables)
    for name in tables:
        frame = pl.read_parquet(folder / f"{name}.parquet")
        assert len(frame) == query(results_home, f"select count(*) from {name}").item()
        assert frame.columns == query(results_home, f"from {name} limit 0").columns
