"""On a real GPU: its faults are proved, seen, recovered from and undone, and nothing stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from resilience_pipelines.context import make_worker
from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.gpu_burn_tool import find_gpu_burn
from resilience_pipelines.faults.gpu_load import PROGRAM as BURN
from resilience_pipelines.faults.gpu_program import GpuProgram
from resilience_pipelines.faults.gpu_xid import PROGRAM as BREAK
from resilience_pipelines.faults.gpu_xid import XIDS_OF, Mistake
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.home import open_home
from resilience_pipelines.job import run_job
from resilience_pipelines.job_spec import FaultSpec
from resilience_pipelines.nvml import Gpu, Nvml
from resilience_pipelines.records import FaultRun, Verdict

pytestmark = pytest.mark.gpu


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    pytest.importorskip("torch", reason="needs torch")
    try:
        opened = Nvml()
    except UnsupportedError as error:
        pytest.skip(f"no GPU here: {error}")
    with opened:
        yield opened


@pytest.fixture
def gpu(nvml: Nvml) -> Gpu:
    return nvml.gpus()[0]


def burn_for(gpu: Gpu, seconds: float, max_temperature_c: int) -> GpuProgram:
    return GpuProgram(
        BURN, gpu.uuid, "--uuid", gpu.uuid, "--seconds", str(seconds),
        "--max-temperature-c", str(max_temperature_c),
    )  # fmt: skip


def test_a_burn_computes_right_and_makes_the_gpu_busy(nvml: Nvml, gpu: Gpu) -> None:
    program = burn_for(gpu, 4, 90)
    try:
        assert program.pid not in nvml.processes(gpu), "before the signal nothing is on the GPU"
        program.go()
        program.wait_for("round", 60)
        assert program.pid in nvml.processes(gpu)
        program.wait_for("finished", 60)
        assert program.reports("reference")[0]["mismatches"] == 0
        rounds = program.reports("round")
        assert all(found["gflops"] > 0 and found["mismatches"] == 0 for found in rounds)
        print(f"{rounds[-1]['gflops']:.0f} Gflop/s, {rounds[-1]['temperature_c']} C")
    finally:
        program.end()


def test_a_burn_ends_above_its_temperature(gpu: Gpu) -> None:
    program = burn_for(gpu, 60, 1)
    try:
        program.go()
        program.wait_for("aborted", 60)
        assert program.wait_ended(30)
        assert program.reports("round") == []
    finally:
        program.end()


@pytest.mark.parametrize("mistake", list(Mistake))
def test_a_mistake_gives_an_xid_and_leaves_the_gpu_well(
    nvml: Nvml, gpu: Gpu, mistake: Mistake
) -> None:
    program = GpuProgram(BREAK, gpu.uuid, "--mistake", mistake.value)
    listener = nvml.listen(gpu)
    try:
        program.go()
        error = program.wait_for("broken", 60)["error"]
        assert program.wait_ended(30)
        found = []
        while (code := listener.wait(3.0)) is not None:
            found.append(code)
        print(f"{mistake}: XIDs {found}, {error}")
        assert set(found) & set(XIDS_OF[mistake])
    finally:
        listener.close()
        program.end()
    test_a_burn_computes_right_and_makes_the_gpu_busy(nvml, gpu)


BESIDE_OR_IN = [
    name
    for name, fault in CATALOGUE.items()
    if fault.strategy in ("gpu_load", "gpu_memory", "gpu_xid", "dcgm_injection", "snapshot_device")
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FaultRun]:
    pytest.importorskip("torch", reason="needs torch")
    try:
        Nvml().close()
    except UnsupportedError as error:
        pytest.skip(f"no GPU here: {error}")
    home = open_home(tmp_path_factory.mktemp("home"))
    # This machine is a test's own: nothing acts on an XID that is written into a cache.
    make_worker("torch", home).prepare()
    spec = FaultSpec(worker="torch", faults=tuple(BESIDE_OR_IN))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESILIENCE_SYNTHETIC_XIDS", "1")
        record = run_job(spec, home, lambda *_: None).record
    return list(record.faults)


@pytest.mark.parametrize("name", BESIDE_OR_IN)
def test_every_fault_of_a_gpu_passes_through_the_platforms_job(
    runs: list[FaultRun], name: str
) -> None:
    if name.startswith("dcgm_") and shutil.which("dcgmi") is None:
        pytest.skip("DCGM is not on this machine")
    if name == "gpu_burned_gpu_burn" and find_gpu_burn() is None:
        pytest.skip("gpu-burn is not on this machine")
    found = [run for run in runs if run.fault == name]
    assert {run.recovery for run in found} == {None, *CATALOGUE[name].recoveries}
    for run in found:
        print(run.measurement_id, run.verdict, run.parameters, run.effect, run.time_to_detect_s)
        if run.reason_code == FaultReason.NO_DCGM_FIELD:
            continue  # a GPU without NVLink has no such counter
        assert run.verdict is Verdict.PASS, (run.recovery, run.reason_code, run.detail, run.events)


def test_no_process_of_these_tests_stays_on_the_gpu(runs: list[FaultRun]) -> None:
    import psutil

    with Nvml() as nvml:
        left = nvml.processes(nvml.gpus()[0])
    ours = {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}
    assert not left & ours, subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout
