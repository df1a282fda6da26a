"""Faults of a GPU go through the whole life of an experiment, beside a stand-in for NVML.

Workers, processes, programs on the "GPU", detectors and the engine are real; only what NVML answers
is set by the test, and what the program does to the GPU. `tests/gpu` runs the same on a real one.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from resilience_pipelines import numa
from resilience_pipelines import nvml as nvml_module
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults import (
    dcgm_injection,
    experiment,
    gpu_load,
    gpu_memory,
    gpu_power,
    gpu_xid,
    numa_placement,
)
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.experiment import run_experiment
from resilience_pipelines.faults.fault import Fault, FaultContext, Injection
from resilience_pipelines.faults.gpu_load import CheckedBurn
from resilience_pipelines.faults.gpu_memory import TakenServing
from resilience_pipelines.faults.gpu_program import GpuProgram
from resilience_pipelines.faults.gpu_xid import (
    Mistake,
    RealXid,
    Where,
    XidBesideWorker,
    XidInWorker,
)
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import FaultRun, Verdict
from resilience_pipelines.workers.oracle import RecordedAnswer
from resilience_pipelines.workers.space import SpaceSupport, wait_until
from tests.integration.fault_support import (
    NEED_GPU,
    Planted,
    after,
    instead,
    make_context,
    nothing_stays,
    record,
)
from tests.support import fake_dcgm
from tests.support.fake_nvml import FakeNvml
from tests.unit.test_numa import write_nodes

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests/support/gpu_programs"
HOST = SpaceSupport(False, "asked by the test")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> RecordedAnswer:
    found, _ = record(HOST, None, tmp_path_factory.mktemp("cache"))
    return found


@pytest.fixture
def context(answer: RecordedAnswer, tmp_path: Path) -> FaultContext:
    return make_context(tmp_path, HOST, None, answer, None)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml()
    monkeypatch.setattr(nvml_module, "library", lambda: made)
    for module, program in (
        (gpu_load, "burn_on_cpu.py"), (gpu_memory, "take_nothing.py"), (gpu_xid, "break_nothing.py")
    ):  # fmt: skip
        monkeypatch.setattr(module, "PROGRAM", FAKES / program)
        monkeypatch.setattr(module, "EFFECT_DEADLINE_S", 3.0)
        monkeypatch.setattr(module, "missing_module", lambda _: None)
    monkeypatch.setattr(experiment, "CONTROL_OBSERVATION_S", 0.5)
    return made


def on_the_gpu(fake: FakeNvml) -> Callable[[Injection], None]:
    """A change for `Planted`: the worker computes on the stand-in, and the act has its effect."""

    def act(injection: Any) -> None:
        match injection:
            case CheckedBurn():
                fake.gpu.burners.add(injection._program.pid)
            case TakenServing():
                fake.gpu.takers.add(injection._program.pid)
            case XidBesideWorker():
                fake.gpu.xid(31 if injection.mistake is Mistake.ILLEGAL_ADDRESS else 43)

    def change(injection: Injection) -> None:
        attach = injection.attach

        def listed(target: Any) -> None:
            fake.gpu.pids.update(member.pid for member in target.members)
            attach(target)

        instead("attach", listed)(injection)
        after("inject", lambda: act(injection))(injection)

    return change


BESIDE = (
    "gpu_burned_checked", "device_memory_taken_serving", "xid_illegal_address_beside_worker",
    "xid_device_assert_beside_worker",
)  # fmt: skip
SEEN_BY_NVML = {name: dict(CATALOGUE[name].expected) for name in BESIDE}
for expected in SEEN_BY_NVML.values():
    expected.pop("kernel_log", None)  # no kernel tells of a stand-in


def run(fault: Fault, context: FaultContext, recovery: Recovery | None) -> FaultRun:
    with nothing_stays(context):
        return run_experiment(fault, recovery, context, repeat=0, control=recovery is None)


def planted(name: str, *changes: Callable[[Injection], None]) -> Planted:
    def change(injection: Injection) -> None:
        for each in changes:
            each(injection)

    return Planted(CATALOGUE[name], change, SEEN_BY_NVML[name])


@pytest.mark.parametrize("name", BESIDE)
def test_a_fault_beside_the_worker_is_proved_seen_and_undone(
    context: FaultContext, fake: FakeNvml, name: str
) -> None:
    found = run(planted(name, on_the_gpu(fake)), context, Recovery.RESUME)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert found.layer == "real"
    seen = {d.detector for d in found.detections if d.expected and d.detected}
    assert seen == set(SEEN_BY_NVML[name])
    assert fake.opened == 0
    assert fake.gpu.events == {}


@pytest.mark.parametrize("name", BESIDE)
def test_a_control_arm_leaves_the_gpu_alone(
    context: FaultContext, fake: FakeNvml, name: str
) -> None:
    found = run(planted(name, on_the_gpu(fake)), context, None)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert not (fake.gpu.burners | fake.gpu.takers)


@pytest.mark.parametrize("name", BESIDE)
def test_an_act_that_silently_does_nothing_is_not_injected(
    context: FaultContext, fake: FakeNvml, name: str
) -> None:
    nothing = instead("inject", lambda: None)
    found = run(planted(name, on_the_gpu(fake), nothing), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    )  # fmt: skip
    assert found.rollback is not None
    assert found.rollback.proved


@pytest.mark.parametrize("name", ["gpu_burned_checked", "device_memory_taken_serving"])
def test_a_program_that_stays_on_the_gpu_is_a_failed_rollback(
    context: FaultContext, fake: FakeNvml, name: str
) -> None:
    stays = instead("roll_back", lambda: None)

    def plant(injection: Injection) -> None:
        end = injection.roll_back
        stays(injection)
        injection.close = end  # type: ignore[method-assign]

    found = run(planted(name, on_the_gpu(fake), plant), context, Recovery.RESUME)
    assert found.verdict is Verdict.ROLLBACK_FAILED, (found.reason_code, found.detail)


def test_a_burn_that_finds_a_wrong_result_breaks_the_expectation(
    context: FaultContext, fake: FakeNvml
) -> None:
    wrong = instead("_mismatches", lambda: 1)
    found = run(
        planted("gpu_burned_checked", on_the_gpu(fake), wrong), context, Recovery.RESUME
    )  # fmt: skip
    assert (found.verdict, found.reason_code) == (Verdict.FAIL, FaultReason.EXPECTATION_BROKEN)
    assert "computes wrongly" in found.detail


def test_a_burn_records_what_it_computed(context: FaultContext, fake: FakeNvml) -> None:
    found = run(planted("gpu_burned_checked", on_the_gpu(fake)), context, Recovery.RESUME)
    assert found.parameters["gflops"] > 0
    assert found.parameters["products"] > 0
    assert found.parameters["mismatches"] == 0
    assert found.parameters["hottest_c"] == 50


def test_an_idle_gpu_is_no_burn_whatever_the_burn_says(
    context: FaultContext, fake: FakeNvml
) -> None:
    fault = planted("gpu_burned_checked", on_the_gpu(fake))
    fake.nvmlDeviceGetUtilizationRates = lambda _: dataclasses.make_dataclass("U", ["gpu"])(0)  # type: ignore[attr-defined]
    found = run(fault, context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    )  # fmt: skip


GPU_BURN = """#!/bin/sh
[ "$1" = 20 ] || exit 2
[ -f compare.ptx ] || exit 3
printf "\\r50.0%%  proc'd: 7 ({gflops} Gflop/s)   errors: 0   temps: 60 C \\n\\tSummary at: now\\n"
sleep 2
printf "\\r100.0%%  proc'd: 9 ({gflops} Gflop/s)   errors: 0   temps: 60 C \\n"
printf "done\\n\\nTested 1 GPUs:\\n\\tGPU 0: {verdict}\\n"
"""


@pytest.mark.parametrize(
    ("gflops", "verdict", "wanted"),
    [
        (51000, "OK", (Verdict.PASS, None)),
        (51000, "FAULTY", (Verdict.FAIL, FaultReason.EXPECTATION_BROKEN)),
        (0, "OK", (Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED)),
    ],
)
def test_the_verdict_of_gpu_burn_is_read_and_its_exit_status_is_not(
    context: FaultContext, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    gflops: int, verdict: str, wanted: tuple[Verdict, FaultReason | None],
) -> None:  # fmt: skip
    program = tmp_path / "gpu_burn"
    program.write_text(GPU_BURN.format(gflops=gflops, verdict=verdict))
    program.chmod(0o755)
    (tmp_path / "compare.ptx").touch()
    monkeypatch.setenv("RESILIENCE_GPU_BURN", str(program))

    def plant(injection: Any) -> None:
        on_the_gpu(fake)(injection)
        after("inject", lambda: fake.gpu.burners.add(injection._process.pid))(injection)

    fault = Planted(CATALOGUE["gpu_burned_gpu_burn"], plant)
    found = run(fault, context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == wanted, (found.detail, found.events)


@dataclasses.dataclass(frozen=True)
class InContractWorker(RealXid):
    """The fault in the worker, with a worker that does not know the question."""

    def prepare(self, context: FaultContext) -> Injection:
        return XidInWorker(context, self.mistake, context.worker)


def test_a_worker_that_does_not_break_is_not_injected_and_does_not_stay(
    context: FaultContext, fake: FakeNvml
) -> None:
    fault = Planted(
        InContractWorker(Mistake.ILLEGAL_ADDRESS, Where.IN_WORKER), on_the_gpu(fake)
    )  # fmt: skip
    found = run(fault, context, Recovery.COLD)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED,
        FaultReason.INJECTION_FAILED,
    )
    assert found.rollback is not None
    assert found.rollback.proved


def test_a_worker_that_answers_has_not_lost_its_context(
    context: FaultContext, fake: FakeNvml
) -> None:
    def plant(injection: Injection) -> None:
        on_the_gpu(fake)(injection)
        instead("inject", lambda: None)(injection)

    fault = Planted(InContractWorker(Mistake.DEVICE_ASSERT, Where.IN_WORKER), plant)
    found = run(fault, context, Recovery.COLD)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    )  # fmt: skip


def test_a_worker_that_stops_answering_is_replaced(context: FaultContext, fake: FakeNvml) -> None:
    import signal

    def plant(injection: Any) -> None:
        def lose() -> None:
            injection._broken = True
            injection.target.running.process.signal_tree(signal.SIGSTOP)
            fake.gpu.xid(43)

        on_the_gpu(fake)(injection)
        instead("inject", lose)(injection)

    fault = Planted(
        InContractWorker(Mistake.DEVICE_ASSERT, Where.IN_WORKER), plant,
        {"nvml_events": 5.0, "canary": 10.0},
    )  # fmt: skip
    found = run(fault, context, Recovery.COLD)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert found.parameters["xids"] == [43]
    assert "IGNORE" in found.parameters["immediate_actions"][0]


def test_a_restore_needs_criu_and_a_snapshot(context: FaultContext, fake: FakeNvml) -> None:
    found = run(CATALOGUE["device_memory_taken_restore"], context, Recovery.WARM_CACHE)
    assert (found.verdict, found.reason_code) == (Verdict.NOT_APPLICABLE, "no_criu")


@pytest.mark.parametrize("name", NEED_GPU)
def test_a_worker_that_uses_no_gpu_is_not_touched(
    context: FaultContext, fake: FakeNvml, name: str
) -> None:
    recovery = Recovery(CATALOGUE[name].recoveries[0])
    found = run(CATALOGUE[name], context, recovery)
    assert found.verdict is Verdict.NOT_APPLICABLE, (found.reason_code, found.detail)
    assert found.reason_code != FaultReason.NO_GPU
    assert found.rollback is None


def test_a_foreign_process_keeps_the_fault_away(context: FaultContext, fake: FakeNvml) -> None:
    fake.gpu.pids.add(1)
    found = run(planted("gpu_burned_checked", on_the_gpu(fake)), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (Verdict.ABORTED, FaultReason.GUARD_REFUSED)
    assert "no_foreign_gpu_processes" in found.detail


DCGM = [name for name in NEED_GPU if CATALOGUE[name].strategy == "dcgm_injection"]


@pytest.fixture
def dcgm(fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tools = tmp_path / "bin"
    fake_dcgm.install(tools)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RESILIENCE_SYNTHETIC_XIDS", "1")
    monkeypatch.setattr(dcgm_injection, "EFFECT_DEADLINE_S", 2.0)
    return tools


def dcgm_fault(
    name: str, fake: FakeNvml, change: Callable[[Injection], None] = lambda _: None
) -> Planted:
    def both(injection: Injection) -> None:
        on_the_gpu(fake)(injection)
        change(injection)

    return Planted(CATALOGUE[name], both)


@pytest.mark.parametrize("name", DCGM)
def test_a_value_in_dcgms_cache_is_proved_seen_and_taken_back(
    context: FaultContext, fake: FakeNvml, dcgm: Path, name: str
) -> None:
    found = run(dcgm_fault(name, fake), context, Recovery.RESUME)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert found.layer == "cache"
    assert {d.detector for d in found.detections if d.expected} == set(CATALOGUE[name].expected)
    assert all(d.detected for d in found.detections if d.expected), found.detections
    assert found.parameters["dcgm_version"] == "0.0.0-fake"


@pytest.mark.parametrize("name", DCGM)
def test_a_control_arm_in_dcgm_injects_the_value_that_is_there(
    context: FaultContext, fake: FakeNvml, dcgm: Path, name: str
) -> None:
    found = run(dcgm_fault(name, fake), context, None)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)


def test_a_dcgm_that_swallows_the_value_is_not_injected(
    context: FaultContext, fake: FakeNvml, dcgm: Path
) -> None:
    fake_dcgm.install(dcgm, deaf=True)
    found = run(dcgm_fault("dcgm_ecc_double_bit", fake), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    )  # fmt: skip
    assert "it reads 0, not 1" in found.detail


def test_a_field_that_the_gpu_does_not_have_is_not_applicable(
    context: FaultContext, fake: FakeNvml, dcgm: Path
) -> None:
    fake_dcgm.install(dcgm, na=[439])
    found = run(dcgm_fault("dcgm_nvlink_recovery", fake), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_APPLICABLE, FaultReason.NO_DCGM_FIELD
    )  # fmt: skip


def test_an_engine_that_stays_is_a_failed_rollback(
    context: FaultContext, fake: FakeNvml, dcgm: Path
) -> None:
    def plant(injection: Injection) -> None:
        end = injection.roll_back
        instead("roll_back", lambda: None)(injection)
        close = injection.close
        instead("close", lambda: (end(), close()))(injection)

    found = run(dcgm_fault("dcgm_pcie_replay", fake, plant), context, Recovery.RESUME)
    assert found.verdict is Verdict.ROLLBACK_FAILED, (found.reason_code, found.detail)


def test_a_value_is_injected_again_before_it_expires(
    context: FaultContext, fake: FakeNvml, dcgm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm_injection, "AGAIN_S", 0.1)
    counted: list[int] = []

    def plant(injection: Any) -> None:
        again = injection._inject_bad
        instead("_inject_bad", lambda: (counted.append(1), again()))(injection)
        after("prove_effect", lambda: time.sleep(2))(injection)

    found = run(dcgm_fault("dcgm_temperature", fake, plant), context, Recovery.RESUME)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail)
    assert len(counted) > 2


def test_a_synthetic_xid_needs_an_operator_who_knows(
    context: FaultContext, fake: FakeNvml, dcgm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RESILIENCE_SYNTHETIC_XIDS")
    found = run(dcgm_fault("dcgm_xid", fake), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (Verdict.ABORTED, FaultReason.GUARD_REFUSED)
    assert "remediation_interlock" in found.detail
    assert found.effect is None


def test_an_armed_agent_keeps_a_synthetic_xid_away_whatever_an_operator_says(
    context: FaultContext, fake: FakeNvml, dcgm: Path, tmp_path: Path
) -> None:
    agent = tmp_path / "node-problem-detector"
    agent.symlink_to("/bin/sleep")
    running = subprocess.Popen([str(agent), "60"])
    try:
        found = run(dcgm_fault("dcgm_xid", fake), context, Recovery.RESUME)
    finally:
        running.kill()
        running.wait(10)
    assert (found.verdict, found.reason_code) == (Verdict.ABORTED, FaultReason.GUARD_REFUSED)
    assert "node-problem-detector" in found.detail


@pytest.fixture
def power(fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is the stand-in's power limit: a watchdog outside can set it, too."""
    file = tmp_path / "power"
    file.write_text("700000")
    monkeypatch.setenv("TEST_POWER_FILE", str(file))
    monkeypatch.setenv("RESILIENCE_GPU_SETTERS", "1")
    monkeypatch.setattr(gpu_power, "PROGRAM", FAKES / "restore_power_file.py")
    monkeypatch.setattr(gpu_power, "EFFECT_DEADLINE_S", 1.0)
    reads: Any = lambda _: int(file.read_text())  # noqa: E731
    fake.nvmlDeviceGetPowerManagementLimit = reads  # type: ignore[attr-defined]
    fake.nvmlDeviceGetEnforcedPowerLimit = reads  # type: ignore[attr-defined]

    def write(handle: int, limit_mw: int) -> None:
        if fake.gpu.obeys:
            file.write_text(str(limit_mw))

    monkeypatch.setattr(fake, "nvmlDeviceSetPowerManagementLimit", write)
    return file


def power_fault(fake: FakeNvml) -> Planted:
    return Planted(CATALOGUE["gpu_power_limited"], on_the_gpu(fake))


def test_a_lowered_power_limit_is_proved_seen_and_put_back(
    context: FaultContext, fake: FakeNvml, power: Path
) -> None:
    found = run(power_fault(fake), context, Recovery.RESUME)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert (found.parameters["limit_before_mw"], found.parameters["limit_mw"]) == (700_000, 200_000)
    assert power.read_text() == "700000"


def test_a_control_arm_sets_no_power_limit(
    context: FaultContext, fake: FakeNvml, power: Path
) -> None:
    before = power.stat().st_mtime_ns
    assert run(power_fault(fake), context, None).verdict is Verdict.PASS
    assert power.stat().st_mtime_ns == before


def test_a_card_that_does_not_obey_is_not_injected(
    context: FaultContext, fake: FakeNvml, power: Path
) -> None:
    fake.gpu.obeys = False
    found = run(power_fault(fake), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    )  # fmt: skip


def test_a_power_limit_that_is_not_put_back_is_a_failed_rollback(
    context: FaultContext, fake: FakeNvml, power: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(0)")
    monkeypatch.setattr(gpu_power, "PROGRAM", broken)
    found = run(power_fault(fake), context, Recovery.RESUME)
    assert found.verdict is Verdict.ROLLBACK_FAILED
    assert found.rollback is not None
    assert "200000 mW are in force" in found.rollback.detail


def test_without_an_operators_flag_no_setting_is_touched(
    context: FaultContext, fake: FakeNvml, power: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RESILIENCE_GPU_SETTERS")
    found = run(power_fault(fake), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_APPLICABLE, FaultReason.SETTERS_NOT_ALLOWED
    )  # fmt: skip
    assert "RESILIENCE_GPU_SETTERS=1" in found.detail


def test_a_watchdog_puts_the_power_limit_back_when_the_platform_is_killed(power: Path) -> None:
    owner = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys, time; from pathlib import Path\n"
            "from resilience_pipelines.faults.gpu_power import restoring\n"
            "lease = restoring(Path(sys.argv[1]), 'GPU-0', 700000)\n"
            "Path(sys.argv[2]).write_text('200000')\n"
            "print('lowered', flush=True); time.sleep(60)",
            str(FAKES / "restore_power_file.py"), str(power),
        ],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert owner.stdout is not None
    assert owner.stdout.readline() == "lowered\n"
    assert power.read_text() == "200000"
    owner.kill()
    owner.communicate(timeout=10)
    wait_until(lambda: power.read_text() == "700000", 10, "The old limit is back", 0.05)


@pytest.fixture
def two_nodes(fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two of this machine's CPUs taken for two nodes, the first near the GPU; no memory moves."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("this machine has one CPU")
    fake.gpu.cpus, fake.gpu.nodes = (1 << cpus[0],), (0b1,)
    root = write_nodes(tmp_path / "nodes", {0: str(cpus[0]), 1: str(cpus[1])})
    monkeypatch.setattr(numa, "NODES", root)
    monkeypatch.setattr(numa, "move_memory", lambda *_: 0)
    monkeypatch.setattr(numa_placement, "PROGRAM", FAKES / "copy_nothing.py")
    monkeypatch.setattr(numa_placement, "EFFECT_DEADLINE_S", 1.0)
    monkeypatch.setattr(numa_placement, "missing_module", lambda _: None)
    return cpus


def placement_fault(
    fake: FakeNvml, change: Callable[[Injection], None] = lambda _: None
) -> Planted:
    def both(injection: Injection) -> None:
        on_the_gpu(fake)(injection)
        change(injection)

    return Planted(CATALOGUE["numa_far_from_gpu"], both)


def test_a_worker_far_from_its_gpu_is_proved_seen_and_moved_back(
    context: FaultContext, fake: FakeNvml, two_nodes: list[int]
) -> None:
    found = run(placement_fault(fake), context, Recovery.RESUME)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert (found.parameters["near_node"], found.parameters["far_node"]) == (0, 1)
    assert found.parameters["distance"] == 21
    assert set(found.parameters["copies"]) == {"near", "near_again", "far"}


def test_a_control_arm_measures_the_near_node_twice_and_moves_nothing(
    context: FaultContext, fake: FakeNvml, two_nodes: list[int]
) -> None:
    found = run(placement_fault(fake), context, None)
    assert found.verdict is Verdict.PASS, (found.reason_code, found.detail, found.events)
    assert set(found.parameters["copies"]) == {"near", "near_again"}


def test_a_move_that_does_not_happen_is_not_injected(
    context: FaultContext, fake: FakeNvml, two_nodes: list[int]
) -> None:
    nothing = instead("inject", lambda: None)
    found = run(placement_fault(fake, nothing), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    )  # fmt: skip


def test_a_worker_that_stays_far_is_a_failed_rollback(
    context: FaultContext, fake: FakeNvml, two_nodes: list[int]
) -> None:
    stays = instead("roll_back", lambda: None)
    found = run(placement_fault(fake, stays), context, Recovery.RESUME)
    assert found.verdict is Verdict.ROLLBACK_FAILED, (found.reason_code, found.detail)


def test_one_node_has_no_far_one(
    context: FaultContext, fake: FakeNvml, two_nodes: list[int], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    root = write_nodes(tmp_path / "one", {0: ",".join(str(cpu) for cpu in two_nodes)})
    monkeypatch.setattr(numa, "NODES", root)
    found = run(placement_fault(fake), context, Recovery.RESUME)
    assert (found.verdict, found.reason_code) == (
        Verdict.NOT_APPLICABLE, FaultReason.ONE_NUMA_NODE
    )  # fmt: skip


def test_a_program_that_does_not_get_ready_says_what_it_wrote(tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text("raise SystemExit('no CUDA here')")
    before = psutil.Process().children(recursive=True)
    with pytest.raises(ResilienceError, match="no CUDA here"):
        GpuProgram(program, "GPU-0")
    assert psutil.Process().children(recursive=True) == before


def test_a_program_dies_with_the_process_that_started_it() -> None:
    owner = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys, time; from pathlib import Path\n"
            "from resilience_pipelines.faults.gpu_program import GpuProgram\n"
            "program = GpuProgram(Path(sys.argv[1]), 'GPU-0')\n"
            "program.go()\n"
            "program.wait_for('taken', 60)\n"
            "print(program.pid, flush=True); time.sleep(60)",
            str(FAKES / "take_nothing.py"),
        ],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert owner.stdout is not None
    program = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate(timeout=10)
    wait_until(lambda: not program.is_running(), 10, "The program ends", 0.05)
