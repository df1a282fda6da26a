"""Figures: start-up and snapshots, from rows of the marts to a Plotly figure and its data.

What belongs here: how a result is drawn. What does not: computing results (the dbt marts do),
sentences about them (`headline`), the trend (`trend_figure`), faults (`fault_figures`) and the page
around a chart (`pages`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resilience_pipelines.dashboards import palette, words
from resilience_pipelines.dashboards.charts import (
    BROAD_ROWS,
    Builder,
    Cell,
    Chart,
    LegendItem,
    Table,
    in_order,
    interval_bar,
    label_text,
    linear_axis,
    margin,
    marker,
    points_axis,
    row_axis,
    rows_height,
    shortened,
    trace,
)
from resilience_pipelines.dashboards.rows import (
    DumpPhaseRow,
    DumpRow,
    PhaseSummaryRow,
    SpeedupRow,
    StartCountRow,
    StartupRow,
    VariantRow,
)
from resilience_pipelines.records import Outcome

UNACCOUNTED = "unaccounted"
WRONG = palette.Mark("vermillion", "x")
UNCOUNTED = palette.Mark("slate", "circle-open")


def phase_label(name: str) -> str:
    """A phase as words."""
    return words.label(name)


@dataclass(frozen=True)
class Segment:
    """One phase's median within a row of stacked bars."""

    phase: str
    median_s: float
    n: int
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True)
class SegmentRow:
    """A row of stacked bars; the total is measured, not the sum of the segments."""

    label: str
    segments: tuple[Segment, ...]
    total_s: float | None
    n: int


def startup_segments(
    phases: Sequence[PhaseSummaryRow], summary: Sequence[VariantRow]
) -> tuple[SegmentRow, ...]:
    """The arms with phases, in the order of the arms, segments in the order they happen."""
    totals = {row.arm: row for row in summary}
    rows = []
    for name in in_order({row.arm for row in phases}, words.ARM_ORDER):
        own = sorted(
            (row for row in phases if row.arm == name and row.median_s is not None),
            key=lambda row: (
                row.phase == UNACCOUNTED,
                math.inf if row.order_in_start is None else row.order_in_start,
                row.phase,
            ),
        )
        total = totals.get(name)
        rows.append(
            SegmentRow(
                label=words.arm(name),
                segments=tuple(
                    Segment(row.phase, row.median_s, row.n, row.ci_low_s, row.ci_high_s)
                    for row in own
                    if row.median_s is not None
                ),
                total_s=total.median_s if total else None,
                n=total.n if total else max((row.n for row in own), default=0),
            )
        )
    return tuple(row for row in rows if row.segments)


def snapshot_segments(
    dumps: DumpRow | None, phases: Sequence[DumpPhaseRow],
    restore: Sequence[PhaseSummaryRow], summary: Sequence[VariantRow],
) -> tuple[SegmentRow, ...]:  # fmt: skip
    """The dump's phases (median over the snapshots that came out) above the restore's."""
    dump = SegmentRow(
        label="Take the snapshot",
        segments=tuple(
            Segment(row.phase, row.median_s, row.n)
            for row in sorted(phases, key=lambda row: row.phase == UNACCOUNTED)
        ),
        total_s=dumps.median_s if dumps else None,
        n=dumps.n_timed if dumps else 0,
    )
    restored = startup_segments(
        [row for row in restore if row.arm == "restore"],
        [row for row in summary if row.arm == "restore"],
    )
    return tuple(row for row in (dump, *restored) if row.segments)


def phase_bars(key: str, title: str, rows: Sequence[SegmentRow], *, share: bool) -> Chart:
    """Rows as stacked bars: in seconds, or as shares of each row's own sum of medians."""
    order = list(dict.fromkeys(s.phase for row in rows for s in row.segments))
    order.sort(key=lambda phase: phase == UNACCOUNTED)
    styles = _phase_styles(order)
    figure = Builder()
    sums = [sum(segment.median_s for segment in row.segments) for row in rows]
    for phase in order:
        role, pattern = styles[phase]
        places, lengths, bases, texts, hovers = [], [], [], [], []
        for place, row in enumerate(rows):
            start = 0.0
            for segment in row.segments:
                scale = 100 / sums[place] if share and sums[place] else 1.0
                if segment.phase == phase:
                    places.append(place)
                    lengths.append(segment.median_s * scale)
                    bases.append(start)
                    share_text = words.percent(segment.median_s / (sums[place] or 1.0))
                    texts.append(
                        f"{label_text(phase_label(phase))} {share_text}" if share
                        else label_text(phase_label(phase))
                    )  # fmt: skip
                    interval = words.confidence(words.seconds_range(segment.low_s, segment.high_s))
                    hovers.append(
                        f"<b>{label_text(row.label)}: {label_text(phase_label(phase))}</b><br>"
                        f"median {words.seconds(segment.median_s)}, {share_text} of the row"
                        f"<br>{interval or 'no interval'}, {words.sample(segment.n)}"
                    )
                start += segment.median_s * scale
        figure.traces.append(
            trace(
"bar",
                orientation="h", y=places, x=lengths, base=bases, width=0.56,
                marker={
                    "color": palette.light(role),
                    "line": {"color": palette.light("surface"), "width": 1},
                    "pattern": {
                        "shape": pattern, "fillmode": "overlay", "size": 7, "solidity": 0.22,
                        "fgopacity": 0.55,
                        "fgcolor": palette.light("surface"),
                    },
                },
                text=texts, textposition="inside", insidetextanchor="middle", textangle=0,
                insidetextfont={"size": 12},
                hovertext=hovers, hovertemplate="%{hovertext}<extra></extra>",
                name=label_text(phase_label(phase)),
            )
        )  # fmt: skip
    if share:
        x_axis = linear_axis("share of the row's phases", suffix="%") | {"range": [0, 100]}
    else:
        longest = max([*sums, *(row.total_s or 0.0 for row in rows)], default=1.0) or 1.0
        x_axis = linear_axis("seconds") | {"range": [0, longest * 1.02]}
    labels = [f"{label_text(row.label)}<br>{_total_text(row.total_s, row.n)}" for row in rows]
    table = Table(
        ("row", "phase", "median_s", "ci_low_s", "ci_high_s", "n", "row_median_total_s"),
        tuple(
            (row.label, s.phase, s.median_s, s.low_s, s.high_s, s.n, row.total_s)
            for row in rows
            for s in row.segments
        ),
    )
    return Chart(
        key=key,
        title=title,
        summary="; ".join(
            f"{row.label} {words.seconds(row.total_s)}: "
            + ", ".join(f"{phase_label(s.phase)} {words.seconds(s.median_s)}" for s in row.segments)
            for row in rows
        ),
        figure=figure.build(
            rows_height(len(rows)), margin(bottom=46), barmode="overlay", xaxis=x_axis,
            yaxis=row_axis(labels), uniformtext={"minsize": 11, "mode": "hide"},
            meta=BROAD_ROWS,
        ),
        table=table,
        legend=tuple(
            LegendItem(phase_label(phase), styles[phase][0], "bar", styles[phase][1])
            for phase in order
        ),
    )  # fmt: skip


def distribution(
    key: str,
    startups: Sequence[StartupRow],
    variants: Sequence[VariantRow],
    counts: Sequence[StartCountRow],
) -> Chart | None:
    """Single starts as points, with each arm's median and its interval below the points.

    Args:
        startups: the starts to draw; all of them, or the newest.
        counts: how many starts there are.
    """
    timed = [row for row in startups if row.total_s is not None and row.total_s > 0]
    if not timed:
        return None
    groups = in_order({row.arm for row in timed}, words.ARM_ORDER)
    series = [
        (arm, variant)
        for arm in groups
        for variant in sorted({row.variant for row in timed if row.arm == arm}, key=str)
    ]
    series.sort(key=lambda item: (groups.index(item[0]), item[1] is not None, item[1] or ""))
    summaries = {(row.arm, row.variant): row for row in variants}
    figure = Builder()
    values: list[float] = []
    labels: list[str] = []
    table: list[tuple[Cell, ...]] = []
    for place, (arm, variant) in enumerate(series):
        mark = palette.arm(arm)
        own = [row for row in timed if (row.arm, row.variant) == (arm, variant)]
        for kind, kind_mark in (("right", mark), *NOT_COUNTED.items()):
            rows = [row for row in own if _counted_as(row) == kind]
            if not rows:
                continue
            figure.traces.append(
                trace(
                    "scatter",
                    mode="markers",
                    x=[row.total_s for row in rows],
                    y=[place - 0.17 + _jitter(index) for index in range(len(rows))],
                    marker=marker(kind_mark, 9) | {"opacity": 0.8},
                    hovertext=[_start_hover(row) for row in rows],
                    hovertemplate="%{hovertext}<extra></extra>",
                )
            )
            values.extend(row.total_s for row in rows if row.total_s is not None)
        summary = summaries.get((arm, variant))
        label = label_text(shortened(words.arm(arm, variant)))
        if summary is not None and summary.median_s is not None:
            figure.traces.append(_median_mark(summary, place + 0.25, mark.role, label))
            values.extend(v for v in (summary.ci_low_s, summary.ci_high_s) if v)
            labels.append(f"{label}<br>{_total_text(summary.median_s, summary.n)}")
        else:
            labels.append(f"{label}<br>no right answer")
        table.extend(
            (
                row.run_id, row.measurement_id, row.started_at.isoformat(), row.arm, row.variant,
                row.repeat, row.total_s, row.result, row.outcome,
                row.oracle_verdict, row.page_cache_found,
            )
            for row in own
        )  # fmt: skip
    kinds = {_counted_as(row) for row in timed}
    axis, logarithmic = points_axis(values, "seconds")
    untimed = sum(row.n for row in counts if not row.timed)
    older = sum(row.n for row in counts if row.timed) - len(timed)
    note = "Above the line: every start. Below: median and 95 % CI of the right answers."
    if older:
        note = (
            f"Above the line: the newest {len(timed)} starts; {older} older ones are in table "
            "startup_measurements. Below: median and 95 % CI of all right answers."
        )
    if logarithmic:
        note += " Logarithmic scale."
    if untimed:
        note += (
            f" {words.plural(untimed, 'start')} ended without a time and"
            f" {'is' if untimed == 1 else 'are'} not drawn; see Data coverage."
        )
    legend = [
        LegendItem(words.arm(name), palette.arm(name).role, palette.arm(name).symbol)
        for name in groups
    ]
    legend += [LegendItem(kind, *mark) for kind, mark in NOT_COUNTED.items() if kind in kinds]
    legend.append(LegendItem("median, 95 % CI", "muted", "median"))
    return Chart(
        key=key,
        title="Every single start",
        summary="; ".join(label.replace("<br>", " ") for label in labels),
        figure=figure.build(
            rows_height(len(series)), margin(bottom=46), xaxis=axis, yaxis=row_axis(labels),
            meta=BROAD_ROWS,
        ),
        table=Table(
            (
                "run_id", "measurement_id", "started_at", "arm", "variant", "repeat", "total_s",
                "result", "outcome", "oracle_verdict", "page_cache_found",
            ),
            tuple(table),
        ),
        legend=tuple(legend),
        note=note,
    )  # fmt: skip


def speedups(key: str, rows: Sequence[SpeedupRow]) -> Chart | None:
    """Restore against the others: ratio of medians with its interval, and the line of equality."""
    order = ("best_other_start", "cold", "warm_cache", "sleep_wake")
    known = [row for row in rows if row.speedup is not None and row.speedup > 0]
    if not known:
        return None
    names = in_order({row.versus for row in known}, order)
    known.sort(key=lambda row: names.index(row.versus))
    figure = Builder()
    labels, values = [], [1.0]
    shown: list[str] = []
    for place, row in enumerate(known):
        kind, mark = _comparison(row)
        if kind not in shown:
            shown.append(kind)
        values.extend(v for v in (row.speedup, row.ci_low, row.ci_high) if v is not None and v > 0)
        what = words.versus(row.versus)
        if row.versus == "best_other_start" and row.other_arm:
            what = f"{what} ({words.arm(row.other_arm).lower()})"
        interval = words.ratio_range(row.ci_low, row.ci_high)
        numbers = words.times(row.speedup) + (f" ({interval})" if interval else ", no interval")
        labels.append(f"{label_text(shortened(what))}<br>{numbers}")
        figure.traces.append(
            trace(
"scatter",
                mode="markers", x=[row.speedup], y=[place],
                marker=marker(mark, 11),
                error_x=interval_bar(row.speedup, row.ci_low, row.ci_high, mark.role),
                hovertext=[
                    f"<b>Restore against {label_text(what)}</b><br>{words.times(row.speedup)}, "
                    f"{words.confidence(interval) or 'no interval'}<br>{kind}<br>"
                    f"{words.sample(row.n_restore)} and {row.n_other}"
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )  # fmt: skip
    axis, logarithmic = points_axis(values, "times as fast", unit="times")
    figure.shapes.append(
        {
            "type": "line", "xref": "x", "yref": "paper", "x0": 1, "x1": 1, "y0": 0, "y1": 1,
            "line": {"color": palette.light("muted"), "width": 1.5, "dash": "dot"},
        }
    )  # fmt: skip
    return Chart(
        key=key,
        title="Restore against every other arm",
        summary="; ".join(label.replace("<br>", " ") for label in labels),
        figure=figure.build(
            rows_height(len(known)), margin(bottom=46), xaxis=axis, yaxis=row_axis(labels),
            meta=BROAD_ROWS,
        ),
        table=Table(
            ("versus", "other_arm", "n_restore", "n_other", "speedup", "ci_low", "ci_high"),
            tuple(
                (r.versus, r.other_arm, r.n_restore, r.n_other, r.speedup, r.ci_low, r.ci_high)
                for r in known
            ),
        ),
        legend=(
            *(LegendItem(kind, _COMPARISONS[kind].role, _COMPARISONS[kind].symbol)
              for kind in shown),
            LegendItem("dotted line: equally fast", "muted", "line"),
        ),
        note="Ratio of medians, other arm over restore, with its 95 % CI."
        + (" Logarithmic scale." if logarithmic else ""),
    )  # fmt: skip


_COMPARISONS = {
    "restore is faster": palette.Mark("green", "triangle-right"),
    "restore is slower": palette.Mark("vermillion", "triangle-left"),
    "no difference shown": palette.Mark("slate", "circle"),
    "one value each, no interval": palette.Mark("slate", "circle-open"),
}


def _comparison(row: SpeedupRow) -> tuple[str, palette.Mark]:
    if row.ci_low is None or row.ci_high is None:
        kind = "one value each, no interval"
    elif row.ci_low > 1:
        kind = "restore is faster"
    elif row.ci_high < 1:
        kind = "restore is slower"
    else:
        kind = "no difference shown"
    return kind, _COMPARISONS[kind]


NOT_COUNTED = {"wrong answer": WRONG, "failed or not checked": UNCOUNTED}
"""Starts with a time that no median counts."""


def _counted_as(row: StartupRow) -> str:
    known = {"right": "right", "wrong_answer": "wrong answer"}
    return known.get(row.result, "failed or not checked")


def _start_hover(row: StartupRow) -> str:
    lines = [
        f"<b>{label_text(words.arm(row.arm, row.variant))}</b> {words.seconds(row.total_s)}",
        f"{words.minute(row.started_at)}, repeat {row.repeat}",
        f"page cache {label_text(row.page_cache_found or 'unknown')}",
        f"counted as {label_text(words.spoken(row.result))}",
    ]
    if row.outcome != Outcome.OK:
        lines.append(f"{label_text(row.outcome)}: {label_text(row.reason_code)}")
    return "<br>".join(lines)


def _total_text(total_s: float | None, n: int) -> str:
    return f"{words.seconds(total_s)}, {words.sample(n)}"


def _phase_styles(order: Sequence[str]) -> dict[str, tuple[str, str]]:
    named = [phase for phase in order if phase != UNACCOUNTED]
    styles = {phase: palette.category(place) for place, phase in enumerate(named)}
    return styles | {UNACCOUNTED: ("slate", "/")}


def _jitter(index: int) -> float:
    """A spread in which neighbours in time don't hide each other; the same on every build."""
    return ((index * 0.61803398875) % 1.0 - 0.5) * 0.3


def _median_mark(row: VariantRow, y: float, role: str, label: str) -> dict[str, Any]:
    interval = words.confidence(words.seconds_range(row.ci_low_s, row.ci_high_s))
    return trace(
"scatter",
        mode="markers", x=[row.median_s], y=[y],
        marker={"symbol": "line-ns", "size": 14, "color": palette.light(role),
                "line": {"color": palette.light(role), "width": 3}},
        error_x=interval_bar(row.median_s, row.ci_low_s, row.ci_high_s, role),
        hovertext=[f"<b>{label}</b><br>median {words.seconds(row.median_s)}<br>"
                   f"{interval or 'no interval'}, {words.sample(row.n)}"],
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
