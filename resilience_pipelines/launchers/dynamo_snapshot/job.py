"""A job that measures with Dynamo Snapshot: from what its launcher told to the measurements.

What belongs here: the cluster that the launcher told of, and what can't be asked of it. What does
not: measuring (`benchmark`), and the record (`resilience_pipelines.job`).
"""

from __future__ import annotations

from pathlib import Path

from resilience_pipelines import job_environment
from resilience_pipelines.errors import InputError
from resilience_pipelines.faults.cluster import WORKERS
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import SnapshotEngineName
from resilience_pipelines.launchers.dynamo_snapshot.benchmark import DynamoResult, run_dynamo
from resilience_pipelines.launchers.dynamo_snapshot.cleanup import clean_pods
from resilience_pipelines.launchers.dynamo_snapshot.manifests import Marks
from resilience_pipelines.launchers.fault_cluster import open_place
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings
from resilience_pipelines.launches import home_id
from resilience_pipelines.startup.benchmark import Progress, StartupPlan
from resilience_pipelines.workers.base import Worker


def run_startup_in_pods(
    plan: StartupPlan, worker: Worker, home: Home, run_id: str, evidence: Path, progress: Progress
) -> tuple[DynamoResult, bool]:
    """Measure a plan's starts in pods; with it, whether the cluster is a fake.

    Raises:
        InputError: no cluster was told of, or the plan asks for what there is not in pods.
        ResilienceError: nothing could be measured.
    """
    told = job_environment.told(job_environment.CLUSTER)
    if told is None:
        raise InputError(
            "snapshot_engine", SnapshotEngineName.DYNAMO_SNAPSHOT.value,
            "it takes snapshots of pods, and no cluster was named",
            mend="Give --launcher kubernetes.",
        )  # fmt: skip
    if worker.name not in WORKERS:
        raise InputError(
            "worker", worker.name, "it can't be started in a pod that is captured",
            mend=f"Give one of {', '.join(sorted(WORKERS))}.",
        )  # fmt: skip
    if plan.snapshot is not None:
        raise InputError(
            "snapshot", plan.snapshot, "Dynamo Snapshot restores none of this platform's",
            mend="Leave it out: the run takes its own.",
        )  # fmt: skip
    settings = KubernetesSettings.model_validate_json(told)
    with open_place(settings) as place:
        clean_pods(place, home)
        marks = Marks(run_id, home_id(home))
        result = run_dynamo(plan, worker, place, settings, marks, evidence, progress)
        return result, place.is_fake
