"""Cleaning up: evidence first, then deletion; and what killed launchers left behind.

What belongs here: keeping what the cluster says of a run, removing the run from it, and finding
runs that nobody follows any more. What does not: following one (`launcher`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from resilience_pipelines.home import Home
from resilience_pipelines.launchers.kubernetes.client import Cluster
from resilience_pipelines.launchers.kubernetes.failures import ClusterError, FailureKind
from resilience_pipelines.launchers.kubernetes.manifest import job_name
from resilience_pipelines.launchers.kubernetes.settings import DeadlineSettings
from resilience_pipelines.launchers.kubernetes.state import Look
from resilience_pipelines.owned_folder import owned_by_the_living, owned_folder, remove_orphans

LOG_LINES: Final = 200
_LOCKS: Final = "*.launch"
_FORCE_AFTER_S: Final = 15.0
"""Beyond the grace: a kubelet that lives has ended the pod by then."""


@contextmanager
def followed(home: Home, run_id: str) -> Iterator[None]:
    """Be known as the launcher of a run while the block runs, however it ends."""
    remove_orphans(home.work, _LOCKS)
    with owned_folder(_lock(home, run_id)):
        yield


def evidence(cluster: Cluster, look: Look) -> dict[str, str]:
    """What the cluster says of a run, by the name of the file to keep it in.

    Raises:
        ClusterError: it can't be asked.
    """
    events = [asdict(event) for event in look.events]
    state = {"job": look.job, "pods": look.pods}
    kept = {
        "events.json": json.dumps(events, indent=1, default=str),
        "state.json": json.dumps(state, indent=1, default=_plain),
    }
    if look.pod is not None and (tail := cluster.log_tail(look.pod.name, LOG_LINES)):
        kept["log-tail.txt"] = tail
    return kept


def remove(cluster: Cluster, run_id: str) -> list[str]:
    """Delete a run's job and pods and wait until they are gone; returns what could not be done.

    Raises:
        ClusterError: the API server refuses, or is lost.
    """
    deadlines = cluster.settings.deadlines
    name = job_name(run_id)
    cluster.delete_job(name, deadlines.grace_s)
    notices: list[str] = []
    forced: set[str] = set()
    begin = time.monotonic()
    while True:
        job, (pods, _) = cluster.job(name), cluster.pods(run_id)
        waited = time.monotonic() - begin
        if job is None and not pods:
            return notices
        if waited > deadlines.cleanup_s:
            left = ([f"the job {name}"] if job else []) + [f"the pod {pod.name}" for pod in pods]
            return [
                *notices,
                f"Left in the cluster after {waited:.0f} s, with a finalizer or without a garbage "
                f"collector: {', '.join(left)}.",
            ]
        for pod in pods:
            if pod.uid in forced or waited < _force_after(deadlines):
                continue
            cluster.delete_pod(pod.name, 0)
            forced.add(pod.uid)
            notices.append(
                f"The pod {pod.name} had to be removed by force: node {pod.node} did not end it."
            )
        time.sleep(min(1.0, 0.1 + waited / 10))


def orphans(cluster: Cluster, home: Home, home_id: str) -> list[str]:
    """Runs of this data home that are in the cluster, and whose launcher is gone."""
    living = {folder.stem for folder in owned_by_the_living(home.work, _LOCKS)}
    return [job.run_id for job in cluster.jobs(home_id) if job.run_id not in living]


def _force_after(deadlines: DeadlineSettings) -> float:
    return min(deadlines.grace_s + _FORCE_AFTER_S, deadlines.cleanup_s / 2)


def _lock(home: Home, run_id: str) -> Path:
    return home.work / f"{run_id}.launch"


def _plain(value: object) -> object:
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)  # type: ignore[call-overload]
    return str(value)


def as_notice(error: ClusterError, what: str) -> str:
    """What could not be cleaned up, in words."""
    return (
        f"{what}: {error.reason}"
        if error.kind is not FailureKind.API_LOST
        else (
            f"{what}, because the API server is lost. The next launch, or the cluster itself once "
            "the job has ended, removes it."
        )
    )
