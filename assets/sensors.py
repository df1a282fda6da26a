"""Sensors: what runs because something was seen.

What belongs here: watching this machine and its landing zone. What does not: what is done about it
(`jobs`).

Both sensors are running from the start, because neither measures anything: one keeps the list of
partitions true, the other brings into the warehouse what the command line or a pod has landed.
"""

import dagster as dg

from assets.jobs import refresh_warehouse
from assets.partitions import HARDWARES, SOFTWARES
from assets.warehouse import LANDING_DIGEST, RUNS_KEY, landing_digest
from resilience_pipelines.context import read_machines
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.instance import (
    GPU_POOL,
    bury_dead_runs,
    latest_materialization,
    runs_in_pool,
)
from resilience_pipelines.dagster_io.resources import HomeResource


@dg.sensor(
    minimum_interval_seconds=900,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Registers the partition of this machine's stack, also after an upgrade changed "
    "it. Starts no run.",
)
def this_machine(context: dg.SensorEvaluationContext, home: HomeResource) -> dg.SensorResult:
    """Register what is not registered yet."""
    with failures():
        stacks = [machine.stack for machine in read_machines(home.open()).values()]
    wanted = (
        (HARDWARES, {stack.hardware_label for stack in stacks}),
        (SOFTWARES, {stack.software_label for stack in stacks}),
    )
    requests = [
        definition.build_add_request(sorted(new))
        for definition, labels in wanted
        if (new := labels - set(context.instance.get_dynamic_partitions(str(definition.name))))
    ]
    if requests:
        return dg.SensorResult(dynamic_partitions_requests=requests)
    return dg.SensorResult(skip_reason="This machine's partitions are registered.")


@dg.sensor(
    job=refresh_warehouse,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts refresh_warehouse when the landing zone holds folders that the newest load "
    "has not seen. Waits for measurements to end: loading beside one would disturb it.",
)
def new_landing_folders(
    context: dg.SensorEvaluationContext, home: HomeResource
) -> dg.RunRequest | dg.SkipReason:
    """Compare the landing zone with what the newest load saw."""
    with failures():
        data_home = home.open()
        digest = landing_digest(data_home)
    loaded = latest_materialization(context.instance, RUNS_KEY, None)
    if digest is None:
        return dg.SkipReason("The landing zone is empty.")
    if loaded is not None and loaded.metadata[LANDING_DIGEST].value == digest:
        return dg.SkipReason("Everything in the landing zone was seen by the newest load.")
    bury_dead_runs(data_home, context.instance)
    if measuring := runs_in_pool(context.instance, GPU_POOL):
        ids = ", ".join(run.run_id for run in measuring)
        return dg.SkipReason(f"Waiting for a measurement to end: run {ids}.")
    return dg.RunRequest(run_key=digest)


SENSORS = (this_machine, new_landing_folders)
