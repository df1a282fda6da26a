"""Lineage of a real job, load and build hangs together, and a dead target stops none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")


def resilience(home: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENLINEAGE")}
    done = subprocess.run(
        [sys.executable, "-m", "resilience_pipelines.cli", *words, "--home", str(home), "--json"],
        capture_output=True, text=True, timeout=280, check=False, env=inherited | settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def names(data_sets: list[dict[str, Any]]) -> set[str]:
    return {item["name"] for item in data_sets}


def test_from_a_job_to_a_mart_each_output_is_the_input_of_what_comes_next(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "events.jsonl"
    settings = {
        "OPENLINEAGE__TRANSPORT__TYPE": "file",
        "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": str(file),
        "OPENLINEAGE__TRANSPORT__APPEND": "true",
        "OPENLINEAGE_API_KEY": "nobody-may-see-this",
    }
    words = ("run", "startup", "--arms", "warm_cache", "--repeats", "1")
    found = json.loads(resilience(home, *words, **settings).stdout)
    resilience(home, "load", str(home / "landing"), **settings)
    events = [json.loads(line) for line in file.read_text().splitlines()]
    ends = {event["job"]["name"]: event for event in events if event["eventType"] == "COMPLETE"}
    assert len(events) == 2 * len(ends), "each run has a beginning and an end"
    job, load = ends["run.startup"], ends["load"]
    assert found["folder"] in names(job["outputs"])
    assert names(load["inputs"]) == {found["folder"]}
    assert names(ends["dbt.build"]["inputs"]) & names(load["outputs"])
    staged, mart = ends["dbt.staging.stg_startups"], ends["dbt.main.startup_measurements"]
    assert "warehouse.raw.startups" in names(load["outputs"]) & names(staged["inputs"])
    assert names(staged["outputs"]) <= names(mart["inputs"])
    assert mart["outputs"][0]["facets"]["schema"]["fields"][0]["description"]
    assert mart["run"]["facets"]["parent"]["run"]["runId"] == ends["dbt.build"]["run"]["runId"]
    assert "nobody-may-see-this" not in file.read_text()


def test_a_load_with_a_dead_target_is_done_and_says_so(tmp_path: Path) -> None:
    done = resilience(tmp_path / "home", "load", "--no-build", OPENLINEAGE_URL="http://127.0.0.1:1")
    assert json.loads(done.stdout)["rejected"] == []
    assert "from START of load on, may not have been sent" in done.stderr
    assert "from COMPLETE of load on, may not have been sent" in done.stderr
