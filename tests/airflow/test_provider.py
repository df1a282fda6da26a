"""The provider with a real Airflow 3 and a real Dagster: the example DAG, killing, direct jobs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import pytest

from resilience_pipelines.airflow.client import Dagster, Endpoint
from tests.airflow.conftest import (
    ROOT,
    START_DEADLINE_S,
    WHY,
    Platform,
    free_port,
    session_of,
    wait_for,
)

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(WHY), reason=WHY),
]

EXAMPLE = ROOT / "resilience_pipelines" / "airflow" / "example_dags" / "qualify_driver.py"

RUN_DAG = """
import json, runpy, sys
from airflow.models.xcom import XComModel
from airflow.sdk import DAG
from airflow.utils.session import create_session
path, name = sys.argv[1:]
dag = runpy.run_path(path)[name]
run = (dag if isinstance(dag, DAG) else dag()).test()
with create_session() as session:
    rows = session.query(XComModel).filter(XComModel.run_id == run.run_id).all()
    values = {f"{row.task_id}.{row.key}": row.value for row in rows}
states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
print("RESULT " + json.dumps({"state": str(run.state), "states": states, "xcom": values}))
"""

DIRECT = """
from airflow.sdk import DAG
from resilience_pipelines.airflow.operators import ResilienceJobOperator

with DAG("direct", schedule=None) as dag:
    ResilienceJobOperator(
        task_id="measure",
        arguments=["run", "startup", "--arms", "warm_cache", "--repeats", "1"],
        executable={executable!r}, home={home!r}, launcher="local",
    )
    ResilienceJobOperator(
        task_id="refused", arguments=["run", "startup", "--repeats", "0"],
        executable={executable!r}, home={home!r},
    )
"""

POD = """
from airflow.sdk import DAG
from resilience_pipelines.airflow.operators import ResilienceJobOperator

with DAG("pod", schedule=None) as dag:
    ResilienceJobOperator(
        task_id="measure", arguments=["run", "startup"], executable={executable!r}, home={home!r},
        launcher="kubernetes",
    )
"""

CLUSTER = """
import sys
from pathlib import Path
from resilience_pipelines.launchers.choice import SETTINGS_FILE
from tests.integration.test_kubernetes_setting import toml
from tests.support.fake_kubernetes.cluster import fake_cluster

with fake_cluster(Path(sys.argv[1])) as cluster:
    cluster.stand_in()
    settings = cluster.settings().model_dump(mode="json")
    (cluster.home.root / SETTINGS_FILE).write_text(toml(settings))
    print(cluster.home.root, flush=True)
    sys.stdin.read()
    assert cluster.left() == []
"""

VERDICT = """
from airflow.sdk import DAG
from resilience_pipelines.airflow.operators import DagsterMaterializeOperator
from resilience_pipelines.airflow.sensors import UpgradeVerdictSensor

with DAG("verdict", schedule=None) as dag:
    DagsterMaterializeOperator(
        task_id="refresh", job="refresh_warehouse", location="resilience_pipelines.definitions",
        repository="__repository__", poll_interval_s=3, fail_on=["fail"],
    ) >> UpgradeVerdictSensor(task_id="verdict", poke_interval=3, timeout=60)
"""

KILLED = """
from airflow.sdk import DAG
from resilience_pipelines.airflow.operators import DagsterMaterializeOperator

with DAG({name!r}, schedule=None, is_paused_upon_creation=False) as dag:
    DagsterMaterializeOperator(
        task_id="qualify", assets=["startup_measurements"], partition={partition!r},
        deferrable={deferrable}, poll_interval_s=2, run_config={{"ops": {{
            "startup_measurements": {{"config": {{"repeats": 500, "arms": ["warm_cache"]}}}}
        }}}},
    )
"""


@dataclass(frozen=True)
class Api:
    """Airflow's REST API, as a person's client uses it."""

    port: int

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The answer to one request; None where there is no such thing yet."""
        base = f"http://127.0.0.1:{self.port}"
        token = httpx.get(f"{base}/auth/token", timeout=30).json()["access_token"]
        answer = httpx.request(
            method, f"{base}/api/v2/{path}", json=body, timeout=60,
            headers={"Authorization": f"Bearer {token}"},
        )  # fmt: skip
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return answer.json()

    def is_up(self) -> bool:
        """Whether the server, the scheduler and the triggerer are healthy."""
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            found = self.call("GET", "monitor/health")
            return all(found[part]["status"] == "healthy" for part in ("scheduler", "triggerer"))
        return False


def write_dag(airflow_home: Path, name: str, text: str) -> Path:
    path = airflow_home / "dags" / f"{name}.py"
    path.write_text(text)
    return path


def run_dag(path: Path, name: str) -> dict[str, Any]:
    """`dag.test()` in a process of its own, as a person would run it."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_DAG, str(path), name],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-6000:] + done.stderr[-6000:]
    return {**json.loads(lines[-1].removeprefix("RESULT ")), "log": done.stdout + done.stderr}


def command(airflow_home: Path) -> str:
    """The `resilience` of the platform's own environment, by its path."""
    executable = airflow_home / "resilience"
    python = os.environ["RESILIENCE_PYTHON"]
    executable.write_text(f'#!/bin/sh\nexec "{python}" -m resilience_pipelines.cli "$@"\n')
    executable.chmod(0o755)
    return str(executable)


def test_airflow_knows_the_provider(airflow_home: Path) -> None:
    done = subprocess.run(
        ["airflow", "providers", "list", "--output", "json"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert '"resilience-pipelines"' in done.stdout


def test_the_example_qualifies_this_machine_and_lets_the_rollout_through(
    platform: Platform, airflow_home: Path
) -> None:
    path = write_dag(airflow_home, "qualify_driver", EXAMPLE.read_text())
    found = run_dag(path, "qualify_driver")
    assert "startup_measurements: " in found["log"], found["log"][-5000:]
    assert set(found["states"]) == {
        "read_releases", "new_release", "read_machine", "qualify", "gate", "roll_out",
    }  # fmt: skip
    assert found["xcom"]["new_release.return_value"] == platform.release
    outcome = found["xcom"]["qualify.return_value"]
    assert outcome["partitions"] == {"startup_measurements": platform.partition}
    assert outcome["figures"]["startup_measurements"]
    assert outcome["verdict"] in ("pass", "warn")
    expected = "success" if outcome["verdict"] == "pass" else "skipped"
    assert found["states"]["roll_out"] == expected
    assert found["state"] == "success"


def test_the_example_skips_all_of_it_where_no_release_is_new(
    platform: Platform, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUALIFY_STATES", "incompatible")
    found = run_dag(
        write_dag(airflow_home, "qualify_driver", EXAMPLE.read_text()), "qualify_driver"
    )
    assert found["states"].pop("read_releases") == "success"
    assert set(found["states"].values()) == {"skipped"}
    assert found["state"] == "success"


def test_a_job_runs_without_dagster_and_one_that_is_refused_fails(
    platform: Platform, airflow_home: Path
) -> None:
    text = DIRECT.format(executable=command(airflow_home), home=str(platform.home))
    found = run_dag(write_dag(airflow_home, "direct", text), "dag")
    assert found["states"] == {"measure": "success", "refused": "failed"}
    outcome = found["xcom"]["measure.return_value"]
    assert outcome["exit_code"] == 0
    assert [item["arm"] for item in outcome["startups"]] == ["warm_cache"]
    assert (Path(outcome["folder"]) / "run.json").is_file()
    assert "repeats = 0" in found["log"]


def test_a_job_runs_as_a_pod_of_a_cluster(airflow_home: Path, tmp_path: Path) -> None:
    """The cluster is the fake of its API; what the pod measures is simulated, and says so."""
    with Popen(
        [os.environ["RESILIENCE_PYTHON"], "-c", CLUSTER, str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as cluster:  # fmt: skip
        try:
            assert cluster.stdin is not None
            assert cluster.stdout is not None
            home = cluster.stdout.readline().strip()
            text = POD.format(executable=command(airflow_home), home=home)
            found = run_dag(write_dag(airflow_home, "pod", text), "dag")
            cluster.stdin.close()
            assert cluster.wait(60) == 0, "something of the job was left on the cluster"
        finally:
            cluster.kill()
    assert found["states"] == {"measure": "success"}, found["log"][-5000:]
    outcome = found["xcom"]["measure.return_value"]
    record = json.loads((Path(outcome["folder"]) / "run.json").read_text())
    assert (outcome["exit_code"], record["launcher"]) == (0, "kubernetes")
    assert Path(outcome["folder"]).is_relative_to(home)


def test_a_new_verdict_is_sensed_and_an_old_one_is_not(
    platform: Platform, airflow_home: Path
) -> None:
    found = run_dag(write_dag(airflow_home, "verdict", VERDICT), "dag")
    assert found["states"] == {"refresh": "success", "verdict": "success"}, found["log"][-5000:]
    from resilience_pipelines.airflow.triggers import newest_verdict

    sensed = found["xcom"]["verdict.return_value"]
    assert sensed["verdict"] in ("safe", "safe_with_notes", "not_safe", "not_enough_data")
    assert sensed["from"] != sensed["to"]
    dagster = Dagster(Endpoint(f"http://127.0.0.1:{platform.port}/graphql"))
    assert newest_verdict(dagster, sensed["to"][:8], 0.0) == sensed
    assert newest_verdict(dagster, "no such stack", 0.0) is None
    assert newest_verdict(dagster, None, sensed["at"]) is None


@pytest.fixture(scope="module")
def standalone(platform: Platform, airflow_home: Path) -> Iterator[tuple[Api, Popen[bytes]]]:
    """A standalone Airflow: scheduler, triggerer, DAG processor and API server."""
    for name, deferrable in (("waiting", True), ("holding", False)):
        text = KILLED.format(name=name, deferrable=deferrable, partition=platform.partition)
        write_dag(airflow_home, name, text)
    write_dag(airflow_home, "qualify_driver", EXAMPLE.read_text())
    port = free_port()
    env = {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__WORKERS": "1",
    }
    with session_of(["airflow", "standalone"], airflow_home / "standalone.log", **env) as process:
        api = Api(port)
        wait_for(api.is_up, START_DEADLINE_S, process)
        yield api, process


def test_the_scheduler_runs_the_example_to_its_end(
    platform: Platform, standalone: tuple[Api, Popen[bytes]]
) -> None:
    api, process = standalone
    wait_for(lambda: api.call("GET", "dags/qualify_driver"), 180, process)
    api.call("PATCH", "dags/qualify_driver", {"is_paused": False})
    started = api.call("POST", "dags/qualify_driver/dagRuns", {"logical_date": None})
    run = f"dags/qualify_driver/dagRuns/{started['dag_run_id']}"

    def end() -> str | None:
        state = api.call("GET", run)["state"]
        return str(state) if state in ("success", "failed") else None

    assert wait_for(end, 420, process) == "success"
    found = api.call("GET", f"{run}/taskInstances")["task_instances"]
    states = {task["task_id"]: task["state"] for task in found}
    outcome = api.call(
        "GET", f"{run}/taskInstances/qualify/xcomEntries/return_value?deserialize=true"
    )["value"]
    assert outcome["partitions"] == {"startup_measurements": platform.partition}
    assert states["read_machine"] == states["qualify"] == "success"
    assert outcome["verdict"] in ("pass", "warn")
    passed = "success" if outcome["verdict"] == "pass" else "skipped"
    assert states["gate"] == states["roll_out"] == passed
    # The run that Airflow tells of is one of Dagster's.
    dagster = Dagster(Endpoint(f"http://127.0.0.1:{platform.port}/graphql"))
    assert dagster.poll(outcome["run_id"], None).status == "SUCCESS"


@pytest.mark.parametrize(("name", "state"), [("waiting", "deferred"), ("holding", "running")])
def test_killing_a_task_cancels_its_run_and_ends_its_job(
    platform: Platform, standalone: tuple[Api, Popen[bytes]], name: str, state: str
) -> None:
    api, process = standalone
    dagster = Dagster(Endpoint(f"http://127.0.0.1:{platform.port}/graphql"))
    wait_for(lambda: api.call("GET", f"dags/{name}"), 180, process)
    run = api.call("POST", f"dags/{name}/dagRuns", {"logical_date": None})["dag_run_id"]
    task = f"dags/{name}/dagRuns/{run}/taskInstances/qualify"

    def state_of_task() -> str | None:
        return (api.call("GET", task) or {}).get("state")

    wait_for(lambda: state_of_task() == state, 180, process)
    told = wait_for(lambda: api.call("GET", f"{task}/xcomEntries/dagster_run_id"), 60, process)
    wait_for(platform.job_processes, 180, process)
    api.call("PATCH", task, {"new_state": "failed"})
    wait_for(lambda: dagster.poll(told["value"], None).status == "CANCELED", 120, process)
    wait_for(lambda: not platform.job_processes(), 60, process)
    assert state_of_task() == "failed"
