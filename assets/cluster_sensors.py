"""Sensors of a cluster: what runs because its nodes or an operator's images offer a release.

What belongs here: watching the cluster that the launcher's settings name. What does not: watching
this machine (`sensors`), and what a cluster offers (`launchers.kubernetes.offers`).
"""

from collections.abc import Iterator

import dagster as dg

from assets.jobs import main_job
from assets.partitions import missing_partitions
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.launcher import (
    DRIVER_TAG,
    IMAGE_TAG,
    OFFER_TAG,
    JobLauncher,
)
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.dagster_io.stack_partitions import register
from resilience_pipelines.launchers.choice import kubernetes_settings_if_any
from resilience_pipelines.launchers.kubernetes.offers import look_at_nodes
from resilience_pipelines.release_survey import OfferedSuite, offered_suites
from resilience_pipelines.warehouse.stack_figures import suite_stacks


@dg.sensor(
    minimum_interval_seconds=600,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks at the nodes of the cluster that the launcher's settings name, unless they "
    "say `read_nodes = false`, and registers the partitions of what nodes and images named for "
    "releases offer. Starts no run.",
)
def cluster_nodes(context: dg.SensorEvaluationContext, home: HomeResource) -> dg.SensorResult:
    """Remember the nodes, and register what is not registered yet."""
    with failures():
        data_home = home.open()
        settings = kubernetes_settings_if_any(data_home)
        if settings is None:
            return dg.SensorResult(skip_reason="There are no settings of a cluster.")
        if settings.read_nodes:
            look_at_nodes(data_home, settings)
        stacks = [item.stack for item in offered_suites(data_home) if item.stack is not None]
    requests = missing_partitions(context.instance, stacks)
    if requests:
        return dg.SensorResult(dynamic_partitions_requests=requests)
    return dg.SensorResult(skip_reason="What the cluster offers is registered.")


@dg.sensor(
    job=main_job,
    minimum_interval_seconds=300,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Requests the main job for a release that the launcher's settings name an image "
    "for, exactly once for each release and image, and for a driver that nodes of the cluster have "
    "and nobody has measured, exactly once for each driver and kind of GPU. Stopped until somebody "
    "starts it: each takes a whole GPU of the cluster for minutes.",
)
def offered_releases(
    context: dg.SensorEvaluationContext, home: HomeResource, launcher: JobLauncher
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """One run for each offer that nobody has asked for yet."""
    if launcher.measures_this_machine:
        yield dg.SkipReason("The launcher measures this machine; a cluster's offers need another.")
        return
    with failures():
        data_home = home.open()
        suites = offered_suites(data_home)
        done = {(stack.hardware_label, stack.driver_version) for stack in suite_stacks(data_home)}
    unknown, asked = [], 0
    for suite in suites:
        if suite.stack is None:
            unknown.append(f"{suite.offer.feed} {suite.offer.version}")
            continue
        on_nodes = suite.offer.image is None
        if on_nodes and (suite.stack.hardware_label, suite.offer.version) in done:
            continue
        if _was_asked(context.instance, suite):
            continue
        asked += 1
        # Dagster never starts a second run for a key, whatever became of the first.
        yield dg.RunRequest(
            run_key=f"suite-{suite.offer.key}",
            partition_key=register(context.instance, suite.stack),
            tags=_tags(suite),
        )
    if not asked:
        words = "Every release that the cluster offers was asked for."
        if unknown:
            words += f" Nothing measured tells what else a stack with {', '.join(unknown)} has."
        yield dg.SkipReason(words)


def _was_asked(instance: dg.DagsterInstance, suite: OfferedSuite) -> bool:
    wanted = dg.RunsFilter(job_name=main_job.name, tags={OFFER_TAG: suite.offer.key})
    return bool(instance.get_runs(wanted, limit=1))


def _tags(suite: OfferedSuite) -> dict[str, str]:
    offer, stack = suite.offer, suite.stack
    assert stack is not None
    where = {IMAGE_TAG: offer.image} if offer.image else {DRIVER_TAG: offer.version}
    return {
        OFFER_TAG: offer.key,
        "resilience/stack": stack.key,
        "resilience/releases": f"{offer.feed} {offer.version}",
        **where,
    }
