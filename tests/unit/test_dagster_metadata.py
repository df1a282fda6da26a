"""What the Dagster UI shows of a record: the figures are right and the plots are drawings."""

from __future__ import annotations

import base64
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import dagster as dg
import pytest

from resilience_pipelines.dagster_io.metadata import (
    Metadata,
    fault_metadata,
    snapshot_metadata,
    startup_metadata,
)
from resilience_pipelines.dagster_io.plots import Bar, draw_bars
from resilience_pipelines.records import Arm, RunKind, Verdict
from resilience_pipelines.trends.statistics import median_ci
from resilience_pipelines.warehouse.landing import LandedRun, read_landing
from tests.factories import DIFFERENT, RecordFactory, land

SVG = "{http://www.w3.org/2000/svg}"


def rows(metadata: Metadata, name: str) -> list[dict[str, Any]]:
    value = metadata[name]
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(record.data) for record in value.records]


def image(metadata: Metadata, name: str) -> ElementTree.Element:
    value = metadata[name]
    assert isinstance(value, dg.MarkdownMetadataValue)
    encoded = value.md_str.split("data:image/svg+xml;base64,")[1].removesuffix(")")
    return ElementTree.fromstring(base64.b64decode(encoded))


def texts(drawing: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in drawing.iter(f"{SVG}text")]


@pytest.fixture
def factory() -> RecordFactory:
    return RecordFactory()


def landed(tmp_path: Path, record: Any) -> LandedRun:
    return read_landing(land(tmp_path, record))


def test_an_arm_is_given_by_n_median_and_interval_of_its_right_starts(
    tmp_path: Path, factory: RecordFactory
) -> None:
    totals = [3.0, 5.0, 4.0, 9.0, 4.5]
    starts = [factory.startup(Arm.RESTORE, i, total_s=t) for i, t in enumerate(totals)]
    wrong = factory.startup(Arm.RESTORE, 9, total_s=0.1, oracle=DIFFERENT)
    failed = factory.failed_startup(Arm.RESTORE, 10)
    record = factory.record(startups=[*starts, wrong, failed])
    metadata = startup_metadata(landed(tmp_path, record))
    [row] = rows(metadata, "arms")
    interval = median_ci(totals)
    assert interval is not None
    assert (row["arm"], row["n"], row["failed"]) == ("restore", 5, 2)
    assert row["median_s"] == 4.5
    assert row["ci_low_s"] == pytest.approx(interval.low, rel=1e-3)
    assert row["ci_high_s"] == pytest.approx(interval.high, rel=1e-3)
    assert (row["min_s"], row["max_s"]) == (3.0, 9.0)
    assert metadata["median_s_restore"].value == 4.5


def test_restore_is_compared_with_cold_and_with_the_best_other_start(
    tmp_path: Path, factory: RecordFactory
) -> None:
    record = factory.startup_record(
        totals_s={
            Arm.COLD: [40.0, 40.0],
            Arm.WARM_CACHE: [20.0, 20.0],
            Arm.SLEEP_WAKE: [0.5, 0.5],
            Arm.RESTORE: [4.0, 4.0],
        }
    )
    metadata = startup_metadata(landed(tmp_path, record))
    assert metadata["speed_up_over_cold"].value == 10.0
    assert metadata["speed_up_over_best_other_start"].value == 5.0
    assert "warm_cache" in str(metadata["speed_up_over_best_other_start_in_words"].value)


def test_one_start_has_no_interval(tmp_path: Path, factory: RecordFactory) -> None:
    record = factory.record(startups=[factory.startup(Arm.COLD)])
    [row] = rows(startup_metadata(landed(tmp_path, record)), "arms")
    assert row["n"] == 1
    assert row["ci_low_s"] is None
    assert row["ci_high_s"] is None


def test_phases_of_an_arm_and_its_unaccounted_time_are_listed(
    tmp_path: Path, factory: RecordFactory
) -> None:
    start = factory.startup(Arm.COLD)
    table = rows(startup_metadata(landed(tmp_path, factory.record(startups=[start]))), "phases")
    assert [row["phase"] for row in table] == [
        *(phase.name for phase in start.phases),
        "unaccounted",
    ]
    assert start.total_s is not None
    assert sum(row["median_s"] for row in table) == pytest.approx(start.total_s, rel=1e-2)


def test_a_run_in_which_nothing_was_measured_has_tables_and_no_plot(
    tmp_path: Path, factory: RecordFactory
) -> None:
    record = factory.record(
        startups=[factory.failed_startup(arm) for arm in Arm], unsupported={"restore": "no CRIU"}
    )
    metadata = startup_metadata(landed(tmp_path, record))
    assert "start_to_first_token" not in metadata
    assert [row["n"] for row in rows(metadata, "arms")] == [0, 0, 0, 0]
    assert all(row["median_s"] is None for row in rows(metadata, "arms"))
    assert rows(metadata, "unsupported") == [{"part": "restore", "why": "no CRIU"}]


def test_where_results_come_from_is_told(tmp_path: Path, factory: RecordFactory) -> None:
    record = factory.startup_record(1)
    metadata = startup_metadata(landed(tmp_path, record))
    assert metadata["run_id"].value == record.run_id
    assert metadata["stack_key"].value == record.stack_key
    assert metadata["basis"].value == "simulated"
    assert Path(str(metadata["landing_folder"].value)).is_dir()
    assert [row["file"] for row in rows(metadata, "evidence")] == ["worker.log"]


def test_a_plot_shows_each_arm_and_each_start(tmp_path: Path, factory: RecordFactory) -> None:
    record = factory.startup_record(3)
    drawing = image(startup_metadata(landed(tmp_path, record)), "start_to_first_token")
    assert {arm.value for arm in Arm} <= set(texts(drawing))
    assert len(list(drawing.iter(f"{SVG}circle"))) == 12


def test_faults_are_given_by_way_of_recovery(tmp_path: Path, factory: RecordFactory) -> None:
    faults = [
        factory.fault(repeat=repeat, recovery=recovery, detect_s=0.2, recover_s=recover_s + repeat)
        for recovery, recover_s in (("restore", 1.0), ("cold", 10.0))
        for repeat in range(3)
    ]
    faults += [factory.fault("worker_hang", verdict=Verdict.FAIL)]
    record = factory.record(RunKind.FAULT, faults=[*faults, factory.fault(control=True)])
    metadata = fault_metadata(landed(tmp_path, record))
    table = {(row["fault"], row["recovery"]): row for row in rows(metadata, "faults")}
    assert table["worker_kill", "restore"]["recover_median_s"] == 2.0
    assert table["worker_kill", "cold"]["recover_median_s"] == median([10.0, 11.0, 12.0])
    assert table["worker_kill", "cold"]["n"] == 3
    assert table["worker_hang", "restore"]["recover_median_s"] is None
    assert table["worker_hang", "restore"]["verdicts"] == "1 fail"
    assert len(rows(metadata, "experiments")) == 8
    assert metadata["experiments_total"].value == 7
    assert metadata["experiments_passed"].value == 6
    assert metadata["controls"].value == "1 pass"
    assert "worker_kill, cold" in texts(image(metadata, "injection_to_right_answer"))


def test_a_snapshot_is_given_by_its_image_and_its_phases(
    tmp_path: Path, factory: RecordFactory
) -> None:
    taken = factory.snapshot()
    metadata = snapshot_metadata(
        landed(tmp_path, factory.record(RunKind.SNAPSHOT, snapshots=[taken]))
    )
    assert metadata["snapshot_id"].value == taken.snapshot_id
    assert taken.image_bytes is not None
    assert metadata["image_mib"].value == taken.image_bytes / 2**20
    assert [row["phase"] for row in rows(metadata, "phases")] == [p.name for p in taken.phases]
    assert texts(image(metadata, "protocol"))


def test_text_from_data_stays_text_in_a_drawing() -> None:
    hostile = '<script>alert(1)</script>&"'
    bars = [Bar(hostile, ((hostile, 1.0),), note=hostile)]
    drawing = ElementTree.fromstring(draw_bars(hostile, bars, "s", shares=True))
    assert not list(drawing.iter(f"{SVG}script"))
    assert hostile in texts(drawing)


@pytest.mark.parametrize(
    "bars",
    [
        [],
        [Bar("nothing", ())],
        [Bar("zero", (("a", 0.0),), dots=(0.0,), interval=(0.0, 0.0))],
        [Bar("tiny", (("a", 1e-9),)), Bar("huge", (("a", 1e9),))],
        [Bar("many", tuple((f"part {i}", 1.0) for i in range(40)))],
    ],
)
def test_a_drawing_of_any_bars_stays_inside_its_frame(bars: list[Bar]) -> None:
    drawing = ElementTree.fromstring(draw_bars("title", bars, "s", shares=True))
    width, height = (float(drawing.attrib[name]) for name in ("width", "height"))
    for shape in drawing.iter(f"{SVG}rect"):
        x, y = float(shape.get("x", "0")), float(shape.get("y", "0"))
        assert 0 <= x <= x + float(shape.attrib["width"]) <= width
        assert 0 <= y <= y + float(shape.attrib["height"]) <= height


def test_a_row_is_as_long_as_its_parts_together() -> None:
    bars = [Bar("a", (("x", 1.0), ("y", 3.0))), Bar("b", (("x", 8.0),))]
    drawing = ElementTree.fromstring(draw_bars("title", bars, "s", shares=False))
    shapes = [
        shape for shape in drawing.iter(f"{SVG}rect") if shape.find(f"{SVG}title") is not None
    ]
    widths = [float(shape.attrib["width"]) for shape in shapes]
    assert widths[0] + widths[1] == pytest.approx(widths[2] / 2, abs=0.3)
    assert widths[1] == pytest.approx(3 * widths[0], abs=0.3)
