"""Warehouses and landing folders that earlier versions wrote open with this one.

`data/earlier_versions/<schema>/` was written by the code of the commit that brought that version of
the warehouse's schema (its README says which): some landing folders, labelled simulated, and the
warehouse that they were loaded into.
"""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import duckdb
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from resilience_pipelines.errors import CorruptError
from resilience_pipelines.home import Home
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.warehouse.landing import find_landings, read_landing
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.schema import RECORD_TABLES, SIDE_TABLES
from tests.factories import RecordFactory, land, make_home

DATA = Path(__file__).parent / "data" / "earlier_versions"
VERSIONS = sorted(path.name for path in DATA.iterdir() if path.is_dir())
UNFINISHED = "3a"  # its version got more tables before it was finished


def home_of(version: str, root: Path, *, warehouse: bool) -> Home:
    home = make_home(root)
    shutil.copytree(DATA / version / "landing", home.landing, dirs_exist_ok=True)
    if warehouse:
        packed = (DATA / version / "warehouse.duckdb.xz").read_bytes()
        home.warehouse.write_bytes(lzma.decompress(packed))
    return home


def tables(home: Home) -> dict[str, pl.DataFrame]:
    with duckdb.connect(str(home.warehouse), read_only=True) as connection:
        names = ("stacks", "samples", *RECORD_TABLES, *SIDE_TABLES)
        return {
            name: connection.sql(f"select * exclude (loaded_at, folder) from raw.{name}").pl()
            if name == "runs"
            else connection.sql(f"select * from raw.{name}").pl()
            for name in names
        }


def test_there_is_a_warehouse_of_each_version_up_to_the_fifth() -> None:
    assert {int(name.rstrip("ab")) for name in VERSIONS} >= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_landing_folder_is_read(version: str) -> None:
    folders = list(find_landings(DATA / version / "landing"))
    assert len(folders) >= 2
    for folder in folders:
        assert read_landing(folder).record.run_id == folder.name


@pytest.mark.parametrize("version", [name for name in VERSIONS if name != UNFINISHED])
def test_a_warehouse_goes_on_as_if_this_version_had_made_it(version: str, tmp_path: Path) -> None:
    old = home_of(version, tmp_path / "old", warehouse=True)
    new = home_of(version, tmp_path / "new", warehouse=False)
    report = load(old)
    assert (report.loaded, report.rejected) == ((), ())
    assert len(load(new).loaded) == len(report.already) >= 2
    factory = RecordFactory(7)
    record = factory.record(
        startups=[factory.startup()],
        compatibility=[factory.compatibility_trial()],
        collectives=[factory.collective()],
    )
    for home in (old, new):
        land(home.landing, record)
        assert len(load(home).loaded) == 1
        load_side_tables(home)
    found, wanted = tables(old), tables(new)
    for name in wanted:
        assert_frame_equal(found[name], wanted[name], check_row_order=False)


def test_a_warehouse_of_an_unfinished_schema_is_refused_and_made_again(tmp_path: Path) -> None:
    home = home_of(UNFINISHED, tmp_path, warehouse=True)
    with pytest.raises(CorruptError, match=r"no table raw\.baselines") as caught:
        load(home)
    assert "Move the file away" in str(caught.value.mend)
    home.warehouse.rename(tmp_path / "away.duckdb")
    assert len(load(home).loaded) >= 2
