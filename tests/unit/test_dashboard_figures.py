"""Charts draw what the rows hold: sums, order, marks, and labels that are only text."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.dashboards import fault_figures, figures, palette, trend_figure
from resilience_pipelines.dashboards.charts import (
    BASE_LAYOUT,
    Chart,
    label_text,
    points_axis,
)
from resilience_pipelines.dashboards.data import Published, Scope, read_published
from tests import dashboard_fixtures as fixtures
from tests.dashboard_fixtures import plain


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return read_published(fixtures.rich().write(tmp_path_factory.mktemp("db") / "p.duckdb"))


@pytest.fixture(scope="module")
def scope(published: Published) -> Scope:
    return published.scopes[0]


def the(chart: Chart | None) -> Chart:
    assert chart is not None
    return chart


def texts(value: object) -> list[str]:
    """Every string in a figure."""
    if isinstance(value, dict):
        return list(itertools.chain.from_iterable(texts(item) for item in value.values()))
    if isinstance(value, list | tuple):
        return list(itertools.chain.from_iterable(texts(item) for item in value))
    return [value] if isinstance(value, str) else []


@given(st.text())
def test_no_markup_of_a_label_survives(text: str) -> None:
    found = label_text(text)
    assert "<" not in found
    assert ">" not in found
    assert found.count("&") == sum(found.count(entity) for entity in ("&amp;", "&lt;", "&gt;"))


def test_segments_start_where_the_one_before_ends_and_unaccounted_is_last(scope: Scope) -> None:
    rows = figures.startup_segments(scope.phase_summary, scope.summary)
    bars = figures.phase_bars("k", "t", rows, share=False).figure["data"]
    for place, row in enumerate(rows):
        pieces = sorted(
            (bar["base"][i], bar["x"][i], bar["name"])
            for bar in bars
            for i, y in enumerate(bar["y"])
            if y == place
        )
        assert pieces[0][0] == 0
        for one, following in itertools.pairwise(pieces):
            assert following[0] == pytest.approx(one[0] + one[1])
        assert pieces[-1][2] == "Unaccounted"
        assert sum(length for _, length, _ in pieces) == pytest.approx(
            sum(segment.median_s for segment in row.segments)
        )


def test_shares_of_a_row_are_a_hundred_per_cent(scope: Scope) -> None:
    rows = figures.startup_segments(scope.phase_summary, scope.summary)
    bars = figures.phase_bars("k", "t", rows, share=True).figure["data"]
    for place in range(len(rows)):
        assert sum(
            bar["x"][i] for bar in bars for i, y in enumerate(bar["y"]) if y == place
        ) == pytest.approx(100)


def test_unaccounted_is_grey_and_hatched(scope: Scope) -> None:
    rows = figures.startup_segments(scope.phase_summary, scope.summary)
    bar = figures.phase_bars("k", "t", rows, share=False).figure["data"][-1]
    assert bar["marker"]["color"] == palette.light("slate")
    assert bar["marker"]["pattern"]["shape"] == "/"


def test_no_two_phases_look_the_same() -> None:
    looks = [palette.category(place) for place in range(len(palette.DATA) * len(palette.PATTERNS))]
    assert len(set(looks)) == len(looks)


def test_bars_start_at_zero(scope: Scope) -> None:
    rows = figures.startup_segments(scope.phase_summary, scope.summary)
    layout = figures.phase_bars("k", "t", rows, share=False).figure["layout"]
    assert layout["xaxis"]["range"][0] == 0


def test_every_start_is_a_point(scope: Scope) -> None:
    chart = the(figures.distribution("k", scope.startups, scope.variants, scope.start_counts))
    points = [x for trace in chart.figure["data"] for x in trace["x"] if "error_x" not in trace]
    assert sorted(points) == sorted(row.total_s for row in scope.startups if row.total_s)
    assert len(chart.table.rows) == len(scope.startups)


def test_wrong_answers_have_a_mark_of_their_own_and_are_named(tmp_path: Path) -> None:
    scope = read_published(fixtures.troubled().write(tmp_path / "p.duckdb")).scopes[0]
    chart = the(figures.distribution("k", scope.startups, scope.variants, scope.start_counts))
    crossed = [t for t in chart.figure["data"] if t["marker"]["symbol"] == "x"]
    assert sum(len(trace["x"]) for trace in crossed) == 2
    assert any(item.label == "wrong answer" for item in chart.legend)
    assert "1\N{NO-BREAK SPACE}start ended without a time" in chart.note


def test_speed_ups_start_with_the_best_other_start(scope: Scope) -> None:
    chart = the(figures.speedups("k", scope.speedups))
    first = chart.figure["layout"]["yaxis"]["ticktext"][0]
    assert first.startswith("Best other start (warm cache)<br>4.2\N{MULTIPLICATION SIGN} (")
    assert len(chart.table.rows) == len(scope.speedups)


def test_points_far_apart_get_a_logarithmic_axis_and_near_ones_start_at_zero() -> None:
    near, logarithmic = points_axis([1.0, 5.0], "t")
    assert (near["range"][0], logarithmic) == (0, False)
    far, logarithmic = points_axis([0.02, 90.0], "t")
    assert (far["type"], logarithmic) == ("log", True)
    assert far["tickvals"]
    assert points_axis([], "t")[0]["range"][0] == 0


def test_a_trend_writes_what_changed_at_its_mark(published: Published) -> None:
    newest = next(scope for scope in published.scopes if scope.worker == "vllm")
    chart = the(trend_figure.trend("k", newest.trend, published.stacks))
    notes = [note["text"] for note in chart.figure["layout"]["annotations"]]
    assert "<b>CRIU</b><br>4.1.1 → 4.2.1" in notes
    assert "<b>Engine version</b><br>0.20.2 → 0.21.0" in notes
    # One panel per arm, and a change in per cent only beyond the intervals.
    assert sum(name.startswith("yaxis") for name in chart.figure["layout"]) == 4
    shown = [text for trace in chart.figure["data"] for text in trace.get("text", ())]
    assert any("\N{MINUS SIGN}38\N{NO-BREAK SPACE}%" in text for text in shown)
    assert not any("%" in text for text in shown[:4])


def test_a_change_of_level_is_marked_in_its_panel_with_what_differs(published: Published) -> None:
    newest = next(scope for scope in published.scopes if scope.worker == "vllm")
    bare = the(trend_figure.trend("k", newest.trend, published.stacks))
    chart = the(trend_figure.trend("k", newest.trend, published.stacks, newest.change_points))
    marks = [t for t in chart.figure["data"] if t["mode"] == "text"]
    lines = [s for s in chart.figure["layout"]["shapes"] if s["yref"].endswith(" domain")]
    # Panels are in the order of the arms: cold first, restore last.
    assert [(mark["yaxis"], mark["x"], plain(mark["text"][0])) for mark in marks] == [
        ("y", [3.5], " 3 candidates"),
        ("y4", [1.5], " CUDA, Driver"),
        ("y4", [2.5], " CRIU"),
    ]
    assert [(line["yref"], line["x0"], line["x1"]) for line in lines] == [
        ("y domain", 3.5, 3.5), ("y4 domain", 1.5, 1.5), ("y4 domain", 2.5, 2.5),
    ]  # fmt: skip
    assert chart.legend[-1].label == "change of level"
    assert "dashed line" in chart.note
    assert "dashed line" not in bare.note
    assert bare.legend == chart.legend[:-1]


def test_a_marked_change_is_in_the_data_of_its_chart(published: Published) -> None:
    newest = next(scope for scope in published.scopes if scope.worker == "vllm")
    table = the(trend_figure.trend("k", newest.trend, published.stacks, newest.change_points)).table
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    marked = {
        (row["arm"], row["level_change_fraction"], row["level_change_dimensions"])
        for row in rows
        if row["level_change_fraction"] is not None
    }
    assert marked == {
        ("cold", -0.09, "driver_version, engine_version, torch_version"),
        ("restore", -0.36, "cuda_version, driver_version"),
        ("restore", -0.15, "criu_version"),
    }


def test_a_change_without_a_place_between_two_stacks_is_not_drawn(published: Published) -> None:
    newest = next(scope for scope in published.scopes if scope.worker == "vllm")
    order = list(dict.fromkeys(row.stack_key for row in newest.trend))
    row = next(row for row in newest.change_points if row.arm == "restore")
    elsewhere = [
        row.model_copy(update=update)
        for update in (
            {"previous_stack_key": row.stack_key},
            {"stack_key": order[3], "previous_stack_key": order[0]},
            {"stack_key": "gone", "previous_stack_key": "gone too"},
            {"arm": "teleport"},
            {"variant": "level_2"},
        )
    ]
    chart = the(trend_figure.trend("k", newest.trend, published.stacks, elsewhere))
    assert "change of level" not in [item.label for item in chart.legend]


def test_one_stack_is_shown_and_called_no_trend(scope: Scope, published: Published) -> None:
    chart = the(trend_figure.trend("k", scope.trend, published.stacks))
    assert chart.note.startswith("One stack is no trend")
    assert [len(trace["x"]) for trace in chart.figure["data"]] == [1] * 8


def test_more_changes_than_fit_are_counted(published: Published) -> None:
    newest = next(scope for scope in published.scopes if scope.worker == "vllm")
    names = tuple(published.stacks[newest.stack.stack_key].dimensions)[:7]
    rows = tuple(
        row.model_copy(update={"changed_dimensions": names})
        if row.stack_key == newest.stack.stack_key
        else row
        for row in newest.trend
    )
    chart = the(trend_figure.trend("k", rows, published.stacks))
    assert any(
        note["text"].endswith("and 3 more") for note in chart.figure["layout"]["annotations"]
    )
    assert ", ".join(names) in [row[-1] for row in chart.table.rows]


@pytest.mark.parametrize("what", ["detect", "recover"])
def test_recoveries_stand_side_by_side(scope: Scope, what: str) -> None:
    chart = the(fault_figures.fault_times("k", what, scope.fault_summary, scope.faults))
    medians = [trace for trace in chart.figure["data"] if "error_x" in trace]
    assert [item.label for item in chart.legend[:2]] == ["Cold", "Restore"]
    assert medians[0]["marker"]["symbol"] != medians[1]["marker"]["symbol"]
    assert not set(medians[0]["y"]) & set(medians[1]["y"])
    # What was not applicable has no time, and no row.
    assert not any("NUMA" in label for label in chart.figure["layout"]["yaxis"]["ticktext"])


def timeline_of(published: Published, scope: Scope, name: str) -> Chart:
    row = next(row for row in scope.faults if row.measurement_id == name)
    key = (row.run_id, row.measurement_id)
    return the(
        fault_figures.timeline("k", published.events[key], published.detections.get(key, ()))
    )


def test_a_timeline_has_a_row_for_every_event_and_detector(
    published: Published, scope: Scope
) -> None:
    chart = timeline_of(published, scope, "worker_sigkill-restore-0")
    labels = chart.figure["layout"]["yaxis"]["ticktext"]
    assert len(labels) == 9 + len(fixtures.DETECTORS) == len(chart.table.rows)
    moments = chart.figure["data"][0]["x"]
    assert moments == sorted(moments)


def test_a_detector_that_missed_is_marked_and_says_so(published: Published, scope: Scope) -> None:
    chart = timeline_of(published, scope, "ecc_dbe_cache-cold-2")
    assert "expected, not seen" in [item.label for item in chart.legend]
    assert "x" in chart.figure["data"][1]["marker"]["symbol"]


def test_a_control_without_detections_still_has_its_timeline(
    published: Published, scope: Scope
) -> None:
    chart = timeline_of(published, scope, "worker_hang-control")
    assert len(chart.figure["data"]) == 1


def test_nothing_to_draw_is_no_chart() -> None:
    assert figures.distribution("k", (), (), ()) is None
    assert figures.speedups("k", ()) is None
    assert trend_figure.trend("k", (), {}) is None
    assert fault_figures.fault_times("k", "detect", (), ()) is None
    assert fault_figures.timeline("k", (), ()) is None


def all_charts(published: Published) -> list[Chart]:
    found: list[Chart | None] = []
    for scope in published.scopes:
        rows = figures.startup_segments(scope.phase_summary, scope.summary)
        found += [
            figures.phase_bars("k", "t", rows, share=False),
            figures.distribution("k", scope.startups, scope.variants, scope.start_counts),
            figures.speedups("k", scope.speedups),
            trend_figure.trend("k", scope.trend, published.stacks, scope.change_points),
            fault_figures.fault_times("k", "detect", scope.fault_summary, scope.faults),
            figures.phase_bars(
                "k",
                "t",
                figures.snapshot_segments(
                    scope.dumps, scope.dump_phases, scope.phase_summary, scope.summary
                ),
                share=True,
            ),
        ]
        found += [
            fault_figures.timeline("k", published.events.get(key, ()), detections)
            for key, detections in list(published.detections.items())[:20]
        ]
    return [chart for chart in found if chart is not None]


def test_hostile_text_reaches_no_chart_as_markup(tmp_path: Path) -> None:
    published = read_published(fixtures.hostile().write(tmp_path / "p.duckdb"))
    drawn = [text for chart in all_charts(published) for text in texts(chart.figure)]
    assert any("&lt;script&gt;" in text for text in drawn)
    for text in drawn:
        bare = text.replace("<b>", "").replace("</b>", "").replace("<br>", "")
        assert "<" not in bare.replace("<extra></extra>", "")


def test_every_colour_of_a_figure_has_a_dark_twin(published: Published) -> None:
    known = set(palette.dark_of_light())
    for chart in all_charts(published):
        drawn = [text for text in texts(chart.figure) if text.startswith("#")]
        assert drawn
        assert set(drawn) <= known


def test_every_figure_is_one_that_plotly_takes(published: Published) -> None:
    for chart in all_charts(published):
        layout: dict[str, Any] = BASE_LAYOUT | chart.figure["layout"]
        go.Figure(data=chart.figure["data"], layout=layout)
        assert not set(BASE_LAYOUT) & set(chart.figure["layout"])
