"""The raw table of releases: what feeds list, and how far each has come.

What belongs here: replacing it as a whole, in one transaction. What does not: drawing states
(`releases.states`). Unlike all other raw tables it comes from what is remembered of feeds, not from
landing folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import duckdb

from resilience_pipelines.home import Home
from resilience_pipelines.releases.release import Release
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.connection import (
    LOCK_WAIT_S,
    open_warehouse,
    storage_error,
)
from resilience_pipelines.warehouse.schema import migrate

_STACKS: Final = "select * from raw.stacks order by stack_key"
_FAILING: Final = """
select * from raw.stacks where stack_key in (
    select stack_key from raw.startups inner join raw.runs using (run_id)
    where outcome <> 'unsupported'
    group by stack_key, arm having not bool_or(outcome = 'ok' and oracle_verdict <> 'different')
    union
    select stack_key from raw.snapshots inner join raw.runs using (run_id)
    where outcome <> 'unsupported'
    group by stack_key having not bool_or(outcome = 'ok')
) order by stack_key
"""


@dataclass(frozen=True)
class ReleaseRow:
    """One row of the table.

    Attributes:
        checked_at: when the feed was last read.
    """

    feed: str
    product: str
    release: Release
    state: str
    checked_at: datetime | None


MakeRows = Callable[[tuple[Stack, ...], tuple[Stack, ...]], Sequence[ReleaseRow]]
"""From the stacks that are loaded, and those of them on which something failed each time."""


def replace_releases(home: Home, rows: MakeRows, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
    """Replace the table.

    Raises:
        BusyError: another process has the warehouse open.
        StorageError: it can't be written; the table stays as it was.
    """
    with open_warehouse(home.warehouse, lock_wait_s=lock_wait_s) as connection:
        try:
            migrate(connection)
            made = rows(_stacks(connection, _STACKS), _stacks(connection, _FAILING))
            _replace(connection, made)
        except duckdb.Error as error:
            raise storage_error(home.warehouse, error) from error


def _replace(connection: duckdb.DuckDBPyConnection, rows: Sequence[ReleaseRow]) -> None:
    connection.execute("begin")
    try:
        connection.execute("delete from raw.releases")
        if rows:
            connection.executemany(
                "insert into raw.releases values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        row.feed, row.product, row.release.version, row.state, row.release.branch,
                        row.release.kind, row.release.released, row.release.prerelease,
                        row.release.withdrawn, row.checked_at,
                    )
                    for row in rows
                ],
            )  # fmt: skip
        connection.execute("commit")
    except BaseException:
        connection.execute("rollback")
        raise


def _stacks(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Stack, ...]:
    return tuple(
        Stack.model_validate({name: row[name] for name in Stack.model_fields})
        for row in connection.sql(sql).pl().iter_rows(named=True)
    )
