"""One start of a worker by each arm, from the decision to its first right token.

What belongs here: what is done and timed in each arm. What does not: repeats, order and records
(`benchmark`), and what a fault does before (`faults`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.records import CriuStatistics, Phase
from resilience_pipelines.snapshots.device import DeviceEngine
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.stopwatch import HOST_CLOCK, Stopwatch
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.client import WorkerRequestError
from resilience_pipelines.workers.oracle import RecordedAnswer, first_token_is_right
from resilience_pipelines.workers.process import READY_POLL_S, RunningWorker, launch
from resilience_pipelines.workers.space import SpaceSupport, open_space


@dataclass(frozen=True)
class Started:
    """A worker that gave its first token.

    Attributes:
        total_s: from the decision to start until that token.
        first_token_right: whether it is the oracle's; None where there is none to compare with.
    """

    running: RunningWorker
    total_s: float
    phases: tuple[Phase, ...]
    unaccounted_s: float
    first_token_right: bool | None
    statistics: CriuStatistics | None = None


Wake = tuple[float, tuple[Phase, ...], float, bool]
"""A wake of a live worker: total_s, phases, unaccounted_s, whether the first token was right."""


def start_process(
    worker: Worker,
    support: SpaceSupport,
    cache: Path,
    expected: RecordedAnswer | None,
    *,
    port: int | None = None,
) -> Started:
    """Start a new process: the arms `cold` (empty `cache`) and `warm_cache` (filled).

    Raises:
        WorkerFailedError, DeadlineError, WorkerRequestError, BusyError:
            and nothing that was started stays.
    """
    watch = Stopwatch()
    with watch.phase("space"):
        space = open_space(support)
    running = launch(worker, space, cache, port=port)
    try:
        ready_ns = running.wait_ready()
        right = _first_token(running, expected)
        total_ns = time.monotonic_ns()
        _add_process_phases(watch, running, ready_ns, total_ns)
    except BaseException:
        running.stop()
        raise
    return _started(running, watch, total_ns, right, None)


def wake_from_sleep(running: RunningWorker, level: int, expected: RecordedAnswer) -> Wake:
    """Put a live worker to sleep, then time its wake: the arm `sleep_wake`.

    Raises:
        WorkerRequestError
    """
    limit = running.worker.request_deadline_s
    running.client.sleep(level, timeout_s=limit)
    watch = Stopwatch()
    with watch.phase("wake"):
        running.client.wake_up(timeout_s=limit)
    with watch.phase("first_token"):
        right = first_token_is_right(running.client, expected, limit)
    total_s = watch.elapsed_s()
    return total_s, watch.phases, watch.unaccounted_s(total_s), right


def resume_on_device(
    running: RunningWorker, device: DeviceEngine, expected: RecordedAnswer
) -> Wake:
    """Empty the device as for a snapshot, but leave the process alive; time its way back in place.

    This is the variant `cuda_suspend` of the arm `sleep_wake`: a restore without CRIU. The worker
    sleeps first, since all that it holds on the device would else need room in host memory.

    Raises:
        SnapshotError, WorkerRequestError
    """
    worker, limit = running.worker, running.worker.request_deadline_s
    pids = [process.pid for process in running.process.tree()]
    running.client.sleep(worker.snapshot_sleep_level, timeout_s=limit, for_snapshot=True)
    try:
        device.suspend(pids)
    except SnapshotError:
        running.client.wake_up(timeout_s=limit)
        raise
    watch = Stopwatch()
    begun_ns = time.monotonic_ns()
    watch.extend(device.resume(pids), begun_ns)
    with watch.phase("wake"):
        running.client.wake_up(timeout_s=limit)
    with watch.phase("first_token"):
        right = first_token_is_right(running.client, expected, limit)
    total_s = watch.elapsed_s()
    return total_s, watch.phases, watch.unaccounted_s(total_s), right


def restore_worker(
    engine: SnapshotEngine,
    snapshot: StoredSnapshot,
    worker: Worker,
    *,
    gate: bool = True,
    evidence: Path | None = None,
    name: str = "restore",
) -> Started:
    """Bring a worker back from a snapshot: the arm `restore`.

    Args:
        gate: see `SnapshotEngine.restore`.

    Raises:
        SnapshotError: with phase and reason; nothing that was started stays.
    """
    watch = Stopwatch()
    restored = engine.restore(snapshot, worker, watch, gate=gate, evidence=evidence, name=name)
    running = restored.running
    try:
        with watch.phase("first_token"):
            right = _first_token(running, snapshot.manifest.answer)
        total_ns = time.monotonic_ns()
    except (WorkerRequestError, DeadlineError) as error:
        running.stop()
        raise SnapshotError(
            SnapshotReason.NO_ANSWER, "first_token", f"The restored worker does not answer: {error}"
        ) from error
    except BaseException:
        running.stop()
        raise
    return _started(running, watch, total_ns, right, restored.statistics)


def _first_token(running: RunningWorker, expected: RecordedAnswer | None) -> bool | None:
    limit = running.worker.request_deadline_s
    if expected is None:
        running.client.complete("The first token", 1, timeout_s=limit)
        return None
    return first_token_is_right(running.client, expected, limit)


def _started(
    running: RunningWorker,
    watch: Stopwatch,
    total_ns: int,
    right: bool | None,
    statistics: CriuStatistics | None,
) -> Started:
    total_s = (total_ns - watch.started_ns) / 1e9
    return Started(running, total_s, watch.phases, watch.unaccounted_s(total_s), right, statistics)


def _add_process_phases(
    watch: Stopwatch, running: RunningWorker, ready_ns: int, total_ns: int
) -> None:
    """The phases that the worker's output tells, and those around them that the host sees."""
    cursor = running.launched_ns
    for mark in running.worker.marks(running.output.lines()):
        if not cursor <= mark.start_ns <= mark.end_ns <= ready_ns:
            continue  # a line of an earlier life, or a clock that is not this machine's
        if cursor == running.launched_ns:
            # From the decision to the first line of the engine's own code.
            watch.add("process_start", cursor, mark.start_ns)
        watch.add(mark.name, mark.start_ns, mark.end_ns, mark.clock, mark.resolution_s)
        cursor = mark.end_ns
    watch.add("ready_seen", cursor, ready_ns, HOST_CLOCK, READY_POLL_S)
    watch.add("first_token", ready_ns, total_ns)
