"""The assets of the warehouse: raw tables, dbt's models, and the published database.

What belongs here: the assets, and how dbt's nodes are named among them. What does not: loading,
building and publishing (`resilience_pipelines.warehouse`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import dagster as dg
from dagster_dbt import DagsterDbtTranslator, dbt_assets
from pydantic import Field

from assets import groups
from assets.faults import fault_runs
from assets.snapshots import snapshot_images
from assets.startup import startup_measurements
from resilience_pipelines.dagster_io.dbt_project import build_models, prepare_project
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.instance import WAREHOUSE_POOL
from resilience_pipelines.dagster_io.metadata import frame_table, row_counts, table
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.lineage.warehouse import load, publish
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.warehouse.landing import find_landings
from resilience_pipelines.warehouse.load import published_results
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.schema import MIGRATIONS, SIDE_TABLES

LANDING_DIGEST: Final = "landing_digest"
"""Metadata of a load: what the landing zone held just before it."""

PROJECT: Final = prepare_project(open_home())
_MANIFEST: Final = json.loads(PROJECT.manifest_path.read_text())


class Translator(DagsterDbtTranslator):
    """Names and groups of dbt's nodes among the assets."""

    def get_asset_key(self, dbt_resource_props: Mapping[str, Any]) -> dg.AssetKey:
        """`raw/<table>`, `staging/<model>` or `marts/<model>`."""
        return dg.AssetKey([_layer(dbt_resource_props), str(dbt_resource_props["name"])])

    def get_group_name(self, dbt_resource_props: Mapping[str, Any]) -> str:
        """The folder that the model lies in."""
        return _layer(dbt_resource_props)

    def get_description(self, dbt_resource_props: Mapping[str, Any]) -> str:
        """The description alone: the UI shows the SQL from the code reference."""
        return str(dbt_resource_props["description"])

    def get_owners(self, dbt_resource_props: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG002
        """Whoever answers for the warehouse."""
        return [groups.ANALYSTS]


def _layer(props: Mapping[str, Any]) -> str:
    return groups.LANDED if props["resource_type"] == "source" else str(props["fqn"][1])


_ASSETS: Final = {
    (str(node["schema"]), str(node["name"])): Translator().get_asset_key(node)
    for node in (*_MANIFEST["nodes"].values(), *_MANIFEST["sources"].values())
    if node["resource_type"] in ("model", "seed", "source")
}
"""The asset of each table of the warehouse, by its schema and name."""


def landing_digest(home: Home) -> str | None:
    """A hash over the names of all landing folders; None where there is none.

    The warehouse's version is in it: what an older release has loaded is loaded and published anew.
    """
    names = [folder.name for folder in find_landings(home.landing)]
    text = "\n".join((str(MIGRATIONS[-1].version), *names))
    return hashlib.sha256(text.encode()).hexdigest() if names else None


class LoadConfig(dg.Config):
    """What to load."""

    published_results: bool = Field(
        default=True,
        description="Whether the measured data sets that come with the project (results/) are "
        "loaded too. They are labelled by their stack and never mixed with other stacks.",
    )


RAW_TABLES: Final = tuple(sorted(str(source["name"]) for source in _MANIFEST["sources"].values()))
RUNS_KEY: Final = dg.AssetKey([groups.LANDED, "runs"])


@dg.multi_asset(
    name="raw_tables",
    specs=[
        dg.AssetSpec(
            [groups.LANDED, str(source["name"])],
            description=f"{source['description']}\n\nLoaded from "
            + (
                "files of the data home, as a whole each time."
                if source["name"] in SIDE_TABLES
                else "landing folders, each exactly once: everything here can be loaded again."
            ),
            deps=[snapshot_images, startup_measurements, fault_runs],
            group_name=groups.LANDED,
            owners=[groups.ANALYSTS],
            kinds={"duckdb"},
            tags={"cost": "seconds"},
        )
        for source in sorted(_MANIFEST["sources"].values(), key=lambda source: source["name"])
    ],
    pool=WAREHOUSE_POOL,
)
def raw_tables(config: LoadConfig, home: HomeResource) -> Iterator[dg.MaterializeResult[None]]:
    """Load new landing folders into the raw tables."""
    with failures():
        data_home = home.open()
        # Before the load: what lands during it is for the next one.
        digest = landing_digest(data_home)
        sources = [data_home.landing, *(published_results() if config.published_results else ())]
        report = load(data_home, sources)
        load_side_tables(data_home)
        rows = row_counts(data_home, groups.LANDED)
    facts: dict[str, Any] = {
        "loaded": len(report.loaded),
        "already_loaded": len(report.already),
        "rejected": table(
            {"folder": "string", "reason": "string"},
            [(str(folder), reason) for folder, reason in report.rejected],
        ),
    }
    for name in RAW_TABLES:
        extra = {**facts, LANDING_DIGEST: digest or ""} if name == RUNS_KEY.path[-1] else {}
        yield dg.MaterializeResult(
            asset_key=dg.AssetKey([groups.LANDED, name]),
            metadata={"dagster/row_count": rows[name], **extra},
        )


@dbt_assets(
    manifest=_MANIFEST,
    project=PROJECT,
    dagster_dbt_translator=Translator(),
    name="marts",
    pool=WAREHOUSE_POOL,
)
def marts(context: dg.AssetExecutionContext, home: HomeResource) -> Iterator[Any]:
    """Build the models with dbt and run their tests."""
    with failures():
        yield from build_models(context, PROJECT, home.open(), _ASSETS)


@dg.asset(
    deps=[
        dg.AssetKey(["marts", str(node["name"])])
        for node in _MANIFEST["nodes"].values()
        if node["resource_type"] in ("model", "seed") and node["fqn"][1] == "marts"
    ],
    group_name=groups.PUBLISHED,
    owners=[groups.ANALYSTS],
    kinds={"duckdb"},
    pool=WAREHOUSE_POOL,
    tags={"cost": "seconds"},
    description="The file that analysts and dashboards read: a copy of the marts, put in place in "
    "one step, so that no reader ever meets a lock or half a table.\n\n"
    '```\nresilience query "SELECT arm, n, median_s FROM startup_summary ORDER BY arm"\n```',
)
def published_database(home: HomeResource) -> dg.MaterializeResult[None]:
    """Copy the marts to the published file."""
    with failures():
        data_home = home.open()
        path = publish(data_home)
        summary = query(
            data_home,
            "select hardware_label, software_label, worker, basis, arm, n, median_s, ci_low_s, "
            "ci_high_s from startup_summary join stacks using (stack_key) "
            "order by worker, stack_key, median_s desc",
        )
        faults = query(
            data_home,
            "select planned_fault as fault, recovery, sum(n)::bigint as n, "
            "sum(n_pass)::bigint as passed, sum(n_fail)::bigint as failed "
            "from fault_summary group by all order by all",
        )
    return dg.MaterializeResult(
        metadata={
            "file": dg.MetadataValue.path(str(path)),
            "bytes": dg.MetadataValue.int(path.stat().st_size),
            "startup_summary": frame_table(summary),
            "fault_summary": frame_table(faults),
        }
    )
