"""The provider for Apache Airflow: qualify a release in a DAG (docs/airflow.md).

What belongs here: operators, triggers and a sensor that drive the platform from Airflow. What does
not: anything that imports the platform, or Dagster. Both have pins that Airflow's exclude, so that
this package needs Airflow and the HTTP client that Airflow brings, and nothing else.
"""

from __future__ import annotations

from typing import Any

from resilience_pipelines import __version__


def get_provider_info() -> dict[str, Any]:
    """What Airflow's entry point `apache_airflow_provider` asks for."""
    package = "resilience_pipelines.airflow"
    name = "Resilience pipelines"
    return {
        "package-name": "resilience-pipelines",
        "name": name,
        "description": "Resilience benchmarks of GPU inference, through Dagster or directly.",
        "versions": [__version__],
        "operators": [{"integration-name": name, "python-modules": [f"{package}.operators"]}],
        "sensors": [{"integration-name": name, "python-modules": [f"{package}.sensors"]}],
        "triggers": [{"integration-name": name, "python-modules": [f"{package}.triggers"]}],
    }
