"""Metrics of the platform itself, in the text format of Prometheus.

What belongs here: what an operator watches (does work pile up, is what analysts read fresh, is
there room) and the newest figures, from the data home and the published file. What does not:
samples of a run (`telemetry`), and serving the text: node_exporter's textfile collector does.

Each metric that needs the published file is left out until there is one; its age then says so.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from resilience_pipelines.durability import replace_text
from resilience_pipelines.errors import StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.running_jobs import running_stacks
from resilience_pipelines.snapshots.settings import open_store
from resilience_pipelines.warehouse.query import query

_PREFIX: Final = "resilience_"

_COUNTS: Final = {
    "runs": (
        "Jobs in the published file.",
        "select kind, worker, basis, count(*) from runs group by all order by all",
    ),
    "startups": (
        "Starts of workers in the published file.",
        "select worker, basis, arm, coalesce(variant, '') as variant, result, count(*) "
        "from startup_measurements group by all order by all",
    ),
    "fault_experiments": (
        "Fault experiments in the published file, control arms apart.",
        "select worker, basis, fault, control::text as control, verdict, count(*) "
        "from fault_runs group by all order by all",
    ),
    "releases": (
        "Known releases, by how far they have come here.",
        "select feed, state, count(*) from releases group by all order by all",
    ),
    "startup_median_seconds": (
        "Median of right starts of an arm on a stack.",
        "select worker, basis, stack_key, arm, median_s from startup_summary "
        "where median_s is not null order by all",
    ),
}
"""Metric -> what it is, and a query whose last column is its value and whose others are labels."""


def exposition(home: Home) -> str:
    """All metrics, as Prometheus reads them.

    Raises:
        StorageError, CorruptError: the published file can't be read.
    """
    registry = CollectorRegistry()

    def gauge(name: str, description: str, value: float) -> None:
        Gauge(_PREFIX + name, description, registry=registry).set(value)

    landed = {folder.name for folder in home.landing.glob("date=*/*")}
    gauge("landing_folders", "Landing folders of this data home.", len(landed))
    gauge("running_jobs", "Jobs that are measuring at this moment.", len(running_stacks(home)))
    gauge(
        "home_free_bytes", "Free space where the data home lies.", shutil.disk_usage(home.root).free
    )
    stored = [snapshot.manifest.image_bytes for snapshot in open_store(home).all()]
    gauge("snapshots", "Snapshots in the local store.", len(stored))
    gauge("snapshot_bytes", "Bytes of their images.", sum(stored))
    if home.warehouse.is_file():
        gauge("warehouse_bytes", "Size of the warehouse.", home.warehouse.stat().st_size)
    if home.published.is_file():
        known = set(query(home, "select run_id from runs")["run_id"])
        gauge("unpublished_runs", "Landed runs that analysts can't see yet.", len(landed - known))
        gauge(
            "published_timestamp_seconds", "When the published file was replaced last.",
            home.published.stat().st_mtime,
        )  # fmt: skip
        for name, (description, sql) in _COUNTS.items():
            found = query(home, sql)
            labels = found.columns[:-1]
            figures = Gauge(_PREFIX + name, description, labels, registry=registry)
            for *values, figure in found.iter_rows():
                figures.labels(*values).set(figure)
    return generate_latest(registry).decode()


def write_exposition(home: Home, path: Path) -> None:
    """Write all metrics to a file in one step, so that a collector never reads half of it.

    Raises:
        StorageError: it can't be written; and as `exposition` raises.
    """
    text = exposition(home)
    try:
        replace_text(path, text, mode=0o644)
    except OSError as error:
        raise StorageError(f"{path} can't be written: {error}.") from error
