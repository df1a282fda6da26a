"""Guards of a GPU: each says no to what it is there for, and to nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, cast

import psutil
import pytest

from resilience_pipelines import nvml as nvml_module
from resilience_pipelines.errors import InputError
from resilience_pipelines.faults import gpu_guards
from resilience_pipelines.faults.fault import ObstacleError, Target
from resilience_pipelines.faults.gpu_device import need_gpu
from tests.support.fake_nvml import FakeNvml


@dataclass
class FakeTarget:
    members: tuple[Any, ...]


@pytest.fixture
def target() -> Target:
    return cast("Target", FakeTarget((psutil.Process(),)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml()
    made.gpu.pids = {os.getpid()}
    monkeypatch.setattr(nvml_module, "library", lambda: made)
    return made


def test_a_healthy_gpu_of_the_workers_own_may_be_touched(fake: FakeNvml, target: Target) -> None:
    assert [guard.objection(target) for guard in gpu_guards.of_a_gpu()] == [None] * 4


def test_before_a_worker_is_there_nothing_is_asked(fake: FakeNvml) -> None:
    fake.driver = False
    assert [guard.objection(None) for guard in gpu_guards.of_a_gpu()] == [None] * 4


def test_a_process_of_somebody_else_is_an_objection(fake: FakeNvml, target: Target) -> None:
    fake.gpu.pids.add(os.getppid())
    assert str(os.getppid()) in (gpu_guards.NoForeignProcesses().objection(target) or "")


def test_what_this_job_started_is_no_objection(fake: FakeNvml, target: Target) -> None:
    import subprocess

    child = subprocess.Popen(["sleep", "60"])
    try:
        fake.gpu.pids.add(child.pid)
        assert gpu_guards.NoForeignProcesses().objection(target) is None
    finally:
        child.kill()
        child.wait(10)


def test_a_driver_that_lists_nobody_is_an_objection_unless_the_operator_knows(
    fake: FakeNvml, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.gpu.pids = set()
    monkeypatch.setattr("resilience_pipelines.faults.gpu_device._has_device_open", lambda _: True)
    guard = gpu_guards.NoForeignProcesses()
    assert gpu_guards.ALONE_VARIABLE in (guard.objection(target) or "")
    monkeypatch.setenv(gpu_guards.ALONE_VARIABLE, "1")
    assert guard.objection(target) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rows": (0, 0, 1, 0)}, "remap_pending"),
        ({"rows": (0, 0, 0, 1)}, "remap_failed"),
        ({"pages_pending": 1}, "pages_pending"),
        ({"ecc": (1, 0)}, "ecc_pending"),
    ],
)
def test_a_repair_that_is_due_is_an_objection(
    fake: FakeNvml, target: Target, change: dict[str, Any], word: str
) -> None:
    for name, value in change.items():
        setattr(fake.gpu, name, value)
    assert word in (gpu_guards.NoRepairDue().objection(target) or "")


@pytest.mark.parametrize(
    ("now", "slowdown", "allowed"),
    [(73, 90, True), (74, 90, False), (60, 70, True), (61, 70, False), (73, None, True),
     (None, 90, False)],
)  # fmt: skip
def test_a_hot_gpu_is_an_objection(
    fake: FakeNvml, target: Target, now: int | None, slowdown: int | None, allowed: bool
) -> None:
    fake.gpu.temperature_c, fake.gpu.slowdown_c = now, slowdown
    assert (gpu_guards.TemperatureHeadroom().objection(target) is None) is allowed


def test_more_gpus_than_allowed_are_an_objection(
    fake: FakeNvml, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.gpu.gpus = 2
    listed = fake.nvmlDeviceGetComputeRunningProcesses  # type: ignore[attr-defined]
    fake.nvmlDeviceGetComputeRunningProcesses = lambda _: listed(0)  # type: ignore[attr-defined]
    assert "2 GPUs" in (gpu_guards.MostGpus().objection(target) or "")
    monkeypatch.setenv(gpu_guards.MOST_GPUS_VARIABLE, "2")
    assert gpu_guards.MostGpus().objection(target) is None


@pytest.mark.parametrize("text", ["0", "-1", "all", ""])
def test_a_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(gpu_guards.MOST_GPUS_VARIABLE, text)
    with pytest.raises(InputError, match=gpu_guards.MOST_GPUS_VARIABLE):
        gpu_guards.most_gpus()


def test_no_driver_and_no_gpu_are_obstacles(fake: FakeNvml) -> None:
    fake.gpu.gpus = 0
    with pytest.raises(ObstacleError, match="lists no GPU"):
        need_gpu()
    fake.driver = False
    with pytest.raises(ObstacleError, match="no NVIDIA driver"):
        need_gpu()


def test_a_worker_without_a_gpu_is_an_obstacle(fake: FakeNvml, target: Target) -> None:
    fake.gpu.pids = set()
    with pytest.raises(ObstacleError, match="No process of the worker"):
        gpu_guards.NoRepairDue().objection(target)
