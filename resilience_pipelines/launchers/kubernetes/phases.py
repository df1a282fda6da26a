"""Phases of a pod: from the making of its job to the end of its container.

What belongs here: reading boundaries from conditions and events. What does not: the job's own
phases, which its record has; both meet by the run's name.

Each boundary is a time that a part of the cluster wrote, by its own clock, in whole seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from resilience_pipelines.launchers.kubernetes.state import ClusterEvent, Look, PodState
from resilience_pipelines.records import Phase

RESOLUTION_S: Final = 1.0
API_CLOCK: Final = "kubernetes_api"
SCHEDULER_CLOCK: Final = "kubernetes_scheduler"
KUBELET_CLOCK: Final = "kubelet"


def pod_phases(look: Look) -> tuple[tuple[Phase, ...], tuple[str, ...]]:
    """The phases of a run's pod, and what is to be said about them.

    A boundary that nobody wrote leaves its phase out. So does one before an earlier one, which two
    clocks that disagree can make; that is said.
    """
    job, pod = look.job, look.pod
    if job is None or job.created_at is None or pod is None:
        return (), ()
    boundaries = [
        ("pod_created", pod.created_at, API_CLOCK),
        ("scheduled", _changed(pod, "PodScheduled"), SCHEDULER_CLOCK),
        ("image_pull_wait", _event(look.events, pod, "Pulling"), KUBELET_CLOCK),
        ("image_pull", _pulled(look.events, pod), KUBELET_CLOCK),
        ("container_start", pod.container.started_at if pod.container else None, KUBELET_CLOCK),
        ("container_run", pod.container.finished_at if pod.container else None, KUBELET_CLOCK),
    ]
    phases: list[Phase] = []
    notices: list[str] = []
    before, origin = job.created_at, job.created_at
    for name, at, clock in boundaries:
        if at is None:
            continue
        if at < before:
            behind = (before - at).total_seconds()
            if behind >= RESOLUTION_S:
                notices.append(
                    f"The phase {name} is left out: its end lies {behind:g} s before its begin, so "
                    "the clocks of the cluster's parts disagree."
                )
            continue
        phases.append(
            Phase(
                name=name,
                start_s=(before - origin).total_seconds(),
                duration_s=(at - before).total_seconds(),
                clock=clock,
                resolution_s=RESOLUTION_S,
            )
        )
        before = at
    return tuple(phases), tuple(notices)


def _changed(pod: PodState, condition: str) -> datetime | None:
    found = pod.condition(condition)
    return found.changed_at if found is not None and found.holds else None


def _event(events: tuple[ClusterEvent, ...], pod: PodState, reason: str) -> datetime | None:
    times = [
        item.at
        for item in events
        if item.reason == reason and item.about == f"Pod/{pod.name}" and item.at is not None
    ]
    return min(times, default=None)


def _pulled(events: tuple[ClusterEvent, ...], pod: PodState) -> datetime | None:
    """The end of a pull. The kubelet says `Pulled` of an image that it had, too."""
    if _event(events, pod, "Pulling") is None:
        return None
    return _event(events, pod, "Pulled")
