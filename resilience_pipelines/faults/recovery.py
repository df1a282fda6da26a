"""Recoveries: the ways to bring service back after a fault.

What belongs here: doing each of them once, and timing its first right answer. What does not: when
to recover (`experiment`).
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path

from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.faults.fault import FaultContext, ObstacleError, Target
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.startup.arms import Started, restore_worker, start_process
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.client import WorkerAnswerError, WorkerRequestError
from resilience_pipelines.workers.oracle import first_token_is_right
from resilience_pipelines.workers.process import RunningWorker, WorkerFailedError

_ASKING_TIMEOUT_S = 5.0
_ASKING_STEP_S = 0.1
ASLEEP = HTTPStatus.SERVICE_UNAVAILABLE
"""What a sleeping worker answers to a request for tokens."""


class Recovery(StrEnum):
    """How service is brought back."""

    COLD = "cold"
    """A new process without compile caches. Its files may still be in the page cache."""
    WARM_CACHE = "warm_cache"
    """A new process that finds the compile caches of an earlier one."""
    RESTORE = "restore"
    """A process restored from the snapshot."""
    RESUME = "resume"
    """SIGCONT to the worker's processes."""
    CHECKPOINT = "checkpoint"
    """A training job started again from its last good checkpoint (`Injection.come_back`)."""
    CLUSTER = "cluster"
    """Nothing is done: Kubernetes replaces what was lost, or the fault ends by its own limit."""


@dataclass(frozen=True)
class Recovered:
    """A worker, or a job beside it, that gave a result after a recovery.

    Attributes:
        first_answer_ns: CLOCK_MONOTONIC of its first token or step, in nanoseconds.
        right: whether that is what it was before.
    """

    running: RunningWorker
    first_answer_ns: int
    right: bool


def check_possible(recovery: Recovery, context: FaultContext) -> None:
    """See whether a recovery can be tried.

    Raises:
        ObstacleError: it can't.
    """
    if recovery is not Recovery.RESTORE:
        return
    if context.engine is None:
        raise ObstacleError(SnapshotReason.NO_CRIU, context.no_engine_why)
    if context.snapshot is None:
        raise ObstacleError(FaultReason.NO_SNAPSHOT, context.no_snapshot_why, applicable=True)


def start_target(context: FaultContext, worker: Worker) -> RunningWorker:
    """Start the worker that a fault is going to hit, from warm caches.

    Raises:
        ResilienceError: it did not start, and nothing that was started stays.
    """
    return start_process(
        worker, context.support, context.warm_cache, context.answer, port=context.port
    ).running


def recover(
    recovery: Recovery, context: FaultContext, target: Target, name: str, owner: ExitStack
) -> Recovered:
    """Bring the worker's service back and ask for the first token.

    Args:
        recovery: any but `CHECKPOINT`, which is no recovery of a worker.
        name: what a log of a failure is called.
        owner: ends what was started, when it is closed.

    Raises:
        ResilienceError: it did not come back, and nothing that was started stays.
    """
    match recovery:
        case Recovery.COLD:
            cache = Path(tempfile.mkdtemp(dir=context.scratch, prefix="cold-cache-"))
            owner.callback(shutil.rmtree, cache)
            return _new(lambda: _start(context, cache), owner)
        case Recovery.WARM_CACHE:
            return _new(lambda: _start(context, context.warm_cache), owner)
        case Recovery.RESTORE:
            return _new(lambda: _restore(context, name), owner)
        case Recovery.RESUME:
            return _resume(context, target)
        case Recovery.CHECKPOINT:
            raise AssertionError("the fault that hit the job brings it back")
        case Recovery.CLUSTER:
            return _await_cluster(context, target)


def reason_of(error: Exception) -> str:
    """The reason code of a failed recovery."""
    match error:
        case SnapshotError():
            return error.code.value
        case WorkerFailedError():
            return "worker_failed"
        case WorkerRequestError():
            return "no_answer"
        case DeadlineError():
            return FaultReason.DEADLINE.value
        case _:
            return FaultReason.RECOVERY_FAILED.value


def _start(context: FaultContext, cache: Path) -> Started:
    # On the host, the worker that was lost may still hold its port: take any other.
    port = context.port if context.support.capsule else None
    return start_process(context.worker, context.support, cache, context.answer, port=port)


def _restore(context: FaultContext, name: str) -> Started:
    check_possible(Recovery.RESTORE, context)
    assert context.engine is not None
    assert context.snapshot is not None
    return restore_worker(
        context.engine, context.snapshot, context.worker, evidence=context.evidence, name=name
    )


def _new(start: Callable[[], Started], owner: ExitStack) -> Recovered:
    begun_ns = time.monotonic_ns()
    started = start()
    owner.callback(started.running.stop)
    return Recovered(
        started.running,
        begun_ns + round(started.total_s * 1e9),
        started.first_token_right is True,
    )


def _await_cluster(context: FaultContext, target: Target) -> Recovered:
    end = time.monotonic() + context.worker.start_deadline_s
    while True:
        try:
            right = first_token_is_right(target.running.client, context.answer, _ASKING_TIMEOUT_S)
            return Recovered(target.running, time.monotonic_ns(), right)
        except WorkerRequestError as error:
            if context.abort.is_set() or time.monotonic() > end:
                raise
            if isinstance(error, WorkerAnswerError) and error.status == ASLEEP:
                wake_again(target.running)
        time.sleep(_ASKING_STEP_S)


def wake_again(running: RunningWorker) -> None:
    """Try a wake that failed once more, as whoever put the worker to sleep would.

    Whether it wakes now is seen by its answers.
    """
    with suppress(WorkerRequestError):
        running.client.wake_up(timeout_s=_ASKING_TIMEOUT_S)


def _resume(context: FaultContext, target: Target) -> Recovered:
    target.running.process.signal_tree(signal.SIGCONT)
    right = first_token_is_right(
        target.running.client, context.answer, context.worker.request_deadline_s
    )
    return Recovered(target.running, time.monotonic_ns(), right)
