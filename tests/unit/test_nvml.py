"""What NVML tells becomes plain values; what it does not have is None, and errors are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines import nvml as nvml_module
from resilience_pipelines.detectors.gpu_watch import (
    GpuClocks,
    GpuMemory,
    GpuPowerLimit,
    GpuTenants,
    GpuWatch,
)
from resilience_pipelines.detectors.nvml_events import NvmlEvents
from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.nvml import Nvml, NvmlError, Repairs, bits
from resilience_pipelines.workers.space import wait_until
from tests.support.fake_nvml import FakeNvml, NVMLError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    made = FakeNvml()
    monkeypatch.setattr(nvml_module, "library", lambda: made)
    yield made
    assert made.opened == 0, "whoever opens NVML closes it"
    assert made.gpu.events == {}, "whoever listens stops listening"


def test_without_a_driver_it_says_so(fake: FakeNvml) -> None:
    fake.driver = False
    with pytest.raises(UnsupportedError, match="no NVIDIA driver"):
        Nvml()


def test_a_gpu_has_its_names(fake: FakeNvml) -> None:
    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
    assert (gpu.index, gpu.uuid, gpu.bus_id) == (0, "GPU-0", "0000:3b:00.0")


def test_what_a_gpu_does_not_have_is_none(fake: FakeNvml) -> None:
    fake.gpu.temperature_c = fake.gpu.slowdown_c = None
    fake.gpu.rows = fake.gpu.pages_pending = fake.gpu.ecc = None
    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
        assert nvml.temperature_c(gpu) is None
        assert nvml.slowdown_c(gpu) is None
        assert nvml.repairs(gpu) == Repairs(None, None, None, None)


def test_another_error_is_told_with_its_call(fake: FakeNvml) -> None:
    def lost(*_: object) -> None:
        raise NVMLError("GPU is lost")

    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
        fake.nvmlDeviceGetTemperature = lost  # type: ignore[attr-defined]
        with pytest.raises(NvmlError, match="nvmlDeviceGetTemperature: GPU is lost"):
            nvml.temperature_c(gpu)


@given(st.frozensets(st.integers(0, 255)))
def test_a_mask_names_its_bits(numbers: frozenset[int]) -> None:
    words = [sum(1 << n % 64 for n in numbers if n // 64 == word) for word in range(4)]
    assert bits(words) == numbers


def test_an_xid_is_an_alarm_with_what_to_do(fake: FakeNvml) -> None:
    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
    with NvmlEvents(gpu) as detector:
        fake.gpu.xid(31)
        wait_until(lambda: bool(detector.alarms), 10, "An alarm", 0.01)
    assert detector.failure is None
    assert "XID 31" in detector.alarms[0].detail
    assert "RESTART_APP" in detector.alarms[0].detail


def test_a_driver_without_events_is_a_detector_that_failed(fake: FakeNvml) -> None:
    fake.no_events = True
    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
    with NvmlEvents(gpu) as detector:
        pass
    assert "no XID events" in (detector.failure or "")


@pytest.mark.parametrize("kind", [GpuMemory, GpuTenants, GpuPowerLimit, GpuClocks])
def test_each_watch_sees_its_own_problem_and_its_end(fake: FakeNvml, kind: type[GpuWatch]) -> None:
    import os

    fake.gpu.pids = {os.getppid()}
    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
    own = {os.getppid()}
    detector = GpuTenants(gpu, lambda: own) if kind is GpuTenants else kind(gpu)
    healthy = (fake.gpu.free_bytes, fake.gpu.limit_mw, fake.gpu.reasons)
    with detector:
        wait_until(lambda: detector.looked_since(1), 10, "A look", 0.01)
        assert not detector.alarmed
        fake.gpu.free_bytes, fake.gpu.limit_mw, fake.gpu.reasons = 0, 1, 0x40
        fake.gpu.pids = own | {os.getpid()}
        wait_until(lambda: detector.alarmed, 10, "An alarm", 0.01)
        fake.gpu.free_bytes, fake.gpu.limit_mw, fake.gpu.reasons = healthy
        fake.gpu.pids = own
        wait_until(lambda: not detector.alarmed, 10, "The end of the alarm", 0.01)
    assert detector.failure is None
    assert len(detector.alarms) == 1


def test_a_power_cap_alone_is_no_alarm(fake: FakeNvml) -> None:
    fake.gpu.reasons = 0x4
    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
    with GpuClocks(gpu) as detector:
        wait_until(lambda: detector.looked_since(1), 10, "A look", 0.01)
    assert detector.alarms == ()


def test_tenants_that_nvml_does_not_list_are_a_failure_and_no_silence(fake: FakeNvml) -> None:
    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
    with GpuTenants(gpu, lambda: ()) as detector:
        pass
    assert "lists no process" in (detector.failure or "")
