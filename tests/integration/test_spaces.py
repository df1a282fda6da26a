"""Spaces with real namespaces: what is inside is alone, and ends with its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from resilience_pipelines.errors import BusyError
from resilience_pipelines.workers.client import WorkerClient, WorkerUnreachableError
from resilience_pipelines.workers.process import WorkerFailedError, launch
from resilience_pipelines.workers.space import (
    FIRST_WORKER_PID,
    Capsule,
    HostSpace,
    SpaceSupport,
    open_space,
)
from tests.support.workers import ContractWorker


def run_inside(space: Capsule | HostSpace, *argv: str) -> str:
    read_end, write_end = os.pipe()
    process = space.spawn(argv, env={"PATH": os.environ["PATH"]}, output=write_end)
    os.close(write_end)
    assert process.wait_gone(10)
    process.close()
    with os.fdopen(read_end) as pipe:
        return pipe.read()


def test_a_capsule_reaches_no_network(support: SpaceSupport) -> None:
    with Capsule() as space:
        routes = run_inside(space, "cat", "/proc/net/route").splitlines()
        devices = run_inside(space, "cat", "/proc/net/dev").splitlines()[2:]
        assert routes[1:] == []
        assert [line.split(":")[0].strip() for line in devices] == ["lo"]


def test_process_ids_of_workers_leave_room_for_criu(support: SpaceSupport) -> None:
    with open_space(support) as space:
        assert isinstance(space, Capsule)
        assert int(run_inside(space, "sh", "-c", "echo $$")) >= FIRST_WORKER_PID


def test_shared_memory_of_a_capsule_is_its_own(support: SpaceSupport) -> None:
    with Capsule() as space:
        run_inside(space, "touch", "/dev/shm/only-inside")
        assert (space.root / "dev/shm/only-inside").exists()
        assert not Path("/dev/shm/only-inside").exists()


@pytest.mark.parametrize("missing", ["sys_admin", "net_admin", "sys_chroot"])
def test_a_user_without_the_rights_for_capsules_is_told_so(
    support: SpaceSupport, missing: str
) -> None:
    """Making them and entering them need different rights, and a container may have one of both."""
    del support  # here there are capsules with all rights
    ask = (
        "from resilience_pipelines.workers.space import probe_spaces; found = probe_spaces(); "
        "print(found.capsule, found.reason)"
    )
    said = subprocess.run(
        ["setpriv", f"--bounding-set=-{missing}", sys.executable, "-c", ask],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert said.startswith("False ")
    assert "not permitted" in said


def test_two_workers_listen_on_the_same_port(support: SpaceSupport, tmp_path: Path) -> None:
    first = launch(ContractWorker(), open_space(support), tmp_path)
    second = launch(ContractWorker(), open_space(support), tmp_path)
    with first, second:
        assert first.plan.port == second.plan.port
        first.wait_ready()
        second.wait_ready()


def test_orphans_inside_are_reaped(support: SpaceSupport) -> None:
    with Capsule() as space:
        run_inside(space, "sh", "-c", "sleep 0.05 & exit 0")
        deadline = time.monotonic() + 5
        while zombies := [
            process for process in psutil.Process().children(recursive=True)
            if process.status() == psutil.STATUS_ZOMBIE
        ]:  # fmt: skip
            assert time.monotonic() < deadline, zombies
            time.sleep(0.02)


@pytest.mark.parametrize("capsule", [True, False])
def test_closing_a_space_ends_what_is_inside(
    support: SpaceSupport, tmp_path: Path, capsule: bool
) -> None:
    running = launch(ContractWorker(("child",)), open_space(SpaceSupport(capsule)), tmp_path)
    running.wait_ready()
    tree = running.process.tree()
    assert len(tree) == 2
    running.stop()
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert alive == []


@pytest.mark.parametrize("capsule", [True, False])
def test_a_stopped_worker_is_ended_all_the_same(
    support: SpaceSupport, tmp_path: Path, capsule: bool
) -> None:
    running = launch(ContractWorker(), open_space(SpaceSupport(capsule)), tmp_path)
    running.wait_ready()
    tree = running.process.tree()
    running.process.send(signal.SIGSTOP)
    running.stop()
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert alive == []


def test_a_taken_port_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(BusyError, match=str(port)):
            launch(ContractWorker(), HostSpace(), tmp_path, port=port)


def test_a_worker_that_ends_at_once_tells_what_it_said(
    support: SpaceSupport, tmp_path: Path
) -> None:
    running = launch(ContractWorker(("exits",)), open_space(support), tmp_path)
    with running, pytest.raises(WorkerFailedError, match="ends at once"):
        running.wait_ready()


def test_nobody_listening_is_unreachable(support: SpaceSupport) -> None:
    with Capsule() as space:
        client = WorkerClient(space, 9, "m")
        assert not client.healthy()
        with pytest.raises(WorkerUnreachableError):
            client.complete("x", 1, timeout_s=1)


def test_the_hosts_secrets_stay_out_of_a_worker(
    support: SpaceSupport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    with launch(ContractWorker(), open_space(support), tmp_path) as running:
        environment = Path(f"/proc/{running.process.pid}/environ").read_bytes()
    assert b"hush-hush" not in environment
