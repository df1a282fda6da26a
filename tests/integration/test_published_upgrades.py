"""What the platform says of the results that are published with it, as a user reads it."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from resilience_pipelines.cli import app
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.records import Arm
from resilience_pipelines.trends.comparison import UpgradeVerdict
from resilience_pipelines.upgrades import judge, newest_upgrades
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.transform import build
from tests.factories import RecordFactory, land, make_stack


def key_of(home: Home, version: str) -> str:
    found = query(
        home,
        "select stack_key from stacks where engine_version = ? and model like '%0.6b%'",
        [version],
    )
    return str(found.item())


def test_the_newest_upgrade_goes_to_the_highest_version_whenever_it_was_measured(
    results_home: Home,
) -> None:
    changed = [upgrade.changed for upgrade in newest_upgrades(results_home)]
    assert {"engine_version": ("0.23.0", "0.24.0")} in changed
    # The torch worker's machine came back with another kernel.
    assert [each.keys() for each in changed if "engine_version" not in each] == [{"kernel_version"}]


def test_an_upgrade_across_data_sets_is_not_put_down_to_the_version_alone(
    results_home: Home,
) -> None:
    upgrade = next(
        each for each in newest_upgrades(results_home) if "engine_version" in each.changed
    )
    (said,) = [text for text in upgrade.comparison.reasons if "data sets" in text]
    assert "h200-2026-12-02; h200-2026-12-01" in said
    assert upgrade.comparison.verdict is not UpgradeVerdict.SAFE
    shown = CliRunner().invoke(app, ["upgrades", "--home", str(results_home.root)])
    assert said in shown.stdout


def test_versions_measured_side_by_side_bear_no_such_note(results_home: Home) -> None:
    upgrade = judge(results_home, key_of(results_home, "0.22.1"), key_of(results_home, "0.23.0"))
    assert upgrade.changed == {"engine_version": ("0.22.1", "0.23.0")}
    assert not [text for text in upgrade.comparison.reasons if "data sets" in text]


def test_each_sure_change_of_level_in_them_names_what_changed_there(results_home: Home) -> None:
    found = query(
        results_home,
        "select previous_stack_key, stack_key, candidate_dimensions from change_points "
        "where significant and attribution <> 'unexplained'",
    ).rows()
    assert found
    for before, after, candidates in found:
        changed = judge(results_home, before, after).changed
        assert changed
        assert set(candidates) - {"data_set"} == changed.keys()


def test_a_change_of_level_names_another_data_set_among_its_candidates(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home")
    # By the number of CPUs, that the series don't mix: the data sets of its first and second level.
    data_sets = {2: ("machine-a", "machine-a"), 64: ("machine-a", "machine-b")}
    levels = {"4.2.1": 2.0, "4.3": 3.0}
    for cpu_count, sources in data_sets.items():
        for place, (version, level) in enumerate(levels.items()):
            for run in range(2):
                factory = RecordFactory(3600 * (10 * place + run) + cpu_count)
                totals = [level + 0.01 * n for n in range(5)]
                stack = make_stack(criu_version=version, cpu_count=cpu_count)
                record = factory.startup_record(stack=stack, totals_s={Arm.RESTORE: totals})
                land(tmp_path / sources[place], record)
    load(home, [tmp_path / "machine-a", tmp_path / "machine-b"])
    build(home)
    publish(home)
    found = query(
        home,
        "select cpu_count, candidate_dimensions from change_points "
        "join stacks using (stack_key) where arm = 'restore'",
    )
    assert {count: set(names) for count, names in found.rows()} == {
        2: {"criu_version"}, 64: {"criu_version", "data_set"}
    }  # fmt: skip
    assert len(found) == 2
