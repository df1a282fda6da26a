"""Raw tables that do not come from landing folders: releases, decisions, others' figures, launches.

What belongs here: replacing each as a whole, in one transaction, from the files of the data home
that keep them. What does not: those files (`releases.ledger`, `trends.decisions`,
`baselines.keep`, `launches`), and drawing the states of releases (`releases.states`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import duckdb

from resilience_pipelines.baselines.baseline import Baseline
from resilience_pipelines.home import Home
from resilience_pipelines.launches import LaunchRecord
from resilience_pipelines.releases.release import Release
from resilience_pipelines.stack import Stack
from resilience_pipelines.trends.decisions import Decision
from resilience_pipelines.warehouse.connection import (
    LOCK_WAIT_S,
    open_warehouse,
    storage_error,
)
from resilience_pipelines.warehouse.rows import stacks_in
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


@dataclass(frozen=True)
class BaselineRow:
    """One row of others' figures.

    Attributes:
        imported_at: None for those that come with the project.
    """

    baseline: Baseline
    imported_at: datetime | None


def replace_side_tables(
    home: Home,
    releases: MakeRows,
    decisions: Sequence[Decision],
    baselines: Sequence[BaselineRow],
    launches: Sequence[LaunchRecord] = (),
    *,
    lock_wait_s: float = LOCK_WAIT_S,
) -> None:
    """Replace all of them.

    Raises:
        BusyError: another process has the warehouse open.
        StorageError: it can't be written; every table stays as it was.
    """
    with open_warehouse(home.warehouse, lock_wait_s=lock_wait_s) as connection:
        try:
            migrate(connection)
            made = releases(_stacks(connection, _STACKS), _stacks(connection, _FAILING))
            _replace(
                connection,
                {
                    "releases": [_release(row) for row in made],
                    "change_decisions": [item.model_dump(mode="json") for item in decisions],
                    "baselines": [_baseline(row) for row in baselines],
                    "launches": [_launch(item) for item in launches],
                    "launch_phases": [row for item in launches for row in _phases(item)],
                },
            )
        except duckdb.Error as error:
            raise storage_error(home.warehouse, error) from error


def _release(row: ReleaseRow) -> dict[str, Any]:
    fields = row.release.model_dump(exclude={"architectures"})
    return fields | {
        "feed": row.feed,
        "product": row.product,
        "state": row.state,
        "checked_at": row.checked_at,
    }


def _baseline(row: BaselineRow) -> dict[str, Any]:
    fields = row.baseline.model_dump(mode="json")
    return fields | {"baseline_id": row.baseline.baseline_id, "imported_at": row.imported_at}


def _launch(launch: LaunchRecord) -> dict[str, Any]:
    fields = launch.model_dump(exclude={"phases", "evidence", "notices"})
    return fields | {"notices": list(launch.notices)}


def _phases(launch: LaunchRecord) -> list[dict[str, Any]]:
    return [
        {"run_id": launch.run_id, "ordinal": ordinal} | phase.model_dump()
        for ordinal, phase in enumerate(launch.phases)
    ]


def _replace(
    connection: duckdb.DuckDBPyConnection, tables: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    connection.execute("begin")
    try:
        for table, rows in tables.items():
            connection.execute(f"delete from raw.{table}")  # noqa: S608
            if rows:
                names = list(rows[0])
                marks = ", ".join("?" * len(names))
                connection.executemany(
                    f"insert into raw.{table} ({', '.join(names)}) values ({marks})",  # noqa: S608
                    [[row[name] for name in names] for row in rows],
                )
        connection.execute("commit")
    except BaseException:
        connection.execute("rollback")
        raise


def _stacks(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Stack, ...]:
    return tuple(stacks_in(connection.sql(sql).pl()))
