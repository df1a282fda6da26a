"""The job `prune_snapshots`: old snapshots go, and what needs a new one is named.

What belongs here: the op, its job and its configuration. What does not: which snapshots go
(`resilience_pipelines.snapshots.retention`), and taking new ones (the job `take_snapshot`).
"""

import dagster as dg
from pydantic import Field

from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.regeneration import workers_without_snapshot
from resilience_pipelines.snapshots.settings import open_repository, open_store, read_settings


class PruneConfig(dg.Config):
    """How to prune; the limits are those of snapshots.toml."""

    dry_run: bool = Field(default=False, description="Only say what would go.")


@dg.op(
    description="Removes what the limits of snapshots.toml do not keep, from the local store and "
    "from the repository of the settings, and names the workers whose snapshots are all of stacks "
    "that this machine no longer has.",
)
def prune_stores(context: dg.OpExecutionContext, config: PruneConfig, home: HomeResource) -> None:
    """Prune, and tell what went in the run's metadata."""
    with failures():
        data_home = home.open()
        settings = read_settings(data_home)
        store = open_store(data_home)
        gone = {"local": tuple(store.prune(settings.policy, dry_run=config.dry_run))}
        if settings.repository is not None:
            repository = open_repository(data_home)
            gone["repository"] = repository.prune(settings.policy, dry_run=config.dry_run).doomed
        stale = workers_without_snapshot(data_home)
    rows = [
        dg.TableRecord(
            {"store": where, "snapshot": item.snapshot_id, "why": item.why,
             "image_bytes": item.image_bytes}
        )
        for where, items in gone.items()
        for item in items
    ]  # fmt: skip
    columns = [dg.TableColumn(name) for name in ("store", "snapshot", "why")]
    context.add_output_metadata(
        {
            "removed": dg.MetadataValue.table(
                rows,
                schema=dg.TableSchema([*columns, dg.TableColumn("image_bytes", "int")]),
            ),
            "dry_run": config.dry_run,
            "need_a_new_snapshot": dg.MetadataValue.json(stale),
        }
    )
    for worker in stale:
        context.log.warning(
            f"Every snapshot of {worker} is of a stack that this machine no longer has: "
            "the job take_snapshot, or `resilience snapshot regenerate`, takes a new one."
        )


@dg.job(description="Remove old snapshots by the limits of snapshots.toml.")
def prune_snapshots() -> None:
    """Prune the stores of snapshots."""
    prune_stores()
