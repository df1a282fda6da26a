"""Read what the dashboard shows from the published DuckDB file into typed, immutable rows.

What belongs here: one model per table that the page reads, the reading, and the cut of it by
worker, basis and stack (a `Scope`), because results of two scopes are never mixed. What does not:
any figure computed from measurements (the dbt marts do that), words and markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import duckdb
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, ValidationError

from resilience_pipelines.errors import CorruptError, InputError, StorageError
from resilience_pipelines.records import Basis, CriuStatistics, Verdict
from resilience_pipelines.stack import Stack
from resilience_pipelines.trends.decisions import Choice

# Controls and bidirectional overrides can hide or reorder what a reader sees; line ends may stay.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _printable(value: object) -> object:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", value) if isinstance(value, str) else value


def _count(value: object) -> object:
    return 0 if value is None else value


def _names(value: object) -> object:
    """A text list of names, as a mart writes it: a list, JSON, or names between commas."""
    if value is None:
        return ()
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            try:
                value = json.loads(text)
            except ValueError:
                value = text.strip("[]").split(",")
        else:
            value = text.split(",")
    if isinstance(value, list | tuple):
        return tuple(name for item in value if (name := str(_printable(item)).strip(" '\"")))
    return value


def _object(value: object) -> object:
    """A JSON object in a text column; text that is no object stays readable under one name."""
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError:
            return {"": _printable(value)}
    value = _all_printable(value)
    return value if isinstance(value, dict) else {} if value is None else {"": value}


def _all_printable(value: object) -> object:
    if isinstance(value, dict):
        return {str(_printable(key)): _all_printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_all_printable(item) for item in value]
    return _printable(value)


Text = Annotated[str, BeforeValidator(_printable)]
Count = Annotated[int, BeforeValidator(_count)]
"""A count over rows: an aggregate over none of them is null in SQL and 0 here."""
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Object = Annotated[dict[str, Any], BeforeValidator(_object)]


class Row(BaseModel):
    """Base of a row: reads exactly the columns that it names from the table that it names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    TABLE: ClassVar[str]
    ORDER: ClassVar[str]


class ScopedRow(Row):
    """A row that belongs to one scope."""

    worker: Text
    basis: Text
    stack_key: Text


class StackRow(Row):
    """One stack; `dimensions` holds every dimension of `Stack` by name, None where unknown."""

    TABLE: ClassVar[str] = "stacks"
    ORDER: ClassVar[str] = "last_measured_at desc, stack_key"

    stack_key: Text
    hardware_key: Text
    software_key: Text
    hardware_label: Text
    software_label: Text
    first_measured_at: AwareDatetime
    last_measured_at: AwareDatetime
    runs: Count
    dimensions: dict[str, Text | int | None]


class RunRow(ScopedRow):
    """One job."""

    TABLE: ClassVar[str] = "runs"
    ORDER: ClassVar[str] = "started_at desc, run_id"

    run_id: Text
    kind: Text
    started_at: AwareDatetime
    finished_at: AwareDatetime | None
    launcher: Text | None
    platform_version: Text | None
    platform_commit: Text | None
    unsupported: Object


class CriuColumns(Row):
    """CRIU's own statistics in columns of a measurement."""

    criu_freezing_s: float | None
    criu_frozen_s: float | None
    criu_memdump_s: float | None
    criu_memwrite_s: float | None
    criu_pages_scanned: int | None
    criu_pages_skipped_parent: int | None
    criu_pages_written: int | None
    criu_forking_s: float | None
    criu_restore_s: float | None
    criu_pages_compared: int | None
    criu_pages_skipped_cow: int | None
    criu_pages_restored: int | None

    def criu(self) -> CriuStatistics:
        """The same statistics as the record holds them."""
        return CriuStatistics(
            **{name: getattr(self, f"criu_{name}") for name in CriuStatistics.model_fields}
        )


class StartupRow(ScopedRow, CriuColumns):
    """One start of a worker."""

    TABLE: ClassVar[str] = "startup_measurements"
    ORDER: ClassVar[str] = "started_at, run_id, measurement_id"

    run_id: Text
    measurement_id: Text
    started_at: AwareDatetime
    arm: Text
    variant: Text | None
    repeat: int
    result: Text
    """The one class it belongs to: right, wrong_answer, not_checked, failed or unsupported."""
    outcome: Text
    reason_code: Text | None
    detail: Text | None
    total_s: float | None
    unaccounted_s: float | None
    oracle_verdict: Text | None
    page_cache_found: Text | None
    throughput_tokens_per_s: float | None
    throughput_before_tokens_per_s: float | None


class VariantRow(ScopedRow):
    """All starts of one arm and variant; only right answers count in `n` and the times."""

    TABLE: ClassVar[str] = "startup_variants"
    ORDER: ClassVar[str] = "arm, variant nulls first"

    arm: Text
    variant: Text | None
    n: Count
    n_failed: Count
    n_wrong_answer: Count
    n_not_checked: Count
    n_unsupported: Count
    median_s: float | None
    ci_low_s: float | None
    ci_high_s: float | None
    min_s: float | None
    max_s: float | None
    mean_unaccounted_fraction: float | None


class PhaseSummaryRow(ScopedRow):
    """One phase over all starts of one arm."""

    TABLE: ClassVar[str] = "startup_phase_summary"
    ORDER: ClassVar[str] = "arm, order_in_start, phase"

    arm: Text
    phase: Text
    n: Count
    median_s: float | None
    ci_low_s: float | None
    ci_high_s: float | None
    order_in_start: float | None


class SpeedupRow(ScopedRow):
    """Restore against another arm; above 1 restore is faster."""

    TABLE: ClassVar[str] = "restore_speedup"
    ORDER: ClassVar[str] = "versus"

    versus: Text
    other_arm: Text | None
    n_restore: Count
    n_other: Count
    speedup: float | None
    ci_low: float | None
    ci_high: float | None


class SeriesRow(ScopedRow):
    """A row of the series of one machine and model, which goes over stacks."""

    hardware_key: Text
    model: Text | None


class TrendRow(SeriesRow):
    """One stack's median of one arm."""

    TABLE: ClassVar[str] = "startup_trend"
    ORDER: ClassVar[str] = "first_started_at, stack_key, arm"

    hardware_label: Text
    arm: Text
    software_label: Text
    first_started_at: AwareDatetime
    n: Count
    median_s: float | None
    ci_low_s: float | None
    ci_high_s: float | None
    previous_stack_key: Text | None
    previous_median_s: float | None
    change_fraction: float | None
    changed_dimensions: Names


class ChangePointRow(SeriesRow):
    """A change of level in the start-up times of one arm; `stack_key` is the stack from it on."""

    TABLE: ClassVar[str] = "change_points"
    ORDER: ClassVar[str] = "changed_at desc, arm, variant nulls first, change_id"

    change_id: Text
    arm: Text
    variant: Text | None
    changed_at: AwareDatetime
    previous_stack_key: Text
    """The stack before; the same one where nothing known changed."""
    n_before: Count
    n_after: Count
    before_median_s: float
    after_median_s: float
    change_fraction: float | None
    change_low: float | None
    change_high: float | None
    significant: bool
    relevant: bool | None
    """None where it is not known what the series does from run to run by itself."""
    attribution: Text
    candidate_dimensions: Names
    decision: Text | None
    decision_note: Text | None


class CompatibilityRow(ScopedRow):
    """Snapshots of one stack restored on another one, which is `stack_key`."""

    TABLE: ClassVar[str] = "compatibility_matrix"
    ORDER: ClassVar[str] = "last_at desc, source_stack_key, stack_key"

    source_stack_key: Text
    source_hardware_label: Text
    source_software_label: Text
    hardware_label: Text
    software_label: Text
    differing_dimensions: Names
    n: Count
    n_ok: Count
    predicted_compatible: bool
    reason_code: Text | None
    gate: Text
    """Whether the gate knew: right, too_strict or too_lax."""
    wasted_gpu_s: float


class SnapshotRow(ScopedRow, CriuColumns):
    """One attempt to take a snapshot."""

    TABLE: ClassVar[str] = "snapshots"
    ORDER: ClassVar[str] = "started_at desc, run_id, measurement_id"

    run_id: Text
    measurement_id: Text
    snapshot_id: Text | None
    started_at: AwareDatetime
    outcome: Text
    reason_code: Text | None
    detail: Text | None
    snapshot_engine: Text | None
    total_s: float | None
    image_bytes: int | None
    image_files: int | None
    sleep_level: int | None
    source_serving_after: bool | None


class SnapshotPhaseRow(Row):
    """One phase of one snapshot."""

    TABLE: ClassVar[str] = "snapshot_phases"
    ORDER: ClassVar[str] = "run_id, measurement_id, start_s"

    run_id: Text
    measurement_id: Text
    phase: Text
    start_s: float | None
    duration_s: float | None


class FaultRow(ScopedRow):
    """One experiment."""

    TABLE: ClassVar[str] = "fault_runs"
    ORDER: ClassVar[str] = "started_at desc, run_id, measurement_id"

    run_id: Text
    measurement_id: Text
    started_at: AwareDatetime
    planned_fault: Text
    strategy: Text | None
    layer: Text
    control: bool
    recovery: Text | None
    repeat: int | None
    verdict: Text
    reason_code: Text | None
    detail: Text | None
    effect_proved: bool | None
    effect_source: Text | None
    effect_detail: Text | None
    rollback_proved: bool | None
    rollback_source: Text | None
    rollback_detail: Text | None
    time_to_detect_s: float | None
    time_to_recover_s: float | None
    recovery_s: float | None
    oracle_verdict: Text | None
    parameters: Object


class DetectionRow(Row):
    """What one detector saw of one experiment."""

    TABLE: ClassVar[str] = "fault_detections"
    ORDER: ClassVar[str] = "run_id, measurement_id, detector"

    run_id: Text
    measurement_id: Text
    detector: Text
    expected: bool
    detected: bool
    detected_after_s: float | None
    deadline_s: float | None
    within_deadline: bool | None
    clock: Text | None
    resolution_s: float | None
    detail: Text | None


class EventRow(Row):
    """A moment of one experiment."""

    TABLE: ClassVar[str] = "fault_events"
    ORDER: ClassVar[str] = "run_id, measurement_id, at_s"

    run_id: Text
    measurement_id: Text
    event: Text
    at_s: float
    detail: Text | None


class FaultSummaryRow(ScopedRow):
    """All experiments with one fault, layer and recovery; no control arms."""

    TABLE: ClassVar[str] = "fault_summary"
    ORDER: ClassVar[str] = "planned_fault, layer, recovery nulls first"

    planned_fault: Text
    layer: Text
    recovery: Text | None
    n: Count
    n_pass: Count
    n_fail: Count
    n_inconclusive: Count
    n_not_injected: Count
    n_not_applicable: Count
    n_aborted: Count
    n_rollback_failed: Count
    detect_median_s: float | None
    detect_ci_low_s: float | None
    detect_ci_high_s: float | None
    recover_median_s: float | None
    recover_ci_low_s: float | None
    recover_ci_high_s: float | None


class CoverageRow(ScopedRow):
    """What one detector saw of all experiments with one fault and layer."""

    TABLE: ClassVar[str] = "detector_coverage"
    ORDER: ClassVar[str] = "planned_fault, layer, detector"

    planned_fault: Text
    layer: Text
    detector: Text
    n: Count
    n_expected: Count
    n_detected: Count
    n_missed: Count
    median_s: float | None
    ci_low_s: float | None
    ci_high_s: float | None
    n_control: Count
    n_false_alarms: Count


class QualityRow(ScopedRow):
    """How much of what was asked of one subject is there."""

    TABLE: ClassVar[str] = "data_quality"
    ORDER: ClassVar[str] = "kind, subject"

    kind: Text
    subject: Text
    asked: Count
    ok: Count
    failed: Count
    unsupported: Count
    reasons: Text | None


_R = TypeVar("_R", bound=Row)
_S = TypeVar("_S", bound=ScopedRow)

MeasurementKey = tuple[str, str]
"""run_id and measurement_id."""


@dataclass(frozen=True)
class Scope:
    """Everything that one worker, on one basis, showed on one stack."""

    worker: str
    basis: str
    stack: StackRow
    runs: tuple[RunRow, ...]
    startups: tuple[StartupRow, ...]
    variants: tuple[VariantRow, ...]
    phase_summary: tuple[PhaseSummaryRow, ...]
    speedups: tuple[SpeedupRow, ...]
    trend: tuple[TrendRow, ...]
    """The whole series that this scope is part of: the same machine, model, worker and basis."""
    change_points: tuple[ChangePointRow, ...]
    """The changes of level in that series, the newest first; none that somebody muted."""
    snapshots: tuple[SnapshotRow, ...]
    snapshot_phases: tuple[SnapshotPhaseRow, ...]
    faults: tuple[FaultRow, ...]
    clean_controls: int
    """Control arms that passed and in which no detector reported anything."""
    fault_summary: tuple[FaultSummaryRow, ...]
    coverage: tuple[CoverageRow, ...]
    compatibility: tuple[CompatibilityRow, ...]
    """Restores on this stack, and restores elsewhere of what was taken on it."""
    quality: tuple[QualityRow, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """Worker, basis and stack key: what sets one scope apart from another."""
        return (self.worker, self.basis, self.stack.stack_key)

    @property
    def summary(self) -> tuple[VariantRow, ...]:
        """One row per arm: the starts that no variant sets apart."""
        return tuple(row for row in self.variants if row.variant is None)

    @cached_property
    def last_measured_at(self) -> AwareDatetime:
        """When the newest run of this scope started."""
        return max((run.started_at for run in self.runs), default=self.stack.last_measured_at)

    @cached_property
    def first_measured_at(self) -> AwareDatetime:
        """When the oldest run of this scope started."""
        return min((run.started_at for run in self.runs), default=self.stack.first_measured_at)


@dataclass(frozen=True)
class Published:
    """Everything the page shows, the scope that it opens with first."""

    scopes: tuple[Scope, ...]
    stacks: dict[str, StackRow]
    events: dict[MeasurementKey, tuple[EventRow, ...]]
    detections: dict[MeasurementKey, tuple[DetectionRow, ...]]


def read_published(published: Path) -> Published:
    """Read every table that the page shows.

    Raises:
        InputError: there is no such file.
        StorageError: it can't be opened.
        CorruptError: it is no DuckDB file, or a table or column is missing or holds something else.
    """
    if not published.is_file():
        raise InputError(
            "published", str(published), "there is no such file",
            mend="Load and publish results first: `resilience publish`.",
        )  # fmt: skip
    try:
        connection = duckdb.connect(str(published), read_only=True)
    except duckdb.IOException as error:
        kind = CorruptError if "valid DuckDB" in str(error) else StorageError
        raise kind(
            f"{published} can't be opened: {_first_line(error)}.",
            mend="Publish it again: `resilience publish`.",
        ) from error
    except duckdb.Error as error:
        raise CorruptError(
            f"{published} is not a readable DuckDB file: {_first_line(error)}.",
            mend="Publish it again: `resilience publish`.",
        ) from error
    with connection:
        connection.sql("set timezone = 'UTC'")
        return _cut(connection, published)


def _cut(connection: duckdb.DuckDBPyConnection, published: Path) -> Published:
    def read(model: type[_R]) -> tuple[_R, ...]:
        return _read(connection, published, model)

    stacks = {row.stack_key: row for row in _read_stacks(connection, published)}
    runs, startups, variants = read(RunRow), read(StartupRow), read(VariantRow)
    phases, speedups, trend = read(PhaseSummaryRow), read(SpeedupRow), read(TrendRow)
    snapshots, snapshot_phases = read(SnapshotRow), read(SnapshotPhaseRow)
    faults, fault_summary = read(FaultRow), read(FaultSummaryRow)
    coverage, quality = read(CoverageRow), read(QualityRow)
    change_points = [row for row in read(ChangePointRow) if row.decision != Choice.MUTED]
    compatibility = read(CompatibilityRow)

    events, detections = _by_measurement(read(EventRow)), _by_measurement(read(DetectionRow))
    scopes = []
    for worker, basis, stack_key in sorted({_scope_key(row) for row in (*runs, *quality)}):
        if stack_key not in stacks:
            raise CorruptError(
                f"{published}: stack {stack_key} has runs but is not in table `stacks`.",
                mend="Build and publish it again: `resilience publish`.",
            )
        key = (worker, basis, stack_key)
        series = {_series_key(row) for row in trend if _scope_key(row) == key}
        own_snapshots = _of(snapshots, key)
        taken = {(row.run_id, row.measurement_id) for row in own_snapshots}
        own_faults = _of(faults, key)
        scopes.append(
            Scope(
                worker=worker,
                basis=basis,
                stack=stacks[stack_key],
                runs=_of(runs, key),
                startups=_of(startups, key),
                variants=_of(variants, key),
                phase_summary=_of(phases, key),
                speedups=_of(speedups, key),
                trend=tuple(row for row in trend if _series_key(row) in series),
                change_points=tuple(row for row in change_points if _series_key(row) in series),
                snapshots=own_snapshots,
                snapshot_phases=tuple(
                    row for row in snapshot_phases if (row.run_id, row.measurement_id) in taken
                ),
                faults=own_faults,
                clean_controls=sum(_is_clean(row, detections) for row in own_faults if row.control),
                fault_summary=_of(fault_summary, key),
                coverage=_of(coverage, key),
                compatibility=tuple(
                    row
                    for row in compatibility
                    if key in (_scope_key(row), (row.worker, row.basis, row.source_stack_key))
                ),
                quality=_of(quality, key),
            )
        )
    # What was measured on the real thing leads; within one basis the newest does.
    order = {basis.value: place for place, basis in enumerate(Basis)}
    scopes.sort(key=lambda scope: scope.last_measured_at, reverse=True)
    scopes.sort(key=lambda scope: order.get(scope.basis, len(order)))
    return Published(
        scopes=tuple(scopes),
        stacks=stacks,
        events=events,
        detections=detections,
    )


def _is_clean(
    control: FaultRow, detections: Mapping[MeasurementKey, Sequence[DetectionRow]]
) -> bool:
    seen = detections.get((control.run_id, control.measurement_id), ())
    return control.verdict == Verdict.PASS and not any(row.detected for row in seen)


def _scope_key(row: ScopedRow) -> tuple[str, str, str]:
    return (row.worker, row.basis, row.stack_key)


def _series_key(row: SeriesRow) -> tuple[str, str, str, str | None]:
    return (row.worker, row.basis, row.hardware_key, row.model)


def _of(rows: Iterable[_S], key: tuple[str, str, str]) -> tuple[_S, ...]:
    return tuple(row for row in rows if _scope_key(row) == key)


_M = TypeVar("_M", EventRow, DetectionRow)


def _by_measurement(rows: Iterable[_M]) -> dict[MeasurementKey, tuple[_M, ...]]:
    found: dict[MeasurementKey, list[_M]] = {}
    for row in rows:
        found.setdefault((row.run_id, row.measurement_id), []).append(row)
    return {key: tuple(value) for key, value in found.items()}


def _read(
    connection: duckdb.DuckDBPyConnection, published: Path, model: type[_R]
) -> tuple[_R, ...]:
    rows = _select(connection, published, model.TABLE, list(model.model_fields), model.ORDER)
    try:
        return tuple(model(**row) for row in rows)
    except ValidationError as error:
        raise _unreadable(published, model.TABLE, error) from error


def _read_stacks(connection: duckdb.DuckDBPyConnection, published: Path) -> tuple[StackRow, ...]:
    names = [name for name in StackRow.model_fields if name != "dimensions"]
    dimensions = list(Stack.model_fields)
    rows = _select(connection, published, StackRow.TABLE, [*names, *dimensions], StackRow.ORDER)
    try:
        return tuple(
            StackRow(
                **{name: row[name] for name in names},
                dimensions={name: row[name] for name in dimensions},
            )
            for row in rows
        )
    except ValidationError as error:
        raise _unreadable(published, StackRow.TABLE, error) from error


def _select(
    connection: duckdb.DuckDBPyConnection,
    published: Path,
    table: str,
    columns: Sequence[str],
    order: str,
) -> list[dict[str, Any]]:
    selected = ", ".join(f'"{column}"' for column in columns)
    # Table, columns and order are constants of the models above.
    query = f'select {selected} from "{table}" order by {order}'  # noqa: S608
    try:
        found: list[dict[str, Any]] = connection.sql(query).pl().to_dicts()
    except duckdb.Error as error:
        raise CorruptError(
            f"{published}: table `{table}` can't be read: {_first_line(error)}.",
            mend="Build and publish it again with this version: `resilience publish`.",
        ) from error
    return found


def _unreadable(published: Path, table: str, error: ValidationError) -> CorruptError:
    first = error.errors(include_url=False)[0]
    column = ".".join(str(part) for part in first["loc"])
    return CorruptError(
        f"{published}: table `{table}`, column `{column}`: {first['msg']} "
        f"(it holds {str(first['input'])[:80]!r}).",
        mend="Build and publish it again with this version: `resilience publish`.",
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
