"""docs/operations.md: a backup of the landing folders and of what people decided is everything."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from resilience_pipelines.home import Home
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.trends.decisions import FILE, Choice, decide
from resilience_pipelines.warehouse.landing import find_landings
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.transform import build
from tests.factories import RecordFactory, land, make_home, make_stack
from tests.integration.test_analysts_page import BLOCKS

SAMPLES = 150_000
"""Of one run: more than DuckDB gives one thread at once."""


def rebuild(home: Home, sources: Sequence[Path]) -> None:
    for source in sources:
        assert load(home, [source]).rejected == ()
    load_side_tables(home)
    build(home)
    publish(home, parquet=True)


def test_a_restored_backup_gives_every_mart_and_every_query_to_the_last_byte(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = make_home(tmp_path_factory.mktemp("first") / "home")
    factory = RecordFactory(9)
    for stack in (make_stack(), make_stack(kernel_version="6.18.0")):
        record = factory.startup_record(4, stack=stack)
        samples = factory.samples(record)
        many = pl.concat([samples] * (SAMPLES // len(samples)))
        land(home.landing, record, samples=many.with_columns(at_s=pl.int_range(len(many)) / 10))
        land(home.landing, factory.fault_record(2, stack=stack))
    decide(home, "0123456789ab", Choice.NOTED, "seen", "ada")
    rebuild(home, [home.landing])
    (home.landing / ".incoming" / "half").mkdir(parents=True, exist_ok=True)

    restored = make_home(tmp_path_factory.mktemp("second") / "home")
    shutil.copytree(
        home.landing, restored.landing, ignore=shutil.ignore_patterns(".incoming"),
        dirs_exist_ok=True,
    )  # fmt: skip
    shutil.copy(home.root / FILE, restored.root / FILE)
    # Not in the order in which the first home met them.
    rebuild(restored, sorted(find_landings(restored.landing), reverse=True))

    marts = query(home, "select table_name from duckdb_tables() order by 1")["table_name"]
    assert len(marts) > 20
    for mart in marts:
        # When a run was loaded is the one thing that a second load can't know.
        sql = f"select {'* exclude (loaded_at)' if mart == 'runs' else '*'} from {mart}"
        assert query(restored, sql).equals(query(home, sql)), mart
        if mart != "runs":
            first, second = (
                (each.published.parent / "parquet" / f"{mart}.parquet").read_bytes()
                for each in (home, restored)
            )
            assert first == second, mart
    for sql in BLOCKS:
        assert query(restored, sql).write_json() == query(home, sql).write_json(), sql
    assert len(query(restored, "from startup_measurements")) == 32
    assert len(query(restored, "from samples")) > SAMPLES
