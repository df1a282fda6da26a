"""Tables: the rows of the page's tables as the template lays them out.

What belongs here: which marts' values a table shows, in what order and wording. What does not:
markup (the template), and tables of a chart's raw data (`charts`).
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilience_pipelines.dashboards import headline, palette, words
from resilience_pipelines.dashboards.data import Scope
from resilience_pipelines.dashboards.headline import Status
from resilience_pipelines.dashboards.rows import (
    ChangePointRow,
    CompatibilityRow,
    CoverageRow,
    CriuSummaryRow,
    EconomicsRow,
    FanoutRow,
    FaultCountRow,
    FaultRow,
    FaultScoreRow,
    FaultSummaryRow,
    QualityRow,
    RunFactsRow,
    RunRow,
    SnapshotRow,
    StackRow,
)
from resilience_pipelines.records import Arm, CriuStatistics, Outcome, Verdict
from resilience_pipelines.stack import Stack

PAGE_BYTES = 4096
RIGHT = "right"

VERDICT_STATUS = {
    Verdict.PASS.value: Status.GOOD,
    Verdict.FAIL.value: Status.BAD,
    Verdict.ROLLBACK_FAILED.value: Status.BAD,
    Verdict.INCONCLUSIVE.value: Status.WARN,
    Verdict.NOT_INJECTED.value: Status.WARN,
    Verdict.ABORTED.value: Status.WARN,
    Verdict.NOT_APPLICABLE.value: Status.NONE,
}
GATE_STATUS = {"right": Status.GOOD, "too_strict": Status.WARN, "too_lax": Status.BAD}


@dataclass(frozen=True)
class Estimate:
    """A median with its interval, as text."""

    value: str
    interval: str


@dataclass(frozen=True)
class Chip:
    """A count with its meaning."""

    status: Status
    text: str


@dataclass(frozen=True)
class ArmLine:
    """One arm and variant in numbers."""

    label: str
    mark: palette.Mark
    n: int
    estimate: Estimate
    range: str
    unaccounted: str
    page_cache: str
    throughput: str
    problems: tuple[Chip, ...]


def arm_lines(scope: Scope) -> tuple[ArmLine, ...]:
    """Every arm and variant that was asked for, right or not."""
    order = words.ARM_ORDER
    rows = sorted(
        scope.variants,
        key=lambda row: (
            order.index(row.arm) if row.arm in order else len(order), row.arm, row.variant or "",
        ),
    )  # fmt: skip
    lines = []
    for row in rows:
        series = (row.arm, row.variant)
        caches: Counter[str] = Counter()
        for starts in scope.start_counts:
            if (starts.arm, starts.variant) == series and starts.result == RIGHT:
                caches[starts.page_cache_found or "unknown"] += starts.n
        kept = next(
            (found.kept_fraction for found in scope.throughputs
             if (found.arm, found.variant) == series),
            None,
        )  # fmt: skip
        problems = (
            (row.n_wrong_answer, Status.BAD, "wrong"),
            (row.n_failed, Status.BAD, "failed"),
            (row.n_not_checked, Status.WARN, "not checked"),
            (row.n_unsupported, Status.NONE, "unsupported"),
        )
        span = (
            f"{words.seconds(row.min_s)} to {words.seconds(row.max_s)}"
            if row.min_s is not None and row.max_s is not None
            else words.MISSING
        )
        lines.append(
            ArmLine(
                label=words.arm(row.arm, row.variant),
                mark=palette.arm(row.arm),
                n=row.n,
                estimate=_estimate(row.median_s, row.ci_low_s, row.ci_high_s),
                range=span,
                unaccounted=words.percent(row.mean_unaccounted_fraction),
                page_cache=", ".join(words.spoken(name) for name, _ in caches.most_common())
                or words.MISSING,
                throughput=words.percent(kept),
                problems=tuple(
                    Chip(status, f"{count} {word}") for count, status, word in problems if count
                ),
            )
        )
    return tuple(lines)


@dataclass(frozen=True)
class ChangeLine:
    """One change of level."""

    change_id: str
    changed: str
    arm: str
    mark: palette.Mark
    change: Estimate
    before: str
    after: str
    relevant: str
    what_changed: str
    decision: str


def change_lines(
    rows: Sequence[ChangePointRow], stacks: Mapping[str, StackRow]
) -> tuple[ChangeLine, ...]:
    """Changes as given, with both stacks' values of the dimensions that differ."""
    return tuple(
        ChangeLine(
            change_id=row.change_id,
            changed=words.minute(row.changed_at),
            arm=words.arm(row.arm, row.variant),
            mark=palette.arm(row.arm),
            change=Estimate(
                words.percent(row.change_fraction, signed=True),
                words.percent_range(row.change_low, row.change_high),
            ),
            before=f"{words.seconds(row.before_median_s)}, {words.sample(row.n_before)}",
            after=f"{words.seconds(row.after_median_s)}, {words.sample(row.n_after)}",
            relevant=_relevant(row),
            what_changed=_what_changed(row, stacks),
            decision=_decision(row),
        )
        for row in rows
    )


def _relevant(row: ChangePointRow) -> str:
    if not row.significant:
        return "not significant"
    return {True: "yes", False: "no", None: "not known"}[row.relevant]


def _what_changed(row: ChangePointRow, stacks: Mapping[str, StackRow]) -> str:
    if not row.candidate_dimensions:
        return "nothing that is known"
    before, after = stacks.get(row.previous_stack_key), stacks.get(row.stack_key)
    named = [_difference(name, before, after) for name in row.candidate_dimensions]
    return named[0] if len(named) == 1 else f"one or more of: {'; '.join(named)}"


def _difference(name: str, before: StackRow | None, after: StackRow | None) -> str:
    label = words.dimension(name)
    if before is None or after is None or name not in after.dimensions:
        return label
    old, new = before.dimensions.get(name), after.dimensions[name]
    return (
        f"{label} {'none' if old is None else old} \N{RIGHTWARDS ARROW} "
        f"{'none' if new is None else new}"
    )


def _decision(row: ChangePointRow) -> str:
    if row.decision is None:
        return "none"
    decision = words.spoken(row.decision)
    return f"{decision}: {row.decision_note}" if row.decision_note else decision


@dataclass(frozen=True)
class CompatibilityLine:
    """Snapshots of one stack, restored on another one."""

    source: str
    target: str
    differs: str
    came_back: Chip
    reason: str
    gate: Chip
    prediction: str
    wasted: str


def compatibility_lines(
    rows: Sequence[CompatibilityRow], this_stack: str
) -> tuple[CompatibilityLine, ...]:
    """Pairs of stacks as given; hardware is named where it differs.

    Args:
        this_stack: the key of the stack that is called so.
    """
    lines = []
    for row in rows:
        moved = row.source_hardware_label != row.hardware_label
        good = row.n_ok == row.n
        lines.append(
            CompatibilityLine(
                source="this stack"
                if row.source_stack_key == this_stack
                else _stack_name(row.source_software_label, row.source_hardware_label, moved),
                target="this stack"
                if row.stack_key == this_stack
                else _stack_name(row.software_label, row.hardware_label, moved),
                differs=_differences(row),
                came_back=Chip(
                    Status.GOOD if good else Status.WARN if row.n_ok else Status.BAD,
                    f"{row.n_ok} of {row.n}",
                ),
                reason=words.spoken(row.reason_code) if row.reason_code else words.MISSING,
                gate=Chip(GATE_STATUS.get(row.gate, Status.WARN), words.spoken(row.gate)),
                prediction="lets it pass" if row.predicted_compatible else "refuses it",
                wasted=words.seconds(row.wasted_gpu_s),
            )
        )
    return tuple(lines)


def _differences(row: CompatibilityRow) -> str:
    found = [words.dimension(name) for name in row.differing_dimensions]
    if row.image_edit is not None:
        found.append(f"edited copy: {words.spoken(row.image_edit)}")
    return ", ".join(found) or "nothing"


def _stack_name(software: str, hardware: str, with_hardware: bool) -> str:
    return f"{software} on {hardware}" if with_hardware else software


@dataclass(frozen=True)
class FaultLine:
    """One fault, layer and recovery, or all control arms together."""

    fault: str
    layer: str
    recovery: str
    mark: palette.Mark
    n: int
    verdicts: tuple[Chip, ...]
    detect: Estimate
    recover: Estimate
    experiment: str
    """The deep link's value for the experiment to look at first; empty where none is shown."""


def fault_lines(
    summary: Sequence[FaultSummaryRow], faults: Sequence[FaultRow], shown: Iterable[str]
) -> tuple[tuple[FaultLine, ...], ...]:
    """The verdict table, the recoveries of one fault together.

    Args:
        shown: the ids of the experiments that the page can open.
    """
    available = set(shown)
    in_order = sorted(
        summary,
        key=_by_fault,
    )
    lines = []
    for row in in_order:
        own = [
            f
            for f in faults
            if not f.control
            and (f.planned_fault, f.layer, f.recovery)
            == (row.planned_fault, row.layer, row.recovery)
        ]
        own.sort(key=lambda f: _severity(f.verdict))
        lines.append(
            FaultLine(
                fault=words.label(row.planned_fault),
                layer=row.layer,
                recovery=words.arm(row.recovery) if row.recovery else "None",
                mark=palette.arm(row.recovery),
                n=row.n,
                verdicts=_verdict_chips(
                    {item.value: int(getattr(row, f"n_{item.value}")) for item in Verdict}
                ),
                detect=_estimate(row.detect_median_s, row.detect_ci_low_s, row.detect_ci_high_s),
                recover=_estimate(
                    row.recover_median_s, row.recover_ci_low_s, row.recover_ci_high_s
                ),
                experiment=next((key for f in own if (key := experiment_id(f)) in available), ""),
            )
        )
    return tuple(
        tuple(group)
        for _, group in itertools.groupby(lines, key=lambda line: (line.fault, line.layer))
    )


def _by_fault(row: FaultSummaryRow | FaultScoreRow) -> tuple[str, str, int, str]:
    order = words.ARM_ORDER
    place = order.index(row.recovery) if row.recovery in order else len(order)
    return (row.planned_fault, row.layer, place, row.recovery or "")


@dataclass(frozen=True)
class ScoreLine:
    """One fault, layer and recovery: its mean times, and the downtime that follows from them."""

    fault: str
    layer: str
    recovery: str
    mark: palette.Mark
    n: int
    detected: str
    mttd: Estimate
    recovered: str
    mttr: Estimate
    daily: Estimate
    fleet: Estimate


def score_lines(rows: Sequence[FaultScoreRow]) -> tuple[ScoreLine, ...]:
    """The table of mean times, in the order of the verdict table."""
    return tuple(
        ScoreLine(
            fault=words.label(row.planned_fault),
            layer=row.layer,
            recovery=words.arm(row.recovery) if row.recovery else "None",
            mark=palette.arm(row.recovery),
            n=row.n,
            detected=f"{row.n_detected} of {row.n}",
            mttd=_estimate(row.mttd_s, row.mttd_ci_low_s, row.mttd_ci_high_s),
            recovered=f"{row.n_recovered} of {row.n}",
            mttr=_estimate(row.mttr_s, row.mttr_ci_low_s, row.mttr_ci_high_s),
            daily=Estimate(
                words.availability(row.daily_availability_fraction),
                words.availability_range(
                    row.daily_availability_fraction_ci_low, row.daily_availability_fraction_ci_high
                ),
            ),
            fleet=Estimate(
                words.availability(row.fleet_availability_fraction),
                words.availability_range(
                    row.fleet_availability_fraction_ci_low, row.fleet_availability_fraction_ci_high
                ),
            ),
        )
        for row in sorted(rows, key=_by_fault)
    )


def control_chips(counts: Sequence[FaultCountRow]) -> tuple[Chip, ...]:
    """The verdicts of all control arms."""
    verdicts: Counter[str] = Counter()
    for row in counts:
        if row.control:
            verdicts[row.verdict] += row.n
    return _verdict_chips(verdicts)


def experiment_id(row: FaultRow) -> str:
    """The name of an experiment in a deep link."""
    return f"{row.run_id}/{row.measurement_id}"


@dataclass(frozen=True)
class CoverageCell:
    """What one detector saw of one fault; `kind` sets the ground, the text says it in words."""

    kind: str
    text: str
    detail: str
    alarm: str = ""


@dataclass(frozen=True)
class CoverageLine:
    """One row of the matrix."""

    fault: str
    layer: str
    cells: tuple[CoverageCell, ...]


@dataclass(frozen=True)
class Coverage:
    """The matrix of faults by detectors, the control arms as its last row."""

    detectors: tuple[str, ...]
    lines: tuple[CoverageLine, ...]
    controls: tuple[CoverageCell, ...]


def coverage(rows: Sequence[CoverageRow]) -> Coverage:
    """Who notices what; a cell without a count says why."""
    detectors = sorted({row.detector for row in rows})
    pairs = sorted({(row.planned_fault, row.layer) for row in rows})
    by_place = {(row.planned_fault, row.layer, row.detector): row for row in rows}
    lines = tuple(
        CoverageLine(
            words.label(fault),
            layer,
            tuple(_coverage_cell(by_place.get((fault, layer, name))) for name in detectors),
        )
        for fault, layer in pairs
    )
    return Coverage(
        tuple(words.label(name) for name in detectors),
        lines,
        tuple(_control_cell([row for row in rows if row.detector == d]) for d in detectors),
    )


def _coverage_cell(row: CoverageRow | None) -> CoverageCell:
    if row is None:
        return CoverageCell("absent", "not run", "took no part")
    alarm = f"{row.n_false_alarms} of {row.n_control} false" if row.n_false_alarms else ""
    if row.n == 0:
        why = "only control arms" if row.n_control else "no effect was proved"
        return CoverageCell("absent", "not run", why, alarm)
    if row.n_expected == 0:
        if row.n_detected:
            return CoverageCell(
                "bonus", f"{row.n_detected} of {row.n}", "seen, though not expected", alarm
            )
        return CoverageCell("quiet", "not expected", "", alarm)
    seen = max(row.n_expected - row.n_missed, 0)
    time = words.seconds(row.median_s) if row.median_s is not None else "never seen"
    kind = "all" if seen == row.n_expected else "some" if seen else "none"
    return CoverageCell(kind, f"{seen} of {row.n_expected}", time, alarm)


def _control_cell(rows: Sequence[CoverageRow]) -> CoverageCell:
    controls = sum(row.n_control for row in rows)
    false = sum(row.n_false_alarms for row in rows)
    if not controls:
        return CoverageCell("absent", "not run", "no control arm")
    if false:
        return CoverageCell("alarm", f"{false} of {controls}", "false alarms")
    return CoverageCell("quiet", f"0 of {controls}", "no false alarm")


@dataclass(frozen=True)
class SnapshotLine:
    """One attempt to take a snapshot."""

    name: str
    taken: str
    engine: str
    outcome: Chip
    size: str
    size_fraction: float | None
    files: str
    total: str
    serving: str


def snapshot_lines(rows: Sequence[SnapshotRow]) -> tuple[SnapshotLine, ...]:
    """Attempts as given, sizes compared with the largest of them."""
    largest = max((row.image_bytes or 0 for row in rows), default=0)
    serving = {True: "yes", False: "no", None: "not checked"}
    lines = []
    for row in rows:
        good = row.outcome == Outcome.OK
        bad = row.outcome == Outcome.FAILED
        why = f": {words.spoken(row.reason_code)}" if row.reason_code else ""
        level = f", sleep level {row.sleep_level}" if row.sleep_level is not None else ""
        lines.append(
            SnapshotLine(
                name=row.snapshot_id or row.measurement_id,
                taken=words.minute(row.started_at),
                engine=f"{words.spoken(row.snapshot_engine or 'unknown')}{level}",
                outcome=Chip(
                    Status.GOOD if good else Status.BAD if bad else Status.NONE,
                    f"{words.spoken(row.outcome)}{why}",
                ),
                size=words.size(row.image_bytes),
                size_fraction=row.image_bytes / largest
                if largest and row.image_bytes is not None
                else None,
                files=words.number(row.image_files),
                total=words.seconds(row.total_s),
                serving=serving[row.source_serving_after],
            )
        )
    return tuple(lines)


@dataclass(frozen=True)
class EconomicsLine:
    """What snapshots cost and give back against one other way to start."""

    versus: str
    mark: palette.Mark
    take: str
    size: str
    saved: Estimate
    basis: str
    break_even: Chip
    net: str
    net_gpu: str


def economics_lines(rows: Sequence[EconomicsRow]) -> tuple[EconomicsLine, ...]:
    """Costs and savings as given."""
    return tuple(
        EconomicsLine(
            versus=words.arm(row.versus),
            mark=palette.arm(row.versus),
            take=f"{words.seconds(row.take_median_s)}, {words.sample(row.n_snapshots)}"
            + (f", {row.n_snapshots_failed} failed" if row.n_snapshots_failed else ""),
            size=words.size(_rounded(row.image_median_bytes)),
            saved=Estimate(
                words.signed_seconds(row.saved_median_s),
                words.seconds_range(row.saved_ci_low_s, row.saved_ci_high_s),
            ),
            basis=f"{words.seconds(row.other_median_s)}, {words.sample(row.n_other)}, against "
            f"{words.seconds(row.restore_median_s)}, {words.sample(row.n_restores)}",
            break_even=_break_even(row),
            net=words.signed_seconds(row.net_saved_s),
            net_gpu=words.signed_seconds(row.net_saved_gpu_s),
        )
        for row in rows
    )


def _break_even(row: EconomicsRow) -> Chip:
    if row.restores_to_break_even is None:
        return Chip(Status.BAD, "never: a restore saves no time")
    return Chip(Status.GOOD, words.plural(row.restores_to_break_even, "restore"))


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


@dataclass(frozen=True)
class FanoutLine:
    """Restores from one image that began together."""

    width: str
    page_cache: str
    n: str
    failed: tuple[Chip, ...]
    middle: Estimate
    slowest: str
    over_alone: str
    wave: str
    rate: str


def fanout_lines(rows: Sequence[FanoutRow]) -> tuple[FanoutLine, ...]:
    """Waves as given."""
    return tuple(
        FanoutLine(
            width=words.number(row.width),
            page_cache=words.spoken(row.page_cache),
            n=f"{words.number(row.n)} in {words.plural(row.n_waves, 'wave')}",
            failed=(Chip(Status.BAD, f"{row.n_failed} failed"),) if row.n_failed else (),
            middle=_estimate(row.p50_s, row.p50_ci_low_s, row.p50_ci_high_s),
            slowest=words.seconds(row.p99_s),
            over_alone=words.times(row.p50_over_alone),
            wave=words.seconds(row.wave_median_s),
            rate=_rate(row.restored_median_bytes_per_s),
        )
        for row in rows
    )


def fanout_note(rows: Sequence[FanoutRow]) -> str:
    """What the disk gives, and what that means for one image."""
    if not rows:
        return ""
    slowest = min(rows, key=lambda row: row.disk_median_bytes_per_s)
    fastest = max(rows, key=lambda row: row.disk_median_bytes_per_s)
    low, high = (_rate(row.disk_median_bytes_per_s) for row in (slowest, fastest))
    return (
        f"Read by itself, with none of it in the page cache, the image of "
        f"{words.size(round(slowest.image_median_bytes))} came from the disk at "
        f"{low if low == high else f'{low} to {high}'}, in "
        f"{words.seconds(slowest.image_from_disk_s)} at most."
    )


def _rate(bytes_per_s: float | None) -> str:
    return words.MISSING if bytes_per_s is None else f"{words.size(round(bytes_per_s))}/s"


@dataclass(frozen=True)
class CriuTable:
    """CRIU's own statistics over dumps or over restores: label, median, and what it means."""

    title: str
    lines: tuple[tuple[str, str, str], ...]


def criu_tables(scope: Scope) -> tuple[CriuTable, ...]:
    """The statistics that CRIU wrote; what no image or restore holds is left out."""
    of_each = (("Dump", "dump", scope.dumps), ("Restore", "restore", scope.restores))
    made = [
        CriuTable(
            f"{what}, median of {words.plural(found.n, one)}",
            tuple(line for name in CriuStatistics.model_fields if (line := _criu(found, name))),
        )
        for what, one, found in of_each
        if found is not None
    ]
    return tuple(table for table in made if table.lines)


def _criu(found: CriuSummaryRow, name: str) -> tuple[str, str, str] | None:
    middle, known = found.medians[name], found.known[name]
    if middle is None:
        return None
    label = words.CRIU_LABELS.get(name, words.spoken(name))
    few = f"{words.sample(known)} of {found.n}" if known < found.n else ""
    if name.endswith("_s"):
        return label, words.seconds(middle), few
    size = words.size(round(middle * PAGE_BYTES))
    return label, words.number(middle), f"{size}; {few}" if few else size


@dataclass(frozen=True)
class QualityLine:
    """How much of what was asked of one subject is there."""

    kind: str
    subject: str
    asked: int
    ok: int
    failed: int
    unsupported: int
    missing: int
    reasons: str


def quality_lines(rows: Sequence[QualityRow]) -> tuple[QualityLine, ...]:
    """Asked, and what became of it; what has no result at all is missing."""
    labels: dict[str, Callable[[str], str]] = {"startup": words.arm}
    return tuple(
        QualityLine(
            kind=words.label(row.kind),
            subject=labels.get(row.kind, words.label)(row.subject),
            asked=row.asked,
            ok=row.ok,
            failed=row.failed,
            unsupported=row.unsupported,
            missing=max(row.asked - row.ok - row.failed - row.unsupported, 0),
            reasons=row.reasons or "",
        )
        for row in rows
    )


@dataclass(frozen=True)
class RunLine:
    """One job."""

    run_id: str
    kind: str
    started: str
    took: str
    launcher: str
    platform: str
    unsupported: str


def run_lines(rows: Sequence[RunRow]) -> tuple[RunLine, ...]:
    """Jobs as given."""
    return tuple(
        RunLine(
            run_id=row.run_id,
            kind=words.spoken(row.kind),
            started=words.minute(row.started_at),
            took=words.seconds((row.finished_at - row.started_at).total_seconds())
            if row.finished_at
            else words.MISSING,
            launcher=row.launcher or words.MISSING,
            platform=platform(row),
            unsupported="; ".join(f"{k}: {v}" if k else str(v) for k, v in row.unsupported.items()),
        )
        for row in rows
    )


def platform(row: RunRow | RunFactsRow) -> str:
    """The platform's version and commit that a run was made with."""
    version = row.platform_version or "unknown version"
    return f"{version} ({row.platform_commit[:12]})" if row.platform_commit else version


@dataclass(frozen=True)
class OverviewLine:
    """One scope among all, to choose from."""

    hardware: str
    software: str
    worker: str
    measured: str
    restore: Estimate
    speedup: Estimate
    faults: Chip
    wrong: Chip


def overview_line(scope: Scope) -> OverviewLine:
    """The key figures of one scope in a row."""
    experiments, answers = headline.experiments_card(scope), headline.answers_card(scope)
    restore = next((row for row in scope.summary if row.arm == Arm.RESTORE), None)
    best = next((r for r in scope.speedups if r.versus == headline.BEST_OTHER_START), None)
    return OverviewLine(
        hardware=words.hardware(scope.stack.dimensions),
        software=words.software(scope.stack.dimensions),
        worker=words.worker(scope.worker, scope.basis),
        measured=words.day(scope.last_measured_at),
        restore=_estimate(restore.median_s, restore.ci_low_s, restore.ci_high_s)
        if restore
        else Estimate(words.MISSING, ""),
        speedup=Estimate(words.times(best.speedup), words.ratio_range(best.ci_low, best.ci_high))
        if best
        else Estimate(words.MISSING, ""),
        faults=Chip(experiments.status, experiments.value),
        wrong=Chip(answers.status, answers.value),
    )


def stack_facts(stack: StackRow) -> tuple[tuple[str, str], ...]:
    """Every dimension with its value; an unknown one says so."""
    return tuple(
        (
            words.dimension(name),
            "unknown" if stack.dimensions.get(name) is None else str(stack.dimensions[name]),
        )
        for name in Stack.model_fields
    )


def experiment_facts(row: FaultRow) -> tuple[tuple[str, str], ...]:
    """What is known about one experiment, as term and description."""
    facts: list[tuple[str, Any]] = [
        ("Verdict", words.verdict(row.verdict)),
        ("Reason", words.spoken(row.reason_code) if row.reason_code else None),
        ("Fault", words.label(row.planned_fault) + (" (control arm)" if row.control else "")),
        ("Layer", words.layer(row.layer)),
        ("Recovery", words.arm(row.recovery) if row.recovery else "none"),
        ("Started", words.minute(row.started_at)),
        ("Time to detect", words.seconds(row.time_to_detect_s)),
        ("Time to recover", words.seconds(row.time_to_recover_s)),
        ("Recovery's own part", words.seconds(row.recovery_s)),
        ("Answer after it", words.spoken(row.oracle_verdict) if row.oracle_verdict else None),
        ("Effect", _proof(row.effect_proved, row.effect_source, row.effect_detail)),
        ("Roll-back", _proof(row.rollback_proved, row.rollback_source, row.rollback_detail)),
        ("Detail", row.detail or None),
        ("Parameters", _parameters(row.parameters)),
        ("Run", row.run_id),
        ("Measurement", row.measurement_id),
    ]
    return tuple((term, str(value)) for term, value in facts if value is not None)


def experiment_label(row: FaultRow) -> str:
    """One line that tells an experiment from the others."""
    parts = [
        words.minute(row.started_at),
        f"{words.label(row.planned_fault)} ({row.layer})",
        words.arm(row.recovery).lower() if row.recovery else "",
        "control" if row.control else "",
        words.verdict(row.verdict),
    ]
    return " \N{MIDDLE DOT} ".join(part for part in parts if part)


def by_severity(faults: Sequence[FaultRow]) -> list[FaultRow]:
    """The experiments a reader wants to open first: the worst verdicts, then the newest."""
    return sorted(faults, key=lambda row: (_severity(row.verdict), row.control))


def _severity(verdict: str) -> int:
    order = (Status.BAD, Status.WARN, Status.GOOD, Status.NONE)
    return order.index(VERDICT_STATUS.get(verdict, Status.WARN))


def _verdict_chips(counts: dict[str, int] | Counter[str]) -> tuple[Chip, ...]:
    order = [item.value for item in Verdict]
    names = sorted(counts, key=lambda name: (name not in order, name))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return tuple(
        Chip(VERDICT_STATUS.get(name, Status.WARN), f"{counts[name]} {words.verdict(name)}")
        for name in names
        if counts[name]
    )


def _estimate(middle: float | None, low: float | None, high: float | None) -> Estimate:
    return Estimate(words.seconds(middle), words.seconds_range(low, high))


def _proof(proved: bool | None, source: str | None, detail: str | None) -> str:
    if proved is None:
        return "no proof recorded"
    text = "proved" if proved else "not proved"
    if source:
        text += f" by {words.spoken(source)}"
    return f"{text}: {detail}" if detail else text


def _parameters(parameters: dict[str, Any]) -> str | None:
    if not parameters:
        return None
    return ", ".join(
        f"{name} = {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in parameters.items()
    )
