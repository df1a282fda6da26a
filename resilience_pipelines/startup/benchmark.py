"""The start-up benchmark: arms, repeats and page cache, interleaved, each start a measurement.

What belongs here: the order of starts, what stands for the page cache of each arm, and turning
starts and failures into records. What does not: how one start is done (`arms`).

Starts of different arms alternate, and each repeat begins with another arm, so that a drift of the
machine does not fall on one arm alone.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path

from resilience_pipelines.errors import DeadlineError, InputError, ResilienceError, Stopped
from resilience_pipelines.records import (
    Arm,
    OracleVerdict,
    Outcome,
    PageCache,
    SnapshotMeasurement,
    StartupMeasurement,
)
from resilience_pipelines.snapshots.device import DeviceEngine
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.stack import Stack
from resilience_pipelines.startup import page_cache
from resilience_pipelines.startup.arms import (
    Started,
    Wake,
    restore_worker,
    resume_on_device,
    start_process,
    wake_from_sleep,
)
from resilience_pipelines.telemetry import Telemetry, process_source
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.client import WorkerRequestError
from resilience_pipelines.workers.oracle import (
    NOT_CHECKED,
    RecordedAnswer,
    check_answer,
    record_answer,
)
from resilience_pipelines.workers.process import RunningWorker, WorkerFailedError
from resilience_pipelines.workers.space import SpaceSupport

THROUGHPUT_REQUESTS = 1
"""Of as many tokens as the oracle has. Every start adds one figure, so few are enough."""

CUDA_SUSPEND = "cuda_suspend"
"""Variant of `sleep_wake` in which the driver moves what sleep leaves on the device, too."""

OTHER_STACK = "other_stack"
"""Variant of `restore` whose image was made on another stack than the one it is restored on."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done and how many there are."""


class PageCachePolicy(StrEnum):
    """What happens to the page cache before a start."""

    AUTO = "auto"
    """Cold for the arm `cold`, warm for all others."""
    COLD = "cold"
    WARM = "warm"
    AS_FOUND = "as_found"


@dataclass(frozen=True)
class StartupPlan:
    """What to measure.

    Args:
        repeats: starts of each arm.
        cold_repeats: starts of the arm `cold`, where it shall differ.
        sleep_levels: levels of the arm `sleep_wake`; the worker's default level when empty.
        snapshot: id of a stored snapshot for the arm `restore`, whoever took it; one of this run's
            own source when None.

    Raises:
        InputError: no arm, an arm twice, fewer than one repeat, or a snapshot and no restore.
    """

    arms: tuple[Arm, ...] = tuple(Arm)
    repeats: int = 5
    cold_repeats: int | None = None
    page_cache: PageCachePolicy = PageCachePolicy.AUTO
    sleep_levels: tuple[int, ...] = ()
    snapshot: str | None = None

    def __post_init__(self) -> None:
        for name in ("repeats", "cold_repeats"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(name, value, "nothing would be measured", mend="Give 1 or more.")
        if not self.arms or len(set(self.arms)) != len(self.arms):
            raise InputError(
                "arms", [str(arm) for arm in self.arms], "each arm has to be named once",
                mend=f"Choose from {', '.join(Arm)}.",
            )  # fmt: skip
        if self.snapshot is not None and Arm.RESTORE not in self.arms:
            raise InputError(
                "snapshot", self.snapshot, "no arm of the plan restores it",
                mend=f"Name the arm {Arm.RESTORE}, or no snapshot.",
            )  # fmt: skip

    def repeats_of(self, arm: Arm) -> int:
        """How often an arm is measured."""
        return self.cold_repeats or self.repeats if arm is Arm.COLD else self.repeats

    def wakes_warm_start(self) -> bool:
        """Whether a sleeping worker is one that was just measured as a warm start.

        Then it has no start of its own: a large engine needs a minute for each.
        """
        return Arm.WARM_CACHE in self.arms and Arm.SLEEP_WAKE in self.arms

    def started_arms(self) -> tuple[Arm, ...]:
        """The arms that have starts of their own."""
        if not self.wakes_warm_start():
            return self.arms
        return tuple(arm for arm in self.arms if arm is not Arm.SLEEP_WAKE)

    def schedule(self) -> list[tuple[int, Arm]]:
        """(repeat, arm) of every start after the source, in the order of the measurement.

        The first cold start may have been the source itself: see `run_startup`.
        """
        arms = self.started_arms()
        order: list[tuple[int, Arm]] = []
        for repeat in range(max(self.repeats, self.cold_repeats or 0)):
            shift = repeat % len(arms)
            rotated = (*arms[shift:], *arms[:shift])
            order.extend((repeat, arm) for arm in rotated if repeat < self.repeats_of(arm))
        return order


@dataclass
class BenchmarkContext:
    """What a benchmark works with.

    Attributes:
        device: moves the worker's device state.
        engine: takes and restores snapshots; None where this machine can't, `no_engine_why` says.
        warm_cache: the folder of filled compile caches.
        evidence: a folder for logs of what failed.
        scratch: a folder for what lives as long as one measurement.
    """

    worker: Worker
    stack: Stack
    support: SpaceSupport
    device: DeviceEngine
    engine: SnapshotEngine | None
    no_engine_why: str
    warm_cache: Path
    evidence: Path
    scratch: Path
    telemetry: Telemetry
    port: int | None = None


@dataclass(frozen=True)
class Unstarted:
    """A worker that did not start, and why."""

    reason_code: str
    error: ResilienceError


@dataclass
class Source:
    """The worker that the benchmark compares with: its answer, its speed and its snapshot."""

    answer: RecordedAnswer
    throughput_tokens_per_s: float | None
    snapshots: list[SnapshotMeasurement] = field(default_factory=list)
    snapshot: StoredSnapshot | None = None


@dataclass(frozen=True)
class StartupResult:
    """All measurements of a run."""

    startups: tuple[StartupMeasurement, ...]
    snapshots: tuple[SnapshotMeasurement, ...]
    unsupported: dict[str, str]


def prepare_source(
    context: BenchmarkContext, *, snapshot: bool, sleep_level: int | None = None
) -> Source:
    """Start a worker that fills the caches, record its answer and, if asked, take its snapshot.

    Args:
        sleep_level: how it sleeps for the snapshot; the worker's own choice when None.

    Raises:
        InputError: the worker has no such level.
        ResilienceError: it does not start or does not answer: then nothing can be measured.
    """
    worker = context.worker
    if sleep_level is None:
        sleep_level = worker.snapshot_sleep_level
    elif sleep_level not in worker.sleep_levels:
        raise InputError(
            "sleep_level", sleep_level, f"the worker {worker.name} has no such level",
            mend=f"Choose from {', '.join(map(str, worker.sleep_levels))}.",
        )  # fmt: skip
    worker.prepare()
    started, source = _start_source(context)
    with started.running as running:
        if snapshot:
            _take_snapshot(context, running, source, sleep_level)
    return source


def _start_source(context: BenchmarkContext) -> tuple[Started, Source]:
    """Start the source and ask for the answer that others are checked with."""
    worker = context.worker
    started = start_process(worker, context.support, context.warm_cache, None, port=context.port)
    running = started.running
    try:
        answer = record_answer(running.client, timeout_s=worker.request_deadline_s)
        return started, Source(answer, measure_throughput(running, answer))
    except BaseException:
        running.stop()
        raise


def _take_snapshot(
    context: BenchmarkContext, running: RunningWorker, source: Source, sleep_level: int
) -> None:
    """Add a snapshot of the running source, where this machine can take one."""
    if context.engine is None:
        return
    taken = context.engine.take(
        running,
        context.stack,
        source.answer,
        measurement_id="snapshot-0",
        sleep_level=sleep_level,
        throughput_tokens_per_s=source.throughput_tokens_per_s,
        evidence=context.evidence,
    )
    source.snapshots.append(taken.measurement)
    source.snapshot = taken.snapshot


def measure_throughput(running: RunningWorker, answer: RecordedAnswer) -> float:
    """Generated tokens per second over a few requests, one after the other."""
    begin = time.monotonic()
    tokens = 0
    for _ in range(THROUGHPUT_REQUESTS):
        done = running.client.complete(
            answer.prompt, len(answer.token_ids), timeout_s=running.worker.request_deadline_s
        )
        tokens += len(done.token_ids)
    return tokens / (time.monotonic() - begin)


def run_startup(plan: StartupPlan, context: BenchmarkContext, progress: Progress) -> StartupResult:
    """Measure every start of the plan.

    Where the compile caches are empty, the source worker, which fills them, is the first cold
    start: a large engine needs minutes for each.

    A start that fails is a measurement with its reason; the run goes on. A run that is stopped
    keeps the starts that were finished, and says how many are missing.

    Raises:
        ResilienceError: the source worker does not start: then nothing can be measured.
        Stopped: before any start was finished.
    """
    schedule = plan.schedule()
    total = len(schedule)
    progress("source worker and snapshot", 0, total)
    run = _Run(plan, context)
    run.prepare()
    if run.startups:
        schedule.remove((0, Arm.COLD))
    unsupported = {}
    done = total - len(schedule)
    try:
        for repeat, arm in schedule:
            progress(f"{arm}, start {repeat + 1}", done, total)
            run.measure(repeat, arm)
            done += 1
        progress("finished", total, total)
    except Stopped:
        if not run.startups:
            raise
        unsupported["rest of the run"] = f"It was stopped after {done} of {total} starts."
    if Arm.RESTORE in plan.arms and context.engine is None:
        unsupported[Arm.RESTORE.value] = context.no_engine_why
    return StartupResult(tuple(run.startups), tuple(run.source.snapshots), unsupported)


class _Run:
    """The measurements of one run, in their order.

    Attributes:
        source: there once `prepare` is done.
    """

    source: Source

    def __init__(self, plan: StartupPlan, context: BenchmarkContext) -> None:
        self._plan = plan
        self._context = context
        self.startups: list[StartupMeasurement] = []

    def prepare(self) -> None:
        """Start the source, as the first cold start if it is one, and take its snapshot.

        A stored snapshot stands for the source: with it, nothing is started that the plan does not
        measure, and every start is checked with the answer that the snapshot holds.

        Raises:
            InputError: there is no such snapshot, or it is of another worker.
            ResilienceError: it does not start or does not answer.
        """
        context = self._context
        context.worker.prepare()
        stored = self._stored_source()
        if stored is not None:
            self.source = stored
            if self._plan.arms == (Arm.RESTORE,):
                return
        cold = Arm.COLD in self._plan.arms and not any(context.warm_cache.iterdir())
        with ExitStack() as owner:
            running: RunningWorker | Unstarted
            if cold:
                draft = self._draft(Arm.COLD, 0, context.worker.weight_files())
                running = self._measure_start(draft, owner, self._start_source)
            else:
                running = owner.enter_context(self._start_source().running)
            if isinstance(running, Unstarted):
                raise running.error
            if Arm.RESTORE in self._plan.arms and stored is None:
                level = context.worker.snapshot_sleep_level
                _take_snapshot(context, running, self.source, level)

    def _stored_source(self) -> Source | None:
        """What a stored snapshot tells of its source; None where the plan names none."""
        name, engine = self._plan.snapshot, self._context.engine
        if name is None or engine is None:
            return None
        snapshot = engine.store.get(name)
        require_worker(snapshot, self._context.worker)
        manifest = snapshot.manifest
        return Source(manifest.answer, manifest.throughput_tokens_per_s, snapshot=snapshot)

    def _start_source(self) -> Started:
        started, source = _start_source(self._context)
        if self._plan.snapshot is None or self._context.engine is None:
            self.source = source  # else that of the stored snapshot stays
        return started

    def measure(self, repeat: int, arm: Arm) -> None:
        """Make the start or starts of one step of the schedule."""
        if arm is Arm.SLEEP_WAKE:
            self._start_and_wake(repeat)
        elif arm is Arm.RESTORE:
            self._measure_restore(repeat)
        else:
            self._measure_process(repeat, arm)

    def _measure_process(self, repeat: int, arm: Arm) -> None:
        context = self._context
        draft = self._draft(arm, repeat, context.worker.weight_files())
        cache = context.warm_cache
        with ExitStack() as owner:
            if arm is Arm.COLD:
                cache = Path(tempfile.mkdtemp(dir=context.scratch, prefix="cold-cache-"))
                owner.callback(shutil.rmtree, cache, ignore_errors=True)
            running = self._measure_start(
                draft,
                owner,
                lambda: start_process(
                    context.worker, context.support, cache, self.source.answer, port=context.port
                ),
            )
            if arm is Arm.WARM_CACHE and self._plan.wakes_warm_start():
                self._measure_wakes(running, repeat)

    def _measure_start(
        self, draft: dict[str, object], owner: ExitStack, start: Callable[[], Started]
    ) -> RunningWorker | Unstarted:
        """Make and check one start; `owner` ends the worker."""
        with self._context.telemetry.watching(str(draft["measurement_id"])) as watched:
            try:
                started = start()
            except ResilienceError as error:
                self._fail(draft, reason_of(error), error)
                return Unstarted(reason_of(error), error)
            running = owner.enter_context(started.running)
            watched.add(process_source(running.process))
            self._check(draft, started)
        return running

    def _measure_restore(self, repeat: int) -> None:
        context, snapshot = self._context, self.source.snapshot
        if context.engine is None or snapshot is None:
            draft = self._draft(Arm.RESTORE, repeat, ())
            if context.engine is None:
                self._append(
                    draft, outcome=Outcome.UNSUPPORTED, reason_code=SnapshotReason.NO_CRIU,
                    detail=context.no_engine_why, oracle=NOT_CHECKED,
                )  # fmt: skip
            else:
                failure = self.source.snapshots[-1]
                self._append(
                    draft, outcome=Outcome.FAILED, reason_code=failure.reason_code,
                    detail=f"No snapshot: {failure.detail}"[:4000], oracle=NOT_CHECKED,
                )  # fmt: skip
            return
        # A worker may read its weights again when it wakes.
        images = [snapshot.folder / file.path for file in snapshot.manifest.files]
        draft = self._draft(Arm.RESTORE, repeat, [*images, *context.worker.weight_files()])
        draft["snapshot_id"] = snapshot.manifest.snapshot_id
        if snapshot.manifest.stack.key != context.stack.key:
            # Not the experiment whose image was made here: it has a series of its own.
            draft["variant"] = "_".join(
                str(name) for name in (draft["variant"], OTHER_STACK) if name
            )
        draft["throughput_before_tokens_per_s"] = self.source.throughput_tokens_per_s
        engine, evidence = context.engine, context.evidence
        with ExitStack() as owner:
            self._measure_start(
                draft,
                owner,
                lambda: restore_worker(
                    engine, snapshot, context.worker,
                    evidence=evidence, name=str(draft["measurement_id"]),
                ),
            )  # fmt: skip

    def _start_and_wake(self, repeat: int) -> None:
        """Wakes of a worker that is not itself measured."""
        context = self._context
        with ExitStack() as owner:
            running: RunningWorker | Unstarted
            try:
                started = start_process(
                    context.worker, context.support, context.warm_cache, None, port=context.port
                )
                running = owner.enter_context(started.running)
            except ResilienceError as error:
                running = Unstarted(reason_of(error), error)
            self._measure_wakes(running, repeat)

    def _measure_wakes(self, running: RunningWorker | Unstarted, repeat: int) -> None:
        """Wakes of one worker, one after the other: all sleep levels, then device memory alone."""
        worker, device, answer = self._context.worker, self._context.device, self.source.answer
        for level in self._plan.sleep_levels or worker.sleep_levels[:1]:
            self._measure_wake(
                running, repeat,
                None if level == worker.sleep_levels[0] else f"level_{level}",
                partial(wake_from_sleep, level=level, expected=answer),
            )  # fmt: skip
        if device.moves_state:
            self._measure_wake(
                running,
                repeat,
                CUDA_SUSPEND,
                partial(resume_on_device, device=device, expected=answer),
            )

    def _measure_wake(
        self,
        running: RunningWorker | Unstarted,
        repeat: int,
        variant: str | None,
        wake: Callable[[RunningWorker], Wake],
    ) -> None:
        draft = self._draft(Arm.SLEEP_WAKE, repeat, ())
        if variant is not None:
            draft["variant"] = variant
            draft["measurement_id"] = f"{draft['measurement_id']}-{variant.replace('_', '-')}"
        if isinstance(running, Unstarted):
            self._fail(draft, running.reason_code, running.error)
            return
        with self._context.telemetry.watching(
            str(draft["measurement_id"]), process_source(running.process)
        ):
            try:
                draft["throughput_before_tokens_per_s"] = measure_throughput(
                    running, self.source.answer
                )
                total_s, phases, unaccounted_s, right = wake(running)
            except ResilienceError as error:
                self._fail(draft, reason_of(error), error)
                return
            self._check(draft, Started(running, total_s, phases, unaccounted_s, right))

    def _draft(self, arm: Arm, repeat: int, files: Sequence[Path]) -> dict[str, object]:
        """What is known of a measurement before it: names, order, page cache."""
        policy = self._plan.page_cache
        requested = {
            PageCachePolicy.COLD: PageCache.COLD,
            PageCachePolicy.WARM: PageCache.WARM,
            PageCachePolicy.AS_FOUND: PageCache.UNKNOWN,
            PageCachePolicy.AUTO: PageCache.COLD if arm is Arm.COLD else PageCache.WARM,
        }[policy]
        if requested is PageCache.COLD:
            page_cache.evict(files)
        elif requested is PageCache.WARM:
            page_cache.load(files)
        fraction = page_cache.resident_fraction(files)
        return {
            "measurement_id": f"{arm}-{repeat}",
            "arm": arm,
            # Starts under another policy than the usual one are not the same experiment.
            "variant": None if policy is PageCachePolicy.AUTO else f"page_cache_{policy}",
            "repeat": repeat,
            "position": len(self.startups),
            "started_at": datetime.now(UTC),
            "page_cache_requested": requested if files else PageCache.UNKNOWN,
            "page_cache_found": page_cache.classify(fraction),
            "page_cache_fraction": fraction,
        }

    def _check(self, draft: dict[str, object], started: Started) -> None:
        """The whole oracle and the throughput, after the start was timed."""
        worker, running = self._context.worker, started.running
        try:
            oracle = check_answer(
                running.client, self.source.answer,
                tolerance=worker.logprob_tolerance, timeout_s=worker.request_deadline_s,
            )  # fmt: skip
            throughput = measure_throughput(running, self.source.answer)
        except ResilienceError as error:
            self._fail(draft, reason_of(error), error)
            return
        timing = {
            "total_s": started.total_s,
            "phases": started.phases,
            "unaccounted_s": started.unaccounted_s,
            "criu": started.statistics,
        }
        if oracle.verdict is not OracleVerdict.EQUAL or started.first_token_right is False:
            self._append(
                draft, outcome=Outcome.FAILED, reason_code=SnapshotReason.WRONG_ANSWER,
                detail=oracle.detail or "the first token differs", oracle=oracle, **timing,
            )  # fmt: skip
            return
        self._append(
            draft, outcome=Outcome.OK, oracle=oracle, throughput_tokens_per_s=throughput, **timing
        )

    def _fail(self, draft: dict[str, object], reason_code: str, error: ResilienceError) -> None:
        if isinstance(error, WorkerFailedError):
            log = self._context.evidence / f"worker-{draft['measurement_id']}.log"
            log.write_text(error.output)
        self._append(
            draft, outcome=Outcome.FAILED, reason_code=reason_code,
            detail=str(error)[:4000], oracle=NOT_CHECKED,
        )  # fmt: skip

    def _append(self, draft: dict[str, object], **facts: object) -> None:
        self.startups.append(StartupMeasurement.model_validate(draft | facts))


def require_worker(snapshot: StoredSnapshot, worker: Worker) -> None:
    """Check that a snapshot is of a worker.

    Raises:
        InputError: it is of another one.
    """
    found = snapshot.manifest.worker
    if found != worker.name:
        raise InputError(
            "snapshot", snapshot.manifest.snapshot_id, f"it is of the worker {found}",
            mend=f"Give --worker {found}, or a snapshot of {worker.name}.",
        )  # fmt: skip


def reason_of(error: ResilienceError) -> str:
    """The reason code of a start that failed."""
    match error:
        case SnapshotError():
            return error.code.value
        case WorkerFailedError():
            return "worker_failed"
        case DeadlineError():
            return "deadline"
        case WorkerRequestError():
            return "no_answer"
        case _:
            return type(error).__name__
