"""The Dagster instance of a data home: its folder, its configuration, and what dead runs left.

What belongs here: DAGSTER_HOME below the data home. What does not: which runs are started there.

`python -m resilience_pipelines.dagster_io.instance` makes the DAGSTER_HOME of the data home that
RESILIENCE_HOME names and prints its path, for `dg dev` and `dg launch` to be started with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import dagster as dg
from dagster import DagsterInstance, DagsterRun

from resilience_pipelines.errors import BusyError, ResilienceError, StorageError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.owned_folder import owned_folder, remove_orphans

GPU_POOL: Final = "gpu_slot"
"""Held by every step that measures: two measurements at once would measure each other."""

WAREHOUSE_POOL: Final = "duckdb_writer"
"""Held by every step that opens the warehouse, a file that admits one process at a time."""

CONFIGURATION: Final = """\
# Dagster's configuration for this data home. It is written once; edit it as you like.
telemetry:
  enabled: false

# No invitation to a mailing list over the first page.
nux:
  enabled: false

# Pools: `gpu_slot` (steps that measure) and `duckdb_writer` (steps that open the warehouse). Every
# pool without a limit of its own gets this one, so neither is ever held twice. Raise the limit of
# a single pool in the UI (Deployment, Concurrency), never that of `duckdb_writer`.
concurrency:
  pools:
    granularity: op
    default_limit: 1

# Lineage that could not be sent is told in the log of the run (docs/lineage.md).
python_logs:
  managed_python_loggers: [resilience_pipelines.lineage]

# The daemon frees the slots of a run whose process died.
run_monitoring:
  enabled: true
  free_slots_after_run_end_seconds: 30
"""


def prepare_dagster_home(home: Home) -> Path:
    """Make the DAGSTER_HOME of a data home and write its `dagster.yaml` where it has none.

    Raises:
        StorageError: it can't be written.
    """
    configuration = home.dagster / "dagster.yaml"
    try:
        home.dagster.mkdir(parents=True, exist_ok=True)
        if not configuration.exists():
            configuration.write_text(CONFIGURATION)
    except OSError as error:
        raise StorageError(
            f"{configuration} can't be written ({error.strerror or error}).",
            mend="Check the folder's rights and the free space.",
        ) from error
    return home.dagster


@contextmanager
def open_instance(home: Home) -> Iterator[DagsterInstance]:
    """The Dagster instance of a data home, with SQLite files below `home.dagster`."""
    folder = prepare_dagster_home(home)
    with DagsterInstance.from_config(str(folder)) as instance:
        yield instance


@contextmanager
def owned_run(home: Home, instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Own a run that this process executes itself, so that its death can be seen."""
    bury_dead_runs(home, instance)
    with owned_folder(_owned_runs(home) / run_id):
        yield


def bury_dead_runs(home: Home, instance: DagsterInstance) -> None:
    """Mark owned runs whose process was killed as failed, and free their slots.

    Dagster's own monitoring knows only the runs that its daemon has launched.
    """
    for orphan in remove_orphans(_owned_runs(home), "*"):
        run = instance.get_run_by_id(orphan.name)
        if run is not None and not run.is_finished:
            instance.report_run_failed(run, "The process that executed this run was killed.")
        instance.event_log_storage.free_concurrency_slots_for_run(orphan.name)


def runs_in_pool(instance: DagsterInstance, pool: str) -> list[DagsterRun]:
    """The runs that hold a slot of a pool, without those that ended and left it."""
    ids = instance.event_log_storage.get_concurrency_info(pool).active_run_ids
    found = (instance.get_run_by_id(run_id) for run_id in sorted(ids))
    return [run for run in found if run is not None and not run.is_finished]


def require_free_pool(instance: DagsterInstance, pool: str) -> None:
    """Check that no run holds a slot of a pool; what a finished run left is freed.

    Raises:
        BusyError: naming the run that holds it.
    """
    for run in runs_in_pool(instance, pool):
        raise BusyError(
            f"Run {run.run_id} ({run.job_name}) holds the pool {pool}.",
            mend="Wait for it to end, or terminate it in the Dagster UI.",
        )
    storage = instance.event_log_storage
    for run_id in storage.get_concurrency_info(pool).active_run_ids:
        storage.free_concurrency_slots_for_run(run_id)


def main() -> int:
    """Make the DAGSTER_HOME and print it; returns the exit code."""
    try:
        sys.stdout.write(f"{prepare_dagster_home(open_home())}\n")
    except ResilienceError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _owned_runs(home: Home) -> Path:
    folder = home.dagster / "owned_runs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def latest_materialization(
    instance: DagsterInstance, key: dg.AssetKey, partition: str | None
) -> dg.AssetMaterialization | None:
    """The newest materialization of an asset, of one of its partitions if one is given."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition else None),
        limit=1,
    ).records
    return records[0].asset_materialization if records else None


if __name__ == "__main__":
    sys.exit(main())
