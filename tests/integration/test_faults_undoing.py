"""A fault never outlives the process that injected it, by whatever signal that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from resilience_pipelines.detectors.cgroup_events import read_oom_kills
from resilience_pipelines.detectors.kernel_log import KMSG, KernelLog, unavailable
from resilience_pipelines.errors import DeadlineError, ResilienceError, UnsupportedError
from resilience_pipelines.faults.cgroup import NAME_PREFIX, MemoryCgroup, Place, find_place
from resilience_pipelines.faults.fault import lives
from resilience_pipelines.faults.lease import Lease
from resilience_pipelines.owned_folder import remove_orphans
from resilience_pipelines.snapshots.compatibility import this_host
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.device import NoDevice
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.space import SpaceSupport, wait_until
from tests.integration.fault_support import NEED_NO_GPU, cgroups_left, needed_by, record

ROOT = Path(__file__).parents[2]

# A job: it makes one experiment and holds still when the effect of the fault is proved.
JOB = """
import sys, time
from pathlib import Path
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.experiment import run_experiment
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.owned_folder import owned_folder
from resilience_pipelines.snapshots.compatibility import this_host
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.criu_binary import find_criu
from resilience_pipelines.snapshots.device import NoDevice
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.space import SpaceSupport
from tests.integration.fault_support import Planted, after, make_context
name, root, store, capsule = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
def hold():
    print("fault is in place", flush=True)
    time.sleep(120)
with owned_folder(root / "job"):
    (root / "job/restore").mkdir()
    snapshots = SnapshotStore(store)
    host = this_host(Stack(engine="contract", engine_version="1"))
    engine = SnapshotEngine(snapshots, Criu(find_criu()), NoDevice(), host, root / "job/restore")
    (snapshot,) = snapshots.all()
    context = make_context(
        root / "job", SpaceSupport(capsule == "capsule"), engine, snapshot.manifest.answer, snapshot
    )
    fault = Planted(CATALOGUE[name], after("prove_effect", hold))
    run = run_experiment(fault, Recovery(fault.recoveries[0]), context, repeat=0)
    print(run.verdict, run.reason_code, run.detail, flush=True)
"""


@pytest.fixture(scope="module")
def store(
    support: SpaceSupport, criu: Criu, tmp_path_factory: pytest.TempPathFactory
) -> SnapshotEngine:
    root = tmp_path_factory.mktemp("store")
    host = this_host(Stack(engine="contract", engine_version="1"))
    engine = SnapshotEngine(SnapshotStore(root / "snapshots"), criu, NoDevice(), host, root)
    record(support, engine, root)
    return engine


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def assert_all_end(processes: list[psutil.Process]) -> None:
    """Not even one may live on; that a zombie is reaped is up to whoever adopted it."""
    wait_until(
        lambda: not any(lives(process) for process in processes), 20, f"{processes} end", 0.05
    )


@pytest.mark.parametrize(
    ("name", "ending"),
    [pytest.param(name, signal.SIGKILL, marks=needed_by(name)) for name in sorted(NEED_NO_GPU)]
    + [
        (name, signal.SIGINT)
        for name in ("memory_exhausted", "snapshot_image_corrupted_bit_flip", "worker_hung")
    ],
)
def test_a_job_that_dies_in_the_middle_of_a_fault_leaves_nothing(
    store: SnapshotEngine, tmp_path: Path, name: str, ending: signal.Signals
) -> None:
    cgroups, mounts = set(cgroups_left()), Path("/proc/mounts").read_text()
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, name, str(tmp_path), str(store.store.root), "capsule"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert job.stdout is not None
    line = job.stdout.readline()
    if line != "fault is in place\n":
        job.kill()
        pytest.fail(line + job.communicate(timeout=10)[1])
    started = below(job.pid)
    assert len(started) >= 2
    if name == "memory_exhausted":
        assert set(cgroups_left()) - cgroups
    job.send_signal(ending)
    job.communicate(timeout=60)
    assert job.returncode != 0
    assert_all_end(started)
    wait_until(lambda: set(cgroups_left()) <= cgroups, 20, "The cgroup goes", 0.05)
    assert Path("/proc/mounts").read_text() == mounts
    (snapshot,) = store.store.all()
    store.store.verify(snapshot)
    # A damaged copy lies in the job's own folder, which the next job removes.
    remove_orphans(tmp_path, "job")
    assert list(tmp_path.iterdir()) == []
    store.store.verify(snapshot)


@pytest.mark.parametrize("name", ["worker_hung", "worker_killed", "address_space_exhausted"])
def test_a_job_without_namespaces_that_is_killed_leaves_nothing(
    store: SnapshotEngine, tmp_path: Path, name: str
) -> None:
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, name, str(tmp_path), str(store.store.root), "host"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert job.stdout is not None
    line = job.stdout.readline()
    if line != "fault is in place\n":
        job.kill()
        pytest.fail(line + job.communicate(timeout=10)[1])
    started = below(job.pid)
    job.kill()
    job.communicate(timeout=20)
    assert_all_end(started)


def test_a_lease_is_undone_when_released(tmp_path: Path) -> None:
    thing = tmp_path / "a thing with spaces"
    thing.touch()
    lease = Lease("The thing", 'rm "$1"', str(thing))
    time.sleep(0.1)
    assert thing.exists()
    lease.release(10)
    assert not thing.exists()
    thing.touch()
    lease.release(10)
    assert thing.exists()


def test_a_lease_that_could_not_be_undone_says_so(tmp_path: Path) -> None:
    lease = Lease("The thing", 'rm "$1"', str(tmp_path / "none"))
    with pytest.raises(ResilienceError, match="The thing could not be undone"):
        lease.release(10)


def test_a_lease_that_takes_too_long_says_so_and_goes_on(tmp_path: Path) -> None:
    thing = tmp_path / "thing"
    thing.touch()
    lease = Lease("The thing", 'sleep 0.5; rm "$1"', str(thing))
    with pytest.raises(DeadlineError, match="The thing was not undone"):
        lease.release(0.01)
    wait_until(lambda: not thing.exists(), 10, "The watchdog undoes it", 0.05)
    lease.release(10)


def test_a_lease_is_undone_when_its_owner_is_killed(tmp_path: Path) -> None:
    thing = tmp_path / "thing"
    thing.touch()
    owner = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys, time; from resilience_pipelines.faults.lease import Lease\n"
            "lease = Lease('The thing', 'echo loud >&2; echo loud; rm \"$1\"', sys.argv[1])\n"
            "print('held', flush=True); time.sleep(60)",
            str(thing),
        ],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    watchdogs = below(owner.pid)
    assert watchdogs
    os.killpg(owner.pid, signal.SIGKILL)  # a whole group, as a batch system does
    owner.communicate(timeout=10)
    wait_until(lambda: not thing.exists(), 10, "The watchdog undoes it", 0.05)
    assert_all_end(watchdogs)


@pytest.fixture
def cgroup() -> Iterator[MemoryCgroup]:
    try:
        made = MemoryCgroup(find_place())
    except (UnsupportedError, OSError) as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield made
    made.remove()


def test_a_cgroup_is_limited_and_removed_with_what_is_in_it(cgroup: MemoryCgroup) -> None:
    assert cgroup.limit_bytes() is None
    assert cgroup.pids() == []
    assert read_oom_kills(cgroup.folder) == 0
    inside = subprocess.Popen(["sleep", "60"])
    (cgroup.folder / "cgroup.procs").write_text(str(inside.pid))
    limit = cgroup.set_limit_near_usage(32 * 2**20)
    assert limit == cgroup.limit_bytes()
    assert cgroup.usage_bytes() <= limit <= cgroup.usage_bytes() + 33 * 2**20
    cgroup.remove()
    assert not cgroup.folder.exists()
    assert inside.wait(10) == -signal.SIGKILL


def test_a_process_that_is_moved_out_lives_on_without_a_limit(cgroup: MemoryCgroup) -> None:
    inside = subprocess.Popen(["sleep", "60"])
    try:
        (cgroup.folder / "cgroup.procs").write_text(str(inside.pid))
        cgroup.set_limit_near_usage(32 * 2**20)
        assert cgroup.pids() == [inside.pid]
        cgroup.lift()
        assert cgroup.pids() == []
        cgroup.remove()
        assert inside.poll() is None
    finally:
        inside.kill()
        inside.wait(10)


def test_the_files_of_cgroup_version_2_are_read_and_written(tmp_path: Path) -> None:
    """Plain files stand for the kernel's here: most machines have only one of the versions."""
    cgroup = MemoryCgroup(Place(tmp_path, 2))
    files = {
        "memory.current": f"{100 * 2**20}\n",
        "memory.stat": f"anon {60 * 2**20}\ninactive_file {30 * 2**20}\nactive_file {2**20}\n",
        "memory.max": "max\n",
        "memory.events": "oom 1\noom_kill 0\n",
        "cgroup.procs": "41\n42\n",
    }
    for name, text in files.items():
        (cgroup.folder / name).write_text(text)
    assert cgroup.limit_bytes() is None
    assert cgroup.file_cache_bytes() == 31 * 2**20
    assert cgroup.set_limit_near_usage(16 * 2**20) == (100 - 31 + 16) * 2**20
    assert (cgroup.folder / "memory.max").read_text() == str((100 - 31 + 16) * 2**20)
    assert read_oom_kills(cgroup.folder) == 0
    cgroup.lift()
    assert cgroup.limit_bytes() is None
    assert (tmp_path / "cgroup.procs").read_text() == "42"  # the last that was moved out
    for name in files:
        (cgroup.folder / name).unlink()
    cgroup.remove()
    assert not cgroup.folder.exists()


def test_a_cgroup_that_cannot_be_made_leaves_no_watchdog(tmp_path: Path) -> None:
    before = {process.pid for process in below(os.getpid())}
    with pytest.raises(OSError, match="gone"):
        MemoryCgroup(Place(tmp_path / "gone", 1))
    assert {process.pid for process in below(os.getpid())} == before
    assert not list(tmp_path.glob(f"**/{NAME_PREFIX}*"))


def test_the_kernel_log_tells_of_this_worker_alone() -> None:
    problem = unavailable()
    if problem or not os.access(KMSG, os.W_OK):
        pytest.skip(f"the kernel's log can't be used here: {problem or 'it is read-only'}")
    pid, other = 4_194_305, 4_194_306  # above the greatest process id that there can be
    before = f"Memory cgroup out of memory: Killed process {pid} (before) test of a detector\n"
    KMSG.write_text(before)
    detector = KernelLog([pid])
    with detector:
        KMSG.write_text(before.replace(str(pid), str(other)))
        KMSG.write_text(before.replace("before", "after"))
        wait_until(lambda: bool(detector.alarms), 10, "An alarm", 0.01)
    assert detector.failure is None
    assert [("after" in alarm.detail) for alarm in detector.alarms] == [True]
