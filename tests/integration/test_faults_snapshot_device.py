"""Faults between a snapshot and its GPU, with real CRIU and workers beside a stand-in for CUDA.

What the driver's helper answers is made up by `tests.support.fake_cuda_helper`; the stopped process
and all that becomes of a failed snapshot or restore are real. `tests/gpu` has the same on a GPU.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from resilience_pipelines import nvml as nvml_module
from resilience_pipelines.faults import experiment
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.experiment import run_experiment
from resilience_pipelines.faults.fault import FaultContext, Injection
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.snapshot_device import OTHER_DRIVER, StoppingDriver
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import FaultRun, Verdict
from resilience_pipelines.snapshots import cuda_driver
from resilience_pipelines.snapshots.compatibility import Host, read_cpu_features
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.cuda import CudaEngine
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.space import SpaceSupport, wait_until
from tests.integration.fault_support import (
    Planted,
    instead,
    make_context,
    nothing_stays,
    record,
)
from tests.support import fake_cuda_helper
from tests.support.fake_nvml import FakeNvml

HELPER = (sys.executable, "-m", fake_cuda_helper.__name__)
STACK = Stack(
    engine="contract", engine_version="1", gpu_sku="Fake", gpu_count=1, driver_version="2.0"
)
RESTORES = ("snapshot_map_to_no_gpu", "snapshot_map_from_no_gpu", "snapshot_other_driver")
ALL = ("snapshot_lock_timeout", *RESTORES)


@pytest.fixture(scope="module")
def source(
    support: SpaceSupport, criu: Criu, tmp_path_factory: pytest.TempPathFactory
) -> FaultContext:
    root = tmp_path_factory.mktemp("source")
    (root / "scratch").mkdir()
    device = CudaEngine(cuda_driver.CudaDriver(HELPER), device_bytes_of=lambda _: None)
    host = Host(STACK, frozenset(read_cpu_features()))
    engine = SnapshotEngine(SnapshotStore(root / "store"), criu, device, host, root / "scratch")
    answer, snapshot = record(support, engine, root)
    return make_context(root, support, engine, answer, snapshot)


@pytest.fixture
def context(source: FaultContext, tmp_path: Path) -> FaultContext:
    return make_context(tmp_path, source.support, source.engine, source.answer, source.snapshot)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml()
    made.uuid = fake_cuda_helper.GPU
    made.driver_version = "2.0"
    monkeypatch.setattr(nvml_module, "library", lambda: made)
    monkeypatch.setattr(cuda_driver, "HELPER", HELPER)
    monkeypatch.setattr(experiment, "CONTROL_OBSERVATION_S", 0.3)
    return made


def run(
    name: str,
    context: FaultContext,
    fake: FakeNvml,
    *changes: Callable[[Injection], None],
    recovery: Recovery | None = None,
    control: bool = False,
) -> FaultRun:
    fault = CATALOGUE[name]

    def plant(injection: Injection) -> None:
        attach = injection.attach

        def listed(target: Any) -> None:
            fake.gpu.pids.update(member.pid for member in target.members)
            attach(target)

        instead("attach", listed)(injection)
        for change in changes:
            change(injection)

    chosen = None if control else recovery or Recovery(fault.recoveries[0])
    with nothing_stays(context):
        return run_experiment(Planted(fault, plant), chosen, context, repeat=0, control=control)


@pytest.mark.parametrize("name", ALL)
def test_each_is_proved_seen_recovered_from_and_leaves_nothing(
    context: FaultContext, fake: FakeNvml, name: str
) -> None:
    found = run(name, context, fake, recovery=Recovery(CATALOGUE[name].recoveries[-1]))
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert found.effect is not None
    assert found.effect.proved
    assert [d.detector for d in found.detections if d.expected and d.detected] == [
        "operation_watch"
    ]
    assert fake.opened == 0


@pytest.mark.parametrize("name", ALL)
def test_a_control_arm_starts_no_operation(
    context: FaultContext, fake: FakeNvml, name: str
) -> None:
    found = run(name, context, fake, control=True)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)


def test_the_lock_is_late_because_the_process_is_stopped(
    context: FaultContext, fake: FakeNvml
) -> None:
    found = run("snapshot_lock_timeout", context, fake)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert found.effect is not None
    assert "is stopped during the lock" in found.effect.detail
    (alarm,) = [d for d in found.detections if d.expected]
    assert alarm.detail.startswith("cuda_lock_timeout")


def test_a_lock_that_comes_all_the_same_is_not_injected(
    context: FaultContext, fake: FakeNvml
) -> None:
    def let_go(injection: Any) -> None:
        injection._driver.lock = super(StoppingDriver, injection._driver).lock

    found = run("snapshot_lock_timeout", context, fake, let_go)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.INJECTION_FAILED
    ), (found.detail, found.events)  # fmt: skip
    assert "the driver was not asked for a lock: the operation had ended before" in found.detail


def test_a_map_that_fits_is_not_injected(context: FaultContext, fake: FakeNvml) -> None:
    def right(injection: Any) -> None:
        attach = injection.attach

        def attached(target: Any) -> None:
            attach(target)
            injection._map = {fake_cuda_helper.GPU: fake_cuda_helper.GPU}

        injection.attach = attached

    found = run("snapshot_map_to_no_gpu", context, fake, right)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    )  # fmt: skip


def test_the_right_driver_is_not_injected(context: FaultContext, fake: FakeNvml) -> None:
    fake.driver_version = OTHER_DRIVER
    found = run("snapshot_other_driver", context, fake)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    )  # fmt: skip


def test_a_driver_that_takes_any_map_breaks_the_expectation(
    context: FaultContext, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_any = (
        "import sys\nfrom tests.support import fake_cuda_helper as f\n"
        "class Any(f.Calls):\n"
        "    def restore(self, pid, gpu_map):\n        return super().restore(pid, {})\n"
        "f.serve(Any(), sys.stdin.buffer, sys.stdout.buffer)\n"
    )
    monkeypatch.setattr(cuda_driver, "HELPER", (sys.executable, "-c", take_any))
    found = run("snapshot_map_to_no_gpu", context, fake)
    assert (found.verdict, found.reason_code) == (Verdict.FAIL, FaultReason.EXPECTATION_BROKEN)
    assert "succeeded" in found.detail


def test_a_worker_without_device_state_is_not_touched(
    context: FaultContext, fake: FakeNvml
) -> None:
    from resilience_pipelines.snapshots.device import NoDevice

    assert context.engine is not None
    plain = dataclasses.replace(context, engine=context.engine.with_device(NoDevice()))
    for name in ALL:
        found = run(name, plain, fake)
        assert (found.verdict, found.reason_code) == (
            Verdict.NOT_APPLICABLE, FaultReason.NO_GPU_WORKER
        )  # fmt: skip


HOLDER = """
import sys
from resilience_pipelines.faults.snapshot_device import StoppingDriver
driver = StoppingDriver(sys.argv[2:])
print("locking", flush=True)
driver.lock(int(sys.argv[1]), 100.0)
"""


def test_a_process_goes_on_when_the_platform_dies_during_the_lock() -> None:
    victim = subprocess.Popen(["sleep", "60"])
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(victim.pid), *HELPER], cwd=Path(__file__).parents[2]
    )
    try:
        stopped = psutil.Process(victim.pid)
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, 30, "It is stopped", 0.01)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(10)
        wait_until(lambda: stopped.status() == psutil.STATUS_SLEEPING, 10, "It goes on", 0.01)
    finally:
        for process in (holder, victim):
            process.kill()
            process.wait(10)
