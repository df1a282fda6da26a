"""Functions that the marts' SQL calls, registered by dbt-duckdb when it opens the warehouse.

What belongs here: the bridge from SQL to `trends`. What does not: any statistics, and
the marts (`dbt/`).

In SQL: `median_ci(list of double)`, `mean_ci(list of double)`, `ratio_ci(list of double, list of
double)` and `difference_ci`, with the same lists, give a struct of `low` and `high`, or null where
there is no interval. `level_changes(list of double, list of varchar)` gives a list of structs with
the fields of `significance.Change`, their positions from 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
from dbt.adapters.duckdb.plugins import BasePlugin
from duckdb.func import FunctionNullHandling

from resilience_pipelines.trends.significance import changes_of
from resilience_pipelines.trends.statistics import (
    Interval,
    difference_of_medians_ci,
    mean_ci,
    median_ci,
    ratio_of_medians_ci,
)


class Plugin(BasePlugin):
    """The name by which dbt-duckdb finds a plugin in a module."""

    def configure_connection(self, conn: duckdb.DuckDBPyConnection) -> None:
        """Called by dbt-duckdb with each connection it opens."""
        register(conn)


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the functions known to a connection."""
    values = connection.list_type("DOUBLE")
    bounds = connection.struct_type({"low": "DOUBLE", "high": "DOUBLE"})
    connection.create_function(
        "median_ci", _median_ci, [values], bounds, null_handling=FunctionNullHandling.SPECIAL
    )
    connection.create_function(
        "mean_ci", _mean_ci, [values], bounds, null_handling=FunctionNullHandling.SPECIAL
    )
    for name, function in (("ratio_ci", _ratio_ci), ("difference_ci", _difference_ci)):
        connection.create_function(
            name, function, [values, values], bounds, null_handling=FunctionNullHandling.SPECIAL
        )
    change = {
        "position": "BIGINT", "n_before": "BIGINT", "n_after": "BIGINT",
        "before": "DOUBLE", "after": "DOUBLE",
        "fraction": "DOUBLE", "low": "DOUBLE", "high": "DOUBLE", "threshold": "DOUBLE",
        "significant": "BOOLEAN", "relevant": "BOOLEAN",
    }  # fmt: skip
    connection.create_function(
        "level_changes",
        _level_changes,
        [values, connection.list_type("VARCHAR")],
        connection.list_type(connection.struct_type(change)),
        null_handling=FunctionNullHandling.SPECIAL,
    )


def _median_ci(values: Sequence[float] | None) -> dict[str, float] | None:
    return _bounds(median_ci(values or ()))


def _mean_ci(values: Sequence[float] | None) -> dict[str, float] | None:
    return _bounds(mean_ci(values or ()))


def _ratio_ci(
    numerator: Sequence[float] | None, denominator: Sequence[float] | None
) -> dict[str, float] | None:
    return _bounds(ratio_of_medians_ci(numerator or (), denominator or ()))


def _difference_ci(
    values: Sequence[float] | None, less: Sequence[float] | None
) -> dict[str, float] | None:
    return _bounds(difference_of_medians_ci(values or (), less or ()))


def _level_changes(
    values: Sequence[float] | None, runs: Sequence[str] | None
) -> list[dict[str, object]]:
    return [
        {
            "position": change.index + 1,  # as lists are counted in SQL
            "n_before": change.n_before,
            "n_after": change.n_after,
            "before": change.before,
            "after": change.after,
            "fraction": change.fraction,
            "low": change.low,
            "high": change.high,
            "threshold": change.threshold,
            "significant": change.significant,
            "relevant": change.relevant,
        }
        for change in changes_of(values or (), runs or ())
    ]


def _bounds(interval: Interval | None) -> dict[str, float] | None:
    return {"low": interval.low, "high": interval.high} if interval else None
