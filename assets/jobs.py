"""Jobs: selections of assets that are run together.

What belongs here: their names and what they select. What does not: when they run (`schedules`,
`sensors`).

Steps of a run go one after the other in the run's own process: what takes long has a process of its
own all the same, and a measurement beside another step would measure that step.
"""

from __future__ import annotations

import dagster as dg

from assets.dashboard import dashboard
from assets.faults import fault_runs
from assets.releases import releases
from assets.retention import prune_snapshots
from assets.snapshots import snapshot_images
from assets.startup import startup_measurements
from assets.warehouse import marts, published_database, raw_tables

_WAREHOUSE = dg.AssetSelection.assets(raw_tables, marts, published_database, dashboard)

main_job = dg.define_asset_job(
    "main_job",
    selection=dg.AssetSelection.all() - dg.AssetSelection.assets(releases),
    description="Everything, for this machine: its stack, a snapshot, start-up measurements and "
    "fault runs, then the warehouse, the published database and the dashboard.",
)

take_snapshot = dg.define_asset_job(
    "take_snapshot",
    selection=dg.AssetSelection.assets(snapshot_images),
    description="Take a snapshot of a worker on this machine, and verify it.",
)

measure_startup = dg.define_asset_job(
    "measure_startup",
    selection=dg.AssetSelection.assets(startup_measurements),
    description="Measure how fast a worker comes back on this machine, by each arm.",
)

inject_faults = dg.define_asset_job(
    "inject_faults",
    selection=dg.AssetSelection.assets(fault_runs),
    description="Run the fault experiments on this machine.",
)

refresh_warehouse = dg.define_asset_job(
    "refresh_warehouse",
    selection=_WAREHOUSE,
    description="Load what landed, build the marts, publish them and write the dashboard. Measures "
    "nothing.",
)

refresh_dashboard = dg.define_asset_job(
    "refresh_dashboard",
    selection=dg.AssetSelection.assets(dashboard),
    description="Write the dashboard from the published database.",
)

read_releases = dg.define_asset_job(
    "read_releases",
    selection=dg.AssetSelection.assets(releases),
    description="Read the release feeds of drivers, engines and tools. Needs a way to them.",
)

JOBS = (
    main_job, take_snapshot, measure_startup, inject_faults, refresh_warehouse, refresh_dashboard,
    read_releases, prune_snapshots,
)  # fmt: skip
