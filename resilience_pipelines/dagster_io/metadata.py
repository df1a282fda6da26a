"""Metadata: what a landing folder holds, as the Dagster UI shows it beside a materialization.

What belongs here: figures, tables and plots of one record. What does not: results over many records
(the marts), drawing (`plots`), and judging (`assets.checks`).

A start counts as in the marts: when it ended well and its answer was right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from urllib.parse import urlencode

import dagster as dg
import polars as pl

from resilience_pipelines.dagster_io.plots import UNACCOUNTED, Bar, bars_plot
from resilience_pipelines.dashboards import words
from resilience_pipelines.home import Home
from resilience_pipelines.records import (
    Arm,
    FaultRun,
    OracleVerdict,
    Outcome,
    SnapshotMeasurement,
    StartupMeasurement,
    Verdict,
)
from resilience_pipelines.stack import Stack
from resilience_pipelines.trends.statistics import median_ci, ratio_of_medians_ci
from resilience_pipelines.warehouse.connection import open_warehouse
from resilience_pipelines.warehouse.landing import LandedRun

Metadata = dict[str, dg.MetadataValue]
Cell = str | float | int | bool | None


def table(columns: Mapping[str, str], rows: Iterable[Sequence[Cell]]) -> dg.TableMetadataValue:
    """A table.

    Args:
        columns: `name: type` with Dagster's types (string, int, float, bool).
        rows: cells in the order of the columns. Numbers are rounded to what a reader takes in;
            the landing folder has them exact.
    """
    return dg.MetadataValue.table(
        [dg.TableRecord(dict(zip(columns, map(_rounded, row), strict=True))) for row in rows],
        dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]),
    )


def _rounded(cell: Cell) -> Cell:
    return float(f"{cell:.4g}") if isinstance(cell, float) else cell


def frame_table(frame: pl.DataFrame) -> dg.TableMetadataValue:
    """A data frame of numbers, texts and truth values as a table."""
    kinds = {
        name: "float" if kind.is_float() else "int" if kind.is_integer() else
              "bool" if kind == pl.Boolean else "string"
        for name, kind in frame.schema.items()
    }  # fmt: skip
    return table(kinds, frame.rows())


def row_counts(home: Home, schema: str) -> dict[str, int]:
    """Rows of every table of a schema of the warehouse.

    Raises:
        BusyError: another process has the warehouse open.
    """
    with open_warehouse(home.warehouse) as connection:
        names = connection.execute(
            "select table_name from duckdb_tables() where schema_name = ?", [schema]
        ).fetchall()
        return {
            name: connection.execute(f'select count(*) from "{schema}"."{name}"').fetchall()[0][0]  # noqa: S608
            for (name,) in names
        }


def table_columns(home: Home) -> dict[str, dict[str, dict[str, str]]]:
    """The type of every column of the warehouse, by schema, table or view, and column.

    Raises:
        BusyError: another process has the warehouse open.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    with open_warehouse(home.warehouse) as connection:
        for schema, name, column, kind in connection.execute(
            "select schema_name, table_name, column_name, data_type from duckdb_columns() "
            "where not internal order by table_oid, column_index"
        ).fetchall():
            found.setdefault(schema, {}).setdefault(name, {})[column] = kind
    return found


def stack_table(stack: Stack) -> dg.TableMetadataValue:
    """Every dimension of a stack; one that could not be read stays empty."""
    return table(
        {"dimension": "string", "side": "string", "value": "string"},
        [
            (
                name,
                "hardware" if name in Stack.HARDWARE else "software",
                None if value is None else str(value),
            )
            for name, value in stack.model_dump().items()
        ],
    )


def envelope(landed: LandedRun) -> Metadata:
    """Where results come from: run, stack, platform, folder."""
    record = landed.record
    facts: Metadata = {
        "run_id": dg.MetadataValue.text(record.run_id),
        "basis": dg.MetadataValue.text(record.basis.value),
        "worker": dg.MetadataValue.text(record.worker),
        "stack_key": dg.MetadataValue.text(record.stack_key),
        "platform": dg.MetadataValue.text(
            f"{record.platform_version} {record.platform_commit or ''}".strip()
        ),
        "measuring_seconds": dg.MetadataValue.float(
            (record.finished_at - record.started_at).total_seconds()
        ),
        "landing_folder": dg.MetadataValue.path(str(landed.folder)),
    }
    if record.evidence:
        facts["evidence"] = table(
            {"file": "string", "bytes": "int", "sha256": "string"},
            [(file.path, file.bytes, file.sha256) for file in record.evidence],
        )
    if record.unsupported:
        facts["unsupported"] = table(
            {"part": "string", "why": "string"}, sorted(record.unsupported.items())
        )
    return facts


def page_address(home: Home, **choice: str) -> dg.PathMetadataValue:
    """Where a browser finds the dashboard's page, or what it shows for `choice` (`run=...`).

    A path and no link: a browser opens no file from a page of a web server, so it is copied.
    """
    page = (home.dashboard / "index.html").absolute().as_uri()
    return dg.MetadataValue.path(f"{page}#{urlencode(choice)}" if choice else page)


def in_dashboard(home: Home, landed: LandedRun) -> Metadata:
    """Where the dashboard shows a run, once it has been loaded and published."""
    return {"dashboard": page_address(home, run=landed.record.run_id)}


def startup_metadata(landed: LandedRun) -> Metadata:
    """The arms side by side, their phases, and restore against the best other start."""
    startups = landed.record.startups
    groups = _by_arm(startups)
    facts: Metadata = {}
    if any(_counted(group) for group in groups.values()):
        facts["start_to_first_token"] = bars_plot(
            "From the decision to start to the first right token: median, 95 % CI, each start",
            [_startup_bar(name, group) for name, group in groups.items() if _counted(group)],
            "s",
            shares=True,
        )
    facts["arms"] = table(
        {
            "arm": "string", "n": "int", "median_s": "float", "ci_low_s": "float",
            "ci_high_s": "float", "min_s": "float", "max_s": "float", "failed": "int",
            "unsupported": "int", "mean_unaccounted_percent": "float",
        },
        [_startup_row(name, group) for name, group in groups.items()],
    )  # fmt: skip
    facts["phases"] = table(
        {"arm": "string", "phase": "string", "n": "int", "median_s": "float", "ci_low_s": "float",
         "ci_high_s": "float"},
        [
            (name, phase, len(values), median(values), *_interval(values))
            for name, group in groups.items()
            for phase, values in _phase_values(_counted(group)).items()
        ],
    )  # fmt: skip
    for name, group in groups.items():
        if counted := _counted(group):
            facts[f"median_s_{name}"] = dg.MetadataValue.float(median(_totals(counted)))
    facts |= _speed_up(groups)
    return facts | envelope(landed)


def snapshot_metadata(landed: LandedRun) -> Metadata:
    """What taking the snapshot took, and the image."""
    facts: Metadata = {}
    bars = [
        Bar(
            item.measurement_id,
            (*((phase.name, phase.duration_s) for phase in item.phases),
             (UNACCOUNTED, item.unaccounted_s or 0.0)),
            note=words.seconds(item.total_s),
        )
        for item in landed.record.snapshots
        if item.outcome is Outcome.OK
    ]  # fmt: skip
    if bars:
        facts["protocol"] = bars_plot("Taking the snapshot", bars, "s", shares=True)
    facts["snapshots"] = table(
        {"snapshot": "string", "outcome": "string", "reason": "string", "engine": "string",
         "total_s": "float", "image_bytes": "int", "files": "int", "frozen_s": "float",
         "pages_written": "int", "source_serving_after": "bool"},
        [_snapshot_row(item) for item in landed.record.snapshots],
    )  # fmt: skip
    facts["phases"] = table(
        {"phase": "string", "start_s": "float", "duration_s": "float", "clock": "string"},
        [
            (phase.name, phase.start_s, phase.duration_s, phase.clock)
            for item in landed.record.snapshots
            for phase in item.phases
        ],
    )
    for item in landed.record.snapshots:
        if item.snapshot_id and item.total_s is not None and item.image_bytes is not None:
            facts["snapshot_id"] = dg.MetadataValue.text(item.snapshot_id)
            facts["snapshot_s"] = dg.MetadataValue.float(item.total_s)
            facts["image_mib"] = dg.MetadataValue.float(item.image_bytes / 2**20)
    return facts | envelope(landed)


def fault_metadata(landed: LandedRun) -> Metadata:
    """Faults by way of recovery with verdicts and times, then every experiment."""
    faults = landed.record.faults
    groups: dict[tuple[str, str], list[FaultRun]] = {}
    for item in faults:
        if not item.control:
            groups.setdefault((item.fault, item.recovery or "none"), []).append(item)
    facts: Metadata = {}
    bars = [
        _fault_bar(f"{fault}, {recovery}", group) for (fault, recovery), group in groups.items()
    ]
    if any(bar.parts for bar in bars):
        facts["injection_to_right_answer"] = bars_plot(
            "From injection to detection and to the first right answer: median, each experiment",
            bars, "s", shares=False,
        )  # fmt: skip
    facts["faults"] = table(
        {"fault": "string", "recovery": "string", "n": "int", "verdicts": "string",
         "detect_median_s": "float", "detect_ci_low_s": "float", "detect_ci_high_s": "float",
         "recover_median_s": "float", "recover_ci_low_s": "float", "recover_ci_high_s": "float"},
        [
            (
                fault, recovery, len(group), _verdicts(group),
                *_estimate(_known(item.time_to_detect_s for item in group)),
                *_estimate(_known(item.time_to_recover_s for item in group)),
            )
            for (fault, recovery), group in groups.items()
        ],
    )  # fmt: skip
    facts["experiments"] = table(
        {"fault": "string", "control": "bool", "recovery": "string", "layer": "string",
         "repeat": "int", "verdict": "string", "reason": "string", "time_to_detect_s": "float",
         "time_to_recover_s": "float", "oracle": "string", "noticed_by": "string"},
        [
            (
                item.fault, item.control, item.recovery, item.layer.value, item.repeat,
                item.verdict.value, item.reason_code, item.time_to_detect_s,
                item.time_to_recover_s, item.oracle.verdict.value,
                ", ".join(seen.detector for seen in item.detections if seen.detected),
            )
            for item in faults
        ],
    )  # fmt: skip
    experiments = [item for item in faults if not item.control]
    counts = Counter(item.verdict for item in experiments)
    facts["experiments_total"] = dg.MetadataValue.int(len(experiments))
    facts["experiments_passed"] = dg.MetadataValue.int(counts[Verdict.PASS])
    facts["controls"] = dg.MetadataValue.text(
        _verdicts([item for item in faults if item.control]) or "none"
    )
    return facts | envelope(landed)


def _by_arm(startups: Sequence[StartupMeasurement]) -> dict[str, list[StartupMeasurement]]:
    """Measurements by arm and variant, arms in the order of `Arm`."""
    groups: dict[str, list[StartupMeasurement]] = {}
    for arm in Arm:
        for item in startups:
            if item.arm is arm:
                name = f"{arm}_{item.variant}" if item.variant else arm.value
                groups.setdefault(name, []).append(item)
    return groups


def _counted(group: Sequence[StartupMeasurement]) -> list[StartupMeasurement]:
    return [
        item
        for item in group
        if item.outcome is Outcome.OK and item.oracle.verdict is OracleVerdict.EQUAL
    ]


def _totals(group: Sequence[StartupMeasurement]) -> list[float]:
    return _known(item.total_s for item in group)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    found = median_ci(values)
    return (found.low, found.high) if found else (None, None)


def _estimate(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    return (median(values) if values else None, *_interval(values))


def _phase_values(group: Sequence[StartupMeasurement]) -> dict[str, list[float]]:
    """Durations by phase in the order of the start, `unaccounted` last."""
    found: dict[str, list[float]] = {}
    for item in group:
        for phase in sorted(item.phases, key=lambda phase: phase.start_s):
            found.setdefault(phase.name, []).append(phase.duration_s)
    if group:
        found[UNACCOUNTED] = _known(item.unaccounted_s for item in group)
    return found


def _startup_bar(name: str, group: Sequence[StartupMeasurement]) -> Bar:
    counted = _counted(group)
    totals = _totals(counted)
    low, high = _interval(totals)
    return Bar(
        name,
        tuple((phase, median(values)) for phase, values in _phase_values(counted).items()),
        dots=tuple(totals),
        interval=None if low is None or high is None else (low, high),
        note=f"{words.seconds(median(totals))}, {words.sample(len(totals))}",
    )


def _startup_row(name: str, group: Sequence[StartupMeasurement]) -> tuple[Cell, ...]:
    counted = _counted(group)
    totals = _totals(counted)
    outcomes = Counter(item.outcome for item in group)
    shares = [
        item.unaccounted_s / item.total_s
        for item in counted
        if item.total_s and item.unaccounted_s is not None
    ]
    return (
        name,
        len(counted),
        *_estimate(totals),
        min(totals, default=None),
        max(totals, default=None),
        outcomes[Outcome.FAILED],
        outcomes[Outcome.UNSUPPORTED],
        fmean(shares) * 100 if shares else None,
    )


def _speed_up(groups: Mapping[str, Sequence[StartupMeasurement]]) -> Metadata:
    """Restore against cold, and against the better of cold and warm caches."""
    totals = {name: _totals(_counted(group)) for name, group in groups.items()}
    restored = totals.get(Arm.RESTORE.value)
    others = {arm: totals[arm] for arm in (Arm.COLD, Arm.WARM_CACHE) if totals.get(arm)}
    if not restored or not others:
        return {}
    best = min(others, key=lambda arm: median(others[arm]))
    facts: Metadata = {}
    for name, arm in {"cold": Arm.COLD, "best_other_start": best}.items():
        if arm in others:
            ratio = median(others[arm]) / median(restored)
            interval = ratio_of_medians_ci(others[arm], restored)
            facts[f"speed_up_over_{name}"] = dg.MetadataValue.float(ratio)
            facts[f"speed_up_over_{name}_in_words"] = dg.MetadataValue.text(
                f"{words.times(ratio)} over {arm}"
                + (
                    f", {words.confidence(words.ratio_range(interval.low, interval.high))}"
                    if interval
                    else ", too few repeats for an interval"
                )
            )
    return facts


def _snapshot_row(item: SnapshotMeasurement) -> tuple[Cell, ...]:
    criu = item.criu
    return (
        item.snapshot_id,
        item.outcome.value,
        item.reason_code,
        item.engine,
        item.total_s,
        item.image_bytes,
        item.image_files,
        criu.frozen_s if criu else None,
        criu.pages_written if criu else None,
        item.source_serving_after,
    )


def _fault_bar(label: str, group: Sequence[FaultRun]) -> Bar:
    detected = _known(item.time_to_detect_s for item in group)
    recovered = _known(item.time_to_recover_s for item in group)
    parts: list[tuple[str, float]] = []
    if detected:
        parts.append(("injection to detection", median(detected)))
    if recovered:
        rest = median(recovered) - (median(detected) if detected else 0.0)
        parts.append(("detection to right answer", max(rest, 0.0)))
    low, high = _interval(recovered)
    return Bar(
        label,
        tuple(parts),
        dots=tuple(recovered),
        interval=None if low is None or high is None else (low, high),
        note=f"{words.seconds(median(recovered))}, {_verdicts(group)}"
        if recovered
        else _verdicts(group),
    )


def _verdicts(group: Sequence[FaultRun]) -> str:
    counts = Counter(item.verdict for item in group)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
