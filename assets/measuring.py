"""Measuring: what the assets have in common that run a benchmark job for a partition.

What belongs here: from a partition and a specification to a verified landing folder. What does not:
one kind of measurement.
"""

from __future__ import annotations

from typing import Protocol

import dagster as dg

from assets.partitions import worker_named_by, worker_of
from resilience_pipelines.context import read_machines
from resilience_pipelines.dagster_io.launcher import JobLauncher
from resilience_pipelines.dagster_io.stack_partitions import partition_of, register
from resilience_pipelines.errors import CorruptError, UnsupportedError
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import parse_spec
from resilience_pipelines.warehouse.landing import LandedRun


class MeasuringConfig(Protocol):
    """The configuration of an asset that measures."""

    worker: str | None
    """The worker to measure; None for the partition's."""

    def spec(self, worker: str) -> str:
        """The job's specification for a worker, as JSON."""


def measure(
    context: dg.AssetExecutionContext,
    home: Home,
    launcher: JobLauncher,
    config: MeasuringConfig,
) -> LandedRun:
    """Run the job of a partition, where the launcher runs jobs.

    Args:
        config: what to measure.

    Raises:
        InputError: the configuration is no specification of a job.
        UnsupportedError: the partition is another machine's. What a cluster's machine landed under
            another partition stays, and that partition is registered.
        ResilienceError: the job failed.
    """
    if launcher.measures_this_machine:
        stacks = {name: machine.stack for name, machine in read_machines(home).items()}
        worker = worker_of(context.partition_key, stacks, config.worker)
    else:
        worker = worker_named_by(context.partition_key, config.worker)
    landed = launcher.run(context, parse_spec(config.spec(worker)), home)
    found = partition_of(landed.record.stack)
    if str(found) == context.partition_key:
        return landed
    if launcher.measures_this_machine:
        raise CorruptError(
            f"Run {landed.record.run_id} was measured on {str(found)!r}, which is not the "
            f"partition {context.partition_key!r}.",
            mend="The machine changed while the job ran: run it again.",
        )
    register(context.instance, landed.record.stack)
    raise UnsupportedError(
        f"The cluster measured run {landed.record.run_id} on {str(found)!r}, which is not the "
        f"partition {context.partition_key!r}. The result is kept.",
        mend=f"Materialize {str(found)!r}, which is a partition now, or choose the nodes of "
        f"{context.partition_key!r} in the launcher's settings.",
    )
