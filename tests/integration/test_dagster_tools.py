"""Dagster's own tools in the project's folder: `dg check defs`, `dg launch`, `dg dev`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from resilience_pipelines.context import make_worker, read_machine
from resilience_pipelines.dagster_io.instance import main as print_dagster_home
from resilience_pipelines.dagster_io.instance import open_instance
from resilience_pipelines.home import Home, open_home

ROOT = Path(__file__).parents[2]
DG = Path(sys.executable).with_name("dg")
DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return open_home(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def environment(home: Home) -> dict[str, str]:
    with open_instance(home):  # writes dagster.yaml
        pass
    return os.environ | {
        "RESILIENCE_HOME": str(home.root),
        "DAGSTER_HOME": str(home.dagster),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        # Tools are started by name.
        "PATH": f"{DG.parent}{os.pathsep}{os.environ['PATH']}",
    }


def run_dg(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DG), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def test_the_path_of_the_instance_is_printed_and_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RESILIENCE_HOME", str(tmp_path / "home"))
    assert print_dagster_home() == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder == tmp_path / "home" / "dagster"
    assert (folder / "dagster.yaml").is_file()


def test_dg_finds_no_fault_with_the_definitions(environment: dict[str, str]) -> None:
    done = run_dg("check", "defs", environment=environment)
    assert done.returncode == 0, done.stderr
    assert "All definitions loaded successfully" in done.stdout + done.stderr


def test_dg_launches_an_asset_that_registers_this_machine(
    home: Home, environment: dict[str, str]
) -> None:
    done = run_dg("launch", "--assets", "stacks", environment=environment)
    assert done.returncode == 0, done.stderr
    stack = read_machine(make_worker("reference", home), home).stack
    with open_instance(home) as instance:
        assert instance.get_latest_materialization_event(dg.AssetKey("stacks")) is not None
        assert instance.get_dynamic_partitions("hardware") == [stack.hardware_label]
        assert instance.get_dynamic_partitions("software") == [stack.software_label]


@contextmanager
def dg_dev(environment: dict[str, str], port: int) -> Iterator[str]:
    """The address of `dg dev`, which is ended with all that it started."""
    process = subprocess.Popen(
        [str(DG), "dev", "--host", "127.0.0.1", "--port", str(port)],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for left in psutil.wait_procs(family, timeout=30)[1]:
            left.kill()


def ask(address: str, question: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/graphql",
        json.dumps({"query": question}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)["data"]
    return found


def test_dg_dev_serves_assets_jobs_and_sensors(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    question = """{
        assetNodes { assetKey { path } groupName }
        repositoriesOrError { ... on RepositoryConnection { nodes {
            location { name }
            pipelines { name }
            sensors { name sensorState { status } }
            schedules { name scheduleState { status } }
        } } }
    }"""
    with dg_dev(environment, port) as address:
        end = time.monotonic() + DEADLINE_S
        found: dict[str, Any] = {}
        while time.monotonic() < end and not found.get("assetNodes"):
            try:
                found = ask(address, question)
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.5)
    groups = {node["groupName"] for node in found["assetNodes"]}
    assert groups == {"machine", "measurements", "raw", "staging", "marts", "published"}
    [location] = found["repositoriesOrError"]["nodes"]
    assert location["location"]["name"] == "resilience_pipelines"
    jobs = {job["name"] for job in location["pipelines"]}
    assert {"main_job", "measure_startup", "inject_faults", "refresh_warehouse"} <= jobs
    assert "read_releases" in jobs
    states = {item["name"]: item["sensorState"]["status"] for item in location["sensors"]}
    stopped = {name for name, state in states.items() if state != "RUNNING"}
    assert stopped == {"unmeasured_stacks", "offered_releases"}
    assert {"this_machine", "new_releases", "cluster_nodes", "new_landing_folders"} <= set(states)
    schedules = {item["name"]: item["scheduleState"]["status"] for item in location["schedules"]}
    assert set(schedules) == {"daily_pruning", "daily_releases", "weekly_main"}
    assert set(schedules.values()) == {"STOPPED"}
