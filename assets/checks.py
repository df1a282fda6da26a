"""Checks: whether what was materialized may be believed.

What belongs here: judging one landing folder, one image, one load, one published file. What does
not: what a record itself refuses to hold (`resilience_pipelines.records`), and business rules over
all records, which are dbt's tests and appear as checks of the marts.

A check reads the landing folder of the newest materialization again, so it can be run alone at any
time and notices what happened to the folder since. No data is never a pass. No check blocks: a bad
result is a result, and belongs in the warehouse with its reason.

Severity ERROR says that a result can't be believed; WARN says that something is missing or slow, or
that the worker, not the data, failed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import dagster as dg
from dagster import AssetCheckSeverity

from assets.faults import fault_runs
from assets.snapshots import snapshot_images
from assets.startup import startup_measurements
from assets.warehouse import published_database
from resilience_pipelines.dagster_io.instance import latest_materialization
from resilience_pipelines.dagster_io.metadata import Cell, table
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.errors import InputError, ResilienceError
from resilience_pipelines.records import (
    Arm,
    FaultRun,
    OracleVerdict,
    Outcome,
    RunRecord,
    StartupMeasurement,
    Verdict,
)
from resilience_pipelines.snapshots.settings import open_store
from resilience_pipelines.trends.comparison import UpgradeVerdict
from resilience_pipelines.upgrades import newest_upgrades
from resilience_pipelines.warehouse.landing import read_landing

MAX_UNACCOUNTED: Final = 0.05
"""Share of an arm's time that may lie in no phase."""

ERROR, WARN = AssetCheckSeverity.ERROR, AssetCheckSeverity.WARN

_INCONCLUSIVE: Final = frozenset(
    {Verdict.INCONCLUSIVE, Verdict.NOT_INJECTED, Verdict.ABORTED, Verdict.NOT_APPLICABLE}
)


def passed(description: str) -> dg.AssetCheckResult:
    """Nothing to say against it."""
    return dg.AssetCheckResult(passed=True, description=description)


def not_passed(
    severity: AssetCheckSeverity, description: str, details: dg.TableMetadataValue | None = None
) -> dg.AssetCheckResult:
    """Something to look at."""
    return dg.AssetCheckResult(
        passed=False,
        severity=severity,
        description=description,
        metadata={"details": details} if details else {},
    )


def every_arm_measured(record: RunRecord) -> dg.AssetCheckResult:
    """Whether every arm that was asked for has a start that counts."""
    if not record.startups:
        return not_passed(ERROR, "The run holds no start at all.")
    asked = {Arm(str(name)) for name in record.parameters.get("arms", tuple(Arm))}
    counted = {item.arm for item in record.startups if _right(item)}
    unsupported = {item.arm for item in record.startups if item.outcome is Outcome.UNSUPPORTED}
    missing = asked - counted
    if not missing:
        return passed(f"{len(asked)} arms, {len(record.startups)} starts.")
    failed = [item for item in record.startups if not _right(item)]
    details = table(
        {"measurement": "string", "outcome": "string", "reason": "string", "detail": "string"},
        [
            (item.measurement_id, item.outcome.value, item.reason_code, item.detail)
            for item in failed
        ],
    )
    names = ", ".join(sorted(missing))
    if missing <= unsupported:
        return not_passed(WARN, f"This machine can't measure: {names}.", details)
    return not_passed(ERROR, f"No start counts of: {names}.", details)


def answers_equal(record: RunRecord) -> dg.AssetCheckResult:
    """Whether every start, and above all every restore, answered what the source answered."""
    compared = [
        item for item in record.startups if item.oracle.verdict is not OracleVerdict.NOT_CHECKED
    ]
    different = [item for item in compared if not _right(item)]
    if different:
        return not_passed(
            ERROR,
            f"{len(different)} of {len(compared)} starts answered differently.",
            table(
                {"measurement": "string", "first_difference": "int",
                 "max_logprob_difference": "float", "detail": "string"},
                [
                    (item.measurement_id, item.oracle.first_difference,
                     item.oracle.max_logprob_difference, item.oracle.detail or item.detail)
                    for item in different
                ],
            ),
        )  # fmt: skip
    restores = [item for item in compared if item.arm is Arm.RESTORE]
    attempted = [item for item in record.startups if item.arm is Arm.RESTORE]
    unchecked = [item for item in attempted if item.oracle.verdict is OracleVerdict.NOT_CHECKED]
    if not compared:
        return not_passed(ERROR, "No answer was compared.")
    if not restores:
        why = record.unsupported.get(Arm.RESTORE.value, "none was asked for or none succeeded")
        return not_passed(WARN, f"No restore answered: {why}.")
    if unchecked:
        return not_passed(
            WARN, f"{len(unchecked)} of {len(attempted)} restores never came to an answer."
        )
    return passed(f"{len(restores)} restores and {len(compared) - len(restores)} other starts.")


def time_adds_up(record: RunRecord) -> dg.AssetCheckResult:
    """Whether little of each arm's time lies in no phase."""
    shares: dict[str, list[float]] = {}
    for item in record.startups:
        if item.outcome is Outcome.OK and item.total_s and item.unaccounted_s is not None:
            shares.setdefault(item.arm.value, []).append(item.unaccounted_s / item.total_s)
    if not shares:
        return not_passed(ERROR, "No start was timed.")
    details = table(
        {"arm": "string", "n": "int", "mean_percent": "float", "worst_percent": "float"},
        [
            (arm, len(values), fmean(values) * 100, max(values) * 100)
            for arm, values in shares.items()
        ],
    )
    over = [arm for arm, values in shares.items() if fmean(values) >= MAX_UNACCOUNTED]
    if over:
        return not_passed(
            WARN, f"{MAX_UNACCOUNTED:.0%} or more of the time lies in no phase: {', '.join(over)}.",
            details,
        )  # fmt: skip
    return dg.AssetCheckResult(
        passed=True,
        description=f"Phases explain more than {1 - MAX_UNACCOUNTED:.0%} of every arm's time.",
        metadata={"details": details},
    )


def snapshot_taken(record: RunRecord) -> dg.AssetCheckResult:
    """Whether an image came out of it, and the source served on."""
    if not record.snapshots:
        why = record.unsupported.get(Arm.RESTORE.value)
        if why:
            return not_passed(WARN, f"This machine can't take snapshots: {why}")
        return not_passed(ERROR, "The run holds no attempt to take a snapshot.")
    failed = [item for item in record.snapshots if item.outcome is not Outcome.OK]
    lost = [item for item in record.snapshots if item.source_serving_after is False]
    if failed or lost:
        return not_passed(
            ERROR,
            f"{len(failed)} of {len(record.snapshots)} attempts failed, the source was lost in "
            f"{len(lost)}.",
            table(
                {"attempt": "string", "reason": "string", "detail": "string"},
                [
                    (item.measurement_id, item.reason_code, item.detail)
                    for item in (*failed, *(item for item in lost if item not in failed))
                ],
            ),
        )
    unknown = [item for item in record.snapshots if item.source_serving_after is None]
    if unknown:
        return not_passed(WARN, "Whether the source served on was not checked.")
    return passed("An image was written and the source answered right after it.")


def every_fault_decided(record: RunRecord) -> dg.AssetCheckResult:
    """Whether each fault that was tried has an experiment that says something."""
    experiments = [item for item in record.faults if not item.control]
    if not experiments:
        return not_passed(ERROR, "The run holds no experiment.")
    undecided = sorted(
        {item.fault for item in experiments}
        - {item.fault for item in experiments if item.verdict not in _INCONCLUSIVE}
    )
    details = _experiments([item for item in experiments if item.verdict in _INCONCLUSIVE])
    if undecided:
        only_inapplicable = all(
            item.verdict is Verdict.NOT_APPLICABLE
            for item in experiments
            if item.fault in undecided
        )
        severity = WARN if only_inapplicable else ERROR
        return not_passed(severity, f"No verdict on: {', '.join(undecided)}.", details)
    return passed(f"{len(experiments)} experiments, each fault has a verdict.")


def controls_clean(record: RunRecord) -> dg.AssetCheckResult:
    """Whether nothing was noticed, and nothing broke, where nothing was injected."""
    controls = [item for item in record.faults if item.control]
    if not controls:
        return not_passed(WARN, "No control arm ran, so a false alarm would not be seen.")
    bad = [
        item
        for item in controls
        if item.verdict is not Verdict.PASS or any(seen.detected for seen in item.detections)
    ]
    if bad:
        return not_passed(
            ERROR, f"{len(bad)} of {len(controls)} control arms are not clean.", _experiments(bad)
        )
    return passed(f"{len(controls)} control arms, none raised an alarm.")


def answers_survive(record: RunRecord) -> dg.AssetCheckResult:
    """Whether every answer after a fault is the one from before it."""
    compared = [
        item for item in record.faults if item.oracle.verdict is not OracleVerdict.NOT_CHECKED
    ]
    if not compared:
        return not_passed(ERROR, "No answer was compared.")
    different = [item for item in compared if item.oracle.verdict is OracleVerdict.DIFFERENT]
    if different:
        return not_passed(
            ERROR, f"{len(different)} of {len(compared)} experiments ended with another answer.",
            _experiments(different),
        )  # fmt: skip
    return passed(f"{len(compared)} answers compared, all equal.")


def rollback_proved(record: RunRecord) -> dg.AssetCheckResult:
    """Whether every fault that was injected is proved to be gone."""
    injected = [item for item in record.faults if item.effect and item.effect.proved]
    if not injected:
        return not_passed(ERROR, "No fault is proved to have been injected.")
    left = [
        item
        for item in record.faults
        if item.verdict is Verdict.ROLLBACK_FAILED
        or (item in injected and not (item.rollback and item.rollback.proved))
    ]
    if left:
        return not_passed(ERROR, f"{len(left)} faults may still be in place.", _experiments(left))
    return passed(f"{len(injected)} faults were injected and undone.")


def worker_withstood(record: RunRecord) -> dg.AssetCheckResult:
    """Whether the worker passed. A failure is a finding about the worker, not about the data."""
    experiments = [item for item in record.faults if not item.control]
    failed = [item for item in experiments if item.verdict is Verdict.FAIL]
    if not experiments:
        return not_passed(ERROR, "The run holds no experiment.")
    if failed:
        return not_passed(
            WARN, f"The worker failed {len(failed)} of {len(experiments)} experiments.",
            _experiments(failed),
        )  # fmt: skip
    return passed(f"No experiment of {len(experiments)} failed.")


def _right(item: StartupMeasurement) -> bool:
    return item.outcome is Outcome.OK and item.oracle.verdict is OracleVerdict.EQUAL


def _experiments(items: Sequence[FaultRun]) -> dg.TableMetadataValue:
    rows: list[tuple[Cell, ...]] = [
        (
            item.fault, item.recovery, item.verdict.value, item.reason_code, item.detail,
            ", ".join(seen.detector for seen in item.detections if seen.detected),
        )
        for item in items
    ]  # fmt: skip
    return table(
        {"fault": "string", "recovery": "string", "verdict": "string", "reason": "string",
         "detail": "string", "noticed_by": "string"},
        rows,
    )  # fmt: skip


def _newest(context: dg.AssetCheckExecutionContext, asset: dg.AssetsDefinition) -> RunRecord:
    """The record behind an asset's newest materialization, verified again.

    Raises:
        ResilienceError: there is none, or it is not what was written.
    """
    partition = context.partition_key if context.has_partition_key else None
    found = latest_materialization(context.instance, asset.key, partition)
    if found is None:
        raise InputError(
            "partition", partition, "nothing of it was materialized", mend="Materialize it first."
        )
    return read_landing(Path(str(found.metadata["landing_folder"].value))).record


def _record_check(
    asset: dg.AssetsDefinition, judge: Callable[[RunRecord], dg.AssetCheckResult]
) -> dg.AssetChecksDefinition:
    """A check that needs no more than the record."""

    @dg.asset_check(asset=asset, name=judge.__name__, description=judge.__doc__)
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        try:
            return judge(_newest(context, asset))
        except ResilienceError as error:
            return not_passed(ERROR, str(error))

    return check


@dg.asset_check(
    asset=snapshot_images,
    description="Whether every byte of the image is what was written.",
)
def image_intact(context: dg.AssetCheckExecutionContext, home: HomeResource) -> dg.AssetCheckResult:
    """Read the image again and compare it with its manifest."""
    try:
        record = _newest(context, snapshot_images)
        ids = [item.snapshot_id for item in record.snapshots if item.snapshot_id]
        store = open_store(home.open())
        for snapshot_id in ids:
            store.verify(store.get(snapshot_id))
    except ResilienceError as error:
        return not_passed(ERROR, str(error))
    if not ids:
        return not_passed(WARN if record.unsupported else ERROR, "There is no image to verify.")
    return passed(f"Every file has the size and SHA-256 of the manifest: {', '.join(ids)}.")


@dg.asset_check(
    asset=published_database,
    name="upgrades_safe",
    description="Whether the newest upgrade of each machine, engine and model is safe: "
    "`resilience upgrades` says the same, and the sensor `upgrade_verdicts` tells it.",
)
def upgrades_safe(home: HomeResource) -> dg.AssetCheckResult:
    """Judge every newest upgrade that was measured."""
    try:
        found = newest_upgrades(home.open())
    except ResilienceError as error:
        return not_passed(ERROR, str(error))
    if not found:
        return passed("No machine was measured with two stacks yet: there is no upgrade to judge.")
    details = table(
        {
            "upgrade": "string",
            "verdict": "string",
            "reasons": "string",
            "from": "string",
            "to": "string",
        },
        [
            (
                item.title,
                item.comparison.verdict.value,
                "; ".join(item.comparison.reasons),
                item.before,
                item.after,
            )
            for item in found
        ],
    )
    verdicts = [item.comparison.verdict for item in found]
    unsafe = verdicts.count(UpgradeVerdict.NOT_SAFE)
    if unsafe:
        return not_passed(WARN, f"{unsafe} of {len(found)} upgrades are not safe.", details)
    unknown = verdicts.count(UpgradeVerdict.NOT_ENOUGH_DATA)
    if unknown:
        return not_passed(WARN, f"{unknown} of {len(found)} lack data for a verdict.", details)
    return dg.AssetCheckResult(
        passed=True,
        description="; ".join(item.title for item in found),
        metadata={"details": details},
    )


CHECKS: Final = (
    upgrades_safe,
    _record_check(snapshot_images, snapshot_taken),
    image_intact,
    _record_check(startup_measurements, every_arm_measured),
    _record_check(startup_measurements, answers_equal),
    _record_check(startup_measurements, time_adds_up),
    _record_check(fault_runs, every_fault_decided),
    _record_check(fault_runs, controls_clean),
    _record_check(fault_runs, answers_survive),
    _record_check(fault_runs, rollback_proved),
    _record_check(fault_runs, worker_withstood),
)
