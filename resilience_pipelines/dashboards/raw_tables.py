"""The data behind the page's tables, as they are downloaded: the marts' rows, unrounded.

What belongs here: which rows and columns a table's CSV has. What does not: the tables as the page
shows them (`tables`), and the data of charts (`figures`, `fault_figures`, `trend_figure`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from resilience_pipelines.dashboards.charts import Table
from resilience_pipelines.dashboards.data import Scope
from resilience_pipelines.dashboards.rows import (
    CriuColumns,
    Row,
)
from resilience_pipelines.dashboards.tables import RIGHT
from resilience_pipelines.records import Arm, Outcome


def raw_tables(scope: Scope, most: Mapping[str, int]) -> dict[str, Table]:
    """Name -> data of every table of a scope that has rows.

    Args:
        most: name -> how many rows the page shows; the data has as many.
    """
    rows: dict[str, Sequence[Row]] = {
        "arms": scope.variants,
        "changes": scope.change_points,
        "verdicts": scope.fault_summary,
        "scores": scope.fault_scores,
        "coverage": scope.coverage,
        "economics": scope.economics,
        "fanout": scope.fanout,
        "snapshots": scope.snapshots,
        "compatibility": scope.compatibility,
        "quality": scope.quality,
        "runs": scope.runs,
    }
    made = {name: _table(of[: most.get(name)]) for name, of in rows.items() if of}
    criu = _criu(scope)
    return made | ({"criu": criu} if criu.rows else {})


def _table(rows: Sequence[Row]) -> Table:
    columns = tuple(type(rows[0]).model_fields)
    return Table(
        columns,
        tuple(
            tuple(_cell(values[name]) for name in columns)
            for values in (row.model_dump(mode="json") for row in rows)
        ),
    )


def _criu(scope: Scope) -> Table:
    """CRIU's statistics of each dump and each right restore."""
    names = tuple(CriuColumns.model_fields)
    measured: list[tuple[str, str, str, CriuColumns]] = [
        ("dump", row.run_id, row.measurement_id, row)
        for row in scope.snapshots
        if row.outcome == Outcome.OK
    ]
    measured += [
        ("restore", row.run_id, row.measurement_id, row)
        for row in scope.startups
        if row.arm == Arm.RESTORE and row.result == RIGHT
    ]
    return Table(
        ("what", "run_id", "measurement_id", *names),
        tuple((*start, *(getattr(row, name) for name in names)) for *start, row in measured),
    )


def _cell(value: object) -> str | int | float | None:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False)
