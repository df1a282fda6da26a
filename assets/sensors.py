"""Sensors: what runs because something was seen.

What belongs here: watching this machine and its landing zone. What does not: what is done about it
(`jobs`), and watching a cluster (`cluster_sensors`).

Sensors that measure nothing are running from the start: they keep the list of partitions true,
bring into the warehouse what the command line or a pod has landed, and tell what came out. The ones
that start measurements are stopped until somebody starts it.
"""

import json
import time
from collections.abc import Iterator

import dagster as dg

from assets.cluster_sensors import cluster_nodes, offered_releases
from assets.jobs import main_job, refresh_warehouse
from assets.partitions import SOFTWARES, missing_partitions
from assets.warehouse import LANDING_DIGEST, RUNS_KEY, landing_digest
from resilience_pipelines.alerts import channels, send
from resilience_pipelines.context import read_machines
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.instance import (
    GPU_POOL,
    bury_dead_runs,
    latest_materialization,
    runs_in_pool,
)
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.dagster_io.stack_partitions import partition_of, register
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.home import Home
from resilience_pipelines.release_survey import upgrades
from resilience_pipelines.releases.candidates import release_of
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.releases.ledger import remembered
from resilience_pipelines.running_jobs import running_stacks
from resilience_pipelines.stack import Stack
from resilience_pipelines.trends.comparison import UpgradeVerdict
from resilience_pipelines.upgrades import newest_upgrades
from resilience_pipelines.warehouse.stack_figures import suite_stacks

UNFINISHED = (
    dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING,
)  # fmt: skip

TELLING_S = 30.0
"""How long one tick may take to tell, well below what Dagster allows it."""


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
    requests = missing_partitions(context.instance, stacks)
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


@dg.sensor(
    minimum_interval_seconds=900,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Registers a software partition for each release of a driver, an engine or CRIU "
    "that is newer than what this machine or a measured one has, as soon as a feed was read that "
    "lists it: the stack that the upgrade would make. Reads no feed and starts no run.",
)
def new_releases(context: dg.SensorEvaluationContext, home: HomeResource) -> dg.SensorResult:
    """Register what is not registered yet."""
    with failures():
        known = {item.stack.software_label for item in upgrades(home.open())}
    new = known - set(context.instance.get_dynamic_partitions(str(SOFTWARES.name)))
    if new:
        return dg.SensorResult(
            dynamic_partitions_requests=[SOFTWARES.build_add_request(sorted(new))]
        )
    return dg.SensorResult(skip_reason="Every release that is known has its partition.")


@dg.sensor(
    job=main_job,
    minimum_interval_seconds=300,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Requests the main job for a stack that this machine has and nobody has measured, "
    "e.g. after an upgrade, exactly once. Stopped until somebody starts it: it takes a whole GPU "
    "and kills workers for minutes, and only the operator knows when that hurts nobody.",
)
def unmeasured_stacks(
    context: dg.SensorEvaluationContext, home: HomeResource
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """One run for each worker whose stack has no results."""
    with failures():
        data_home = home.open()
        done = {*suite_stacks(data_home), *running_stacks(data_home)}
        here = [machine.stack for machine in read_machines(data_home).values()]
        new = [
            stack
            for stack in here
            if stack not in done and not _runs_of(context.instance, partition_of(stack))
        ]
        releases = {stack.key: _releases_on(data_home, stack) for stack in new}
    if not new:
        yield dg.SkipReason("Every stack of this machine was measured, or is being measured.")
    for stack in new:
        yield dg.RunRequest(
            # Dagster never starts a second run for a key, whatever became of the first.
            run_key=f"suite-{stack.key}",
            partition_key=register(context.instance, stack),
            tags={"resilience/stack": stack.key, "resilience/releases": releases[stack.key]},
        )


def _runs_of(instance: dg.DagsterInstance, partition: str) -> bool:
    """Whether a run of the main job for a partition waits or is at work, whoever asked for it."""
    wanted = dg.RunsFilter(
        job_name=main_job.name,
        statuses=list(UNFINISHED),
        tags={"dagster/partition": partition},
    )
    return bool(instance.get_runs(wanted, limit=1))


def _releases_on(home: Home, stack: Stack) -> str:
    found = [
        f"{name} {release.version}"
        for name, feed in FEEDS.items()
        if (release := release_of(feed, remembered(home, name).releases, stack)) is not None
    ]
    return ", ".join(found) or "none that a feed lists"


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Tells the verdict on each new upgrade, once for each channel: "
    "RESILIENCE_ALERT_WEBHOOK (JSON), RESILIENCE_ALERT_SLACK, and RESILIENCE_ALERT_EMAIL with "
    "RESILIENCE_SMTP. What a channel did not take is tried again. Starts no run.",
)
def upgrade_verdicts(context: dg.SensorEvaluationContext, home: HomeResource) -> dg.SensorResult:
    """Send what was not sent yet."""
    names = channels()
    if not names:
        return dg.SensorResult(skip_reason="No channel is set: see this sensor's description.")
    told: dict[str, str] = json.loads(context.cursor) if context.cursor else {}
    with failures():
        found = newest_upgrades(home.open())
    failed: dict[str, str] = {}
    sent = 0
    end = time.monotonic() + TELLING_S
    for upgrade in found:
        verdict = upgrade.comparison.verdict
        for name in names:
            key = f"{name} {upgrade.before} {upgrade.after}"
            known = told.get(key) == verdict.value or verdict is UpgradeVerdict.NOT_ENOUGH_DATA
            if known or name in failed or time.monotonic() > end:
                continue
            try:
                send(name, upgrade.alert())
            except ResilienceError as error:
                context.log.error(f"{name}: {error}")
                failed[name] = str(error)
            else:
                told[key] = verdict.value
                sent += 1
    words = " ".join(f"{name}: {why}" for name, why in failed.items())
    return dg.SensorResult(
        skip_reason=f"{sent} sent. {words}".strip(), cursor=json.dumps(told, sort_keys=True)
    )


SENSORS = (
    this_machine,
    new_releases,
    unmeasured_stacks,
    cluster_nodes,
    offered_releases,
    new_landing_folders,
    upgrade_verdicts,
)
