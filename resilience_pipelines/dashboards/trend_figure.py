"""Trend figure: start-up times of one machine, worker and model over its stacks in order of time.

What belongs here: that one chart. What does not: where a level changed and whether a change means
anything beyond its interval (`trends`), and the parts of a chart (`charts`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from resilience_pipelines.dashboards import palette, words
from resilience_pipelines.dashboards.charts import (
    Builder,
    Cell,
    Chart,
    LegendItem,
    Table,
    in_order,
    label_text,
    linear_axis,
    marker,
    shortened,
    trace,
)
from resilience_pipelines.dashboards.rows import (
    ChangePointRow,
    StackRow,
    TrendRow,
)

MOST_CHANGES = 4
"""Changed dimensions written at one mark; the rest are counted, and named in the chart's data."""
MARK_LETTERS = 18
"""What fits beside the line of a change of level before the next stack's median."""
STACK_PX = 132
PANEL_PX, GAP_PX, BOTTOM_PX = 124, 36, 52


LevelMarks = Mapping[tuple[str, str], ChangePointRow]
"""Changes of level by arm and by the stack from which on they hold."""


def trend(
    key: str, rows: Sequence[TrendRow], stacks: Mapping[str, StackRow],
    change_points: Sequence[ChangePointRow] = (),
) -> Chart | None:  # fmt: skip
    """One panel per arm, each from 0 on; what changed is written above every stack.

    A single stack has no line to draw, so its panels stand side by side.

    Args:
        change_points: the newest first. Those between two stacks that stand side by side are
            marked there; one within a stack has no place here, since a stack is one point.
    """
    timed = [row for row in rows if row.median_s is not None]
    if not timed:
        return None
    first_seen: dict[str, TrendRow] = {}
    for row in sorted(timed, key=lambda row: (row.first_started_at, row.stack_key)):
        first_seen.setdefault(row.stack_key, row)
    order = tuple(first_seen)
    arms = in_order({row.arm for row in timed}, words.ARM_ORDER)
    panels = [
        sorted(
            (row for row in timed if row.arm == name), key=lambda row: order.index(row.stack_key)
        )
        for name in arms
    ]
    ticks = [_stack_tick(first_seen[stack_key], stacks) for stack_key in order]
    marks = _between_stacks(change_points, arms, order)
    if len(order) == 1:
        figure = _side_by_side(panels, order, ticks)
        note = "One stack is no trend: measure a second one to see what a change does."
        least_px = 60 + 175 * len(arms) if len(arms) > 1 else 0
    else:
        changes = [_changes(stack_key, rows, stacks) for stack_key in order]
        figure = _over_time(panels, order, ticks, changes, marks)
        note = (
            "Above each stack stands what changed since the one before. A change in per cent is "
            "given where the two 95 % intervals don't overlap."
        )
        if marks:
            note += " A dashed line marks a change of level, with the dimensions that differ there."
        least_px = 84 + STACK_PX * len(order) if len(order) > 2 else 0
    hardware = stacks[order[-1]].dimensions if order[-1] in stacks else {}
    where = words.hardware(hardware) if hardware else timed[-1].hardware_label
    return Chart(
        key=key,
        title=f"Start-up on {shortened(where, 60)}",
        summary=f"Median start-up times of {words.plural(len(order), 'stack')} in order of time"
        + (f", {words.plural(len(marks), 'change')} of level marked." if marks else "."),
        figure=figure,
        table=Table(
            (
                "hardware", "model", "arm", "stack_key", "software", "first_started_at", "n",
                "median_s", "ci_low_s", "ci_high_s", "previous_median_s", "change_fraction",
                "level_change_fraction", "level_change_low", "level_change_high",
                "level_change_dimensions", "changed_dimensions",
            ),
            tuple(
                (
                    r.hardware_label, r.model, r.arm, r.stack_key, r.software_label,
                    r.first_started_at.isoformat(), r.n, r.median_s, r.ci_low_s, r.ci_high_s,
                    r.previous_median_s, r.change_fraction,
                    *_level_cells(marks.get((r.arm, r.stack_key))),
                    ", ".join(r.changed_dimensions),
                )
                for r in rows
            ),
        ),
        legend=tuple(
            LegendItem(words.arm(name), palette.arm(name).role, palette.arm(name).symbol)
            for name in arms
        ) + ((LegendItem("change of level", "ink", "line"),) if marks else ()),
        note=note,
        min_width_px=least_px,
    )  # fmt: skip


def _side_by_side(
    panels: Sequence[Sequence[TrendRow]], order: Sequence[str], ticks: Sequence[str]
) -> dict[str, Any]:
    figure = Builder()
    layout: dict[str, Any] = {}
    step = 1 / len(panels)
    for index, own in enumerate(panels):
        suffix = "" if index == 0 else str(index + 1)
        left = index * step
        layout[f"xaxis{suffix}"] = _stack_axis(order, ticks, f"y{suffix}") | {
            "domain": [left, left + step - 0.08 if index < len(panels) - 1 else 1]
        }
        layout[f"yaxis{suffix}"] = _time_axis(own, f"x{suffix}") | {"domain": [0, 1]}
        figure.traces.extend(_panel(own, order, f"x{suffix}", f"y{suffix}"))
        figure.annotations.append(_panel_title(own, left, 1))
    return figure.build(
        PANEL_PX + 96, {"l": 52, "r": 8, "t": 30, "b": BOTTOM_PX}, **layout
    )  # fmt: skip


def _over_time(
    panels: Sequence[Sequence[TrendRow]], order: Sequence[str], ticks: Sequence[str],
    changes: Sequence[Sequence[str]], marks: LevelMarks,
) -> dict[str, Any]:  # fmt: skip
    figure = Builder()
    top_px = 30 + 15 * max(len(lines) for lines in changes)
    plot_px = len(panels) * PANEL_PX + (len(panels) - 1) * GAP_PX
    last = "" if len(panels) == 1 else str(len(panels))
    layout: dict[str, Any] = {"xaxis": _stack_axis(order, ticks, f"y{last}")}
    for index, own in enumerate(panels):
        suffix = "" if index == 0 else str(index + 1)
        upper = 1 - index * (PANEL_PX + GAP_PX) / plot_px
        lower = max(upper - PANEL_PX / plot_px, 0.0)
        layout[f"yaxis{suffix}"] = _time_axis(own, "x") | {"domain": [lower, upper]}
        figure.traces.extend(_panel(own, order, "x", f"y{suffix}"))
        figure.annotations.append(_panel_title(own, 0, upper))
        for place, stack_key in enumerate(order):
            if mark := marks.get((own[0].arm, stack_key)):
                _draw_level_change(figure, mark, place - 0.5, f"y{suffix}")
    for place, lines in enumerate(changes[1:], start=1):
        figure.shapes.append(
            {
                "type": "line", "xref": "x", "yref": "paper", "x0": place - 0.5,
                "x1": place - 0.5, "y0": 0, "y1": 1, "layer": "below",
                "line": {"color": palette.light("faint"), "width": 1, "dash": "dot"},
            }
        )  # fmt: skip
        figure.annotations.append(
            {
                "text": "<br>".join(lines or ["change not named"]), "showarrow": False,
                "align": "center", "xref": "x", "x": place, "xanchor": "center",
                "yref": "paper", "y": 1, "yanchor": "bottom", "yshift": 20,
                "font": {"size": 11, "color": palette.light("muted")},
            }
        )  # fmt: skip
    return figure.build(
        plot_px + top_px + BOTTOM_PX,
        {"l": 60, "r": 24, "t": top_px, "b": BOTTOM_PX},
        meta={"newest_at_right": True},
        **layout,
    )


def _between_stacks(
    change_points: Sequence[ChangePointRow], arms: Sequence[str], order: Sequence[str]
) -> LevelMarks:
    """The changes that have a place between two neighbours, the newest where there are several."""
    neighbours = {after: before for before, after in itertools.pairwise(order)}
    found: dict[tuple[str, str], ChangePointRow] = {}
    for row in change_points:
        drawn = row.arm in arms and row.variant is None
        if drawn and neighbours.get(row.stack_key) == row.previous_stack_key:
            found.setdefault((row.arm, row.stack_key), row)
    return found


def _draw_level_change(figure: Builder, row: ChangePointRow, at: float, y_axis: str) -> None:
    """A line through the arm's panel, and at its foot, clear of the medians, what differs there."""
    figure.shapes.append(
        {
            "type": "line", "xref": "x", "yref": f"{y_axis} domain", "x0": at, "x1": at,
            "y0": 0, "y1": 1, "layer": "below",
            "line": {"color": palette.light("ink"), "width": 1.5, "dash": "4px,3px"},
        }
    )  # fmt: skip
    figure.traces.append(
        trace(
            "scatter", mode="text", xaxis="x", yaxis=y_axis, x=[at], y=[0],
            text=[_put_down_to(row)], textposition="top right",
            textfont={"size": 11, "color": palette.light("ink")}, cliponaxis=False,
            hovertext=[_level_hover(row)], hovertemplate="%{hovertext}<extra></extra>",
        )
    )  # fmt: skip


def _put_down_to(row: ChangePointRow) -> str:
    names = [words.dimension(name) for name in row.candidate_dimensions]
    text = ", ".join(names) or words.spoken(row.attribution)
    if len(names) > 1 and len(text) > MARK_LETTERS:
        text = words.plural(len(names), "candidate")
    # The space keeps the first letter off the line.
    return f"{words.NBSP}{label_text(shortened(text, MARK_LETTERS))}"


def _level_hover(row: ChangePointRow) -> str:
    interval = words.confidence(words.percent_range(row.change_low, row.change_high))
    names = ", ".join(words.dimension(name) for name in row.candidate_dimensions)
    return "<br>".join(
        (
            f"<b>{label_text(words.arm(row.arm))}</b> changed its level by "
            f"{words.percent(row.change_fraction, signed=True)}",
            f"{interval or 'no interval'}, {words.sample(row.n_before)} and {row.n_after:,}",
            label_text(shortened(names or words.spoken(row.attribution), 80)),
            words.minute(row.changed_at),
        )
    )


def _level_cells(row: ChangePointRow | None) -> tuple[Cell, ...]:
    """A marked change as cells of the chart's data, empty where there is none."""
    if row is None:
        return (None, None, None, None)
    names = ", ".join(row.candidate_dimensions)
    return (row.change_fraction, row.change_low, row.change_high, names)


def _panel(
    own: Sequence[TrendRow], order: Sequence[str], x_axis: str, y_axis: str
) -> list[dict[str, Any]]:
    """Medians with their intervals, and above each interval the median in words."""
    mark = palette.arm(own[0].arm)
    places = [order.index(row.stack_key) for row in own]
    return [
        trace(
"scatter",
            mode="lines+markers", xaxis=x_axis, yaxis=y_axis, x=places,
            y=[row.median_s for row in own], cliponaxis=False,
            line={"color": palette.light(mark.role), "width": 2},
            marker=marker(mark, 10),
            error_y={
                "type": "data", "symmetric": False,
                "array": [_top(row) - (row.median_s or 0.0) for row in own],
                "arrayminus": [(row.median_s or 0.0) - _foot(row) for row in own],
                "color": palette.light(mark.role), "thickness": 1.5, "width": 4,
            },
            hovertext=[_hover(row) for row in own],
            hovertemplate="%{hovertext}<extra></extra>",
        ),
        trace(
"scatter",
            # The unseen marks keep the words clear of the seen ones.
            mode="markers+text", marker={"opacity": 0, "size": 13}, xaxis=x_axis, yaxis=y_axis,
            x=places, y=[_top(row) for row in own],
            text=[
                words.seconds(row.median_s) + _change(row, before)
                for before, row in zip([None, *own[:-1]], own, strict=True)
            ],
            textposition="top center", textfont={"size": 12}, cliponaxis=False, hoverinfo="skip",
        ),
    ]  # fmt: skip


def _change(row: TrendRow, before: TrendRow | None) -> str:
    if before is None or row.change_fraction is None:
        return ""
    if None in (row.ci_low_s, row.ci_high_s, before.ci_low_s, before.ci_high_s):
        return ""
    apart = _foot(row) > _top(before) or _top(row) < _foot(before)
    return f"  <b>{words.percent(row.change_fraction, signed=True)}</b>" if apart else ""


def _top(row: TrendRow) -> float:
    return max(row.ci_high_s or 0.0, row.median_s or 0.0)


def _foot(row: TrendRow) -> float:
    middle = row.median_s or 0.0
    return middle if row.ci_low_s is None else min(row.ci_low_s, middle)


def _panel_title(own: Sequence[TrendRow], x: float, y: float) -> dict[str, Any]:
    return {
        "text": f"<b>{label_text(shortened(words.arm(own[0].arm)))}</b>", "showarrow": False,
        "xref": "paper", "x": x, "xanchor": "left", "yref": "paper", "y": y,
        "yanchor": "bottom", "yshift": 1, "font": {"size": 12},
    }  # fmt: skip


def _time_axis(own: Sequence[TrendRow], anchor: str) -> dict[str, Any]:
    highest = max(_top(row) for row in own) or 1.0
    return linear_axis("") | {
        "range": [0, highest * 1.42], "nticks": 4, "ticksuffix": " s", "anchor": anchor,
    }  # fmt: skip


def _stack_axis(order: Sequence[str], ticks: Sequence[str], anchor: str) -> dict[str, Any]:
    return {
        "range": [-0.55, len(order) - 0.45], "fixedrange": True, "showgrid": False,
        "zeroline": False, "showline": True, "linecolor": palette.light("faint"),
        "anchor": anchor, "tickvals": list(range(len(order))), "tickangle": 0,
        "ticktext": list(ticks), "ticks": "",
    }  # fmt: skip


def _hover(row: TrendRow) -> str:
    interval = words.confidence(words.seconds_range(row.ci_low_s, row.ci_high_s))
    lines = [
        f"<b>{label_text(words.arm(row.arm))}</b> {words.seconds(row.median_s)}",
        f"{interval or 'no interval'}, {words.sample(row.n)}",
        label_text(shortened(row.software_label, 80)),
        words.minute(row.first_started_at),
    ]
    if row.change_fraction is not None:
        lines.append(f"{words.percent(row.change_fraction, signed=True)} to the stack before")
    return "<br>".join(lines)


def _changes(stack_key: str, rows: Sequence[TrendRow], stacks: Mapping[str, StackRow]) -> list[str]:
    """Lines such as `Driver` and `575.1 -> 580.2`: the mart's names with both stacks' values."""
    own = [row for row in rows if row.stack_key == stack_key]
    names = list(dict.fromkeys(name for row in own for name in row.changed_dimensions))
    before = next((stacks.get(r.previous_stack_key) for r in own if r.previous_stack_key), None)
    after = stacks.get(stack_key)
    lines = []
    for name in names[:MOST_CHANGES]:
        lines.append(f"<b>{label_text(shortened(words.dimension(name), 20))}</b>")
        if before is not None and after is not None and name in after.dimensions:
            old, new = before.dimensions.get(name), after.dimensions[name]
            if old != new:
                lines.append(label_text(f"{_value(old)} \N{RIGHTWARDS ARROW} {_value(new)}"))
    if len(names) > MOST_CHANGES:
        lines.append(f"and {len(names) - MOST_CHANGES} more")
    return lines


def _value(value: str | int | None) -> str:
    return "none" if value is None else shortened(str(value), 12)


def _stack_tick(row: TrendRow, stacks: Mapping[str, StackRow]) -> str:
    stack = stacks.get(row.stack_key)
    engine = stack.dimensions.get("engine") if stack else None
    version = stack.dimensions.get("engine_version") if stack else None
    name = f"{words.spoken(str(engine))} {version or ''}".strip() if engine else row.software_label
    return f"{label_text(shortened(name, 18))}<br>{words.day(row.first_started_at)}"
