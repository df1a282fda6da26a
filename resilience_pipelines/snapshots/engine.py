"""The snapshot protocol: from a serving worker to a stored image, and from an image to a worker.

checkpoint: sleep -> device to host memory -> CRIU dump -> /dev/shm -> source goes on -> pages of
zeros left out -> manifest -> rename into the store. restore: gate -> verify -> space -> CRIU
restore -> device -> wake. Memory pages are verified while CRIU copies them; the restored processes
stay stopped until that is done.

What belongs here: the order of these steps and what happens when one fails: the source serves on,
nothing partial stays, the failure has a phase and a reason code. What does not: how each step works
(`criu`, `device`, `store`, `compatibility`), and when snapshots are taken (`startup`, `faults`).
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from resilience_pipelines.errors import DeadlineError, ResilienceError, StorageError
from resilience_pipelines.records import (
    CriuStatistics,
    Outcome,
    SnapshotMeasurement,
)
from resilience_pipelines.snapshots.build_id import read_build_id
from resilience_pipelines.snapshots.compatibility import Host, capabilities_of, check
from resilience_pipelines.snapshots.criu import Criu, InheritedPipe, copy_private
from resilience_pipelines.snapshots.device import DeviceEngine
from resilience_pipelines.snapshots.huge_pages import huge_pages
from resilience_pipelines.snapshots.manifest import Manifest, MappedFile, new_snapshot_id
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import (
    PartialSnapshot,
    SnapshotStore,
    StoredSnapshot,
    storage_failure,
)
from resilience_pipelines.stack import Stack
from resilience_pipelines.stopwatch import Stopwatch
from resilience_pipelines.workers.base import LaunchPlan, Worker
from resilience_pipelines.workers.client import (
    WorkerClient,
    WorkerRequestError,
)
from resilience_pipelines.workers.oracle import RecordedAnswer, first_token_is_right
from resilience_pipelines.workers.process import RunningWorker, WorkerOutput
from resilience_pipelines.workers.space import Capsule, Process, Space

DUMP_DEADLINE_S = 120.0
RESTORE_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Taken:
    """What came of taking a snapshot: the measurement always, the snapshot when it succeeded."""

    measurement: SnapshotMeasurement
    snapshot: StoredSnapshot | None


@dataclass(frozen=True)
class Restored:
    """A worker that came back, awake but not yet asked."""

    running: RunningWorker
    statistics: CriuStatistics


@dataclass(frozen=True)
class _Needs:
    """What a restore needs to find on its machine; see `Manifest`."""

    mapped_files: tuple[MappedFile, ...]
    open_paths: tuple[str, ...]
    capabilities: int


class SnapshotEngine:
    """Takes snapshots of running workers and restores them.

    Args:
        store: where images are kept.
        criu: the CRIU to use.
        device: what moves accelerator state.
        host: what the compatibility gate compares an image with.
        scratch: a folder for what lives as long as one operation.
    """

    def __init__(
        self, store: SnapshotStore, criu: Criu, device: DeviceEngine, host: Host, scratch: Path
    ) -> None:
        self.store = store
        self.criu = criu
        self.device = device
        self.host = host
        self._scratch = scratch

    def with_store(self, store: SnapshotStore) -> SnapshotEngine:
        """The same engine on another store."""
        return SnapshotEngine(store, self.criu, self.device, self.host, self._scratch)

    def with_device(self, device: DeviceEngine) -> SnapshotEngine:
        """The same engine with something else that moves accelerator state."""
        return SnapshotEngine(self.store, self.criu, device, self.host, self._scratch)

    def take(
        self,
        running: RunningWorker,
        stack: Stack,
        answer: RecordedAnswer,
        *,
        measurement_id: str,
        sleep_level: int | None,
        throughput_tokens_per_s: float | None = None,
        evidence: Path | None = None,
    ) -> Taken:
        """Take a snapshot of a serving worker, which serves on afterwards.

        Args:
            answer: the oracle's answer, recorded from this worker.
            sleep_level: how it is put to sleep first; None leaves it awake.
            evidence: a folder that gets CRIU's log when the dump fails.
        """
        started_at = datetime.now(UTC)
        watch = Stopwatch()
        try:
            snapshot, statistics = self._take(
                running, stack, answer, sleep_level, throughput_tokens_per_s, watch, evidence
            )
        except (SnapshotError, StorageError) as error:
            code = error.code if isinstance(error, SnapshotError) else SnapshotReason.STORE_FULL
            return Taken(
                SnapshotMeasurement(
                    measurement_id=measurement_id,
                    started_at=started_at,
                    outcome=Outcome.FAILED,
                    reason_code=code,
                    detail=str(error)[:4000],
                    engine=self.device.name,
                    phases=watch.phases,
                    sleep_level=sleep_level,
                    source_serving_after=_serves(running, answer),
                ),
                None,
            )
        total_s = watch.elapsed_s()
        return Taken(
            SnapshotMeasurement(
                measurement_id=measurement_id,
                snapshot_id=snapshot.manifest.snapshot_id,
                started_at=started_at,
                outcome=Outcome.OK,
                engine=self.device.name,
                total_s=total_s,
                phases=watch.phases,
                unaccounted_s=watch.unaccounted_s(total_s),
                image_bytes=snapshot.manifest.image_bytes,
                image_files=len(snapshot.manifest.files),
                sleep_level=sleep_level,
                criu=statistics,
                source_serving_after=_serves(running, answer),
            ),
            snapshot,
        )

    def _take(
        self,
        running: RunningWorker,
        stack: Stack,
        answer: RecordedAnswer,
        sleep_level: int | None,
        throughput: float | None,
        watch: Stopwatch,
        evidence: Path | None,
    ) -> tuple[StoredSnapshot, CriuStatistics]:
        snapshot_id = new_snapshot_id()
        try:
            opened = self.store.begin(snapshot_id)
            with opened as partial:
                with self._asleep(running, sleep_level, watch):
                    needs = self._dump(running, partial, watch, evidence)
                with watch.phase("zero_pages"):
                    self.criu.compact(partial.images)
                with watch.phase("manifest"):
                    statistics = self.criu.statistics(partial.images, "dump")
                    manifest = Manifest(
                        snapshot_id=snapshot_id,
                        created_at=datetime.now(UTC),
                        engine=self.device.name,
                        criu_version=self.criu.version,
                        worker=running.worker.name,
                        stack=stack,
                        cpu_features=tuple(sorted(self.host.cpu_features)),
                        port=running.plan.port,
                        root_pid=running.process.inner_pid,
                        output_pipe=f"pipe:[{running.output.inode}]",
                        sleep_level=sleep_level,
                        answer=answer,
                        throughput_tokens_per_s=throughput,
                        files=partial.describe_files(),
                        mapped_files=needs.mapped_files,
                        open_paths=needs.open_paths,
                        capabilities=needs.capabilities,
                    )
                with watch.phase("commit"):
                    return self.store.commit(partial, manifest), statistics
        except OSError as error:
            raise storage_failure(error, watch.current or "commit") from error

    @contextmanager
    def _asleep(
        self, running: RunningWorker, level: int | None, watch: Stopwatch
    ) -> Iterator[None]:
        """Sleep and device state, undone on the way out whatever happened in between."""
        limit = running.worker.request_deadline_s
        pids = [process.pid for process in running.process.tree()]
        suspended = False
        try:
            if level is not None:
                with watch.phase("sleep"):
                    try:
                        running.client.sleep(level, timeout_s=limit, for_snapshot=True)
                    except WorkerRequestError as error:
                        raise SnapshotError(
                            SnapshotReason.SLEEP_FAILED, "sleep", f"It did not sleep: {error}"
                        ) from error
            begun = time.monotonic_ns()
            watch.extend(self.device.suspend(pids), begun)
            suspended = True
            yield
        finally:
            try:
                if suspended:
                    begun = time.monotonic_ns()
                    watch.extend(self.device.resume(pids), begun)
                if level is not None:
                    with watch.phase("source_wake"):
                        running.client.wake_up(timeout_s=limit)
            except WorkerRequestError as error:
                raise SnapshotError(
                    SnapshotReason.SOURCE_LOST, "source_wake", f"The source did not wake: {error}"
                ) from error

    def _dump(
        self,
        running: RunningWorker,
        partial: PartialSnapshot,
        watch: Stopwatch,
        evidence: Path | None,
    ) -> _Needs:
        log = partial.folder / "dump.log"
        shared_memory = running.space.root / "dev/shm"
        try:
            with watch.phase("criu_dump"):
                self.criu.dump(
                    running.space,
                    running.process.inner_pid,
                    partial.images,
                    log,
                    deadline_s=DUMP_DEADLINE_S,
                )
            # The source is stopped until here, so that these files are of the same moment.
            with watch.phase("shared_memory"):
                copy_private(shared_memory, partial.shared_memory)
                return _Needs(
                    read_mapped_files(running.process),
                    read_open_paths(running.process),
                    read_capabilities(running.process),
                )
        except SnapshotError:
            if evidence is not None and log.exists():
                shutil.copyfile(log, evidence / f"criu-dump-{partial.snapshot_id}.log")
            raise
        finally:
            # The names that CRIU gave to unlinked files; the next dump would stumble over them.
            for stray in shared_memory.glob("link_remap.*"):
                stray.unlink()
            running.process.signal_tree(signal.SIGCONT)
            log.unlink(missing_ok=True)

    def restore(
        self,
        snapshot: StoredSnapshot,
        worker: Worker,
        watch: Stopwatch,
        *,
        gate: bool = True,
        evidence: Path | None = None,
        name: str = "restore",
        deadline_s: float = RESTORE_DEADLINE_S,
    ) -> Restored:
        """Bring a worker back from a snapshot, awake. Its phases go to `watch`.

        Args:
            gate: refuse what is predicted to fail; False only to find out whether it does.
            evidence: a folder that gets CRIU's log when the restore fails.
            name: what the log is called there.

        Raises:
            SnapshotError: with the phase and the reason; nothing that was started stays.
        """
        manifest = snapshot.manifest
        with watch.phase("gate"):
            blocking = [item for item in check(manifest, self.host) if item.blocking]
            if blocking and gate:
                raise SnapshotError(
                    SnapshotReason.INCOMPATIBLE, "gate", "; ".join(str(item) for item in blocking)
                )
        with watch.phase("verify"):
            self.store.verify_structure(snapshot)
        with watch.phase("space"):
            try:
                space = Capsule()
            except ResilienceError as error:
                raise SnapshotError(
                    SnapshotReason.NO_NAMESPACES, "space", error.reason, mend=error.mend
                ) from error
        output = WorkerOutput()
        try:
            running, statistics = self._bring_back(
                snapshot, worker, space, output, watch, evidence, name, deadline_s
            )
        except BaseException as error:
            output.close_write_end()
            _close_after(error, space)
            raise
        try:
            self._wake(running, manifest, watch)
        except BaseException:
            running.stop()
            raise
        return Restored(running, statistics)

    def _bring_back(
        self,
        snapshot: StoredSnapshot,
        worker: Worker,
        space: Space,
        output: WorkerOutput,
        watch: Stopwatch,
        evidence: Path | None,
        name: str,
        deadline_s: float,
    ) -> tuple[RunningWorker, CriuStatistics]:
        """CRIU restores and pages are verified at the same time; then the processes go on."""
        with ThreadPoolExecutor(1, "verify-pages") as pool:
            verified = pool.submit(self.store.verify_pages, snapshot)
            try:
                process, statistics = self._criu_restore(
                    snapshot, space, output, watch, evidence, name, deadline_s
                )
            except SnapshotError:
                verified.result()  # a damaged image is the reason, whatever CRIU says of it
                raise
            with watch.phase("verify_pages"):
                verified.result()
        with watch.phase("resume"):
            process.signal_tree(signal.SIGCONT)
        port = snapshot.manifest.port
        running = RunningWorker(
            worker,
            space,
            process,
            WorkerClient(space, port, worker.model),
            output,
            LaunchPlan(argv=(), port=port),
            watch.started_ns,
        )
        return running, statistics

    def _criu_restore(
        self,
        snapshot: StoredSnapshot,
        space: Space,
        output: WorkerOutput,
        watch: Stopwatch,
        evidence: Path | None,
        name: str,
        deadline_s: float,
    ) -> tuple[Process, CriuStatistics]:
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix="restore-") as scratch:
            log = Path(scratch) / "restore.log"
            work = Path(scratch) / "work"
            work.mkdir()
            with watch.phase("criu_restore"):
                copy_private(snapshot.shared_memory, space.root / "dev/shm")
                pipe = InheritedPipe(snapshot.manifest.output_pipe, output.write_end)
                try:
                    with huge_pages():
                        pid = self.criu.restore(
                            space, snapshot.images, work, log, output=pipe, deadline_s=deadline_s
                        )
                except SnapshotError:
                    if evidence is not None and log.exists():
                        shutil.copyfile(log, evidence / f"criu-{name}.log")
                    raise
                output.close_write_end()
                process = space.adopt(pid)
            return process, self.criu.statistics(work, "restore")

    def _wake(self, running: RunningWorker, manifest: Manifest, watch: Stopwatch) -> None:
        begun = time.monotonic_ns()
        pids = [process.pid for process in running.process.tree()]
        watch.extend(self.device.resume(pids), begun)
        if manifest.sleep_level is None:
            return
        with watch.phase("wake"):
            try:
                running.client.wake_up(timeout_s=running.worker.request_deadline_s)
            except WorkerRequestError as error:
                raise SnapshotError(
                    SnapshotReason.WAKE_FAILED, "wake", f"It did not wake: {error}"
                ) from error


def _close_after(error: BaseException, space: Space) -> None:
    """End a space after a failure, whose reason stays the first one also when that takes too long.

    Raises:
        SnapshotError: the same failure, and that something of it has not ended yet.
    """
    try:
        space.close()
    except DeadlineError as late:
        if not isinstance(error, SnapshotError):
            raise
        raise SnapshotError(
            error.code, error.phase, f"{error.reason} {late}", mend=error.mend
        ) from error


def read_mapped_files(process: Process) -> tuple[MappedFile, ...]:
    """The files on disk that the processes of a tree have mapped, sorted by path."""
    found: dict[str, MappedFile] = {}
    for member in process.tree():
        root = Path(f"/proc/{member.pid}/root")
        for line in Path(f"/proc/{member.pid}/maps").read_text().splitlines():
            _, _, path = line.partition("/")
            if not path or path.endswith(" (deleted)") or path.startswith(("dev/", "memfd:")):
                continue
            if f"/{path}" not in found:
                facts = (root / path).stat()
                found[f"/{path}"] = MappedFile(
                    path=f"/{path}",
                    bytes=facts.st_size,
                    mtime_ns=facts.st_mtime_ns,
                    build_id=read_build_id(root / path),
                    mode=stat.S_IMODE(facts.st_mode),
                )
    return tuple(found[path] for path in sorted(found))


_MADE_ANEW = ("/dev/", "/proc/", "/memfd:")
"""A space has these of its own, or the image brings them."""


def read_open_paths(process: Process) -> tuple[str, ...]:
    """The files and folders on disk that the processes of a tree have open or work in, sorted."""
    found = set()
    for member in process.tree():
        facts = Path(f"/proc/{member.pid}")
        for link in (facts / "cwd", *(facts / "fd").iterdir()):
            path = str(link.readlink())
            if (
                path.startswith("/")
                and not path.startswith(_MADE_ANEW)
                # Names of what is on no disk look like paths too, e.g. those of deleted files.
                and os.path.lexists(facts / "root" / path.lstrip("/"))
            ):
                found.add(path)
    return tuple(sorted(found))


def read_capabilities(process: Process) -> int:
    """The capabilities that any process of a tree has."""
    found = 0
    for member in process.tree():
        found |= capabilities_of(member.pid)
    return found


def _serves(running: RunningWorker, answer: RecordedAnswer) -> bool:
    """Whether the worker still gives the right first token."""
    try:
        return first_token_is_right(running.client, answer, running.worker.request_deadline_s)
    except (WorkerRequestError, DeadlineError):
        return False
