"""What a record refuses, so that nothing wrong can be stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from resilience_pipelines.records import (
    Arm,
    Detection,
    FaultRun,
    Layer,
    Oracle,
    OracleVerdict,
    Outcome,
    Phase,
    Proof,
    RunKind,
    RunRecord,
    StartupMeasurement,
    Verdict,
    json_schema,
    new_run_id,
)
from resilience_pipelines.stack import Stack

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EQUAL = Oracle(verdict=OracleVerdict.EQUAL, tokens=24)


def phase(start_s: float, duration_s: float, name: str = "x") -> Phase:
    return Phase(
        name=name, start_s=start_s, duration_s=duration_s, clock="host_monotonic", resolution_s=1e-9
    )


def startup(**changes: object) -> StartupMeasurement:
    facts: dict[str, object] = {
        "measurement_id": "restore-0",
        "arm": Arm.RESTORE,
        "repeat": 0,
        "position": 0,
        "started_at": NOW,
        "outcome": Outcome.OK,
        "total_s": 3.0,
        "phases": (phase(0, 1), phase(1, 1.5)),
        "unaccounted_s": 0.5,
        "oracle": EQUAL,
    }
    return StartupMeasurement.model_validate(facts | changes)


def fault(**changes: object) -> FaultRun:
    facts: dict[str, object] = {
        "measurement_id": "f-0",
        "fault": "worker_killed",
        "strategy": "process",
        "layer": Layer.REAL,
        "repeat": 0,
        "started_at": NOW,
        "verdict": Verdict.PASS,
        "effect": Proof(proved=True, source="pidfd"),
        "rollback": Proof(proved=True, source="pidfd"),
        "oracle": EQUAL,
    }
    return FaultRun.model_validate(facts | changes)


def test_phases_and_unaccounted_have_to_add_up() -> None:
    startup()
    with pytest.raises(ValidationError, match="do not add up"):
        startup(unaccounted_s=0.6)


def test_phases_must_not_overlap() -> None:
    with pytest.raises(ValidationError, match="overlap"):
        startup(phases=(phase(0, 1.5, "a"), phase(1, 1, "b")))


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNSUPPORTED])
def test_a_start_that_is_not_ok_says_why(outcome: Outcome) -> None:
    with pytest.raises(ValidationError, match="reason_code"):
        startup(outcome=outcome, total_s=None, unaccounted_s=None, phases=())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_duration_is_a_finite_number(value: float) -> None:
    with pytest.raises(ValidationError):
        startup(total_s=value)


@pytest.mark.parametrize(
    "changes",
    [
        {"effect": None},
        {"effect": Proof(proved=False, source="pidfd")},
        {"rollback": None},
        {"rollback": Proof(proved=False, source="pidfd")},
        {"oracle": Oracle(verdict=OracleVerdict.DIFFERENT)},
        {"oracle": Oracle(verdict=OracleVerdict.NOT_CHECKED)},
    ],
)
def test_no_pass_without_every_proof(changes: dict[str, object]) -> None:
    fault()
    with pytest.raises(ValidationError, match="verdict pass needs"):
        fault(**changes)


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASS])
def test_every_other_verdict_needs_a_reason(verdict: Verdict) -> None:
    fault(verdict=verdict, reason_code="because")
    with pytest.raises(ValidationError, match="reason_code"):
        fault(verdict=verdict)


def test_what_was_not_detected_has_no_time() -> None:
    facts = {"detector": "d", "expected": True, "clock": "c", "resolution_s": 0.1}
    Detection.model_validate(facts | {"detected": True, "detected_after_s": 1.0})
    with pytest.raises(ValidationError, match="detected_after_s must be absent"):
        Detection.model_validate(facts | {"detected": False, "detected_after_s": 1.0})


def test_a_run_carries_the_key_of_its_own_stack() -> None:
    stack = Stack(engine="vllm", engine_version="0.23.0")
    facts: dict[str, object] = {
        "run_id": new_run_id(RunKind.STARTUP, NOW),
        "kind": RunKind.STARTUP,
        "started_at": NOW,
        "finished_at": NOW + timedelta(seconds=1),
        "worker": "vllm",
        "basis": "measured",
        "stack": stack,
        "stack_key": stack.key,
        "platform_version": "0",
    }
    RunRecord.model_validate(facts)
    with pytest.raises(ValidationError, match="stack_key"):
        RunRecord.model_validate(facts | {"stack_key": "0" * 16})
    with pytest.raises(ValidationError, match="finished_at"):
        RunRecord.model_validate(facts | {"finished_at": NOW - timedelta(seconds=1)})
    with pytest.raises(ValidationError, match="run_id"):
        RunRecord.model_validate(facts | {"run_id": "../../etc"})
    with pytest.raises(ValidationError, match="surprise"):
        RunRecord.model_validate(facts | {"surprise": 1})


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=8
    ),
    st.floats(0, 10),
)  # fmt: skip
def test_any_sequence_of_phases_round_trips_through_json(
    gaps: list[tuple[float, float]], rest: float
) -> None:
    phases, cursor = [], 0.0
    for gap, duration in gaps:
        phases.append(phase(cursor + gap, duration))
        cursor += gap + duration
    total = sum(p.duration_s for p in phases) + rest
    made = startup(phases=tuple(phases), total_s=total, unaccounted_s=rest)
    assert StartupMeasurement.model_validate_json(made.model_dump_json()) == made


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id(RunKind.FAULT, NOW + timedelta(hours=n)) for n in range(3)]
    assert ids == sorted(ids)
    assert len({new_run_id(RunKind.FAULT, NOW) for _ in range(100)}) == 100


def test_the_schema_names_every_part() -> None:
    assert {"Stack", "Phase", "StartupMeasurement", "FaultRun", "Detection", "Proof"} <= set(
        json_schema()["$defs"]
    )
