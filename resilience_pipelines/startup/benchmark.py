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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from resilience_pipelines.errors import DeadlineError, InputError, ResilienceError
from resilience_pipelines.records import (
    Arm,
    OracleVerdict,
    Outcome,
    PageCache,
    SnapshotMeasurement,
    StartupMeasurement,
)
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.stack import Stack
from resilience_pipelines.startup import page_cache
from resilience_pipelines.startup.arms import (
    Started,
    restore_worker,
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

    Raises:
        InputError: no arm, an arm twice, or fewer than one repeat.
    """

    arms: tuple[Arm, ...] = tuple(Arm)
    repeats: int = 5
    cold_repeats: int | None = None
    page_cache: PageCachePolicy = PageCachePolicy.AUTO
    sleep_levels: tuple[int, ...] = ()

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

    def repeats_of(self, arm: Arm) -> int:
        """How often an arm is measured."""
        return self.cold_repeats or self.repeats if arm is Arm.COLD else self.repeats

    def schedule(self) -> list[tuple[int, Arm]]:
        """(repeat, arm) in the order of the measurement."""
        order: list[tuple[int, Arm]] = []
        for repeat in range(max(self.repeats, self.cold_repeats or 0)):
            shift = repeat % len(self.arms)
            rotated = (*self.arms[shift:], *self.arms[:shift])
            order.extend((repeat, arm) for arm in rotated if repeat < self.repeats_of(arm))
        return order


@dataclass
class BenchmarkContext:
    """What a benchmark works with.

    Attributes:
        engine: takes and restores snapshots; None where this machine can't, `no_engine_why` says.
        warm_cache: the folder of filled compile caches.
        evidence: a folder for logs of what failed.
        scratch: a folder for what lives as long as one measurement.
    """

    worker: Worker
    stack: Stack
    support: SpaceSupport
    engine: SnapshotEngine | None
    no_engine_why: str
    warm_cache: Path
    evidence: Path
    scratch: Path
    telemetry: Telemetry
    port: int | None = None


@dataclass
class Source:
    """The worker that the benchmark compares with: its answer, its speed and its snapshot."""

    answer: RecordedAnswer
    throughput_tokens_per_s: float
    snapshots: list[SnapshotMeasurement] = field(default_factory=list)
    snapshot: StoredSnapshot | None = None


@dataclass(frozen=True)
class StartupResult:
    """All measurements of a run."""

    startups: tuple[StartupMeasurement, ...]
    snapshots: tuple[SnapshotMeasurement, ...]
    unsupported: dict[str, str]


def prepare_source(context: BenchmarkContext, *, snapshot: bool) -> Source:
    """Start a worker that fills the caches, record its answer and, if asked, take its snapshot.

    Raises:
        ResilienceError: it does not start or does not answer: then nothing can be measured.
    """
    context.worker.prepare()
    started = start_process(
        context.worker, context.support, context.warm_cache, None, port=context.port
    )
    with started.running as running:
        answer = record_answer(running.client, timeout_s=context.worker.request_deadline_s)
        source = Source(answer, measure_throughput(running, answer))
        if snapshot and context.engine is not None:
            taken = context.engine.take(
                running,
                context.stack,
                answer,
                measurement_id="snapshot-0",
                sleep_level=context.worker.sleep_levels[0],
                throughput_tokens_per_s=source.throughput_tokens_per_s,
                evidence=context.evidence,
            )
            source.snapshots.append(taken.measurement)
            source.snapshot = taken.snapshot
    return source


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

    A start that fails is a measurement with its reason; the run goes on.

    Raises:
        ResilienceError: the source worker does not start: then nothing can be measured.
    """
    schedule = plan.schedule()
    progress("source worker and snapshot", 0, len(schedule))
    source = prepare_source(context, snapshot=Arm.RESTORE in plan.arms)
    run = _Run(plan, context, source)
    for done, (repeat, arm) in enumerate(schedule):
        progress(f"{arm}, start {repeat + 1}", done, len(schedule))
        run.measure(repeat, arm)
    progress("finished", len(schedule), len(schedule))
    unsupported = {}
    if Arm.RESTORE in plan.arms and context.engine is None:
        unsupported[Arm.RESTORE.value] = context.no_engine_why
    return StartupResult(tuple(run.startups), tuple(source.snapshots), unsupported)


class _Run:
    """The measurements of one run, in their order."""

    def __init__(self, plan: StartupPlan, context: BenchmarkContext, source: Source) -> None:
        self._plan = plan
        self._context = context
        self._source = source
        self.startups: list[StartupMeasurement] = []

    def measure(self, repeat: int, arm: Arm) -> None:
        """Make the start or starts of one step of the schedule."""
        if arm is Arm.SLEEP_WAKE:
            self._measure_wakes(repeat)
        elif arm is Arm.RESTORE:
            self._measure_restore(repeat)
        else:
            self._measure_process(repeat, arm)

    def _measure_process(self, repeat: int, arm: Arm) -> None:
        context = self._context
        draft = self._draft(arm, repeat, context.worker.weight_files())
        cache = context.warm_cache
        if arm is Arm.COLD:
            cache = Path(tempfile.mkdtemp(dir=context.scratch, prefix="cold-cache-"))
        try:
            started = start_process(
                context.worker, context.support, cache, self._source.answer, port=context.port
            )
        except ResilienceError as error:
            self._fail(draft, _reason(error), error)
        else:
            self._finish(draft, started)
        finally:
            if arm is Arm.COLD:
                shutil.rmtree(cache, ignore_errors=True)

    def _measure_restore(self, repeat: int) -> None:
        context, snapshot = self._context, self._source.snapshot
        if context.engine is None or snapshot is None:
            draft = self._draft(Arm.RESTORE, repeat, ())
            if context.engine is None:
                self._append(
                    draft, outcome=Outcome.UNSUPPORTED, reason_code=SnapshotReason.NO_CRIU,
                    detail=context.no_engine_why, oracle=NOT_CHECKED,
                )  # fmt: skip
            else:
                failure = self._source.snapshots[-1]
                self._append(
                    draft, outcome=Outcome.FAILED, reason_code=failure.reason_code,
                    detail=f"No snapshot: {failure.detail}"[:4000], oracle=NOT_CHECKED,
                )  # fmt: skip
            return
        images = [snapshot.folder / file.path for file in snapshot.manifest.files]
        draft = self._draft(Arm.RESTORE, repeat, images)
        draft["snapshot_id"] = snapshot.manifest.snapshot_id
        draft["throughput_before_tokens_per_s"] = self._source.throughput_tokens_per_s
        try:
            started = restore_worker(
                context.engine, snapshot, context.worker,
                evidence=context.evidence, name=str(draft["measurement_id"]),
            )  # fmt: skip
        except ResilienceError as error:
            self._fail(draft, _reason(error), error)
        else:
            self._finish(draft, started)

    def _measure_wakes(self, repeat: int) -> None:
        """All sleep levels on one worker, which is not itself measured."""
        context = self._context
        levels = self._plan.sleep_levels or context.worker.sleep_levels[:1]
        try:
            started = start_process(
                context.worker, context.support, context.warm_cache, None, port=context.port
            )
        except ResilienceError as error:
            for level in levels:
                self._fail(self._wake_draft(repeat, level), _reason(error), error)
            return
        with started.running as running:
            before = measure_throughput(running, self._source.answer)
            for level in levels:
                self._measure_wake(running, repeat, level, before)

    def _measure_wake(
        self, running: RunningWorker, repeat: int, level: int, before_tokens_per_s: float
    ) -> None:
        draft = self._wake_draft(repeat, level)
        draft["throughput_before_tokens_per_s"] = before_tokens_per_s
        try:
            total_s, phases, unaccounted_s, right = wake_from_sleep(
                running, level, self._source.answer
            )
        except ResilienceError as error:
            self._fail(draft, _reason(error), error)
            return
        self._check(draft, running, Started(running, total_s, phases, unaccounted_s, right))

    def _wake_draft(self, repeat: int, level: int) -> dict[str, object]:
        draft = self._draft(Arm.SLEEP_WAKE, repeat, ())
        if level != self._context.worker.sleep_levels[0]:
            draft["variant"] = f"level_{level}"
            draft["measurement_id"] = f"{draft['measurement_id']}-level-{level}"
        return draft

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

    def _finish(self, draft: dict[str, object], started: Started) -> None:
        with started.running as running:
            self._check(draft, running, started)

    def _check(self, draft: dict[str, object], running: RunningWorker, started: Started) -> None:
        """The whole oracle and the throughput, after the start was timed."""
        worker = self._context.worker
        subject = str(draft["measurement_id"])
        try:
            with self._context.telemetry.watching(subject, process_source(running.process)):
                oracle = check_answer(
                    running.client, self._source.answer,
                    tolerance=worker.logprob_tolerance, timeout_s=worker.request_deadline_s,
                )  # fmt: skip
                throughput = measure_throughput(running, self._source.answer)
        except ResilienceError as error:
            self._fail(draft, _reason(error), error)
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


def _reason(error: ResilienceError) -> str:
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
