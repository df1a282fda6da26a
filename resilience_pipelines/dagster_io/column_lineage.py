"""Which columns each column of a model comes from, as Dagster's UI draws it.

What belongs here: reading the SQL that dbt compiled. What does not: running dbt (`dbt_project`) and
the names of the assets (`assets.warehouse`).

dagster-dbt can draw the same, through a connection of its own to the warehouse, which DuckDB
refuses while dbt has the file open. The compiled SQL and a list of columns are all that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from sqlglot import exp, parse_one
from sqlglot.lineage import Node, lineage
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope

_DIALECT = "duckdb"

Relation = tuple[str, str]
"""Schema and table."""
Columns = dict[str, dict[str, dict[str, str]]]
"""Type of each column, by schema, table and column."""


def column_lineage(
    compiled: Path,
    relation: Relation,
    columns: Columns,
    assets: Mapping[Relation, dg.AssetKey],
) -> dg.TableColumnLineage:
    """The columns that each column of a model is computed from.

    Args:
        compiled: the model's SQL as dbt compiled it.
        relation: the model's own table.
        columns: those of all tables of the warehouse.
        assets: the asset of each table; a column of any other table is left out.

    Raises:
        sqlglot.errors.SqlglotError: the SQL can't be read.
        OSError: the file can't be.
    """
    query = qualify(
        parse_one(compiled.read_text(), dialect=_DIALECT),
        schema=dict(columns),
        dialect=_DIALECT,
        validate_qualify_columns=False,
        quote_identifiers=False,
    )
    scope = build_scope(query)

    def origins(column: str) -> list[dg.TableColumnDep]:
        graph = lineage(column, query, schema={}, dialect=_DIALECT, scope=scope)
        found = {dep for node in graph.walk() if (dep := _dep(node, assets)) is not None}
        return sorted(found, key=lambda dep: (dep.asset_key, dep.column_name))

    schema, table = relation
    return dg.TableColumnLineage({column: origins(column) for column in columns[schema][table]})


def _dep(node: Node, assets: Mapping[Relation, dg.AssetKey]) -> dg.TableColumnDep | None:
    """The column of a table that a leaf of the graph stands for; None for any other node."""
    if not isinstance(node.source, exp.Table):
        return None
    key = assets.get((node.source.db, node.source.name))
    return dg.TableColumnDep(key, node.name.split(".")[-1]) if key is not None else None
