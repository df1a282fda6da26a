"""What a GPU does not tell is left out, events are read once, and the cost of a sample is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from resilience_pipelines.telemetry import Reading
from resilience_pipelines.telemetry_nvml import (
    OVERHEAD_SERIES,
    XidEvents,
    gpu_source,
    measure_overhead,
)


class FakeNvml:
    """Two GPUs; `absent` names the calls that they don't have."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_Timeout(NVMLError):  # noqa: N801, N818
        pass

    NVML_VOLATILE_ECC = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self) -> None:
        self.absent: set[str] = set()
        self.events: list[int] = []
        self.no_events = False
        self.freed = False

    def _value(self, name: str, value: Any) -> Any:
        if name in self.absent:
            raise self.NVMLError_NotSupported
        return value

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:  # noqa: N802
        return self._value("memory", SimpleNamespace(used=1024 * (gpu + 1)))

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:  # noqa: N802
        return self._value("utilization", SimpleNamespace(gpu=50, memory=25))

    def nvmlDeviceGetClockInfo(self, gpu: int, which: int) -> Any:  # noqa: N802
        return self._value("clock", 1980 if which == self.NVML_CLOCK_SM else 3201)

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> Any:  # noqa: N802
        return self._value("temperature", 40)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> Any:  # noqa: N802
        return self._value("power", 120_500)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: int) -> Any:  # noqa: N802
        return self._value("reasons", 0x4)

    def nvmlDeviceGetTotalEccErrors(self, gpu: int, kind: int, counter: int) -> Any:  # noqa: N802
        return self._value("ecc", kind)

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        if self.no_events:
            raise self.NVMLError_NotSupported
        return "set"

    def nvmlDeviceRegisterEvents(self, gpu: int, kind: int, events: str) -> None:  # noqa: N802
        assert kind == self.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:  # noqa: N802
        assert timeout_ms == 0
        if not self.events:
            raise self.NVMLError_Timeout
        return SimpleNamespace(eventData=self.events.pop(0))

    def nvmlEventSetFree(self, events: str) -> None:  # noqa: N802
        self.freed = True


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


def _values(readings: list[Reading]) -> dict[str, float]:
    return {reading.series: reading.value for reading in readings}


def test_every_value_has_its_unit(nvml: FakeNvml) -> None:
    units = {reading.series: reading.unit for reading in gpu_source(nvml, [0])()}
    assert units["gpu_memory_used"] == "bytes"
    assert units["gpu_power"] == "watts"
    assert units["gpu_temperature"] == "celsius"
    assert units["gpu_sm_clock"] == "megahertz"


def test_milliwatts_become_watts(nvml: FakeNvml) -> None:
    assert _values(gpu_source(nvml, [0])())["gpu_power"] == 120.5


@pytest.mark.parametrize(
    ("missing", "series"),
    [("ecc", "gpu_ecc_corrected_volatile"), ("power", "gpu_power"), ("memory", "gpu_memory_used")],
)
def test_a_value_that_the_gpu_does_not_have_is_left_out(
    nvml: FakeNvml, missing: str, series: str
) -> None:
    complete = _values(gpu_source(nvml, [0])())
    nvml.absent.add(missing)
    partial = _values(gpu_source(nvml, [0])())
    assert series in complete
    assert series not in partial
    assert partial["gpu_temperature"] == 40


def test_another_error_than_a_missing_value_is_not_swallowed(nvml: FakeNvml) -> None:
    class LostError(FakeNvml.NVMLError):
        pass

    def lost(gpu: int) -> None:
        raise LostError

    nvml.nvmlDeviceGetPowerUsage = lost  # type: ignore[method-assign]
    with pytest.raises(LostError):
        gpu_source(nvml, [0])()


def test_series_of_further_gpus_carry_their_index(nvml: FakeNvml) -> None:
    values = _values(gpu_source(nvml, [0, 1])())
    assert values["gpu_memory_used"] == 1024
    assert values["gpu_memory_used_1"] == 2048


def test_an_xid_is_reported_once(nvml: FakeNvml) -> None:
    xids = XidEvents(nvml, [0])
    source = gpu_source(nvml, [0], xids)
    nvml.events = [31, 43]
    assert [r.value for r in source() if r.series == "gpu_xid_event"] == [31, 43]
    assert [r for r in source() if r.series == "gpu_xid_event"] == []
    xids.close()
    assert nvml.freed


def test_a_driver_without_events_gives_no_xid_series(nvml: FakeNvml) -> None:
    nvml.no_events = True
    assert XidEvents(nvml, [0]).collect() == []


def test_each_sample_tells_what_it_cost(nvml: FakeNvml) -> None:
    source = gpu_source(nvml, [0])
    (cost,) = [r for r in source() if r.series == OVERHEAD_SERIES]
    assert cost.unit == "seconds"
    assert 0 < cost.value < 1
    assert measure_overhead(source, 3) > 0
