"""A diagnosis is complete whatever single probes do, and says what is missing and what helps."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from resilience_pipelines import doctor
from resilience_pipelines.doctor import Capability, Diagnosis, Probe, all_probes, diagnose, render
from resilience_pipelines.errors import UnsupportedError


def works(name: str) -> Probe:
    return lambda: Capability(name, "available", "fine", "1.0")


def raises(error: Exception) -> Probe:
    def probe() -> Capability:
        raise error

    return probe


class TestIndependence:
    @given(st.lists(st.booleans(), max_size=6))
    def test_every_probe_is_reported_in_order_whichever_fail(self, good: list[bool]) -> None:
        probes = {
            f"p{n}": works(f"p{n}") if each else raises(ValueError("lost"))
            for n, each in enumerate(good)
        }
        found = diagnose(probes=probes).capabilities
        assert [each.name for each in found] == list(probes)
        assert [each.status == "available" for each in found] == good

    def test_what_a_probe_raised_is_its_reason(self) -> None:
        found = diagnose(probes={"a": raises(OSError(5, "Input/output error")), "b": works("b")})
        assert found["a"].status == "unavailable"
        assert found["a"].reason == "OSError: [Errno 5] Input/output error"
        assert found["b"].status == "available"

    def test_an_error_of_ours_brings_its_mend(self) -> None:
        found = diagnose(probes={"a": raises(UnsupportedError("No such thing.", mend="Get one."))})
        assert (found["a"].reason, found["a"].mend) == ("No such thing.", "Get one.")

    def test_one_that_hangs_costs_its_own_line_only(self) -> None:
        release = threading.Event()

        def hangs() -> Capability:
            release.wait(30)
            return Capability("a", "available")

        try:
            found = diagnose(probes={"a": hangs, "b": works("b")}, timeout_s=0.2)
        finally:
            release.set()
        assert found["a"].status == "unavailable"
        assert "0.2 s" in found["a"].reason
        assert found["b"].status == "available"

    def test_every_probe_has_a_name_of_its_own(self) -> None:
        assert {"criu", "pycriu", "gpu", "driver", "cuda_checkpoint", "vllm", "kubernetes", "dcgm",
                "numa", "chrome", "namespaces", "cgroup", "memory", "disk", "seccomp", "io_uring",
                "python"} == set(all_probes())  # fmt: skip

    def test_an_unknown_name_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            Diagnosis((), 0.0)["gpu"]


class TestShowing:
    capabilities = st.builds(
        Capability,
        name=st.text("abc_", min_size=1, max_size=8),
        status=st.sampled_from(["available", "degraded", "unavailable"]),
        detail=st.text(max_size=20),
        version=st.none() | st.text("0123456789.", min_size=1, max_size=8),
        reason=st.text(max_size=20),
        mend=st.text(max_size=20),
    )

    @given(st.lists(capabilities, max_size=5))
    def test_json_holds_all_of_it(self, found: list[Capability]) -> None:
        content = json.loads(Diagnosis(tuple(found), 0.1).to_json())
        assert [Capability(**each) for each in content["capabilities"]] == found

    def test_the_table_shows_reason_and_mend_and_takes_no_markup(self) -> None:
        console = Console(width=100, record=True, file=io.StringIO())
        found = Capability("gpu", "unavailable", "[/red] as said", None, "no [driver]", "Get one.")
        render(Diagnosis((found,), 0.1), console)
        shown = console.export_text()
        for part in ("gpu", "unavailable", "[/red] as said", "no [driver]", "Get one."):
            assert part in shown


class TestProbes:
    @pytest.fixture
    def no_network(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        contacted: list[object] = []

        def refuse(_: socket.socket, address: object) -> None:
            contacted.append(address)
            raise OSError("the network is off limits")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        return contacted

    @pytest.mark.parametrize("named", [True, False])
    def test_without_a_kubeconfig_nothing_is_contacted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[object], named: bool
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
        if not named:
            monkeypatch.delenv("KUBECONFIG")
        monkeypatch.setattr(doctor, "SERVICE_ACCOUNT", tmp_path / "token")
        found = diagnose(probes={"kubernetes": all_probes()["kubernetes"]})["kubernetes"]
        assert found.status == "unavailable"
        assert "nothing was contacted" in found.reason
        assert no_network == []

    def test_a_broken_kubeconfig_is_a_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[object]
    ) -> None:
        (tmp_path / "config").write_text("{}")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        found = diagnose(probes={"kubernetes": all_probes()["kubernetes"]})["kubernetes"]
        assert found.status == "unavailable"
        assert found.reason
        assert no_network == []

    @pytest.mark.parametrize(
        ("version", "branch"), [("580.159.04", 580), ("570.86", 570), ("535", 535)]
    )
    def test_a_driver_belongs_to_the_branch_of_its_first_number(
        self, version: str, branch: int
    ) -> None:
        assert doctor._branch(version) == branch

    @pytest.mark.parametrize(
        ("free_gib", "status"), [(1, "degraded"), (4.9, "degraded"), (5, "available")]
    )
    def test_little_space_is_degraded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_gib: float, status: str
    ) -> None:
        usage = SimpleNamespace(total=2**40, free=int(free_gib * 2**30))
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
        monkeypatch.setenv("RESILIENCE_HOME", str(tmp_path / "not" / "yet" / "there"))
        found = diagnose(probes={"disk": all_probes()["disk"]})["disk"]
        assert found.status == status
        assert not (tmp_path / "not").exists()

    def test_programs_that_are_not_there_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shutil.which", lambda name: None)
        chosen: Mapping[str, Probe] = {name: all_probes()[name] for name in ("dcgm", "chrome")}
        found = diagnose(probes=chosen)
        assert "nv-hostengine and dcgmi" in found["dcgm"].reason
        assert "Chromium" in found["chrome"].reason
