"""The asset `startup_measurements`: how fast a worker comes back, by each way to start it.

What belongs here: the asset and its configuration. What does not: the benchmark
(`resilience_pipelines.startup`), which runs in the job's own process.
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
from resilience_pipelines.dagster_io.metadata import in_dashboard, startup_metadata
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.job_spec import StartupSpec

_DEFAULT = StartupSpec()

DESCRIPTION = """\
How fast an inference worker comes back, from the decision to start it to its first right token:

| arm | what starts |
| --- | --- |
| `cold` | a process without any cache |
| `warm_cache` | a process that finds the caches of an earlier one |
| `sleep_wake` | a live process, woken from sleep |
| `restore` | a process restored from a snapshot |

Arms alternate, phases add up to the total, and an answer that differs from the one recorded before
is a failure, however fast. The job runs in a process of its own and writes one landing folder.
"""


class StartupConfig(dg.Config):
    """What to measure. Validated as `resilience run startup` validates it."""

    worker: str | None = Field(
        default=None, description="The worker to measure; the one of the partition when not set."
    )
    arms: list[str] = Field(
        default=[arm.value for arm in _DEFAULT.arms],
        description="Arms to measure: cold, warm_cache, sleep_wake, restore.",
    )
    repeats: int = Field(default=_DEFAULT.repeats, description="Starts of each arm, 1 or more.")
    cold_repeats: int | None = Field(
        default=None, description="Starts of the arm `cold`, where it shall have fewer."
    )
    page_cache: str = Field(
        default=_DEFAULT.page_cache.value,
        description="Page cache before each start: auto (cold for the arm `cold`, warm for all "
        "others), cold, warm, as_found.",
    )
    sleep_levels: list[int] = Field(
        default=[], description="Levels of the arm `sleep_wake`; the worker's default when empty."
    )
    snapshot: str | None = Field(
        default=None, description="Id of a stored snapshot to restore; one that this run takes "
        "when not set.",
    )  # fmt: skip
    snapshot_engine: str = Field(
        default=_DEFAULT.snapshot_engine.value,
        description="Whose snapshots are restored: own, or dynamo_snapshot (NVIDIA Dynamo "
        "Snapshot, where the launcher is kubernetes).",
    )
    port: int | None = Field(
        default=None, description="Port of the worker on loopback; a free one when not set."
    )

    def spec(self, worker: str) -> str:
        """The job's specification as JSON."""
        return json.dumps(self.model_dump() | {"kind": "startup", "worker": worker})


@dg.asset(
    partitions_def=STACKS,
    deps=[stacks],
    group_name=groups.MEASUREMENTS,
    owners=[groups.OPERATORS],
    kinds={"python", "gpu"},
    pool=GPU_POOL,
    op_tags={"dagster/priority": groups.SECOND},
    description=DESCRIPTION,
    tags={"cost": "minutes"},
)
def startup_measurements(
    context: dg.AssetExecutionContext,
    config: StartupConfig,
    home: HomeResource,
    launcher: JobLauncher,
) -> dg.MaterializeResult[None]:
    """Measure the arms where the launcher runs jobs."""
    with failures():
        data_home = home.open()
        landed = measure(context, data_home, launcher, config)
        return dg.MaterializeResult(
            metadata=startup_metadata(landed) | in_dashboard(data_home, landed)
        )
