"""Schedules: what runs by the clock.

What belongs here: when. What does not: what (`jobs`).
"""

from collections.abc import Iterator

import dagster as dg

from assets.jobs import main_job, read_releases
from assets.retention import prune_snapshots
from resilience_pipelines.context import read_machines
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.dagster_io.stack_partitions import register


@dg.schedule(
    job=main_job,
    cron_schedule="0 3 * * 1",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Measures this machine every Monday at 03:00 UTC. Stopped until somebody starts "
    "it: the main job takes a whole GPU and kills workers for minutes, and only the machine's "
    "operator knows when that hurts nobody.",
)
def weekly_main(
    context: dg.ScheduleEvaluationContext, home: HomeResource
) -> Iterator[dg.RunRequest]:
    """One run for each worker of this machine."""
    with failures():
        machines = read_machines(home.open())
    for machine in machines.values():
        partition = register(context.instance, machine.stack)
        yield dg.RunRequest(partition_key=partition)


daily_releases = dg.ScheduleDefinition(
    name="daily_releases",
    job=read_releases,
    cron_schedule="30 5 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Reads the release feeds every day at 05:30 UTC. Stopped until somebody starts it: "
    "it leaves the machine for the projects' own pages, which many networks do not allow and some "
    "have a mirror for.",
)

daily_pruning = dg.ScheduleDefinition(
    name="daily_pruning",
    job=prune_snapshots,
    cron_schedule="30 4 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Removes old snapshots every day at 04:30 UTC. Stopped until somebody starts it: "
    "it deletes, and only an operator knows whether the limits of snapshots.toml are meant.",
)

SCHEDULES = (weekly_main, daily_releases, daily_pruning)
