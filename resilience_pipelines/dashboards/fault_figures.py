"""Fault figures: detection and recovery over all experiments, and the timeline of one.

What belongs here: how fault results are drawn. What does not: the matrix of detectors, which is a
table (`tables`), and the parts of a chart (`charts`).
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from resilience_pipelines.dashboards import palette, words
from resilience_pipelines.dashboards.charts import (
    BROAD_ROWS,
    Builder,
    Cell,
    Chart,
    LegendItem,
    Table,
    in_order,
    interval_bars,
    label_text,
    linear_axis,
    margin,
    marker,
    points_axis,
    row_axis,
    rows_height,
    rows_meta,
    rung,
    shortened,
    trace,
)
from resilience_pipelines.dashboards.rows import (
    DetectionRow,
    EventRow,
    FaultRow,
    FaultSummaryRow,
)


def fault_times(
    key: str, what: str, summary: Sequence[FaultSummaryRow], faults: Sequence[FaultRow]
) -> Chart | None:
    """Time to `detect` or to `recover` per fault and layer, the recoveries side by side."""
    measured = [row for row in summary if getattr(row, f"{what}_median_s") is not None]
    if not measured:
        return None
    pairs = sorted({(row.planned_fault, row.layer) for row in measured})
    recoveries = in_order({row.recovery or "" for row in measured}, words.ARM_ORDER)
    figure = Builder()
    values: list[float] = []
    table: list[tuple[Cell, ...]] = []
    for index, recovery in enumerate(recoveries):
        mark = palette.arm(recovery)
        offset = (index - (len(recoveries) - 1) / 2) * min(0.26, 0.6 / len(recoveries))
        single = [
            (pairs.index((row.planned_fault, row.layer)) + offset + 0.11, value)
            for row in faults
            if not row.control and (row.recovery or "") == recovery
            and (row.planned_fault, row.layer) in pairs
            and (value := getattr(row, f"time_to_{what}_s")) is not None and value > 0
        ]  # fmt: skip
        figure.traces.append(
            trace(
"scatter",
                mode="markers", x=[value for _, value in single], y=[y for y, _ in single],
                marker={"symbol": "circle", "size": 6, "color": palette.light(mark.role),
                        "opacity": 0.55},
                hoverinfo="skip",
            )
        )  # fmt: skip
        values.extend(value for _, value in single)
        own = [row for row in measured if (row.recovery or "") == recovery]
        estimates = [
            (
                getattr(row, f"{what}_median_s"),
                getattr(row, f"{what}_ci_low_s"),
                getattr(row, f"{what}_ci_high_s"),
            )
            for row in own
        ]
        values.extend(v for estimate in estimates for v in estimate if v is not None and v > 0)
        figure.traces.append(
            trace(
"scatter",
                mode="markers", x=[middle for middle, _, _ in estimates],
                y=[pairs.index((row.planned_fault, row.layer)) + offset for row in own],
                marker=marker(mark, 10),
                error_x=interval_bars(estimates, mark.role),
                hovertext=[
                    f"<b>{label_text(words.label(row.planned_fault))}</b>, "
                    f"{label_text(row.layer)}<br>{_recovery_label(recovery)}<br>"
                    f"median {words.seconds(middle)}, "
                    f"{words.confidence(words.seconds_range(low, high)) or 'no interval'}"
                    f"<br>{row.n} experiments"
                    for row, (middle, low, high) in zip(own, estimates, strict=True)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )  # fmt: skip
        table.extend(
            (row.planned_fault, row.layer, row.recovery, row.n, *estimate)
            for row, estimate in zip(own, estimates, strict=True)
        )
    axis, logarithmic = points_axis(values, "seconds since the injection")
    labels = [
        f"{'<br>'.join(_lines(words.label(fault)))}<br>{label_text(shortened(layer, 30))}"
        for fault, layer in pairs
    ]
    verb = "Time to detect" if what == "detect" else "Time to recover"
    return Chart(
        key=key,
        title=verb,
        summary=f"{verb} per fault, by recovery.",
        figure=figure.build(
            rows_height(len(pairs)), margin(bottom=46), xaxis=axis,
            yaxis=row_axis(labels) | {"showgrid": True, "tickson": "boundaries"},
            meta=BROAD_ROWS,
        ),
        table=Table(
            ("fault", "layer", "recovery", "n", f"{what}_median_s", f"{what}_ci_low_s",
             f"{what}_ci_high_s"),
            tuple(sorted(table, key=str)),
        ),
        legend=(
            *(LegendItem(_recovery_label(name), palette.arm(name).role, palette.arm(name).symbol)
              for name in recoveries),
            LegendItem("single experiment", "slate", "dot"),
        ),
        note="Median and 95 % CI." + (" Logarithmic scale." if logarithmic else ""),
    )  # fmt: skip


def timeline(
    key: str, events: Sequence[EventRow], detections: Sequence[DetectionRow]
) -> Chart | None:
    """One experiment: its events in order of time, then every detector from the injection on."""
    if not events and not detections:
        return None
    figure = Builder()
    ordered = sorted(events, key=lambda event: event.at_s)
    labels = [label_text(shortened(words.label(event.event), 28)) for event in ordered]
    first_detector = len(ordered)
    labels += [label_text(shortened(words.label(item.detector), 28)) for item in detections]
    known = [0.0, *(event.at_s for event in ordered)]
    known += [d.detected_after_s for d in detections if d.detected_after_s is not None]
    # A detector that saw nothing is drawn to its deadline, but no further than the experiment went.
    horizon = max(known) or max((d.deadline_s or 0.0 for d in detections), default=0.0) or 1.0
    for one, following in itertools.pairwise(enumerate(ordered)):
        figure.shapes.append(rung(one[1].at_s, following[1].at_s, following[0]))
    if ordered:
        figure.traces.append(
            trace(
"scatter",
                mode="markers+text", x=[event.at_s for event in ordered],
                y=list(range(len(ordered))),
                marker=marker(palette.Mark("blue", "circle"), 10),
                text=[f"  {_offset(event.at_s)}" for event in ordered],
                textposition="middle right", textfont={"size": 11}, cliponaxis=False,
                hovertext=[
                    f"<b>{label_text(words.label(event.event))}</b><br>{_offset(event.at_s)}"
                    + (f"<br>{label_text(shortened(event.detail, 160))}" if event.detail else "")
                    for event in ordered
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )  # fmt: skip
    sightings = [_sighting(item) for item in detections]
    ends = [
        min(horizon, item.deadline_s or horizon)
        if item.detected_after_s is None else item.detected_after_s
        for item in detections
    ]  # fmt: skip
    for place, (item, sighting, end) in enumerate(
        zip(detections, sightings, ends, strict=True), start=first_detector
    ):
        seen = item.detected_after_s is not None
        figure.shapes.append(
            rung(0.0, end, place) | {
                "line": {"color": palette.light(sighting.mark.role), "width": 5 if seen else 1.5,
                         "dash": "solid" if seen else "dot"},
            }
        )  # fmt: skip
    if detections:
        marks = [marker(sighting.mark, 10) for sighting in sightings]
        figure.traces.append(
            trace(
"scatter",
                mode="markers+text", x=ends,
                y=list(range(first_detector, first_detector + len(detections))),
                marker=marks[0] | {
                    name: [mark[name] for mark in marks] for name in ("symbol", "size", "color")
                },
                text=[
                    f"  {sighting.short}" if item.detected_after_s is None
                    else f"  {words.seconds(item.detected_after_s)}"
                    for item, sighting in zip(detections, sightings, strict=True)
                ],
                textposition="middle right", textfont={"size": 11}, cliponaxis=False,
                hovertext=[
                    _detection_hover(item, sighting)
                    for item, sighting in zip(detections, sightings, strict=True)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )  # fmt: skip
    figure.shapes.append(
        {
            "type": "line", "xref": "x", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1,
            "layer": "below",
            "line": {"color": palette.light("muted"), "width": 1.5},
        }
    )  # fmt: skip
    if ordered and detections:
        figure.shapes.append(
            {
                "type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1,
                "y0": first_detector - 0.5, "y1": first_detector - 0.5, "layer": "below",
                "line": {"color": palette.light("faint"), "width": 1},
            }
        )  # fmt: skip
    low, high = min(known), max(horizon, *ends) if ends else horizon
    reach = high - low
    rows: list[tuple[Cell, ...]] = [
        ("event", e.event, e.at_s, None, None, e.detail) for e in events
    ]
    rows += [
        ("detector", d.detector, d.detected_after_s, d.expected, d.deadline_s, d.detail)
        for d in detections
    ]
    return Chart(
        key=key,
        title="Timeline",
        summary=f"{len(events)} events and {len(detections)} detectors of one experiment.",
        figure=figure.build(
            rows_height(len(labels), 28), margin(bottom=46),
            xaxis=linear_axis("seconds since the injection") | {
                "range": [low - 0.03 * reach, high + 0.24 * reach], "rangemode": "normal",
            },
            yaxis=row_axis(labels), meta=rows_meta(46, 8, 0.2),
        ),
        table=Table(
            ("kind", "name", "at_s", "expected", "deadline_s", "detail"), tuple(rows)
        ),
        legend=(
            *((LegendItem("event", "blue", "circle"),) if ordered else ()),
            *(LegendItem(s.words, s.mark.role, s.mark.symbol) for s in dict.fromkeys(sightings)),
        ),
    )  # fmt: skip


class Sighting(NamedTuple):
    """What a detector did, as it is drawn and said."""

    mark: palette.Mark
    words: str
    short: str = "not seen"


def _sighting(item: DetectionRow) -> Sighting:
    if item.detected:
        if not item.expected:
            return Sighting(palette.Mark("sky", "diamond"), "seen, not expected", "seen")
        if item.within_deadline is False:
            return Sighting(palette.Mark("orange", "square"), "seen, too late", "seen")
        return Sighting(palette.Mark("green", "triangle-up"), "seen", "seen")
    if item.expected:
        return Sighting(palette.Mark("vermillion", "x"), "expected, not seen")
    return Sighting(palette.Mark("slate", "circle-open"), "not expected, not seen")


def _detection_hover(item: DetectionRow, sighting: Sighting) -> str:
    when = (
        "" if item.detected_after_s is None
        else f"<br>{words.seconds(item.detected_after_s)} after the injection"
    )  # fmt: skip
    return (
        f"<b>{label_text(words.label(item.detector))}</b>: {sighting.words}{when}"
        f"<br>deadline {words.seconds(item.deadline_s)}"
        f"<br>clock {label_text(item.clock)}, resolution {words.seconds(item.resolution_s)}"
        + (f"<br>{label_text(shortened(item.detail, 160))}" if item.detail else "")
    )


def _lines(text: str) -> list[str]:
    """At most two lines of a row's label, so that long names keep the part that differs."""
    lines = textwrap.wrap(text, 26, max_lines=2, placeholder=" \N{HORIZONTAL ELLIPSIS}") or [text]
    return [label_text(shortened(line, 30)) for line in lines]


def _recovery_label(name: str) -> str:
    return words.arm(name) if name else "No recovery"


def _offset(value: float) -> str:
    return words.seconds(value).replace("-", "\N{MINUS SIGN}")
