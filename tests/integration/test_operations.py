"""docs/operations.md: a backup of the landing folders and of what people decided is everything."""

from __future__ import annotations

import shutil

import pytest

from resilience_pipelines.home import Home
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.trends.decisions import FILE, Choice, decide
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.transform import build
from tests.factories import RecordFactory, land, make_home, make_stack


def rebuild(home: Home) -> None:
    assert load(home).rejected == ()
    load_side_tables(home)
    build(home)
    publish(home)


def test_a_restored_backup_gives_the_same_rows_in_every_mart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = make_home(tmp_path_factory.mktemp("first") / "home")
    factory = RecordFactory(9)
    for stack in (make_stack(), make_stack(kernel_version="6.18.0")):
        record = factory.startup_record(4, stack=stack)
        land(home.landing, record, samples=factory.samples(record))
        land(home.landing, factory.fault_record(2, stack=stack))
    decide(home, "0123456789ab", Choice.NOTED, "seen", "ada")
    rebuild(home)
    (home.landing / ".incoming" / "half").mkdir(parents=True, exist_ok=True)

    restored = make_home(tmp_path_factory.mktemp("second") / "home")
    shutil.copytree(
        home.landing, restored.landing, ignore=shutil.ignore_patterns(".incoming"),
        dirs_exist_ok=True,
    )  # fmt: skip
    shutil.copy(home.root / FILE, restored.root / FILE)
    rebuild(restored)

    marts = query(home, "select table_name from duckdb_tables() order by 1")["table_name"]
    assert len(marts) > 20
    for mart in marts:
        # When a run was loaded is the one thing that a second load can't know.
        columns = "* exclude (loaded_at)" if mart == "runs" else "*"
        sql = f"select {columns} from {mart} order by all"
        assert query(restored, sql).equals(query(home, sql)), mart
    assert len(query(restored, "from startup_measurements")) == 32
