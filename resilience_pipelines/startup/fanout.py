"""Fan-out: many restores from one image at once, as when a whole replica set comes back.

What belongs here: waves of restores that begin together, the page cache before each, and the
bandwidth of the disk that they are seen against. What does not: one restore (`arms`), and
percentiles over many (the dbt marts).

A wave's workers all live until the last of them has its first token, so that they share the machine
as replicas would. Only the image's and the weights' own pages leave the page cache; what another
layer (a host's cache below a virtual disk) still holds is not known here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from resilience_pipelines.errors import InputError, ResilienceError, Stopped, UnsupportedError
from resilience_pipelines.records import FanoutRestore, OracleVerdict, Outcome, PageCache
from resilience_pipelines.snapshots.engine import RESTORE_DEADLINE_S, SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.startup import page_cache
from resilience_pipelines.startup.arms import Started, restore_worker
from resilience_pipelines.startup.benchmark import BenchmarkContext, Progress, reason_of
from resilience_pipelines.workers.oracle import NOT_CHECKED, check_answer

DEFAULT_WIDTHS = (1, 2, 4, 8)
MEMORY_RESERVE_FRACTION = 0.2
"""Of the memory that is available, left to others: a wave beyond that is not tried."""

_READERS = 8
_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class FanoutPlan:
    """What to measure.

    Args:
        widths: how many restores at once.
        page_caches: `cold`, `warm` or both, in turn for each width.
        repeats: waves of each width and page cache.

    Raises:
        InputError: nothing would be measured, or a page cache can't be asked for.
    """

    widths: tuple[int, ...] = DEFAULT_WIDTHS
    page_caches: tuple[PageCache, ...] = (PageCache.COLD, PageCache.WARM)
    repeats: int = 3

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1 or len(set(self.widths)) != len(self.widths):
            raise InputError(
                "widths", list(self.widths), "each has to be 1 or more and named once",
                mend="Give, for example, 1,2,4,8.",
            )  # fmt: skip
        if not self.page_caches or set(self.page_caches) - {PageCache.COLD, PageCache.WARM}:
            raise InputError(
                "page_caches", [str(item) for item in self.page_caches],
                "a wave can begin with a cold or a warm page cache",
                mend="Give cold, warm or both.",
            )  # fmt: skip
        if len(set(self.page_caches)) != len(self.page_caches):
            raise InputError(
                "page_caches", [str(item) for item in self.page_caches],
                "each has to be named once", mend="Give cold, warm or both.",
            )  # fmt: skip
        if self.repeats < 1:
            raise InputError(
                "repeats", self.repeats, "nothing would be measured", mend="Give 1 or more."
            )

    def schedule(self) -> list[tuple[int, PageCache, int]]:
        """(repeat, page cache, width) of every wave; each repeat begins with another width."""
        waves: list[tuple[int, PageCache, int]] = []
        for repeat in range(self.repeats):
            shift = repeat % len(self.widths)
            for width in (*self.widths[shift:], *self.widths[:shift]):
                waves.extend((repeat, cache, width) for cache in self.page_caches)
        return waves


@dataclass(frozen=True)
class FanoutResult:
    """All restores of a run.

    Attributes:
        unsupported: waves that this machine has no room for -> why.
    """

    restores: tuple[FanoutRestore, ...]
    unsupported: dict[str, str]


def run_fanout(
    plan: FanoutPlan, snapshot: StoredSnapshot, context: BenchmarkContext, progress: Progress
) -> FanoutResult:
    """Make every wave of the plan. A restore that fails is a result.

    A run that is stopped keeps the waves that were finished, and says how many are missing.

    Raises:
        Stopped: before any wave was finished.
        UnsupportedError: this machine can't restore at all.
        OSError: the image can't be read.
    """
    engine = context.engine
    if engine is None:
        raise UnsupportedError(context.no_engine_why, mend="`resilience doctor` says more.")
    files = [snapshot.folder / file.path for file in snapshot.manifest.files]
    restores: list[FanoutRestore] = []
    unsupported: dict[str, str] = {}
    waves = plan.schedule()
    bandwidth: dict[int, float] = {}
    place = 0
    try:
        for place, (repeat, cache, width) in enumerate(waves):
            progress(f"{width} at once, page cache {cache}", place, len(waves))
            if why := _no_room(width, snapshot):
                unsupported[f"{width} restores at once"] = why
                continue
            if repeat not in bandwidth:
                bandwidth[repeat] = read_bandwidth(files)
            wave = _Wave(repeat, cache, width, bandwidth[repeat])
            restores += _wave(context, engine, snapshot, wave)
        progress("finished", len(waves), len(waves))
    except Stopped:
        if not restores:
            raise
        unsupported["rest of the run"] = f"It was stopped after {place} of {len(waves)} waves."
    return FanoutResult(tuple(restores), unsupported)


def read_bandwidth(files: Sequence[Path]) -> float:
    """Bytes per second at which files come from the disk, read in parallel by some threads.

    Their own pages leave the page cache first, and are in it afterwards.

    Raises:
        OSError
    """
    page_cache.evict(files)
    spans = [
        (path, offset) for path in files for offset in range(0, path.stat().st_size, _READ_BYTES)
    ]
    begin = time.monotonic()
    with ThreadPoolExecutor(_READERS, "read-image") as pool:
        total = sum(pool.map(lambda span: _read(*span), spans))
    return total / (time.monotonic() - begin)


def _read(path: Path, offset: int) -> int:
    with path.open("rb", buffering=0) as stream:
        stream.seek(offset)
        return len(stream.read(_READ_BYTES))


def available_memory_bytes(meminfo: str) -> int:
    """What the kernel says can be had without swapping, from the text of /proc/meminfo."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable")


def _no_room(width: int, snapshot: StoredSnapshot) -> str:
    needed = width * snapshot.manifest.image_bytes
    there = available_memory_bytes(Path("/proc/meminfo").read_text())
    if needed <= there * (1 - MEMORY_RESERVE_FRACTION):
        return ""
    return (
        f"{width} images of {snapshot.manifest.image_bytes} bytes don't fit into "
        f"{1 - MEMORY_RESERVE_FRACTION:.0%} of the {there} bytes of memory that are available."
    )


@dataclass(frozen=True)
class _Wave:
    repeat: int
    cache: PageCache
    width: int
    disk_bytes_per_s: float

    @property
    def name(self) -> str:
        return f"fanout-{self.width}-{self.cache}-{self.repeat}"


def _wave(
    context: BenchmarkContext, engine: SnapshotEngine, snapshot: StoredSnapshot, wave: _Wave
) -> list[FanoutRestore]:
    worker = context.worker
    images = [snapshot.folder / file.path for file in snapshot.manifest.files]
    # A worker may read its weights again when it wakes.
    files = [*images, *worker.weight_files()]
    if wave.cache is PageCache.COLD:
        page_cache.evict(files)
    else:
        page_cache.load(files)
    fraction = page_cache.resident_fraction(files)
    facts: dict[str, object] = {
        "snapshot_id": snapshot.manifest.snapshot_id,
        "width": wave.width,
        "repeat": wave.repeat,
        "page_cache_requested": wave.cache,
        "page_cache_found": page_cache.classify(fraction),
        "page_cache_fraction": fraction,
        "started_at": datetime.now(UTC),
        "image_bytes": snapshot.manifest.image_bytes,
        "disk_bytes_per_s": wave.disk_bytes_per_s,
    }
    together = threading.Barrier(wave.width)

    def restore(place: int) -> Started | ResilienceError:
        together.wait(RESTORE_DEADLINE_S)
        try:
            return restore_worker(
                engine, snapshot, worker,
                evidence=context.evidence, name=f"{wave.name}-{place}",
            )  # fmt: skip
        except ResilienceError as error:
            return error

    with ExitStack() as owner:
        # Whatever ends the wave early, what came back until then is ended too.
        futures: list[Future[Started | ResilienceError]] = []
        owner.callback(_stop_all, futures)
        begin = time.monotonic()
        with ThreadPoolExecutor(wave.width, wave.name) as pool:
            futures += [pool.submit(restore, place) for place in range(wave.width)]
        wave_s = time.monotonic() - begin
        ended = [future.result() for future in futures]
        whole = all(isinstance(item, Started) for item in ended)
        facts["wave_s"] = wave_s if whole else None
        return [
            FanoutRestore.model_validate(
                facts | {"measurement_id": f"{wave.name}-{place}"} | _judge(context, snapshot, item)
            )
            for place, item in enumerate(ended)
        ]


def _stop_all(futures: Sequence[Future[Started | ResilienceError]]) -> None:
    with ExitStack() as each:
        for future in futures:
            if not future.cancelled() and future.exception() is None:
                ended = future.result()
                if isinstance(ended, Started):
                    each.callback(ended.running.stop)


def _judge(
    context: BenchmarkContext, snapshot: StoredSnapshot, ended: Started | ResilienceError
) -> dict[str, object]:
    if isinstance(ended, ResilienceError):
        return _failed(ended)
    try:
        oracle = check_answer(
            ended.running.client, snapshot.manifest.answer,
            tolerance=context.worker.logprob_tolerance,
            timeout_s=context.worker.request_deadline_s,
        )  # fmt: skip
    except ResilienceError as error:
        return _failed(error)
    if oracle.verdict is OracleVerdict.EQUAL and ended.first_token_right is not False:
        return {"outcome": Outcome.OK, "total_s": ended.total_s, "oracle": oracle}
    return {
        "outcome": Outcome.FAILED, "reason_code": SnapshotReason.WRONG_ANSWER,
        "detail": oracle.detail or "the first token differs", "oracle": oracle,
    }  # fmt: skip


def _failed(error: ResilienceError) -> dict[str, object]:
    return {
        "outcome": Outcome.FAILED, "reason_code": reason_of(error),
        "detail": str(error)[:4000], "oracle": NOT_CHECKED,
    }  # fmt: skip
