"""What Prometheus reads agrees with the data home and with what was published."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from resilience_pipelines.cli import main
from resilience_pipelines.home import Home
from resilience_pipelines.metrics import exposition
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.transform import build
from tests.factories import RecordFactory, land, make_home

Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Figures:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def plain(figures: Figures, name: str) -> float:
    return figures[f"resilience_{name}", frozenset()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    data_home, factory = make_home(tmp_path_factory.mktemp("metrics") / "home"), RecordFactory(3)
    for record in (factory.startup_record(2), factory.fault_record(2)):
        land(data_home.landing, record)
    assert load(data_home).rejected == ()
    build(data_home)
    publish(data_home)
    return data_home


def test_before_the_first_publishing_only_the_homes_own_metrics_are_there(tmp_path: Path) -> None:
    figures = read(exposition(make_home(tmp_path / "home")))
    assert plain(figures, "landing_folders") == 0
    assert plain(figures, "home_free_bytes") > 0
    assert not any("unpublished" in name or "startups" in name for name, _ in figures)


def test_every_start_and_experiment_is_counted_once(home: Home) -> None:
    figures = read(exposition(home))
    for name, table in (("startups", "startup_measurements"), ("fault_experiments", "fault_runs")):
        counted = sum(
            value for (found, _), value in figures.items() if found == f"resilience_{name}"
        )
        assert counted == query(home, f"select count(*) n from {table}")["n"][0]
    medians = {
        dict(labels)["arm"]: value
        for (name, labels), value in figures.items()
        if name == "resilience_startup_median_seconds"
    }
    expected = query(home, "select arm, median_s from startup_summary where median_s is not null")
    assert medians == dict(expected.rows())


def test_what_landed_after_publishing_is_the_backlog(home: Home) -> None:
    assert plain(read(exposition(home)), "unpublished_runs") == 0
    land(home.landing, RecordFactory(8).startup_record(1))
    figures = read(exposition(home))
    assert (plain(figures, "unpublished_runs"), plain(figures, "landing_folders")) == (1, 3)


def test_the_command_replaces_a_file_that_anybody_may_read(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "resilience.prom"
    target.write_text("old")
    arguments = ["resilience", "metrics", "--home", str(home.root), "--out"]
    monkeypatch.setattr("sys.argv", [*arguments, str(target)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, capsys.readouterr().err
    assert read(target.read_text()).keys() == read(exposition(home)).keys()
    assert target.stat().st_mode & 0o777 == 0o644
    monkeypatch.setattr("sys.argv", [*arguments, "/proc/resilience.prom"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 5
