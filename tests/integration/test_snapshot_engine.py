"""The snapshot protocol with real CRIU, real namespaces and real processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.records import OracleVerdict, Outcome
from resilience_pipelines.snapshots.engine import SnapshotEngine, Taken
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot
from resilience_pipelines.startup.arms import restore_worker
from resilience_pipelines.workers.oracle import RecordedAnswer, check_answer, record_answer
from resilience_pipelines.workers.process import RunningWorker, launch
from resilience_pipelines.workers.space import Capsule, SpaceSupport, open_space, wait_until
from tests.support.workers import SERVER, ContractWorker


@contextmanager
def serving(
    support: SpaceSupport, cache: Path, *traits: str
) -> Iterator[tuple[RunningWorker, RecordedAnswer]]:
    running = launch(ContractWorker(traits), open_space(support), cache)
    with running:
        running.wait_ready()
        yield running, record_answer(running.client, timeout_s=5)


def take(
    engine: SnapshotEngine, running: RunningWorker, answer: RecordedAnswer, **options: object
) -> Taken:
    level = options.get("sleep_level", 1)
    assert level is None or isinstance(level, int)
    return engine.take(running, engine.host.stack, answer, measurement_id="test", sleep_level=level)


def snapshot_of(
    engine: SnapshotEngine, support: SpaceSupport, cache: Path, *traits: str
) -> StoredSnapshot:
    with serving(support, cache, *traits) as (running, answer):
        taken = take(engine, running, answer)
    assert taken.snapshot is not None, taken.measurement.detail
    return taken.snapshot


def answers_right(running: RunningWorker, answer: RecordedAnswer) -> bool:
    oracle = check_answer(running.client, answer, tolerance=0, timeout_s=5)
    return oracle.verdict is OracleVerdict.EQUAL


def assert_nothing_left(engine: SnapshotEngine, before: set[int]) -> None:
    assert [p.name for p in engine.store.root.iterdir() if p.name.startswith(".")] == []
    strangers = {
        p.pid: p.cmdline() for p in psutil.Process().children(recursive=True) if p.pid not in before
    }
    assert strangers == {}
    assert list(Path("/dev/shm").glob("link_remap.*")) == []


@pytest.fixture
def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_a_snapshot_answers_as_its_source_did(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, children: set[int]
) -> None:
    with serving(support, tmp_path, "random_memory", "child", "shared_memory") as (running, answer):
        taken = take(engine, running, answer)
        assert taken.snapshot is not None, taken.measurement.detail
        assert taken.measurement.outcome is Outcome.OK
        assert taken.measurement.source_serving_after is True
        assert taken.measurement.criu is not None
        assert taken.measurement.criu.pages_written
        assert taken.measurement.image_bytes == taken.snapshot.manifest.image_bytes
        assert answers_right(running, answer)
    started = restore_worker(engine, taken.snapshot, ContractWorker())
    with started.running as restored:
        assert started.first_token_right is True
        assert answers_right(restored, answer)
        assert len(restored.process.tree()) == 2
        assert (restored.space.root / "dev/shm/worker-state").read_bytes() == b"shared" * 1000
        assert "answered" in restored.output.tail()
    assert {phase.name for phase in started.phases} == {
        "gate", "verify", "space", "criu_restore", "verify_pages", "resume", "wake", "first_token",
    }  # fmt: skip
    assert_nothing_left(engine, children)


def test_one_image_restores_twenty_times_in_a_row(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, children: set[int]
) -> None:
    snapshot = snapshot_of(engine, support, tmp_path, "random_memory")
    for _ in range(20):
        with restore_worker(engine, snapshot, ContractWorker()).running as running:
            assert answers_right(running, snapshot.manifest.answer)
    engine.store.verify(snapshot)
    assert_nothing_left(engine, children)


def test_one_image_restores_several_times_at_once(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    snapshot = snapshot_of(engine, support, tmp_path, "random_memory")
    running: list[RunningWorker] = []
    threads = [
        threading.Thread(
            target=lambda: running.append(
                restore_worker(engine, snapshot, ContractWorker()).running
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    try:
        assert len(running) == 4
        # All of them have the same process id inside and listen on the same port.
        assert {worker.process.inner_pid for worker in running} == {snapshot.manifest.root_pid}
        assert all(answers_right(worker, snapshot.manifest.answer) for worker in running)
    finally:
        for worker in running:
            worker.stop()


def test_a_restore_does_not_mind_that_its_source_still_runs(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    with serving(support, tmp_path, "random_memory") as (source, answer):
        taken = take(engine, source, answer)
        assert taken.snapshot is not None
        with restore_worker(engine, taken.snapshot, ContractWorker()).running as restored:
            assert restored.process.inner_pid == source.process.inner_pid
            assert answers_right(restored, answer)
            assert answers_right(source, answer)


def test_a_restored_worker_can_be_dumped_again(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    first = snapshot_of(engine, support, tmp_path, "random_memory")
    with restore_worker(engine, first, ContractWorker()).running as running:
        taken = take(engine, running, first.manifest.answer)
    assert taken.snapshot is not None, taken.measurement.detail
    with restore_worker(engine, taken.snapshot, ContractWorker()).running as again:
        assert answers_right(again, first.manifest.answer)


def test_files_unlinked_under_one_name_survive_and_leave_no_stray(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    with serving(support, tmp_path, "unlinked") as (running, answer):
        for _ in range(2):  # a stray link_remap file would make the second dump fail
            taken = take(engine, running, answer)
            assert taken.snapshot is not None, taken.measurement.detail
            assert list((running.space.root / "dev/shm").glob("link_remap.*")) == []
    with restore_worker(engine, taken.snapshot, ContractWorker()).running as restored:
        assert answers_right(restored, answer)


def test_a_worker_that_cannot_be_dumped_serves_on(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, children: set[int]
) -> None:
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    with serving(support, tmp_path, "io_uring") as (running, answer):
        for _ in range(2):
            taken = engine.take(
                running, engine.host.stack, answer,
                measurement_id="test", sleep_level=1, evidence=evidence,
            )  # fmt: skip
            assert taken.snapshot is None
            assert taken.measurement.reason_code == SnapshotReason.DUMP_FAILED
            assert taken.measurement.source_serving_after is True
            assert answers_right(running, answer)
    assert list(evidence.glob("criu-dump-*.log"))
    assert engine.store.all() == []
    assert_nothing_left(engine, children)


def test_a_worker_that_cannot_sleep_serves_on(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, children: set[int]
) -> None:
    with serving(support, tmp_path, "no_sleep") as (running, answer):
        taken = take(engine, running, answer)
        assert taken.measurement.reason_code == SnapshotReason.SLEEP_FAILED
        assert answers_right(running, answer)
    assert_nothing_left(engine, children)


def test_a_dump_whose_criu_is_killed_leaves_no_image(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, children: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    started = subprocess.Popen

    class Killed(started):  # type: ignore[misc, valid-type]
        def __init__(self, argv: list[str], *args: object, **kwargs: object) -> None:
            super().__init__(argv, *args, **kwargs)
            if "swrk" in argv:
                threading.Timer(0.01, lambda: os.killpg(self.pid, signal.SIGKILL)).start()

    with serving(support, tmp_path) as (running, answer):
        monkeypatch.setattr(subprocess, "Popen", Killed)
        taken = take(engine, running, answer)
        monkeypatch.undo()
        assert taken.snapshot is None
        assert taken.measurement.reason_code == SnapshotReason.DUMP_FAILED
        assert taken.measurement.source_serving_after is True
    assert engine.store.all() == []
    assert_nothing_left(engine, children)


@pytest.fixture
def small_store(engine: SnapshotEngine) -> Iterator[SnapshotEngine]:
    """The engine with its store on a file system of 2 MB."""
    root = engine.store.root
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(root)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield engine
    finally:
        subprocess.run(["umount", str(root)], check=True)


def test_a_full_store_costs_the_snapshot_but_not_the_source(
    small_store: SnapshotEngine, support: SpaceSupport, tmp_path: Path, children: set[int]
) -> None:
    with serving(support, tmp_path) as (running, answer):
        taken = take(small_store, running, answer)
        assert taken.snapshot is None
        assert taken.measurement.reason_code == SnapshotReason.STORE_FULL
        assert answers_right(running, answer)
    assert small_store.store.all() == []
    assert_nothing_left(small_store, children)


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "swapped", "added"])
def test_a_damaged_image_is_refused(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, damage: str, children: set[int]
) -> None:
    snapshot = snapshot_of(engine, support, tmp_path)
    pages = max(snapshot.images.glob("pages-*.img"), key=lambda path: path.stat().st_size)
    if damage == "flip":
        data = bytearray(pages.read_bytes())
        data[len(data) // 2] ^= 1
        pages.write_bytes(data)
    elif damage == "truncate":
        os.truncate(pages, pages.stat().st_size - 4096)
    elif damage == "missing":
        pages.unlink()
    elif damage == "swapped":
        other = snapshot.images / "pstree.img"
        first, second = pages.read_bytes(), other.read_bytes()
        pages.write_bytes(second)
        other.write_bytes(first)
    else:
        (snapshot.images / "pages-99.img").write_bytes(b"more")
    with pytest.raises(SnapshotError) as caught:
        restore_worker(engine, snapshot, ContractWorker())
    assert caught.value.code is SnapshotReason.IMAGE_CORRUPT
    assert_nothing_left(engine, children)


def test_nothing_restored_runs_before_its_pages_are_verified(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = snapshot_of(engine, support, tmp_path, "child")
    stopped = threading.Event()
    verify = SnapshotStore.verify_pages
    restored = threading.Event()

    def states() -> list[str]:
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if str(SERVER) in process.cmdline():
                    found.append(process.status())
        return found

    def wait_for_criu(store: SnapshotStore, stored: StoredSnapshot) -> None:
        assert restored.wait(20)
        # They were sent SIGSTOP before CRIU let go of them; the kernel still has to schedule it.
        wait_until(lambda: states() == [psutil.STATUS_STOPPED] * 2, 5, "two stopped", 0.01)
        stopped.set()
        verify(store, stored)

    original = engine.criu.restore

    def announce(*args: object, **options: object) -> int:
        pid = original(*args, **options)  # type: ignore[arg-type]
        restored.set()
        return pid

    monkeypatch.setattr(SnapshotStore, "verify_pages", wait_for_criu)
    monkeypatch.setattr(engine.criu, "restore", announce)
    with restore_worker(engine, snapshot, ContractWorker()).running as running:
        assert answers_right(running, snapshot.manifest.answer)
    assert stopped.is_set()


def test_a_restore_that_criu_refuses_leaves_nothing_and_keeps_the_log(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, children: set[int]
) -> None:
    snapshot = snapshot_of(engine, support, tmp_path)
    # Intact by its manifest, but not what CRIU expects: its pipe has another name.
    wrong = snapshot.manifest.model_copy(update={"output_pipe": "pipe:[1]"})
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    os.truncate(snapshot.images / "inventory.img", 0)
    files = tuple(
        file.model_copy(update={"bytes": 0, "sha256": (hashlib.sha256().hexdigest(),)})
        if file.path == "images/inventory.img" else file
        for file in wrong.files
    )  # fmt: skip
    broken = StoredSnapshot(snapshot.folder, wrong.model_copy(update={"files": files}))
    with pytest.raises(SnapshotError) as caught:
        restore_worker(engine, broken, ContractWorker(), evidence=evidence)
    assert caught.value.code is SnapshotReason.RESTORE_FAILED
    assert list(evidence.glob("criu-*.log"))
    assert_nothing_left(engine, children)


def test_a_restore_whose_space_ends_late_keeps_its_reason(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LateCapsule(Capsule):
        def close(self, deadline_s: float = 10.0) -> None:
            super().close(deadline_s)
            raise DeadlineError("The space did not end in time.")

    snapshot = snapshot_of(engine, support, tmp_path)
    pages = max(snapshot.images.glob("pages-*.img"), key=lambda path: path.stat().st_size)
    content = bytearray(pages.read_bytes())
    content[len(content) // 2] ^= 1  # the size is right: noticed when the space is there
    pages.write_bytes(content)
    monkeypatch.setattr("resilience_pipelines.snapshots.engine.Capsule", LateCapsule)
    with pytest.raises(SnapshotError, match="did not end in time") as caught:
        restore_worker(engine, snapshot, ContractWorker())
    assert caught.value.code is SnapshotReason.IMAGE_CORRUPT


def test_a_store_that_others_may_read_is_refused(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    snapshot = snapshot_of(engine, support, tmp_path)
    assert all(
        path.lstat().st_mode & 0o077 == 0 for path in [snapshot.folder, *snapshot.folder.rglob("*")]
    )
    snapshot.folder.chmod(0o755)
    with pytest.raises(SnapshotError) as caught:
        engine.store.get(snapshot.manifest.snapshot_id)
    assert caught.value.code is SnapshotReason.STORE_EXPOSED


def test_a_worker_dies_with_the_process_that_started_it(
    support: SpaceSupport, tmp_path: Path
) -> None:
    script = (
        "import sys, time, pathlib\n"
        "from resilience_pipelines.workers.process import launch\n"
        "from resilience_pipelines.workers.space import SpaceSupport, open_space, wait_until\n"
        "from tests.support.workers import SERVER, ContractWorker\n"
        "running = launch(ContractWorker(), open_space(SpaceSupport(sys.argv[1] == 'capsule')),"
        " pathlib.Path('/tmp'))\n"
        "running.wait_ready()\n"
        "print(running.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    for kind in ("capsule", "host"):
        owner = subprocess.Popen(
            [sys.executable, "-c", script, kind],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert owner.stdout is not None
        worker = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        owner.wait(10)
        _, alive = psutil.wait_procs([worker], timeout=10)
        assert alive == [], kind
