"""`resilience ci` as a CI system runs it: a small suite on real workers, its files, its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from resilience_pipelines.workers.space import SpaceSupport
from tests.integration.fault_support import NEEDS_TORCH

SUITE = """
name = "small gate"

[[job]]
name = "comes back"
kind = "startup"
arms = ["warm_cache", "sleep_wake"]
repeats = 2
max_median_s = { warm_cache = 600, sleep_wake = LIMIT }

[[job]]
name = "survives"
kind = "fault"
faults = ["worker_killed"]
recoveries = ["warm_cache"]
max_recover_s = 600
"""

WAVES = """
name = "waves"

[[job]]
name = "comes back together"
kind = "fanout"
widths = [2]
page_caches = ["warm"]
repeats = 1
max_wave_s = { 2 = 600 }
"""
COLLECTIVES = """
name = "collectives"

[[job]]
name = "talks"
kind = "collectives"
arms = ["healthy"]
operations = ["all_reduce"]
sizes = [65536]
repeats = 1
min_busbw_bytes_per_s = { all_reduce = 1 }
"""


def run(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "suite.toml").write_text(text)
    return subprocess.run(
        [
            sys.executable, "-m", "resilience_pipelines.cli", "ci", str(tmp_path / "suite.toml"),
            "--junit", str(tmp_path / "junit.xml"), "--summary", str(tmp_path / "summary.md"),
            "--home", str(tmp_path / "home"), "--json",
        ],
        capture_output=True, text=True, timeout=280, check=False, env=os.environ,
    )  # fmt: skip


def test_a_suite_that_passes(tmp_path: Path) -> None:
    done = run(tmp_path, SUITE.replace("LIMIT", "600"))
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert (found["verdict"], [job["verdict"] for job in found["jobs"]]) == ("pass", ["pass"] * 2)
    root = ET.parse(tmp_path / "junit.xml").getroot()
    assert (root.get("failures"), root.get("errors")) == ("0", "0")
    names = {case.get("name") for case in root.iter("testcase")}
    assert {"warm_cache 1", "warm_cache 2", "median of sleep_wake"} <= names
    assert {"recovery from worker_killed", "worker_killed, control 1"} <= names
    assert (tmp_path / "summary.md").read_text().startswith("## small gate: pass\n")


def test_a_wave_of_restores_passes_where_it_keeps_its_limit(
    tmp_path: Path, support: SpaceSupport, criu: object
) -> None:
    done = run(tmp_path, WAVES)
    assert done.returncode == 0, done.stderr + done.stdout
    names = {case.get("name") for case in ET.parse(tmp_path / "junit.xml").iter("testcase")}
    assert {"snapshot", "wave of 2 at once, page cache warm"} <= names


@NEEDS_TORCH
def test_collectives_pass_where_they_keep_their_limit(tmp_path: Path) -> None:
    done = run(tmp_path, COLLECTIVES)
    assert done.returncode == 0, done.stderr + done.stdout
    names = {case.get("name") for case in ET.parse(tmp_path / "junit.xml").iter("testcase")}
    assert names == {"all_reduce healthy 65536 bytes 1", "bus bandwidth of all_reduce"}


def test_a_limit_and_a_baseline_that_is_not_there_decide(tmp_path: Path) -> None:
    only = SUITE.split('[[job]]\nname = "survives"')[0]
    done = run(tmp_path, only.replace("LIMIT", "1e-9") + '[compare]\nbaseline = "nothing"\n')
    assert done.returncode == 1, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["verdict"] == "fail"
    assert "no measured stack has this key" in found["compare_error"]
    root = ET.parse(tmp_path / "junit.xml").getroot()
    assert [case.get("name") for case in root.findall("testsuite/testcase[failure]")] == [
        "median of sleep_wake"
    ]
    assert len(root.findall("testsuite/testcase[error]")) == 1


def test_a_suite_with_a_mistake_runs_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, SUITE)
    assert done.returncode == 2
    assert "suite.toml:9: " in done.stderr
    assert not (tmp_path / "home").exists()
