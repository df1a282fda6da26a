"""Asking the published file in SQL, with nothing but that file within reach.

What belongs here: opening it read-only and shut in, and one statement. What does not: any question
of ours (`dashboards`), and making the file (`publish`).

The text of a query may come from anybody who may read the results. DuckDB can read and write files
and load code, so all of that is turned off, and then the settings are locked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import duckdb
import polars as pl
import pyarrow

from resilience_pipelines.errors import CorruptError, DeadlineError, InputError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.warehouse.connection import is_full, storage_error

QUERY_DEADLINE_S: Final = 60.0
MEMORY_LIMIT: Final = "2GB"
MAX_ANSWER_BYTES: Final = 2 * 2**30
_BATCH_ROWS: Final = 100_000

_CATALOG = "resilience"
_ALLOWED = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN})
_LOCKDOWN = (
    "set TimeZone = 'UTC'",
    f"set memory_limit = '{MEMORY_LIMIT}'",
    # No place to spill to: a query that needs more memory fails and leaves no file.
    "set temp_directory = ''",
    "set python_enable_replacements = false",
    "set autoinstall_known_extensions = false",
    "set autoload_known_extensions = false",
    "set enable_external_access = false",
    "set lock_configuration = true",
)
_HINTS = ("LINE ", "Did you mean", "Candidate bindings")
_MEND = "Tables are listed by SHOW TABLES, their columns by DESCRIBE name."


def query(
    home: Home,
    sql: str,
    parameters: Sequence[object] = (),
    *,
    deadline_s: float = QUERY_DEADLINE_S,
) -> pl.DataFrame:
    """The answer to one statement that reads (SELECT, FROM, SHOW, DESCRIBE, EXPLAIN).

    Args:
        parameters: values for the statement's `?`, in order.

    Raises:
        InputError: nothing was published yet, or the statement can't be run; carries DuckDB's
            message with the line that is wrong.
        DeadlineError: it took longer than `deadline_s` and was ended.
        StorageError: the published file can't be opened, the query needs too much memory, or its
            answer is too large.
        CorruptError: the published file can't be read.
    """
    published = home.published
    if not published.is_file():
        raise InputError(
            "published", str(published), "nothing has been published yet",
            mend="Load and publish results first: `resilience load`, `resilience publish`.",
        )  # fmt: skip
    # A database of its own in memory: other readers in this process keep their settings.
    with duckdb.connect(":memory:") as connection:
        path = str(published).replace("'", "''")
        try:
            connection.execute(f"attach '{path}' as {_CATALOG} (read_only)")
            connection.execute(f"use {_CATALOG}")
            for statement in _LOCKDOWN:
                connection.execute(statement)
        except duckdb.Error as error:
            raise storage_error(published, error) from error
        return _ask(connection, sql, parameters, deadline_s)


def _ask(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[object],
    deadline_s: float,
) -> pl.DataFrame:
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            "sql", sql, f"it is no text ({error.reason})", mend="Give it in UTF-8."
        ) from error
    ended = threading.Event()

    def end() -> None:
        ended.set()
        connection.interrupt()

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type not in _ALLOWED:
            raise InputError(
                "sql", sql, "it has to be one statement that reads",
                mend="Give one SELECT, FROM, WITH, SHOW, DESCRIBE or EXPLAIN.",
            )  # fmt: skip
        answer = _fetch(connection.sql(sql, params=list(parameters) or None))
    except duckdb.InterruptException as error:
        if not ended.is_set():
            raise
        raise DeadlineError(
            f"The query did not end within {deadline_s:g} s.", mend="Ask for less at once."
        ) from error
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise StorageError(
            f"The query needs more than {MEMORY_LIMIT} of memory.", mend="Ask for less at once."
        ) from error
    except (duckdb.FatalException, duckdb.InternalException, duckdb.IOException) as error:
        if is_full(str(error)):
            raise StorageError(f"The query failed: {error}.") from error
        raise CorruptError(
            f"The published file can't be read ({str(error).splitlines()[0]}).",
            mend="Publish it again: `resilience publish`.",
        ) from error
    except duckdb.Error as error:
        raise InputError("sql", sql, _reason(error), mend=_MEND) from error
    except pl.exceptions.PolarsError as error:
        raise InputError(
            "sql", sql, f"a column of the answer has a type that can't be given out ({error})",
            mend="Cast it: an INTERVAL to VARCHAR, or to seconds with epoch().",
        ) from error  # fmt: skip
    finally:
        timer.cancel()
    return answer


def _fetch(relation: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """The whole answer. DuckDB's limit is on what it works with, not on what it gives out."""
    if relation is None:
        return pl.DataFrame()
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    batches, size = [], 0
    for batch in reader:
        size += batch.nbytes
        if size > MAX_ANSWER_BYTES:
            raise StorageError(
                f"The answer has more than {MAX_ANSWER_BYTES} bytes.", mend="Ask for less at once."
            )
        batches.append(batch)
    table = pyarrow.Table.from_batches(batches, schema=reader.schema)
    if len({name.lower() for name in table.column_names}) < len(table.column_names):
        # The names that DuckDB itself gives out where a query gives several columns one.
        table = table.rename_columns(relation.limit(0).pl().columns)
    answer = pl.from_arrow(table, rechunk=False)
    assert isinstance(answer, pl.DataFrame)
    return answer


def _reason(error: duckdb.Error) -> str:
    """DuckDB's message on one line: what is wrong, in which line, and what was meant."""
    first, *more = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in more if line.startswith(_HINTS)]
    return first.rstrip(".") + (f" ({'; '.join(kept)})" if kept else "")
