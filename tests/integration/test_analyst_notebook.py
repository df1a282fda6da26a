"""The example notebook runs from the published file and answers its three questions."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import duckdb
import pytest

from resilience_pipelines.home import Home
from resilience_pipelines.warehouse.query import query

pytest.importorskip("marimo", reason="no marimo: it comes with the extra `notebook`")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "analyst_notebook.py"


def run(home: Home, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RESILIENCE_HOME", str(home.root))
    spec = importlib.util.spec_from_file_location("analyst_notebook", NOTEBOOK)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _, found = module.app.run()
    return found


@pytest.fixture
def answers(results_home: Home, monkeypatch: pytest.MonkeyPatch) -> Any:
    return run(results_home, monkeypatch)


def test_each_way_to_start_stands_with_its_interval(answers: Any, results_home: Home) -> None:
    scope = answers["scope"]
    assert scope["basis"] == "measured"
    expected = query(
        results_home,
        "select arm, n, median_s, ci_low_s, ci_high_s from startup_summary where stack_key = ? "
        "and basis = 'measured' and worker = ? and n > 0 order by median_s",
        [scope["stack_key"], scope["worker"]],
    )
    assert answers["arms"].rows() == expected.rows()
    assert len(expected) >= 3
    [trace] = answers["arms_figure"].data
    assert list(trace.x) == expected["median_s"].to_list()
    for middle, up, down, (low, high) in zip(
        trace.x, trace.error_x.array, trace.error_x.arrayminus,
        expected.select("ci_low_s", "ci_high_s").rows(), strict=True,
    ):  # fmt: skip
        assert (middle - down, middle + up) == (pytest.approx(low), pytest.approx(high))


def test_every_phase_is_in_the_figure(answers: Any) -> None:
    drawn = {
        (arm, trace.name): value
        for trace in answers["phases_figure"].data
        for arm, value in zip(trace.y, trace.x, strict=True)
    }
    expected = {
        (arm, phase): value
        for arm, phase, value in answers["phases"].select("arm", "phase", "median_s").rows()
    }
    assert drawn == expected
    assert {arm for arm, _ in drawn} == set(answers["arms"]["arm"])


def test_a_snapshot_pays_off_when_the_time_saved_covers_its_cost(answers: Any) -> None:
    medians = dict(answers["arms"].select("arm", "median_s").rows())
    rows = answers["break_even"].to_dicts()
    assert rows
    for row in rows:
        saved_s = medians[row["instead_of"]] - medians["restore"]
        assert row["restores"] == math.ceil(row["total_s"] / saved_s)


def test_without_results_it_says_so(
    results_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Home(tmp_path)
    empty.published.parent.mkdir()
    empty.published.write_bytes(results_home.published.read_bytes())
    with duckdb.connect(str(empty.published)) as connection:
        connection.execute("delete from startup_summary")
    assert "arms" not in run(empty, monkeypatch)
