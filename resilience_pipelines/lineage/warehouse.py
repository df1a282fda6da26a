"""Lineage of the warehouse: from landing folders to raw tables, marts and the published copy.

What belongs here: `load`, `build` and `publish` with their lineage, and what dbt's own files tell
of a build. What does not: loading, building and publishing (`resilience_pipelines.warehouse`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from resilience_pipelines.home import Home
from resilience_pipelines.lineage.event import (
    Column,
    DataSet,
    Event,
    RunName,
    State,
    folder_of,
    table_of,
)
from resilience_pipelines.lineage.span import Facts, Span, span
from resilience_pipelines.warehouse import load as loading
from resilience_pipelines.warehouse import publish as publishing
from resilience_pipelines.warehouse import transform
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.schema import RECORD_TABLES

LOADED_TABLES: Final = (*RECORD_TABLES, "stacks", "samples")

_TYPES: Final = {"model": "MODEL", "seed": "SEED"}
_STATES: Final = {
    "success": State.COMPLETE,
    "error": State.FAIL,
    "fail": State.FAIL,
    "partial success": State.FAIL,
}


def load(home: Home, sources: Sequence[Path] | None = None) -> loading.LoadReport:
    """`warehouse.load.load`, told of."""
    with span("load") as now:
        report = loading.load(home, sources)
        now.find = lambda: _load_facts(home, report)
        return report


def _load_facts(home: Home, report: loading.LoadReport) -> Facts:
    if not report.loaded:
        return Facts()
    return Facts(
        inputs=tuple(folder_of(folder) for folder in report.loaded),
        outputs=tuple(table_of(home.warehouse, "raw", name) for name in LOADED_TABLES),
        tags={"loaded": str(len(report.loaded)), "rejected": str(len(report.rejected))},
    )


def build(home: Home) -> transform.BuildReport:
    """`warehouse.transform.build`, told of."""
    with build_lineage(home, home.dbt / "target"):
        return transform.build(home)


def publish(home: Home, *, parquet: bool = False) -> Path:
    """`warehouse.publish.publish`, told of."""
    with span("publish") as now:
        path = publishing.publish(home, parquet=parquet)
        now.find = lambda: _publish_facts(home)
        return path


def _publish_facts(home: Home) -> Facts:
    columns: dict[str, list[Column]] = {}
    for table, column, kind, comment in query(
        home,
        "select table_name, column_name, data_type, comment from duckdb_columns() "
        "where database_name = current_database() and schema_name = 'main' and not internal "
        "order by table_name, column_index",
    ).iter_rows():
        columns.setdefault(table, []).append(Column(column, kind, comment))
    return Facts(
        inputs=tuple(table_of(home.warehouse, "main", table) for table in columns),
        outputs=tuple(
            table_of(home.published, "main", table, tuple(found))
            for table, found in columns.items()
        ),
    )


@contextmanager
def build_lineage(home: Home, target: Path) -> Iterator[None]:
    """Tell of a build of dbt's that is the block, and of each model in it.

    Args:
        target: the folder in which dbt leaves `manifest.json` and `run_results.json`.
    """
    with span("dbt.build") as now:
        now.find = lambda: _build_facts(home, target, now)
        yield


def _build_facts(home: Home, target: Path, now: Span) -> Facts:
    manifest = json.loads((target / "manifest.json").read_text())
    results = json.loads((target / "run_results.json").read_text())["results"]
    nodes: dict[str, Any] = {**manifest["nodes"], **manifest["sources"]}
    inputs: dict[DataSet, None] = {}
    outputs: dict[DataSet, None] = {}
    parts: list[Event] = []
    for result in results:
        node = nodes.get(result["unique_id"])
        job_type = _TYPES.get(node["resource_type"]) if node else None
        timing = _timing(result)
        # What an earlier build left is not of this one.
        if node is None or job_type is None or timing is None or timing[0] < now.started_at:
            continue
        read = tuple(_table(home, nodes[name]) for name in _tables_read(node, nodes))
        made = _table(home, node)
        run = RunName(f"dbt.{node['schema']}.{node['name']}", str(uuid.uuid4()))
        state = _STATES.get(result["status"], State.ABORT)
        error = None if state is State.COMPLETE else str(result["status"])
        parts.append(Event(State.START, timing[0], run, job_type, now.run))
        parts.append(
            Event(state, timing[1], run, job_type, now.run, read, (made,), error=error),
        )
        inputs.update(dict.fromkeys(read))
        outputs[made] = None
    return Facts(
        tuple(item for item in inputs if item not in outputs), tuple(outputs), parts=tuple(parts)
    )


def _tables_read(node: Mapping[str, Any], nodes: Mapping[str, Any]) -> list[str]:
    return [name for name in node.get("depends_on", {}).get("nodes", ()) if name in nodes]


def _table(home: Home, node: Mapping[str, Any]) -> DataSet:
    columns = tuple(
        Column(column["name"], column.get("data_type"), column.get("description") or None)
        for column in node["columns"].values()
    )
    name = node.get("identifier") or node.get("alias") or node["name"]
    return table_of(home.warehouse, node["schema"], name, columns)


def _timing(result: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    """When a node was begun and ended; None where it was not executed."""
    for part in result.get("timing", ()):
        if part["name"] == "execute" and part.get("started_at") and part.get("completed_at"):
            begin, end = (
                datetime.fromisoformat(part[name]) for name in ("started_at", "completed_at")
            )
            return _utc(begin), _utc(end)
    return None


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
