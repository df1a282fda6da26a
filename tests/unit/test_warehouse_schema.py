"""Raw tables hold every part of a record, and a warehouse knows its version."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import duckdb
import pytest
from pydantic import BaseModel

from resilience_pipelines.errors import CorruptError
from resilience_pipelines.records import (
    CollectiveMeasurement,
    CompatibilityTrial,
    CriuStatistics,
    Detection,
    Event,
    EvidenceFile,
    FanoutRestore,
    FaultRun,
    Oracle,
    Phase,
    Proof,
    RunRecord,
    SnapshotMeasurement,
    StartupMeasurement,
)
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.rows import record_rows, stack_row
from resilience_pipelines.warehouse.schema import MIGRATIONS, RECORD_TABLES, migrate
from tests.factories import RecordFactory, make_stack


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        migrate(connection)
        yield connection


def columns(connection: duckdb.DuckDBPyConnection, table: str) -> set[str]:
    return set(connection.sql(f"select * from raw.{table} limit 0").columns)


def full_rows() -> dict[str, list[dict[str, object]]]:
    factory = RecordFactory(1)
    record = factory.record(
        startups=[factory.startup()],
        snapshots=[factory.snapshot()],
        faults=[factory.fault()],
        compatibility=[factory.compatibility_trial()],
        collectives=[factory.collective()],
        fanout=factory.fanout(1, [1.0]),
    )
    record = record.model_copy(
        update={"evidence": (EvidenceFile(path="a", bytes=1, sha256="0" * 64),)}
    )
    return record_rows(record, folder="/x", run_file_sha256="0", loaded_at=datetime.now(UTC))


@pytest.mark.parametrize("table", RECORD_TABLES)
def test_rows_have_exactly_the_columns_of_their_table(
    connection: duckdb.DuckDBPyConnection, table: str
) -> None:
    [row, *_] = full_rows()[table]
    assert set(row) == columns(connection, table)


def test_a_stack_row_has_exactly_the_columns_of_its_table(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    assert set(stack_row(make_stack())) == columns(connection, "stacks")


def fields(model: type[BaseModel], *without: str, prefix: str = "") -> set[str]:
    return {f"{prefix}{name}" for name in model.model_fields if name not in without}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("stacks", fields(Stack)),
        (
            "runs",
            fields(
                RunRecord,
                "stack",
                "startups",
                "snapshots",
                "faults",
                "compatibility",
                "collectives",
                "fanout",
                "evidence",
            ),
        ),
        ("collectives", fields(CollectiveMeasurement)),
        ("fanout", fields(FanoutRestore, "oracle") | fields(Oracle, prefix="oracle_")),
        (
            "compatibility",
            fields(CompatibilityTrial, "source_stack", "oracle") | fields(Oracle, prefix="oracle_"),
        ),
        (
            "startups",
            fields(StartupMeasurement, "phases", "oracle", "criu")
            | fields(Oracle, prefix="oracle_")
            | fields(CriuStatistics, prefix="criu_"),
        ),
        ("startup_phases", fields(Phase)),
        (
            "snapshots",
            fields(SnapshotMeasurement, "phases", "criu") | fields(CriuStatistics, prefix="criu_"),
        ),
        ("snapshot_phases", fields(Phase)),
        (
            "faults",
            fields(FaultRun, "effect", "rollback", "oracle", "detections", "events")
            | fields(Proof, prefix="effect_")
            | fields(Proof, prefix="rollback_")
            | fields(Oracle, prefix="oracle_"),
        ),
        ("fault_detections", fields(Detection)),
        ("fault_events", fields(Event)),
        ("evidence", fields(EvidenceFile)),
    ],
)
def test_no_field_of_a_record_is_left_out(
    connection: duckdb.DuckDBPyConnection, table: str, expected: set[str]
) -> None:
    assert expected <= columns(connection, table)


def test_migrating_twice_changes_nothing(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("insert into raw.rejected values ('f', null, 'r', now())")
    before = connection.execute("select * from raw.migrations").fetchall()
    assert migrate(connection) == MIGRATIONS[-1].version
    assert connection.execute("select * from raw.migrations").fetchall() == before
    assert connection.execute("select count(*) from raw.rejected").fetchall() == [(1,)]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [step.version for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_a_warehouse_of_a_newer_release_is_refused(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    connection.execute("insert into raw.migrations values (99, 'later', now())")
    with pytest.raises(CorruptError, match=r"99.*Upgrade"):
        migrate(connection)


def test_a_step_that_fails_leaves_the_version_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from resilience_pipelines.warehouse import schema

    newest = MIGRATIONS[-1].version
    broken = schema.Migration(newest + 1, "broken", "create table raw.half (a integer); selec 1")
    with duckdb.connect(":memory:") as fresh:
        monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, broken))
        with pytest.raises(duckdb.Error):
            migrate(fresh)
        assert fresh.execute("select max(version) from raw.migrations").fetchall() == [(newest,)]
        found = fresh.execute(
            "select count(*) from duckdb_tables() where table_name = 'half'"
        ).fetchall()
        assert found == [(0,)]
