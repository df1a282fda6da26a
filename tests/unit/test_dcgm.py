"""What `dcgmi` writes is read, and what it does not write is no answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from resilience_pipelines.dcgm import (
    Dcgm,
    DcgmError,
    find_tools,
    read_discovery,
    read_health,
    read_value,
)
from resilience_pipelines.detectors.dcgm import DcgmHealth, DcgmPolicy
from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.workers.space import wait_until
from tests.support import fake_dcgm

DISCOVERY = """2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+========+======================================================================+
| 0      | Name: NVIDIA H200                                                    |
|        | PCI Bus ID: 00000000:19:00.0                                         |
|        | Device UUID: GPU-4a3f2a8b-0000-1111-2222-333344445555                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA H200                                                    |
|        | PCI Bus ID: 00000000:2D:00.0                                         |
|        | Device UUID: GPU-5b4f2a8b-0000-1111-2222-333344445555                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
"""
DMON = "#Entity   XIDER     \nID                  \nGPU 0     95        \nGPU 1     N/A       \n"


def test_gpus_are_known_by_their_uuid() -> None:
    assert list(read_discovery(DISCOVERY).values()) == [0, 1]
    assert read_discovery(DISCOVERY)["GPU-5b4f2a8b-0000-1111-2222-333344445555"] == 1
    assert read_discovery("0 GPUs found.") == {}


def test_the_last_value_of_one_gpu_is_read() -> None:
    assert read_value(DMON, 0) == "95"
    assert read_value(DMON, 1) is None
    assert read_value(DMON + DMON.replace("95", "96"), 0) == "96"
    with pytest.raises(DcgmError, match="no line of GPU 7"):
        read_value(DMON, 7)


def test_a_healthy_answer_has_no_details() -> None:
    answer = {"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}
    health = read_health(json.dumps(answer))
    assert (health.overall, health.detail) == ("Healthy", "")


def test_what_is_not_healthy_is_told_in_dcgms_words() -> None:
    system = {"Memory system": {"overflow": ["1 volatile DBE on GPU 0."], "value": "Failure"}}
    answer = {
        "body": {
            "GPU": {"children": {"0": {"children": {"Errors": {"children": system}}}}},
            "Overall Health": {"value": "Failure"},
        }
    }
    health = read_health(json.dumps(answer))
    assert health.overall == "Failure"
    assert "Memory system: Failure" in health.detail
    assert "1 volatile DBE on GPU 0." in health.detail


@pytest.mark.parametrize(
    "text", ["", "Error: Health watches not enabled.", "{}", "[]", '{"body":1}']
)
def test_no_answer_is_an_error_and_not_healthy(text: str) -> None:
    with pytest.raises(DcgmError, match="a health check said"):
        read_health(text)


def test_without_dcgm_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnsupportedError, match="no nv-hostengine and no dcgmi"):
        find_tools()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_dcgm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "bin"


@pytest.fixture
def dcgm(tools: Path, tmp_path: Path) -> Iterator[Dcgm]:
    before = psutil.Process().children(recursive=True)
    made = Dcgm(tmp_path)
    yield made
    made.close()
    made.close()
    assert not made.alive()
    assert psutil.Process().children(recursive=True) == before


def test_an_injected_value_is_the_one_that_monitors_read(dcgm: Dcgm) -> None:
    assert dcgm.version() == "0.0.0-fake"
    assert dcgm.gpu_id("GPU-0") == 0
    assert dcgm.value(0, 311) == "0"
    dcgm.inject(0, 311, 3, 30)
    assert dcgm.value(0, 311) == "3"
    dcgm.inject(0, 311, 0, 0)  # older than the one before: it is not the newest
    assert dcgm.value(0, 311) == "3"
    assert dcgm.health().overall == "Failure"


def test_a_gpu_that_dcgm_does_not_list_is_an_error(dcgm: Dcgm) -> None:
    with pytest.raises(DcgmError, match="GPU-9"):
        dcgm.gpu_id("GPU-9")


def test_an_engine_that_is_gone_is_an_error(dcgm: Dcgm) -> None:
    dcgm.close()
    with pytest.raises(DcgmError, match="unable to establish a connection"):
        dcgm.health()


def test_an_engine_that_does_not_start_says_why(tools: Path, tmp_path: Path) -> None:
    (tools / "nv-hostengine").write_text("#!/bin/sh\necho 'Failed to load NVML' >&2\nexit 1\n")
    before = psutil.Process().children(recursive=True)
    with pytest.raises(DcgmError, match="Failed to load NVML"):
        Dcgm(tmp_path)
    assert psutil.Process().children(recursive=True) == before


def test_health_and_policy_see_what_is_injected_and_nothing_before(dcgm: Dcgm) -> None:
    health, policy = DcgmHealth(dcgm, interval_s=0.05), DcgmPolicy(dcgm, 95)
    with health, policy:
        wait_until(lambda: health.looked_since(1), 20, "A look", 0.02)
        assert (health.alarms, policy.alarms) == ((), ())
        dcgm.inject(0, 230, 95, 30)
        wait_until(lambda: bool(health.alarms and policy.alarms), 20, "Both alarms", 0.02)
    assert (health.failure, policy.failure) == (None, None)
    assert "uncontained" in health.alarms[0].detail
    assert policy.alarms[0].detail == "XID error 95 detected."


def test_a_policy_listener_that_ends_is_a_failure(dcgm: Dcgm, tools: Path) -> None:
    (tools / "dcgmi").write_text("#!/bin/sh\necho 'Policy successfully set.'\n")
    with DcgmPolicy(dcgm, 95) as policy:
        pass
    assert "dcgmi policy ended" in (policy.failure or "")
