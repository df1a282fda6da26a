"""The asset `snapshot_images`: a live worker, frozen into a file system image.

What belongs here: the asset and its configuration. What does not: the snapshot protocol
(`resilience_pipelines.snapshots`), which runs in the job's own process.
"""

import json

import dagster as dg
from pydantic import Field

from assets import groups
from assets.measuring import measure
from assets.partitions import STACKS
from assets.stacks import stacks
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.instance import GPU_POOL
from resilience_pipelines.dagster_io.launcher import JobLauncher
from resilience_pipelines.dagster_io.metadata import in_dashboard, snapshot_metadata
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.snapshots.retention import Policy
from resilience_pipelines.snapshots.settings import open_store

DESCRIPTION = """\
A snapshot of a live worker, kept in the store of the data home: the worker answers the oracle, goes
to sleep, is frozen and written out, and serves on. The image comes with a manifest of its stack and
of every file's SHA-256. Old images are pruned, the newest ones of each stack stay.

`resilience snapshot restore` brings one back by hand; the start-up and fault jobs each take their
own, so that what they restore is of the same minute as what they compare it with.
"""


class SnapshotConfig(dg.Config):
    """What to take. Validated as `resilience snapshot create` validates it."""

    worker: str | None = Field(
        default=None, description="The worker to freeze; the one of the partition when not set."
    )
    sleep_level: int | None = Field(
        default=None, description="Sleep level before the dump; the worker's default when not set."
    )
    keep: int = Field(
        default=3, description="How many of the newest snapshots of each stack stay, 1 or more."
    )

    def spec(self, worker: str) -> str:
        """The job's specification as JSON."""
        asked = self.model_dump(exclude={"keep"})
        return json.dumps(asked | {"kind": "snapshot", "worker": worker})


@dg.asset(
    partitions_def=STACKS,
    deps=[stacks],
    group_name=groups.MEASUREMENTS,
    owners=[groups.OPERATORS],
    kinds={"python", "gpu"},
    pool=GPU_POOL,
    op_tags={"dagster/priority": groups.FIRST},
    description=DESCRIPTION,
    tags={"cost": "seconds"},
)
def snapshot_images(
    context: dg.AssetExecutionContext,
    config: SnapshotConfig,
    home: HomeResource,
    launcher: JobLauncher,
) -> dg.MaterializeResult[None]:
    """Take a snapshot where the launcher runs jobs, and prune old ones."""
    with failures():
        data_home = home.open()
        landed = measure(context, data_home, launcher, config)
        pruned = open_store(data_home).prune(Policy(keep=config.keep))
        return dg.MaterializeResult(
            metadata=snapshot_metadata(landed)
            | in_dashboard(data_home, landed)
            | {"pruned_images": dg.MetadataValue.int(len(pruned))}
        )
