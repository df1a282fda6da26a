"""Effects of faults on a worker in a pod, proved from this side: whoever injected is not asked.

What belongs here: what each kind of effect looks like to the API server and to a client, before and
after. What does not: causing one (`chaos_mesh`, `litmus`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from resilience_pipelines.detectors.slow_answers import answer_s
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.kubernetes_api import ApiError
from resilience_pipelines.records import Proof
from resilience_pipelines.workers.client import WorkerAnswerError, WorkerClient
from resilience_pipelines.workers.pod import PodLook, PodSpace
from resilience_pipelines.workers.space import holds_within

SAMPLES = 5
PROBE_TIMEOUT_S = 2.0
_STEP_S = 0.1


class Effect(StrEnum):
    """What a fault does to a worker in a pod, as others see it."""

    REPLACED = "replaced"
    """The pod is gone, or another one is in its place."""
    RESTARTED = "restarted"
    """The container was started again in its pod."""
    SLOWER_WAY = "slower_way"
    """`GET /health`, which computes nothing, takes longer or does not come back."""
    UNANSWERED = "unanswered"
    """`GET /health` does not come back."""
    SLOWER_WORK = "slower_work"
    """A completion takes longer, by its own measure."""
    SLOWER_READING = "slower_reading"
    """Waking from sleep level 2, which reads the weights again, takes longer."""
    READING_FAILS = "reading_fails"
    """Waking from sleep level 2 is refused: the weights can't be read. The worker sleeps on."""


@dataclass(frozen=True)
class Before:
    """The worker before the fault.

    Attributes:
        way_s: median round trip of `GET /health`.
        work_s: median time of a short completion.
        reading_s: a wake from sleep level 2; None where the fault does not touch reading.
    """

    pod: PodLook
    way_s: float
    work_s: float
    reading_s: float | None


def look_before(space: PodSpace, client: WorkerClient, effect: Effect) -> Before:
    """Measure what an effect is going to be compared with.

    Raises:
        ResilienceError: the worker does not answer.
    """
    pod = space.look()
    way = [way_s(client) for _ in range(SAMPLES)]
    work = [answer_s(client, PROBE_TIMEOUT_S) for _ in range(SAMPLES)]
    if pod is None or not pod.running or None in way or None in work:
        raise ResilienceError("The worker in the pod does not answer before the fault.")
    reads = effect in (Effect.SLOWER_READING, Effect.READING_FAILS)
    reading = reading_s(client) if reads else None
    return Before(pod, _median(way), _median(work), reading)


def prove(
    effect: Effect,
    threshold: float,
    before: Before,
    space: PodSpace,
    client: WorkerClient,
    deadline_s: float,
) -> Proof:
    """Look for an effect until it shows or the deadline has passed.

    Args:
        threshold: seconds that a way or a reading has to take longer; the factor for work.
    """
    match effect:
        case Effect.REPLACED:
            return _of_pod(space, before, deadline_s, restarted=False)
        case Effect.RESTARTED:
            return _of_pod(space, before, deadline_s, restarted=True)
        case Effect.UNANSWERED:
            return _unanswered(space, client, deadline_s)
        case Effect.SLOWER_WAY:
            limit_s = before.way_s + threshold
            return _slower(
                space, "round trip of /health", lambda: way_s(client), before.way_s, limit_s,
                deadline_s,
            )  # fmt: skip
        case Effect.SLOWER_WORK:
            limit_s = before.work_s * threshold
            return _slower(
                space, "time of a completion", lambda: answer_s(client, PROBE_TIMEOUT_S * 5),
                before.work_s, limit_s, deadline_s,
            )  # fmt: skip
        case Effect.SLOWER_READING:
            assert before.reading_s is not None
            took_s = reading_s(client)
            limit_s = before.reading_s + threshold
            return Proof(
                proved=took_s > limit_s, source="time of a wake that reads the weights",
                detail=f"{took_s:.3g} s, before {before.reading_s:.3g} s, needed {limit_s:.3g} s",
            )  # fmt: skip
        case Effect.READING_FAILS:
            return _reading_fails(client)


def as_before(before: Before, client: WorkerClient, deadline_s: float) -> Proof:
    """Whether the worker answers again, and about as fast as before."""
    way_limit_s = max(3 * before.way_s, before.way_s + 0.2)
    work_limit_s = max(3 * before.work_s, before.work_s + 0.5)
    last: list[str] = ["it does not answer"]

    def well() -> bool:
        way = [way_s(client) for _ in range(SAMPLES)]
        work = answer_s(client, PROBE_TIMEOUT_S * 5)
        if None in way or work is None:
            last[0] = "it does not answer"
            return False
        last[0] = f"/health takes {_median(way):.3g} s, an answer {work:.3g} s"
        return _median(way) <= way_limit_s and work <= work_limit_s

    return Proof(
        proved=holds_within(well, deadline_s, _STEP_S), source="client",
        detail=f"{last[0]} (before: {before.way_s:.3g} s, {before.work_s:.3g} s)",
    )  # fmt: skip


def way_s(client: WorkerClient) -> float | None:
    """The round trip of `GET /health`, in seconds; None when it does not come back."""
    begin = time.monotonic()
    return time.monotonic() - begin if client.healthy(PROBE_TIMEOUT_S) else None


def reading_s(client: WorkerClient) -> float:
    """How long a worker that gave back everything needs to wake, in seconds.

    Raises:
        WorkerRequestError: it does not wake.
    """
    client.sleep(2, timeout_s=60)
    begin = time.monotonic()
    client.wake_up(timeout_s=60)
    return time.monotonic() - begin


def _reading_fails(client: WorkerClient) -> Proof:
    """Only the worker's own refusal counts: an answer that does not come says nothing of files."""
    source = "a wake that reads the weights"
    client.sleep(2, timeout_s=60)
    try:
        client.wake_up(timeout_s=60)
    except WorkerAnswerError as error:
        return Proof(proved=True, source=source, detail=error.reason)
    return Proof(proved=False, source=source, detail="it read them")


def _of_pod(space: PodSpace, before: Before, deadline_s: float, *, restarted: bool) -> Proof:
    seen: list[PodLook | None] = [before.pod]

    def happened() -> bool:
        try:
            seen[0] = space.look()
        except ApiError as error:
            if not error.may_pass:
                raise
            return False
        look = seen[0]
        other = look is None or look.uid != before.pod.uid
        if not restarted:
            return other
        # A pod that was replaced as a whole is not what was asked for.
        return look is not None and not other and look.restarts > before.pod.restarts

    found = holds_within(happened, deadline_s, _STEP_S)
    now = "no pod" if seen[0] is None else f"pod {seen[0].name}, restarts {seen[0].restarts}"
    return Proof(
        proved=found, source="API server",
        detail=f"{now}; before: pod {before.pod.name}, restarts {before.pod.restarts}",
    )  # fmt: skip


def _server_answers(space: PodSpace) -> bool:
    """Whether the API server, which is on the way to the pod, is not what is lost."""
    try:
        space.look()
    except ApiError:
        return False
    return True


def _unanswered(space: PodSpace, client: WorkerClient, deadline_s: float) -> Proof:
    def silent() -> bool:
        return all(way_s(client) is None for _ in range(3)) and _server_answers(space)

    found = holds_within(silent, deadline_s, _STEP_S)
    said = f"{3 if found else 'not all'} of 3 requests without an answer"
    return Proof(proved=found, source="client", detail=f"{said} within {PROBE_TIMEOUT_S:g} s each")


def _slower(
    space: PodSpace,
    what: str,
    measure: Callable[[], float | None],
    before_s: float,
    limit_s: float,
    deadline_s: float,
) -> Proof:
    last: list[str] = [""]

    def slower() -> bool:
        # One that does not come back took longer than any that does.
        values = [measure() for _ in range(SAMPLES)]
        came = sorted(value for value in values if value is not None)
        last[0] = ", ".join(f"{value:.3g} s" for value in came) or "none came back"
        lost = len(values) - len(came)
        slow = lost + sum(value > limit_s for value in came)
        last[0] += f", {lost} of {len(values)} did not come back" if lost else ""
        return slow > SAMPLES // 2 and _server_answers(space)

    found = holds_within(slower, deadline_s, _STEP_S)
    return Proof(
        proved=found, source="client",
        detail=f"{what}: {last[0]}; before {before_s:.3g} s, most have to take {limit_s:.3g} s",
    )  # fmt: skip


def _median(values: list[float | None]) -> float:
    return statistics.median(value for value in values if value is not None)
