"""What the asset checks say of one record: no data is no pass, and every fault of it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dagster import AssetCheckResult, AssetCheckSeverity

from resilience_pipelines.records import (
    Arm,
    Detection,
    FaultRun,
    OracleVerdict,
    Outcome,
    Proof,
    RunKind,
    RunRecord,
    SnapshotMeasurement,
    StartupMeasurement,
    Verdict,
)
from tests.factories import DIFFERENT, RecordFactory
from tests.support.dagster_home import load_definitions

ERROR, WARN = AssetCheckSeverity.ERROR, AssetCheckSeverity.WARN
STARTUP_CHECKS = ("every_arm_measured", "answers_equal", "time_adds_up")
FAULT_CHECKS = (
    "every_fault_decided", "controls_clean", "answers_survive", "rollback_proved",
    "worker_withstood",
)  # fmt: skip


@pytest.fixture
def factory() -> RecordFactory:
    return RecordFactory()


def judge(name: str, record: RunRecord) -> AssetCheckResult:
    load_definitions()
    from assets import checks

    function: Callable[[RunRecord], AssetCheckResult] = getattr(checks, name)
    return function(record)


def without(record: RunRecord, **changes: Any) -> RunRecord:
    return RunRecord.model_validate(record.model_dump() | changes)


def changed(item: StartupMeasurement, **changes: Any) -> StartupMeasurement:
    return StartupMeasurement.model_validate(item.model_dump() | changes)


@pytest.mark.parametrize("name", STARTUP_CHECKS)
def test_a_run_whose_starts_were_right_passes(name: str, factory: RecordFactory) -> None:
    record = factory.record(
        startups=[_explained(factory.startup(arm, repeat)) for arm in Arm for repeat in range(3)]
    )
    assert judge(name, record).passed


@pytest.mark.parametrize("name", STARTUP_CHECKS)
def test_a_run_without_starts_does_not_pass(name: str, factory: RecordFactory) -> None:
    result = judge(name, factory.record())
    assert not result.passed
    assert result.severity is ERROR


@pytest.mark.parametrize("name", FAULT_CHECKS)
def test_a_run_without_experiments_does_not_pass(name: str, factory: RecordFactory) -> None:
    assert not judge(name, factory.record(RunKind.FAULT)).passed


@pytest.mark.parametrize("name", FAULT_CHECKS)
def test_a_run_whose_experiments_passed_passes(name: str, factory: RecordFactory) -> None:
    faults = [factory.fault("worker_kill", repeat) for repeat in range(2)]
    record = factory.record(RunKind.FAULT, faults=[*faults, factory.fault(control=True)])
    assert judge(name, record).passed


def test_one_wrong_answer_among_many_is_an_error(factory: RecordFactory) -> None:
    starts = [factory.startup(Arm.RESTORE, repeat) for repeat in range(20)]
    record = factory.record(startups=[*starts, factory.startup(Arm.RESTORE, 20, oracle=DIFFERENT)])
    result = judge("answers_equal", record)
    assert (result.passed, result.severity) == (False, ERROR)
    assert "1 of 21" in (result.description or "")


def test_starts_without_any_restore_do_not_pass_for_equal_answers(factory: RecordFactory) -> None:
    record = factory.record(
        startups=[
            factory.startup(Arm.COLD),
            factory.failed_startup(Arm.RESTORE, outcome=Outcome.UNSUPPORTED, reason_code="no_criu"),
        ],
        unsupported={"restore": "there is no CRIU"},
    )
    result = judge("answers_equal", record)
    assert (result.passed, result.severity) == (False, WARN)
    assert "there is no CRIU" in (result.description or "")


def test_a_restore_that_never_answered_does_not_pass_for_equal(factory: RecordFactory) -> None:
    record = factory.record(
        startups=[factory.startup(Arm.RESTORE, 0), factory.failed_startup(Arm.RESTORE, 1)]
    )
    assert not judge("answers_equal", record).passed


def test_an_arm_that_was_asked_for_and_is_missing_is_an_error(factory: RecordFactory) -> None:
    record = factory.record(startups=[factory.startup(arm) for arm in Arm if arm is not Arm.COLD])
    result = judge("every_arm_measured", record)
    assert (result.passed, result.severity) == (False, ERROR)
    assert "cold" in (result.description or "")
    asked = without(record, parameters={"arms": ["warm_cache", "sleep_wake", "restore"]})
    assert judge("every_arm_measured", asked).passed


def test_an_arm_that_the_machine_can_not_measure_is_a_warning(factory: RecordFactory) -> None:
    unsupported = factory.failed_startup(
        Arm.RESTORE, outcome=Outcome.UNSUPPORTED, reason_code="no_criu"
    )
    starts = [factory.startup(arm) for arm in Arm if arm is not Arm.RESTORE]
    record = factory.record(startups=[*starts, unsupported])
    result = judge("every_arm_measured", record)
    assert (result.passed, result.severity) == (False, WARN)


def test_an_arm_whose_every_start_failed_is_an_error(factory: RecordFactory) -> None:
    starts = [factory.startup(arm) for arm in Arm if arm is not Arm.RESTORE]
    record = factory.record(startups=[*starts, factory.failed_startup(Arm.RESTORE)])
    result = judge("every_arm_measured", record)
    assert (result.passed, result.severity) == (False, ERROR)


def test_time_in_no_phase_warns_from_five_per_cent_of_an_arm(factory: RecordFactory) -> None:
    start = factory.startup(Arm.COLD)
    assert judge("time_adds_up", factory.record(startups=[_explained(start, 0.049)])).passed
    result = judge("time_adds_up", factory.record(startups=[_explained(start, 0.051)]))
    assert (result.passed, result.severity) == (False, WARN)
    assert "cold" in (result.description or "")


def test_a_control_arm_in_which_something_was_noticed_is_an_error(factory: RecordFactory) -> None:
    control = factory.fault(control=True)
    alarm = Detection(
        detector="worker_exit", expected=False, detected=True, detected_after_s=0.1,
        clock="host_monotonic", resolution_s=0.1,
    )  # fmt: skip
    false_alarm = FaultRun.model_validate(control.model_dump() | {"detections": (alarm,)})
    result = judge("controls_clean", factory.record(RunKind.FAULT, faults=[control, false_alarm]))
    assert (result.passed, result.severity) == (False, ERROR)
    assert "1 of 2" in (result.description or "")


def test_experiments_without_a_control_arm_do_not_pass_for_clean(factory: RecordFactory) -> None:
    result = judge("controls_clean", factory.record(RunKind.FAULT, faults=[factory.fault()]))
    assert (result.passed, result.severity) == (False, WARN)


@pytest.mark.parametrize(
    ("verdict", "severity"),
    [
        (Verdict.INCONCLUSIVE, ERROR),
        (Verdict.NOT_INJECTED, ERROR),
        (Verdict.ABORTED, ERROR),
        (Verdict.NOT_APPLICABLE, WARN),
    ],
)
def test_a_fault_without_a_verdict_is_named(
    verdict: Verdict, severity: AssetCheckSeverity, factory: RecordFactory
) -> None:
    record = factory.record(
        RunKind.FAULT,
        faults=[factory.fault("worker_kill"), factory.fault("worker_hang", verdict=verdict)],
    )
    result = judge("every_fault_decided", record)
    assert (result.passed, result.severity) == (False, severity)
    assert "worker_hang" in (result.description or "")
    assert "worker_kill" not in (result.description or "")


def test_a_fault_that_may_still_be_in_place_is_an_error(factory: RecordFactory) -> None:
    record = factory.record(
        RunKind.FAULT, faults=[factory.fault(), factory.fault(verdict=Verdict.ROLLBACK_FAILED)]
    )
    assert judge("rollback_proved", record).severity is ERROR
    assert not judge("rollback_proved", record).passed


def test_a_failed_experiment_is_a_finding_and_no_error(factory: RecordFactory) -> None:
    record = factory.record(
        RunKind.FAULT, faults=[factory.fault(), factory.fault(verdict=Verdict.FAIL)]
    )
    result = judge("worker_withstood", record)
    assert (result.passed, result.severity) == (False, WARN)


def test_another_answer_after_a_fault_is_an_error(factory: RecordFactory) -> None:
    failed = factory.fault(verdict=Verdict.FAIL).model_dump()
    wrong = FaultRun.model_validate(failed | {"oracle": DIFFERENT})
    result = judge("answers_survive", factory.record(RunKind.FAULT, faults=[wrong]))
    assert (result.passed, result.severity) == (False, ERROR)
    assert wrong.oracle.verdict is OracleVerdict.DIFFERENT


def test_a_snapshot_whose_source_was_lost_is_an_error(factory: RecordFactory) -> None:
    taken = factory.snapshot()
    assert judge("snapshot_taken", factory.record(RunKind.SNAPSHOT, snapshots=[taken])).passed
    lost = SnapshotMeasurement.model_validate(taken.model_dump() | {"source_serving_after": False})
    result = judge("snapshot_taken", factory.record(RunKind.SNAPSHOT, snapshots=[lost]))
    assert (result.passed, result.severity) == (False, ERROR)


def test_no_snapshot_is_an_error_and_a_warning_where_the_machine_can_take_none(
    factory: RecordFactory,
) -> None:
    assert judge("snapshot_taken", factory.record(RunKind.SNAPSHOT)).severity is ERROR
    record = factory.record(RunKind.SNAPSHOT, unsupported={"restore": "there is no CRIU"})
    result = judge("snapshot_taken", record)
    assert (result.passed, result.severity) == (False, WARN)


def test_an_undone_fault_needs_its_own_proof(factory: RecordFactory) -> None:
    failed = factory.fault(verdict=Verdict.FAIL).model_dump()
    unproved = FaultRun.model_validate(failed | {"rollback": Proof(proved=False, source="worker")})
    assert not judge("rollback_proved", factory.record(RunKind.FAULT, faults=[unproved])).passed


def _explained(item: StartupMeasurement, unaccounted: float = 0.01) -> StartupMeasurement:
    """The same start with this share of its time in no phase."""
    assert item.total_s is not None
    one = item.phases[0].model_dump() | {"duration_s": item.total_s * (1 - unaccounted)}
    return changed(item, phases=(one,), unaccounted_s=item.total_s - one["duration_s"])
