"""Guards: each says no to what it is there for, and to nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from resilience_pipelines.faults.fault import Target
from resilience_pipelines.faults.guards import FreeDisk, FreeMemory, OwnWorker


@dataclass
class FakeTarget:
    members: tuple[Any, ...]
    on_this_machine: bool = True


def target_of(*processes: Any) -> Target:
    return cast("Target", FakeTarget(processes))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait(10)


def test_memory_is_enough_or_not() -> None:
    assert FreeMemory(1).objection(None) is None
    assert "needed" in (FreeMemory(2**60).objection(None) or "")


def test_disk_is_enough_or_not(tmp_path: Path) -> None:
    assert FreeDisk(tmp_path, 1).objection(None) is None
    assert str(tmp_path) in (FreeDisk(tmp_path, 2**60).objection(None) or "")


def test_a_process_started_by_this_one_may_be_hit(child: subprocess.Popen[bytes]) -> None:
    assert OwnWorker().objection(target_of(psutil.Process(child.pid))) is None


def test_this_process_may_not_be_hit() -> None:
    assert OwnWorker().objection(target_of(psutil.Process())) is not None


def test_a_process_that_others_started_may_not_be_hit(child: subprocess.Popen[bytes]) -> None:
    parent = psutil.Process(os.getppid())
    objection = OwnWorker().objection(target_of(psutil.Process(child.pid), parent))
    assert str(parent.pid) in (objection or "")


def test_a_process_that_has_ended_may_not_be_hit() -> None:
    process = subprocess.Popen(["true"])
    held = psutil.Process(process.pid)
    process.wait(10)
    assert "ended" in (OwnWorker().objection(target_of(held)) or "")


def test_a_worker_without_processes_may_not_be_hit() -> None:
    assert OwnWorker().objection(target_of()) is not None


def test_before_a_worker_is_there_only_the_machine_is_looked_at() -> None:
    assert OwnWorker().objection(None) is None
