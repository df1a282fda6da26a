"""A new driver release: qualify it on a machine that has it, and gate the rollout.

What belongs here: an example to copy, and to be given a schedule. `PARTITION` is the machine with
the new driver, as `resilience stack` there names it. The rollout itself is a placeholder: put your
own in its place.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowSkipException

from resilience_pipelines.airflow.operators import DagsterMaterializeOperator

PARTITION = os.environ.get("QUALIFY_PARTITION", "gpu-h200|vllm-0.24.0-driver-590")
REPEATS = int(os.environ.get("QUALIFY_REPEATS", "5"))
FEED = os.environ.get("QUALIFY_FEED", "driver")
STATES = os.environ.get("QUALIFY_STATES", "available").split(",")
"""`available`: a machine has the release, and nobody has measured it yet."""
ARMS = os.environ.get("QUALIFY_ARMS", "cold,warm_cache,sleep_wake,restore").split(",")


@dag(schedule=None, catchup=False, tags=["resilience"], doc_md=__doc__)
def qualify_driver() -> None:
    """New driver release -> qualify -> gate the rollout."""
    releases = DagsterMaterializeOperator(
        task_id="read_releases",
        assets=["releases"],
        run_config={"ops": {"releases": {"config": {"feeds": [FEED]}}}},
        poll_interval_s=5,
    )

    @task
    def new_release(found: dict[str, Any]) -> str:
        """The newest release to qualify; the rest is skipped where there is none."""
        for release in found["figures"]["releases"].get(f"releases_of_{FEED}", []):
            if release["state"] in STATES and not release["withdrawn"]:
                return str(release["version"])
        raise AirflowSkipException(f"No release of {FEED} is {' or '.join(STATES)}.")

    machine = DagsterMaterializeOperator(task_id="read_machine", assets=["stacks"])
    qualify = DagsterMaterializeOperator(
        task_id="qualify",
        assets=["startup_measurements"],
        partition=PARTITION,
        run_config={
            "ops": {"startup_measurements": {"config": {"repeats": REPEATS, "arms": ARMS}}}
        },
        poll_interval_s=5,
    )

    @task
    def gate(found: dict[str, Any]) -> str:
        """Let through what passed; a warning is for a person to look at."""
        if found["verdict"] != "pass":
            raise AirflowSkipException(f"The rollout waits: {found['verdict']}, {found['checks']}")
        return str(found["run_id"])

    @task
    def roll_out(version: str, run_id: str) -> str:
        """Put your own rollout here."""
        return f"rolled out {FEED} {version}, qualified by Dagster run {run_id}"

    version = new_release(releases.output)
    version >> machine >> qualify
    roll_out(version, gate(qualify.output))


qualify_driver()
