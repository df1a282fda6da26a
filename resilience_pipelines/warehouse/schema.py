"""The raw tables of the warehouse: their definition and its versions.

What belongs here: the SQL that makes schema `raw`, as a list of migrations that is only ever
appended to, and applying it. What does not: filling the tables (`load`), and the marts (`dbt/`).

Raw tables hold records as they were written, one table for each part that repeats. They can be
dropped at any time: everything can be loaded again from the landing folders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb

from resilience_pipelines.errors import CorruptError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Migration:
    """One step of the schema. A step that was released is never edited."""

    version: int
    name: str
    sql: str


_CRIU = """
    criu_freezing_s double,
    criu_frozen_s double,
    criu_memdump_s double,
    criu_memwrite_s double,
    criu_pages_scanned bigint,
    criu_pages_skipped_parent bigint,
    criu_pages_written bigint,
    criu_forking_s double,
    criu_restore_s double,
    criu_pages_compared bigint,
    criu_pages_skipped_cow bigint,
    criu_pages_restored bigint
"""

_PHASES = """
    run_id varchar not null,
    measurement_id varchar not null,
    ordinal bigint not null,
    name varchar not null,
    start_s double not null,
    duration_s double not null,
    clock varchar not null,
    resolution_s double not null
"""

MIGRATIONS: Final = (
    Migration(
        1,
        "raw tables of record schema 1",
        f"""
create table raw.stacks (
    stack_key varchar primary key,
    hardware_key varchar not null,
    software_key varchar not null,
    hardware_label varchar not null,
    software_label varchar not null,
    gpu_sku varchar,
    gpu_count bigint,
    gpu_memory_mib bigint,
    cpu_model varchar,
    cpu_count bigint,
    memory_mib bigint,
    storage_kind varchar,
    architecture varchar,
    driver_version varchar,
    cuda_version varchar,
    kernel_version varchar,
    criu_version varchar,
    snapshot_engine varchar,
    container_runtime varchar,
    kubernetes_version varchar,
    engine varchar not null,
    engine_version varchar,
    torch_version varchar,
    nccl_version varchar,
    python_version varchar,
    image_digest varchar,
    model varchar,
    model_precision varchar
);
create table raw.runs (
    run_id varchar primary key,
    schema_version bigint not null,
    kind varchar not null,
    started_at timestamptz not null,
    finished_at timestamptz not null,
    worker varchar not null,
    basis varchar not null,
    stack_key varchar not null,
    launcher varchar not null,
    platform_version varchar not null,
    platform_commit varchar,
    parameters varchar not null,
    unsupported varchar not null,
    folder varchar not null,
    run_file_sha256 varchar not null,
    loaded_at timestamptz not null
);
create table raw.startups (
    run_id varchar not null,
    measurement_id varchar not null,
    arm varchar not null,
    variant varchar,
    repeat bigint not null,
    position bigint not null,
    started_at timestamptz not null,
    outcome varchar not null,
    reason_code varchar,
    detail varchar not null,
    total_s double,
    unaccounted_s double,
    oracle_verdict varchar not null,
    oracle_tokens bigint,
    oracle_first_difference bigint,
    oracle_max_logprob_difference double,
    oracle_detail varchar not null,
    page_cache_requested varchar not null,
    page_cache_found varchar not null,
    page_cache_fraction double,
    snapshot_id varchar,
    throughput_tokens_per_s double,
    throughput_before_tokens_per_s double,
    {_CRIU}
);
create table raw.startup_phases ({_PHASES});
create table raw.snapshots (
    run_id varchar not null,
    measurement_id varchar not null,
    snapshot_id varchar,
    started_at timestamptz not null,
    outcome varchar not null,
    reason_code varchar,
    detail varchar not null,
    engine varchar not null,
    total_s double,
    unaccounted_s double,
    image_bytes bigint,
    image_files bigint,
    sleep_level bigint,
    source_serving_after boolean,
    {_CRIU}
);
create table raw.snapshot_phases ({_PHASES});
create table raw.faults (
    run_id varchar not null,
    measurement_id varchar not null,
    fault varchar not null,
    strategy varchar not null,
    layer varchar not null,
    control boolean not null,
    recovery varchar,
    repeat bigint not null,
    parameters varchar not null,
    started_at timestamptz not null,
    verdict varchar not null,
    reason_code varchar,
    detail varchar not null,
    effect_proved boolean,
    effect_source varchar,
    effect_detail varchar,
    time_to_detect_s double,
    time_to_recover_s double,
    recovery_s double,
    rollback_proved boolean,
    rollback_source varchar,
    rollback_detail varchar,
    oracle_verdict varchar not null,
    oracle_tokens bigint,
    oracle_first_difference bigint,
    oracle_max_logprob_difference double,
    oracle_detail varchar not null
);
create table raw.fault_detections (
    run_id varchar not null,
    measurement_id varchar not null,
    ordinal bigint not null,
    detector varchar not null,
    expected boolean not null,
    detected boolean not null,
    detected_after_s double,
    deadline_s double,
    clock varchar not null,
    resolution_s double not null,
    detail varchar not null
);
create table raw.fault_events (
    run_id varchar not null,
    measurement_id varchar not null,
    ordinal bigint not null,
    name varchar not null,
    at_s double not null,
    detail varchar not null
);
create table raw.evidence (
    run_id varchar not null,
    path varchar not null,
    bytes bigint not null,
    sha256 varchar not null
);
create table raw.samples (
    run_id varchar not null,
    subject varchar not null,
    at_s double not null,
    series varchar not null,
    unit varchar not null,
    value double
);
create table raw.rejected (
    folder varchar primary key,
    fingerprint varchar,
    reason varchar not null,
    rejected_at timestamptz not null
);
""",
    ),
    Migration(
        2,
        "restores across stacks",
        """
create table raw.compatibility (
    run_id varchar not null,
    measurement_id varchar not null,
    snapshot_id varchar not null,
    source_stack_key varchar not null,
    repeat bigint not null,
    started_at timestamptz not null,
    predicted_compatible boolean not null,
    predictions varchar[] not null,
    outcome varchar not null,
    reason_code varchar,
    failed_phase varchar,
    detail varchar not null,
    elapsed_s double not null,
    oracle_verdict varchar not null,
    oracle_tokens bigint,
    oracle_first_difference bigint,
    oracle_max_logprob_difference double,
    oracle_detail varchar not null
);
""",
    ),
    Migration(
        3,
        "what comes from elsewhere than landing folders: releases, decisions, others' figures",
        """
create table raw.releases (
    feed varchar not null,
    product varchar not null,
    version varchar not null,
    state varchar not null,
    branch varchar,
    kind varchar,
    released date,
    prerelease boolean not null,
    withdrawn boolean not null,
    checked_at timestamptz,
    primary key (feed, version)
);
create table raw.change_decisions (
    change_id varchar not null,
    decision varchar not null,
    note varchar not null,
    decided_by varchar not null,
    decided_at timestamptz not null
);
create table raw.baselines (
    baseline_id varchar primary key,
    source varchar not null,
    url varchar,
    imported_at timestamptz,
    product varchar not null,
    figure varchar not null,
    arm varchar,
    variant varchar,
    value double not null,
    unit varchar not null,
    statistic varchar not null,
    n bigint,
    gpu_sku varchar,
    gpu_count bigint,
    driver_version varchar,
    engine varchar,
    engine_version varchar,
    model varchar,
    detail varchar not null
);
""",
    ),
    Migration(
        4,
        "launches of jobs elsewhere",
        """
create table raw.launches (
    run_id varchar primary key,
    launcher varchar not null,
    worker varchar not null,
    basis varchar not null,
    launched_at timestamptz not null,
    ended_at timestamptz not null,
    landed boolean not null,
    failure varchar,
    detail varchar not null,
    namespace varchar not null,
    job_name varchar not null,
    pod_name varchar,
    node varchar,
    image_id varchar,
    exit_code bigint,
    kubernetes_version varchar,
    container_runtime varchar,
    notices varchar[] not null
);
create table raw.launch_phases (
    run_id varchar not null,
    ordinal bigint not null,
    name varchar not null,
    start_s double not null,
    duration_s double not null,
    clock varchar not null,
    resolution_s double not null
);
""",
    ),
    Migration(
        5,
        "bandwidth of collectives",
        """
create table raw.collectives (
    run_id varchar not null,
    measurement_id varchar not null,
    operation varchar not null,
    arm varchar not null,
    backend varchar not null,
    transports varchar[] not null,
    ranks bigint not null,
    bytes bigint not null,
    repeat bigint not null,
    iterations bigint not null,
    started_at timestamptz not null,
    outcome varchar not null,
    reason_code varchar,
    detail varchar not null,
    time_s double,
    algbw_bytes_per_s double,
    busbw_bytes_per_s double,
    environment varchar not null
);
""",
    ),
    Migration(
        6,
        "many restores at once",
        """
create table raw.fanout (
    run_id varchar not null,
    measurement_id varchar not null,
    snapshot_id varchar not null,
    width bigint not null,
    repeat bigint not null,
    page_cache_requested varchar not null,
    page_cache_found varchar not null,
    page_cache_fraction double,
    started_at timestamptz not null,
    image_bytes bigint not null,
    disk_bytes_per_s double not null,
    outcome varchar not null,
    reason_code varchar,
    detail varchar not null,
    total_s double,
    wave_s double,
    oracle_verdict varchar not null,
    oracle_tokens bigint,
    oracle_first_difference bigint,
    oracle_max_logprob_difference double,
    oracle_detail varchar not null
);
""",
    ),
)

SIDE_TABLES: Final = (
    "releases",
    "change_decisions",
    "baselines",
    "launches",
    "launch_phases",
)
"""Tables that come from files of the data home and not from landing folders."""

RECORD_TABLES: Final = (
    "runs",
    "startups",
    "startup_phases",
    "snapshots",
    "snapshot_phases",
    "faults",
    "fault_detections",
    "fault_events",
    "compatibility",
    "collectives",
    "fanout",
    "evidence",
)
"""Tables that get a run's own rows. A stack is shared by runs, and samples come as Parquet."""


def migrate(connection: duckdb.DuckDBPyConnection) -> int:
    """Bring schema `raw` to the newest version, each step in a transaction; returns the version.

    Raises:
        CorruptError: the warehouse was made by a newer release, or is not what its version says.
    """
    connection.execute("create schema if not exists raw")
    connection.execute(
        "create table if not exists raw.migrations "
        "(version integer primary key, name varchar not null, applied_at timestamptz not null)"
    )
    rows = connection.execute("select version from raw.migrations").fetchall()
    current = max((int(version) for (version,) in rows), default=0)
    newest = MIGRATIONS[-1].version
    if current > newest:
        raise CorruptError(
            f"The warehouse has schema version {current}, and this release knows {newest}.",
            mend="Upgrade resilience-pipelines, or move the file away and load all results again.",
        )
    for migration in MIGRATIONS:
        if migration.version <= current:
            continue
        connection.execute("begin")
        try:
            connection.execute(migration.sql)
            connection.execute(
                "insert into raw.migrations values (?, ?, now())",
                [migration.version, migration.name],
            )
            connection.execute("commit")
        except BaseException:
            connection.execute("rollback")
            raise
    _check_tables(connection, current)
    return newest


def _check_tables(connection: duckdb.DuckDBPyConnection, made_as: int) -> None:
    found = connection.execute(
        "select table_name from duckdb_tables() where schema_name = 'raw'"
    ).fetchall()
    wanted = {"stacks", "samples", "rejected", *RECORD_TABLES, *SIDE_TABLES}
    if missing := sorted(wanted - {name for (name,) in found}):
        raise CorruptError(
            f"The warehouse has schema version {made_as} and no table raw.{missing[0]}: it was "
            "made while that version was still being written, or is damaged.",
            mend="Move the file away and load all results again.",
        )


def frame_schemas(
    connection: duckdb.DuckDBPyConnection, tables: Iterable[str]
) -> dict[str, pl.Schema]:
    """Columns and types of raw tables, as frames have them."""
    return {
        table: connection.sql(f"select * from raw.{table} limit 0").pl().schema  # noqa: S608
        for table in tables
    }
