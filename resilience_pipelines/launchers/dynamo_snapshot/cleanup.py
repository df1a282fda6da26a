"""What killed platforms left of Dynamo Snapshot in a cluster: found by its labels, and removed.

What belongs here: finding runs of this data home that nobody measures any more. What does not:
removing what a living run made (`engine`), and jobs (`launchers.kubernetes.cleanup`).
"""

from __future__ import annotations

from resilience_pipelines.faults.cluster import Objects
from resilience_pipelines.home import Home
from resilience_pipelines.kubernetes_api import (
    ApiError,
    Json,
    named,
    object_of,
    objects_of,
    text_of,
)
from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    OWNER_LABEL,
    POD_SNAPSHOT,
    SNAPSHOT_JOB,
)
from resilience_pipelines.launchers.dynamo_snapshot.manifests import HOME_LABEL, RUN_LABEL
from resilience_pipelines.launches import home_id
from resilience_pipelines.owned_folder import owned_by_the_living
from resilience_pipelines.running_jobs import FOLDERS
from resilience_pipelines.workers.pod import PodPlace

_ABSENT = (401, 403, 404)
"""Where a kind is not there, or may not be listed, nothing of ours can have been made."""


def clean_pods(place: PodPlace, home: Home) -> list[str]:
    """Remove what no living job of this data home made; returns the runs that it was of.

    Raises:
        ApiError: the API server refuses a removal, or is lost.
        DeadlineError: something is still there.
    """
    import kubernetes

    living = {folder.name for folder in owned_by_the_living(home.work, FOLDERS)}
    mine = home_id(home)
    runs: set[str] = set()
    jobs = Objects(place, SNAPSHOT_JOB)
    snapshots = Objects(place, POD_SNAPSHOT)
    limit_s = place.settings.gone_s
    made_by: set[str] = set()
    for item in _listed(jobs):
        if (run := _orphaned(item, mine, living)) is not None:
            jobs.remove(named(item), limit_s)
            made_by.add(named(item))
            runs.add(run)
    for item in _listed(snapshots):
        run = _orphaned(item, mine, living)
        # What a SnapshotJob made has that one's name, and no label of ours.
        if run is not None or text_of(_labels(item).get(OWNER_LABEL)) in made_by:
            snapshots.remove(named(item), limit_s)
            runs |= {run} if run is not None else set()
    batch = kubernetes.client.BatchV1Api(place.api)
    found = place.call(
        "list jobs", batch.list_namespaced_job, place.settings.namespace,
        label_selector=f"{HOME_LABEL}={mine}",
    )  # fmt: skip
    for item in objects_of(found.get("items")):
        if (run := _orphaned(item, mine, living)) is not None:
            place.delete_job(named(item))
            runs.add(run)
    return sorted(runs)


def _listed(objects: Objects) -> list[Json]:
    try:
        return list(objects.list())
    except ApiError as error:
        if error.status in _ABSENT:
            return []
        raise


def _orphaned(item: Json, mine: str, living: set[str]) -> str | None:
    """The run that an object is of, where it is this home's and nobody measures it any more."""
    labels = _labels(item)
    run = text_of(labels.get(RUN_LABEL))
    return run if labels.get(HOME_LABEL) == mine and run and run not in living else None


def _labels(item: Json) -> Json:
    return object_of(object_of(item.get("metadata")).get("labels"))
