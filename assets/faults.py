"""The asset `fault_runs`: what happens when something fails.

What belongs here: the asset and its configuration. What does not: the experiments
(`resilience_pipelines.faults`), which run in the job's own process.
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
from resilience_pipelines.dagster_io.metadata import fault_metadata, in_dashboard
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.job_spec import FaultSpec

_DEFAULT = FaultSpec()

DESCRIPTION = """\
Fault experiments on a live worker: inject a fault, **prove** its effect, time which detector
notices it and after how long, recover, check that the answer is still right, and prove that the
fault is gone. Each fault has a control arm that goes through the same life without the injection.

A verdict is `pass`, `fail`, `inconclusive`, `not_injected`, `not_applicable`, `aborted` or
`rollback_failed`. No data is never a pass. The job runs in a process of its own and writes one
landing folder.
"""


class FaultConfig(dg.Config):
    """What to inject. Validated as `resilience run fault` validates it."""

    worker: str | None = Field(
        default=None, description="The worker to harm; the one of the partition when not set."
    )
    faults: list[str] = Field(
        default=[],
        description="Faults of the catalogue (`resilience run fault --list`); all when empty.",
    )
    recoveries: list[str] = Field(
        default=[], description="Ways to recover; all that a fault allows when empty."
    )
    repeats: int = Field(
        default=_DEFAULT.repeats, description="Experiments of each fault and recovery, 1 or more."
    )
    controls: bool = Field(
        default=_DEFAULT.controls, description="Whether each fault's control arm runs too."
    )
    backend: str | None = Field(
        default=_DEFAULT.backend, description="What the ranks of training jobs speak through: "
        "gloo or nccl; NCCL where there are two GPUs when not set.",
    )  # fmt: skip
    port: int | None = Field(
        default=None, description="Port of the worker on loopback; a free one when not set."
    )

    def spec(self, worker: str) -> str:
        """The job's specification as JSON."""
        return json.dumps(self.model_dump() | {"kind": "fault", "worker": worker})


@dg.asset(
    partitions_def=STACKS,
    deps=[stacks],
    group_name=groups.MEASUREMENTS,
    owners=[groups.OPERATORS],
    kinds={"python", "gpu"},
    pool=GPU_POOL,
    op_tags={"dagster/priority": groups.LAST},
    description=DESCRIPTION,
    tags={"cost": "minutes"},
)
def fault_runs(
    context: dg.AssetExecutionContext,
    config: FaultConfig,
    home: HomeResource,
    launcher: JobLauncher,
) -> dg.MaterializeResult[None]:
    """Run the experiments where the launcher runs jobs."""
    with failures():
        data_home = home.open()
        landed = measure(context, data_home, launcher, config)
        return dg.MaterializeResult(
            metadata=fault_metadata(landed) | in_dashboard(data_home, landed)
        )
