"""A record as frames, with the columns that the raw tables have.

What belongs here: one record's rows as Polars frames, without a warehouse. What does not: the
columns (`schema`), how a record spreads over them (`rows`), and loading (`load`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache

import duckdb
import polars as pl

from resilience_pipelines.warehouse.landing import LandedRun
from resilience_pipelines.warehouse.rows import record_rows
from resilience_pipelines.warehouse.schema import RECORD_TABLES, frame_schemas, migrate


def record_frames(landed: LandedRun) -> dict[str, pl.DataFrame]:
    """The frame of every table of `schema.RECORD_TABLES`; one without rows has its columns."""
    rows = record_rows(
        landed.record,
        folder=str(landed.folder),
        run_file_sha256=landed.run_file_sha256,
        loaded_at=datetime.now(UTC),
    )
    return {
        table: pl.DataFrame(rows[table], schema=schema, orient="row", strict=True)
        for table, schema in _schemas().items()
    }


@cache
def _schemas() -> Mapping[str, pl.Schema]:
    with duckdb.connect(":memory:") as connection:
        connection.execute("set TimeZone = 'UTC'")
        migrate(connection)
        return frame_schemas(connection, RECORD_TABLES)
