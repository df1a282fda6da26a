"""Publishing: a copy of the marts that analysts and dashboards open without meeting a lock.

What belongs here: making the copy, with macros for analysts, checking it, and putting it in place
at once. What does not: what is in the marts (`dbt/`), the macros' text (`macros`), and reading the
copy (`query`).

A reader that has the old file open keeps reading it; whoever opens the path afterwards gets the new
one. Nobody ever sees half of it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from resilience_pipelines.durability import sync
from resilience_pipelines.errors import BusyError, CorruptError, InputError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.owned_folder import owned_folder, remove_orphans
from resilience_pipelines.warehouse.connection import (
    LOCK_WAIT_S,
    alone_in_process,
    storage_error,
    when_unlocked,
)
from resilience_pipelines.warehouse.macros import macros

STORAGE_VERSION: Final = "v1.0.0"
"""The oldest DuckDB that reads the published file: analysts' tools are older than ours."""

SORT_MEMORY: Final = "2GiB"
"""What putting a table in order may hold in memory; the rest of a larger table goes to disk."""

_POLL_S = 0.05
_WORK_PREFIX = ".publishing-"
_MEND_BUILD = "Load results and build the marts first: `resilience load`."


@dataclass(frozen=True)
class _Mart:
    name: str
    comment: str | None
    columns: tuple[tuple[str, str], ...]
    """Columns that have a comment, with it."""


def publish(home: Home, *, parquet: bool = False, lock_wait_s: float = LOCK_WAIT_S) -> Path:
    """Copy the marts to the published file; returns its path.

    Args:
        parquet: also write each mart as `published/parquet/<mart>.parquet`.

    Raises:
        InputError: there are no marts yet.
        BusyError: another process has the warehouse open, or is publishing.
        StorageError: no space, or no right to write; the old file stays as it was.
        CorruptError: the copy is not what was copied; the old file stays as it was.
    """
    target = home.published
    if not home.warehouse.is_file():
        raise InputError(
            "warehouse", str(home.warehouse), "there is no such file", mend=_MEND_BUILD
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_orphans(target.parent, f"{_WORK_PREFIX}*")
        with (
            _only_publisher(target.parent, lock_wait_s),
            owned_folder(target.parent / f"{_WORK_PREFIX}{secrets.token_hex(4)}") as work,
        ):
            copy = work / target.name
            with alone_in_process(home.warehouse, lock_wait_s):
                marts = _copy(home.warehouse, copy, time.monotonic() + lock_wait_s)
            files = [(copy, target)]
            if parquet:
                files += _write_parquet(copy, marts, target.parent / "parquet")
            for made, _ in files:
                sync(made)
            for made, final in files:
                made.replace(final)
            for folder in {final.parent for _, final in files}:
                sync(folder)
    except duckdb.Error as error:
        raise storage_error(target, error) from error
    except OSError as error:
        raise StorageError(
            f"{target} could not be written ({error.strerror or error}).",
            mend="Check the path, its rights and its free space.",
        ) from error
    return target


@contextmanager
def _only_publisher(folder: Path, wait_s: float) -> Iterator[None]:
    """Keep others from publishing: whoever copied first would put an older file in place last."""
    deadline = time.monotonic() + wait_s
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise BusyError(
                        f"Somebody else has been publishing to {folder} for {wait_s:g} s.",
                        mend="Wait for it to end.",
                    ) from error
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def _copy(warehouse: Path, copy: Path, deadline: float) -> list[_Mart]:
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"set temp_directory = {_text(copy.with_suffix('.spill'))}")
        connection.execute(f"set memory_limit = {_text(SORT_MEMORY)}")
        when_unlocked(
            lambda: connection.execute(f"attach {_text(warehouse)} as warehouse (read_only)"),
            warehouse,
            deadline,
        )
        connection.execute(
            f"attach {_text(copy)} as published (storage_version {_text(STORAGE_VERSION)})"
        )
        marts = _list_marts(connection)
        if not marts:
            raise InputError("warehouse", str(warehouse), "it has no marts yet", mend=_MEND_BUILD)
        connection.execute("begin")
        for mart in marts:
            name = _name(mart.name)
            connection.execute(
                f"create table published.main.{name} as from warehouse.main.{name} order by all"
            )
            if mart.comment:
                connection.execute(
                    f"comment on table published.main.{name} is {_text(mart.comment)}"
                )
            for column, comment in mart.columns:
                connection.execute(
                    f"comment on column published.main.{name}.{_name(column)} is {_text(comment)}"
                )
        connection.execute("commit")
        _add_macros(connection, {mart.name for mart in marts})
        sums = {mart.name: _checksum(connection, f"warehouse.main.{_name(mart.name)}")
                for mart in marts}  # fmt: skip
        connection.execute("detach published")
    with duckdb.connect(str(copy), read_only=True) as connection:
        for mart in marts:
            if _checksum(connection, f"main.{_name(mart.name)}") != sums[mart.name]:
                raise CorruptError(
                    f"The copy of mart {mart.name} is not what was copied.",
                    mend="Check the disk, and publish again.",
                )
    return marts


def _add_macros(connection: duckdb.DuckDBPyConnection, marts: set[str]) -> None:
    """Make the macros whose marts are there."""
    # A macro keeps the names of tables as they are written, so that it works whatever name the file
    # is opened under; they are looked up as soon as it is made.
    connection.execute("use published")
    for macro in macros():
        if not macro.reads <= marts:
            continue
        kind = "table " if macro.is_table else ""
        parameters = ", ".join(macro.parameters)
        connection.execute(f"create macro {macro.name}({parameters}) as {kind}{macro.body}")
        connection.execute(f"comment on macro {kind}{macro.name} is {_text(macro.comment)}")
    connection.execute("use memory")


def _list_marts(connection: duckdb.DuckDBPyConnection) -> list[_Mart]:
    tables = connection.execute(
        "select table_name, comment from duckdb_tables() "
        "where database_name = 'warehouse' and schema_name = 'main' order by table_name"
    ).fetchall()
    commented = connection.execute(
        "select table_name, column_name, comment from duckdb_columns() "
        "where database_name = 'warehouse' and schema_name = 'main' and comment is not null "
        "order by table_name, column_index"
    ).fetchall()
    return [
        _Mart(
            table, comment, tuple((column, text) for owner, column, text in commented
                                  if owner == table),
        )
        for table, comment in tables
    ]  # fmt: skip


def _checksum(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[int, int | None]:
    """A table's row count and the sum of its rows' hashes, which no order changes."""
    [(count, total)] = connection.execute(
        f"select count(*), sum(hash(marts)) from {table} as marts"  # noqa: S608
    ).fetchall()
    return count, total


def _write_parquet(copy: Path, marts: list[_Mart], folder: Path) -> list[tuple[Path, Path]]:
    """Each mart as a Parquet file beside the copy, with the path where it goes."""
    folder.mkdir(exist_ok=True)
    files = []
    with duckdb.connect(str(copy), read_only=True) as connection:
        for mart in marts:
            made = copy.parent / f"{mart.name}.parquet"
            connection.execute(
                f"copy main.{_name(mart.name)} to {_text(made)} (format parquet, compression zstd)"
            )
            files.append((made, folder / made.name))
    return files


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _text(value: str | Path) -> str:
    return "'" + str(value).replace("'", "''") + "'"
