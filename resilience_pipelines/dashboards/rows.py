"""Rows that the dashboard shows, as the tables of the published file hold them.

What belongs here: one typed, immutable model per table or count, with what it selects. What does
not: reading them, and which of them belong together (`data`).

However many runs there are, what is held in memory is bounded: DuckDB counts and takes medians over
all rows, and single rows are those of the newest scopes (the temporary table `detailed`), the
newest of each kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict

from resilience_pipelines.records import Arm, CriuStatistics, Outcome, Verdict

MOST_DETAILED: Final = 40
"""Scopes of which single rows are read; of those beyond, counts and summaries."""
READ_STARTS: Final = 100
"""Single starts of each arm, variant and result of a scope."""
MOST_EXPERIMENTS: Final = 120
"""Single experiments of each verdict of a scope, and as many control arms."""
READ_TIMES: Final = 20
"""Single experiments of each fault, layer and recovery of a scope."""
READ_SNAPSHOTS: Final = 120
"""Single snapshots of a scope."""
READ_RUNS: Final = 300
"""Single runs of a scope."""

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


SCOPE: Final = "worker, basis, stack_key"
"""The columns that set one scope apart from another."""


def _newest(most: int, *of_each: str) -> str:
    """The clause that takes the newest rows of each detailed scope, or of each group in it."""
    groups = ", ".join((SCOPE, *of_each))
    return (
        f"semi join detailed using ({SCOPE}) qualify row_number() over "
        f"(partition by {groups} order by started_at desc, run_id, measurement_id) <= {most}"
    )


class Row(BaseModel):
    """Base of a row: reads exactly the columns that it names from the table that it names.

    `EXPRESSIONS` has the SQL of fields that are no column, and `CLAUSE` what stands between the
    table and the order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    TABLE: ClassVar[str]
    ORDER: ClassVar[str] = "all"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {}
    CLAUSE: ClassVar[str] = ""


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


class RunFactsRow(ScopedRow):
    """All jobs that one release of the platform ran and that could not do the same parts."""

    TABLE: ClassVar[str] = "runs"
    ORDER: ClassVar[str] = "last_started_at desc, platform_version, platform_commit, unsupported"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {
        "n": "count(*)",
        "first_started_at": "min(started_at)",
        "last_started_at": "max(started_at)",
    }
    CLAUSE: ClassVar[str] = "group by all"

    platform_version: Text | None
    platform_commit: Text | None
    unsupported: Object
    n: int
    first_started_at: AwareDatetime
    last_started_at: AwareDatetime


class RunRow(ScopedRow):
    """One job."""

    TABLE: ClassVar[str] = "runs"
    ORDER: ClassVar[str] = "started_at desc, run_id"
    CLAUSE: ClassVar[str] = (
        f"semi join detailed using ({SCOPE}) qualify row_number() over "
        f"(partition by {SCOPE} order by started_at desc, run_id) <= {READ_RUNS}"
    )

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


class CriuSummaryRow(ScopedRow):
    """CRIU's statistics over all dumps or restores of a scope, by `CriuStatistics`' names."""

    EXPRESSIONS: ClassVar[Mapping[str, str]] = {
        "n": "count(*)",
        **{
            field: "{"
            + ", ".join(f"{name}: {of}(criu_{name})" for name in CriuStatistics.model_fields)
            + "}"
            for field, of in (("medians", "median"), ("known", "count"))
        },
    }

    n: int
    medians: dict[str, float | None]
    known: dict[str, int]
    """How many rows hold the statistic."""


class RestoreRow(CriuSummaryRow):
    """All right restores."""

    TABLE: ClassVar[str] = "startup_measurements"
    CLAUSE: ClassVar[str] = f"where arm = '{Arm.RESTORE}' and result = 'right' group by all"


class DumpRow(CriuSummaryRow):
    """All snapshots that came out."""

    TABLE: ClassVar[str] = "snapshots"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {
        **CriuSummaryRow.EXPRESSIONS, "n_timed": "count(total_s)", "median_s": "median(total_s)",
    }  # fmt: skip
    CLAUSE: ClassVar[str] = f"where outcome = '{Outcome.OK}' group by all"

    n_timed: int
    median_s: float | None


class DumpPhaseRow(ScopedRow):
    """One phase of all snapshots that came out."""

    TABLE: ClassVar[str] = "snapshot_phases"
    ORDER: ClassVar[str] = "first_start_s, phase"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {
        **{name: f"snapshots.{name}" for name in ("worker", "basis", "stack_key")},
        "n": "count(*)",
        "median_s": "median(duration_s)",
        "first_start_s": "min(coalesce(start_s, 0))",
    }
    CLAUSE: ClassVar[str] = (
        "join snapshots using (run_id, measurement_id) "
        f"where snapshots.outcome = '{Outcome.OK}' and duration_s is not null group by all"
    )

    phase: Text
    n: int
    median_s: float
    first_start_s: float


class StartCountRow(ScopedRow):
    """How many starts ended alike."""

    TABLE: ClassVar[str] = "startup_measurements"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {"n": "count(*)", "timed": "total_s > 0"}
    CLAUSE: ClassVar[str] = "group by all"

    arm: Text
    variant: Text | None
    result: Text
    reason_code: Text | None
    oracle_verdict: Text | None
    page_cache_found: Text | None
    timed: bool | None
    """Whether they have a time."""
    n: int


class ThroughputRow(ScopedRow):
    """What right starts of one arm and variant keep of the throughput from before, as a median."""

    TABLE: ClassVar[str] = "startup_measurements"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {
        "kept_fraction": "median(throughput_tokens_per_s / throughput_before_tokens_per_s)"
    }
    CLAUSE: ClassVar[str] = (
        "where result = 'right' and throughput_tokens_per_s is not null "
        "and throughput_before_tokens_per_s <> 0 group by all"
    )

    arm: Text
    variant: Text | None
    kept_fraction: float


class StartupRow(ScopedRow, CriuColumns):
    """One start of a worker."""

    TABLE: ClassVar[str] = "startup_measurements"
    ORDER: ClassVar[str] = "started_at, run_id, measurement_id"
    CLAUSE: ClassVar[str] = _newest(READ_STARTS, "arm", "variant", "result")

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
    ORDER: ClassVar[str] = "last_at desc, source_stack_key, stack_key, image_edit"

    source_stack_key: Text
    source_hardware_label: Text
    source_software_label: Text
    hardware_label: Text
    software_label: Text
    image_edit: Text | None
    """What was changed in a copy of the snapshot, if anything."""
    differing_dimensions: Names
    n: Count
    n_ok: Count
    predicted_compatible: bool
    reason_code: Text | None
    gate: Text
    """Whether the gate knew: right, too_strict or too_lax."""
    wasted_gpu_s: float


class SnapshotCountRow(ScopedRow):
    """How many attempts to take a snapshot ended alike."""

    TABLE: ClassVar[str] = "snapshots"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {"n": "count(*)"}
    CLAUSE: ClassVar[str] = "group by all"

    snapshot_engine: Text | None
    outcome: Text
    reason_code: Text | None
    source_serving_after: bool | None
    n: int


class SnapshotRow(ScopedRow, CriuColumns):
    """One attempt to take a snapshot."""

    TABLE: ClassVar[str] = "snapshots"
    ORDER: ClassVar[str] = "started_at desc, run_id, measurement_id"
    CLAUSE: ClassVar[str] = _newest(READ_SNAPSHOTS)

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


class EconomicsRow(ScopedRow):
    """What snapshots cost and what restores gave back, against one other way to start."""

    TABLE: ClassVar[str] = "snapshot_economics"
    ORDER: ClassVar[str] = "versus"

    versus: Text
    gpu_count: int | None
    n_snapshots: Count
    n_snapshots_failed: Count
    take_median_s: float | None
    image_median_bytes: float | None
    n_restores: Count
    n_other: Count
    restore_median_s: float
    other_median_s: float
    saved_median_s: float
    saved_ci_low_s: float | None
    saved_ci_high_s: float | None
    restores_to_break_even: int | None
    """None where a restore saves no time."""
    net_saved_s: float | None
    net_saved_gpu_s: float | None
    """None without a GPU."""


class FanoutRow(ScopedRow):
    """Restores from one image that began together, by their number and the page cache found."""

    TABLE: ClassVar[str] = "restore_fanout"
    ORDER: ClassVar[str] = "page_cache, width"

    width: int
    page_cache: Text
    n_waves: Count
    n: Count
    n_failed: Count
    p50_s: float | None
    p50_ci_low_s: float | None
    p50_ci_high_s: float | None
    p99_s: float | None
    p50_over_alone: float | None
    """None where one alone was not measured with this page cache."""
    wave_median_s: float | None
    restored_median_bytes_per_s: float | None
    disk_median_bytes_per_s: float
    image_median_bytes: float
    image_from_disk_s: float


class FaultCountRow(ScopedRow):
    """How many experiments ended alike."""

    TABLE: ClassVar[str] = "fault_runs"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {"n": "count(*)"}
    CLAUSE: ClassVar[str] = "group by all"

    planned_fault: Text
    control: bool
    verdict: Text
    reason_code: Text | None
    oracle_verdict: Text | None
    n: int


class CleanControlsRow(ScopedRow):
    """Control arms that passed and in which no detector reported anything."""

    TABLE: ClassVar[str] = "fault_runs"
    EXPRESSIONS: ClassVar[Mapping[str, str]] = {"n": "count(*)"}
    CLAUSE: ClassVar[str] = (
        f"where control and verdict = '{Verdict.PASS}' and not exists ("  # noqa: S608
        "select 1 from fault_detections as seen where seen.run_id = fault_runs.run_id "
        "and seen.measurement_id = fault_runs.measurement_id and seen.detected) group by all"
    )

    n: int


class FaultRow(ScopedRow):
    """One experiment."""

    TABLE: ClassVar[str] = "fault_runs"
    ORDER: ClassVar[str] = "started_at desc, run_id, measurement_id"
    CLAUSE: ClassVar[str] = (
        _newest(MOST_EXPERIMENTS, "verdict", "control") + " or row_number() over (partition by "
        f"{SCOPE}, planned_fault, layer, recovery, control "
        f"order by started_at desc, run_id, measurement_id) <= {READ_TIMES}"
    )

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
    CLAUSE: ClassVar[str] = "semi join experiments using (run_id, measurement_id)"

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
    CLAUSE: ClassVar[str] = "semi join experiments using (run_id, measurement_id)"

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


class FaultScoreRow(ScopedRow):
    """Mean times and availability of one fault, layer and recovery, over proved experiments."""

    TABLE: ClassVar[str] = "fault_scores"
    ORDER: ClassVar[str] = "planned_fault, layer, recovery nulls first"

    planned_fault: Text
    layer: Text
    recovery: Text | None
    n: Count
    n_pass: Count
    n_detected: Count
    mttd_s: float | None
    mttd_ci_low_s: float | None
    mttd_ci_high_s: float | None
    n_recovered: Count
    mttr_s: float | None
    mttr_ci_low_s: float | None
    mttr_ci_high_s: float | None
    daily_availability_fraction: float | None
    daily_availability_fraction_ci_low: float | None
    daily_availability_fraction_ci_high: float | None
    fleet_availability_fraction: float | None
    fleet_availability_fraction_ci_low: float | None
    fleet_availability_fraction_ci_high: float | None
    fleet_failures_per_gpu_year: float | None


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
