"""What launchers saw reaches the marts, landed or not, with the starts that each pod measured."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from resilience_pipelines.home import Home
from resilience_pipelines.launches import LaunchRecord, write_launch
from resilience_pipelines.records import Arm, Basis, Phase
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.transform import build
from tests.factories import EPOCH, RecordFactory, land, make_home

LOST = "20260302T090000Z-startup-0000000a"


def launch(run_id: str, *, failure: str | None = None) -> LaunchRecord:
    phases = [("pod_created", 0.0, 0.0), ("scheduled", 0.0, 1.0), ("container_start", 1.0, 4.0)]
    return LaunchRecord(
        run_id=run_id, launcher="kubernetes", worker="reference", basis=Basis.SIMULATED,
        launched_at=EPOCH, ended_at=EPOCH + timedelta(seconds=60), landed=failure is None,
        failure=failure, namespace="resilience", job_name=f"resilience-{run_id.lower()}",
        node="node-1", phases=tuple(
            Phase(name=name, start_s=start, duration_s=took, clock="kubelet", resolution_s=1.0)
            for name, start, took in phases
        ),
        notices=("a notice",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = make_home(tmp_path_factory.mktemp("launches") / "home")
    record = RecordFactory(3).startup_record(2, arms=[Arm.COLD, Arm.WARM_CACHE])
    land(home.landing, record)
    write_launch(home, launch(record.run_id), {"events.json": "[]"})
    write_launch(home, launch(LOST, failure="Unschedulable"), {})
    load(home)
    load_side_tables(home)
    build(home)
    publish(home)
    return home


def test_every_launch_is_there_landed_or_not(home: Home) -> None:
    found = {row["run_id"]: row for row in query(home, "from launches").to_dicts()}
    assert len(found) == 2
    assert found[LOST]["failure"] == "Unschedulable"
    assert found[LOST]["stack_key"] is None
    [landed] = [row for run_id, row in found.items() if run_id != LOST]
    assert landed["stack_key"]
    assert landed["notices"] == ["a notice"]


def test_the_pod_s_phases_stand_beside_those_of_its_starts(home: Home) -> None:
    rows = query(home, "from launch_phases order by position_in_part").to_dicts()
    pod = [row for row in rows if row["part"] == "pod" and row["run_id"] != LOST]
    assert [row["phase"] for row in pod] == ["pod_created", "scheduled", "container_start"]
    assert {row["resolution_s"] for row in pod} == {1.0}
    starts = {row["measurement_id"] for row in rows if row["part"] == "start"}
    assert len(starts) == 4


def test_a_fake_s_launch_stays_simulated(home: Home) -> None:
    assert query(home, "select distinct basis from launches")["basis"].to_list() == ["simulated"]


def test_a_launch_that_can_t_be_read_is_named(tmp_path: Path) -> None:
    from resilience_pipelines.errors import CorruptError
    from resilience_pipelines.launches import read_launches

    home = make_home(tmp_path / "home")
    write_launch(home, launch(LOST), {})
    (home.launches / LOST / "launch.json").write_text("{")
    with pytest.raises(CorruptError, match=LOST):
        read_launches(home)
