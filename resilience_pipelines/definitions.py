"""The code location: all definitions, put together for Dagster's tools.

What belongs here: which definitions there are, and their default resources. What does not: any
definition.
"""

from __future__ import annotations

import dagster as dg

from assets.checks import CHECKS
from assets.dashboard import dashboard
from assets.faults import fault_runs
from assets.jobs import JOBS
from assets.releases import releases
from assets.schedules import SCHEDULES
from assets.sensors import SENSORS
from assets.snapshots import snapshot_images
from assets.stacks import stacks
from assets.startup import startup_measurements
from assets.warehouse import marts, published_database, raw_tables
from resilience_pipelines.dagster_io.launcher import ChosenLauncher
from resilience_pipelines.dagster_io.resources import HomeResource

defs = dg.Definitions(
    assets=[
        stacks,
        releases,
        snapshot_images,
        startup_measurements,
        fault_runs,
        raw_tables,
        marts,
        published_database,
        dashboard,
    ],
    asset_checks=CHECKS,
    jobs=JOBS,
    schedules=SCHEDULES,
    sensors=SENSORS,
    resources={"home": HomeResource(), "launcher": ChosenLauncher()},
    executor=dg.in_process_executor,
)
