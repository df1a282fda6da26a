"""The dashboard reads the marts as dbt really builds them, and says what they say."""

from __future__ import annotations

import json
import re

import pytest

from resilience_pipelines.dashboards import write_dashboard
from resilience_pipelines.home import Home
from resilience_pipelines.records import Arm, RunKind
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.transform import build
from tests.dashboard_fixtures import plain
from tests.factories import RecordFactory, land, make_home, make_stack


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A published home with start-ups on two stacks, one of them slower by far, snapshots, faults
    with controls, and a snapshot of the old stack restored on the new one."""
    data_home = make_home(tmp_path_factory.mktemp("home"))
    factory = RecordFactory(5)
    old, new = make_stack(), make_stack(criu_version="4.3")
    slow_old = make_stack(cpu_count=128)
    slow_new = make_stack(cpu_count=128, kernel_version="6.19.0")
    for record in (
        factory.startup_record(4, stack=old),
        factory.record(RunKind.SNAPSHOT, stack=old, snapshots=[factory.snapshot()]),
        factory.fault_record(3, stack=old),
        factory.startup_record(3, stack=new),
        *(
            factory.startup_record(
                stack=stack, arms=[Arm.COLD],
                totals_s={Arm.COLD: [level_s * (1 + 0.002 * n) for n in range(5)]},
            )
            for stack, level_s in ((slow_old, 10.0), (slow_new, 15.0))
        ),
        factory.record(
            RunKind.COMPATIBILITY, stack=new,
            compatibility=[
                factory.compatibility_trial(0, source=old),
                factory.compatibility_trial(1, source=old, reason_code="restore_failed"),
            ],
        ),
    ):  # fmt: skip
        land(data_home.landing, record)
    assert load(data_home).rejected == ()
    build(data_home)
    publish(data_home)
    return data_home


@pytest.fixture(scope="module")
def page(home: Home) -> str:
    report = write_dashboard(home.published, home.dashboard)
    assert report.sections == (
        "Start-up", "Trend over stacks", "Faults", "Snapshots", "Data coverage",
    )  # fmt: skip
    return plain(report.path.read_text())


def test_the_page_names_the_medians_that_the_marts_hold(home: Home, page: str) -> None:
    found = query(home, "select arm, n, median_s from startup_summary").to_dicts()
    assert {row["arm"] for row in found} == {"cold", "warm_cache", "sleep_wake", "restore"}
    for row in found:
        limits = ((0.09995, None), (0.9995, 3), (9.995, 2), (99.95, 1), (float("inf"), 0))
        decimals = next(d for limit, d in limits if row["median_s"] < limit)
        assert decimals is not None, "the factory's starts take longer than a tenth of a second"
        assert f"{row['median_s']:.{decimals}f} s, n = {row['n']}" in page


def test_the_page_counts_the_experiments_that_the_marts_count(home: Home, page: str) -> None:
    [counted] = query(
        home,
        "select count(*) filter (not control and verdict <> 'not_applicable') as asked, "
        "count(*) filter (not control and verdict = 'pass') as passed from fault_runs",
    ).to_dicts()
    assert f"{counted['passed']} of {counted['asked']} experiments passed" in page


def test_the_trend_names_the_dimension_that_changed(page: str) -> None:
    assert re.search(r"\\u003cb\\u003eCRIU\\u003c/b\\u003e\\u003cbr\\u003e\S+ \S+ 4\.3", page)


def test_the_page_lists_the_changes_of_level_that_the_mart_holds(home: Home, page: str) -> None:
    found = query(home, "select change_id from change_points order by all")["change_id"].to_list()
    assert found
    assert sorted(set(re.findall(r"<small><code>([0-9a-f]{12})</code>", page))) == found
    assert re.search(r"Kernel \S+ \N{RIGHTWARDS ARROW} 6\.19\.0", page)
    assert "+50 %" in page


def test_the_page_says_what_came_back_on_another_stack(page: str) -> None:
    card = page[page.index('data-name="compatibility"><div class="titled"><h3>') :]
    for said in ("1 of 2", "restore failed", "too lax", "lets it pass", "CRIU"):
        assert said in card[: card.index("</tbody>")]


def test_every_experiment_has_its_timeline(home: Home, page: str) -> None:
    data = re.search(r'id="data">(.*?)</script>', page)
    assert data
    experiments = json.loads(data.group(1))["experiments"]
    keys = query(home, "select run_id || '/' || measurement_id as key from fault_runs")["key"]
    assert set(experiments) == set(keys)
    assert all(experiment["chart"] for experiment in experiments.values())


def test_the_page_is_written_again_in_place(home: Home) -> None:
    first = write_dashboard(home.published, home.dashboard)
    with first.path.open("rb") as reader:
        again = write_dashboard(home.published, home.dashboard / "index.html")
        # Who has the old page open reads it to its end.
        assert len(reader.read()) == first.bytes
    assert again.path == first.path
    assert [path.name for path in home.dashboard.iterdir()] == ["index.html"]
