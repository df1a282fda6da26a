"""Charts: what every chart of the page is made of, whatever it shows.

What belongs here: a chart's parts (figure, data, legend), axes, marks, and the escaping of labels.
What does not: any one chart (`figures`, `fault_figures`).

Figures are written for a light ground in the colours of `palette`; the page exchanges them on a
dark one. Plotly reads a small markup in labels, so that every text from data passes `label_text`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilience_pipelines.dashboards import palette

Cell = str | int | float | bool | None

FONT = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, '
    '"Liberation Sans", sans-serif'
)
ROW_PX = 58
LOG_FROM = 25.0
"""From this ratio of largest to smallest value on, an axis of points is logarithmic."""


@dataclass(frozen=True)
class Table:
    """The data of a chart as it is downloaded, unrounded, with units in the names."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class LegendItem:
    """One entry of a legend, drawn by the page so that it wraps and is read aloud."""

    label: str
    role: str
    symbol: str = "bar"
    pattern: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure with everything the page needs to show it."""

    key: str
    title: str
    summary: str
    """What it shows, in words, for readers who can't see it."""
    figure: dict[str, Any]
    table: Table
    legend: tuple[LegendItem, ...] = ()
    note: str = ""
    min_width_px: int = 0
    """Below this width the chart scrolls instead of shrinking."""


@dataclass
class Builder:
    """The traces, shapes and annotations of one figure while it is made."""

    traces: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def build(self, height: int, margin: Mapping[str, int], **layout: Any) -> dict[str, Any]:
        """The figure as Plotly's JSON, without `BASE_LAYOUT`; `height` is in pixels."""
        return {
            "data": self.traces,
            "layout": {
                "height": height,
                "margin": dict(margin),
                "shapes": self.shapes,
                "annotations": self.annotations,
                **layout,
            },
        }


def trace(kind: str, **values: Any) -> dict[str, Any]:
    """One series of a figure, in Plotly's words; the tests check them against Plotly's schema."""
    return {"type": kind, **values}


BASE_LAYOUT: dict[str, Any] = {
    "font": {"family": FONT, "size": 13, "color": palette.light("ink")},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "showlegend": False,
    "dragmode": False,
    "hovermode": "closest",
    "hoverlabel": {
        "bgcolor": palette.light("surface"),
        "bordercolor": palette.light("faint"),
        "font": {"color": palette.light("ink"), "size": 13},
        "align": "left",
    },
}
"""What every figure's layout has; the page holds it once and adds it."""


def label_text(text: object) -> str:
    """Text from data as Plotly shows it letter by letter: none of its markup is left."""
    return (
        str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        .replace("\r", " ").replace("\n", " ")
    )  # fmt: skip


def shortened(text: str, length: int = 34) -> str:
    """A label that leaves room for the chart; the full text is in the chart's data."""
    return text if len(text) <= length else f"{text[: length - 1]}\N{HORIZONTAL ELLIPSIS}"


def in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Known names in the order given, unknown ones behind them by name."""
    return sorted(names, key=lambda name: (_place(name, order), name))


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def margin(bottom: int) -> dict[str, int]:
    """Pixels around a chart of rows; its labels make room for themselves."""
    return {"l": 12, "r": 20, "t": 10, "b": bottom}


def rows_meta(px: int, shift: int, lead: float) -> dict[str, Any]:
    """How the page lays rows out on a narrow screen, where labels stand above them.

    Args:
        px: height of a row there.
        shift: pixels from the middle of a row up to its label.
        lead: room above the first row, in rows.
    """
    return {"rows": {"px": px, "shift": shift, "lead": lead, "around_px": AROUND_PX}}


AROUND_PX = 56
"""Pixels above and below the rows of a chart: its margins with the axis."""
BROAD_ROWS = rows_meta(84, 27, 0.1)


def rows_height(rows: int, px: int = ROW_PX) -> int:
    """The height of a chart of rows, in pixels."""
    return rows * px + AROUND_PX


def equal_heights(one: Chart | None, other: Chart | None) -> None:
    """Make two charts that stand side by side equally high."""
    if one and other:
        height = max(one.figure["layout"]["height"], other.figure["layout"]["height"])
        one.figure["layout"]["height"] = other.figure["layout"]["height"] = height


def row_axis(labels: Sequence[str]) -> dict[str, Any]:
    """A vertical axis of rows, the first one at the top."""
    return {
        "range": [len(labels) - 0.5, -0.5],
        "tickvals": list(range(len(labels))),
        "ticktext": list(labels),
        "automargin": True,
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "ticklabelstandoff": 10,
        "gridcolor": palette.light("grid"),
    }


def linear_axis(title: str, suffix: str = "") -> dict[str, Any]:
    """A quiet axis of numbers from 0 on."""
    return {
        "title": {
            "text": title,
            "standoff": 8,
            "font": {"size": 12, "color": palette.light("muted")},
        },
        "ticksuffix": suffix,
        "rangemode": "tozero",
        "fixedrange": True,
        "gridcolor": palette.light("grid"),
        "zeroline": False,
        "tickfont": {"size": 12, "color": palette.light("muted")},
        "nticks": 7,
        "separatethousands": True,
    }


def points_axis(
    values: Sequence[float], title: str, unit: str = "seconds"
) -> tuple[dict[str, Any], bool]:
    """An axis for points: linear from 0, or logarithmic where they lie too far apart for that."""
    positive = [value for value in values if value > 0]
    low, high = min(positive, default=1.0), max(positive, default=1.0)
    axis = linear_axis(title, "" if unit == "seconds" else "\N{MULTIPLICATION SIGN}")
    if high / low < LOG_FROM:
        return axis | {"range": [0, high * 1.08]}, False
    ends = (math.log10(low) - 0.08, math.log10(high) + 0.08)
    decades = ends[1] - ends[0]
    steps = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0, 3.0) if decades < 3.5 else (1.0,)
    ticks = [
        step * 10.0**decade
        for decade in range(math.floor(ends[0]), math.ceil(ends[1]) + 1)
        for step in steps
        if ends[0] <= math.log10(step * 10.0**decade) <= ends[1]
    ]
    return axis | {
        "type": "log",
        "range": list(ends),
        "ticksuffix": "",
        "tickvals": ticks,
        "ticktext": [
            f"{tick:g}" + ("" if unit == "seconds" else "\N{MULTIPLICATION SIGN}") for tick in ticks
        ],
    }, True


def marker(mark: palette.Mark, size: int) -> dict[str, Any]:
    """A mark with a thin edge, so that marks that overlap stay apart."""
    return {
        "symbol": mark.symbol,
        # Triangles are flat: they need more to look as large.
        "size": size * 1.35 if mark.symbol.startswith("triangle") else size,
        "color": palette.light(mark.role),
        "line": {"color": palette.light("surface"), "width": 1},
    }


def interval_bar(
    middle: float | None, low: float | None, high: float | None, role: str
) -> dict[str, Any]:
    """The error bar of a single point."""
    return interval_bars([(middle, low, high)], role)


def interval_bars(
    estimates: Sequence[tuple[float | None, float | None, float | None]], role: str
) -> dict[str, Any]:
    """Error bars from medians and their intervals; none where the interval is unknown."""

    def reach(one: float | None, other: float | None) -> float:
        return 0.0 if one is None or other is None else max(0.0, one - other)

    return {
        "type": "data",
        "symmetric": False,
        "array": [reach(high, middle) for middle, _, high in estimates],
        "arrayminus": [reach(middle, low) for middle, low, _ in estimates],
        "color": palette.light(role),
        "thickness": 2,
        "width": 5,
    }


def rung(start: float, end: float, row: int) -> dict[str, Any]:
    """A line along one row."""
    return {
        "type": "line", "xref": "x", "yref": "y", "x0": start, "x1": end, "y0": row, "y1": row,
        "layer": "below", "line": {"color": palette.light("faint"), "width": 2},
    }  # fmt: skip
