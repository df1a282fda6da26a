"""The verdict: every one can be reached, and no unknown fact makes a pass."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.faults.verdict import Facts, FaultReason, Seen, decide
from resilience_pipelines.records import OracleVerdict, Verdict

TRI = st.sampled_from([True, False, None])
REASON = st.sampled_from([None, "some_reason"])
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "control": st.booleans(),
    "obstacle": REASON,
    "missing": REASON,
    "aborted": REASON,
    "steady": TRI,
    "touched": st.booleans(),
    "injection_error": st.booleans(),
    "effect": TRI,
    "expectation_broken": st.booleans(),
    "seen": st.sampled_from(Seen),
    "expected_detector_failed": st.booleans(),
    "false_alarms": st.integers(0, 2),
    "detector_failures": st.integers(0, 2),
    "recovered": TRI,
    "recovery_reason": REASON,
    "oracle": st.sampled_from(OracleVerdict),
    "rolled_back": TRI,
}

PASS = Facts(
    control=False, steady=True, touched=True, effect=True, seen=Seen.IN_TIME, recovered=True,
    oracle=OracleVerdict.EQUAL, rolled_back=True,
)  # fmt: skip
CONTROL_PASS = Facts(
    control=True, steady=True, touched=True, oracle=OracleVerdict.EQUAL, rolled_back=True
)
R = FaultReason


@st.composite
def some_facts(draw: st.DrawFn) -> Facts:
    """Facts that differ from those of a pass in a few fields, or in all."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True))
    if draw(st.integers(0, 3)) == 0:
        names = sorted(FIELDS)
    base = draw(st.sampled_from([PASS, CONTROL_PASS]))
    return replace(base, **{name: draw(FIELDS[name]) for name in names})  # type: ignore[arg-type]


FACTS = some_facts()

TABLE = [
    (PASS, {}, Verdict.PASS, None),
    (PASS, {"seen": Seen.NOT}, Verdict.FAIL, R.NOT_DETECTED),
    (PASS, {"seen": Seen.LATE}, Verdict.FAIL, R.DETECTED_LATE),
    (PASS, {"seen": Seen.UNKNOWN}, Verdict.INCONCLUSIVE, R.NO_EXPECTED_DETECTOR),
    (
        PASS,
        {"seen": Seen.UNKNOWN, "expected_detector_failed": True},
        Verdict.INCONCLUSIVE,
        R.DETECTOR_FAILED,
    ),
    (PASS, {"recovered": False}, Verdict.FAIL, R.RECOVERY_FAILED),
    (
        PASS,
        {"recovered": False, "recovery_reason": "restore_failed"},
        Verdict.FAIL,
        "restore_failed",
    ),
    (PASS, {"recovered": None}, Verdict.INCONCLUSIVE, R.RECOVERY_FAILED),
    (PASS, {"oracle": OracleVerdict.DIFFERENT}, Verdict.FAIL, R.WRONG_ANSWER),
    (PASS, {"oracle": OracleVerdict.NOT_CHECKED}, Verdict.INCONCLUSIVE, R.ORACLE_NOT_CHECKED),
    (PASS, {"expectation_broken": True}, Verdict.FAIL, R.EXPECTATION_BROKEN),
    (PASS, {"effect": False}, Verdict.NOT_INJECTED, R.EFFECT_NOT_PROVED),
    (PASS, {"effect": None}, Verdict.INCONCLUSIVE, R.EFFECT_UNKNOWN),
    (PASS, {"injection_error": True}, Verdict.NOT_INJECTED, R.INJECTION_FAILED),
    (PASS, {"steady": False, "touched": False}, Verdict.INCONCLUSIVE, R.STEADY_STATE_NOT_REACHED),
    (PASS, {"missing": "no_snapshot"}, Verdict.INCONCLUSIVE, "no_snapshot"),
    (PASS, {"obstacle": "no_criu"}, Verdict.NOT_APPLICABLE, "no_criu"),
    (PASS, {"aborted": R.OPERATOR_ABORT}, Verdict.ABORTED, R.OPERATOR_ABORT),
    (PASS, {"rolled_back": False}, Verdict.ROLLBACK_FAILED, R.ROLLBACK_NOT_PROVED),
    (PASS, {"rolled_back": None}, Verdict.ROLLBACK_FAILED, R.ROLLBACK_NOT_PROVED),
    (
        PASS,
        {"aborted": R.OPERATOR_ABORT, "rolled_back": False},
        Verdict.ROLLBACK_FAILED,
        R.ROLLBACK_NOT_PROVED,
    ),
    # A known failure outweighs what is unknown beside it.
    (PASS, {"seen": Seen.UNKNOWN, "recovered": False}, Verdict.FAIL, R.RECOVERY_FAILED),
    (CONTROL_PASS, {}, Verdict.PASS, None),
    (CONTROL_PASS, {"false_alarms": 1}, Verdict.FAIL, R.FALSE_ALARM),
    (CONTROL_PASS, {"detector_failures": 1}, Verdict.INCONCLUSIVE, R.DETECTOR_FAILED),
    (CONTROL_PASS, {"oracle": OracleVerdict.DIFFERENT}, Verdict.FAIL, R.WRONG_ANSWER),
    (
        CONTROL_PASS,
        {"oracle": OracleVerdict.NOT_CHECKED},
        Verdict.INCONCLUSIVE,
        R.ORACLE_NOT_CHECKED,
    ),
    (CONTROL_PASS, {"rolled_back": False}, Verdict.ROLLBACK_FAILED, R.ROLLBACK_NOT_PROVED),
    (CONTROL_PASS, {"touched": False}, Verdict.INCONCLUSIVE, R.STEADY_STATE_NOT_REACHED),
]


@pytest.mark.parametrize(("base", "change", "verdict", "reason"), TABLE)
def test_each_fact_decides_as_the_table_says(
    base: Facts, change: dict[str, object], verdict: Verdict, reason: str | None
) -> None:
    assert decide(replace(base, **change)) == (verdict, reason)  # type: ignore[arg-type]


def test_every_fact_is_varied() -> None:
    assert set(FIELDS) == {field.name for field in fields(Facts)}


def test_the_table_reaches_every_verdict() -> None:
    assert {verdict for _, _, verdict, _ in TABLE} == set(Verdict)


@given(FACTS)
def test_everything_but_a_pass_has_a_reason(facts: Facts) -> None:
    verdict, reason = decide(facts)
    assert (verdict is Verdict.PASS) == (reason is None)
    assert reason != ""


@given(FACTS)
def test_a_pass_has_all_that_it_needs(facts: Facts) -> None:
    if decide(facts)[0] is not Verdict.PASS:
        return
    assert (facts.obstacle, facts.missing, facts.aborted) == (None, None, None)
    assert facts.steady is True
    assert facts.touched
    assert facts.rolled_back is True
    assert facts.oracle is OracleVerdict.EQUAL
    if facts.control:
        assert facts.false_alarms == 0
        assert facts.detector_failures == 0
    else:
        assert facts.effect is True
        assert facts.recovered is True
        assert facts.seen is Seen.IN_TIME
        assert not facts.expectation_broken


@given(FACTS, st.sampled_from([field.name for field in fields(Facts)]))
def test_knowing_less_never_makes_a_pass(facts: Facts, forgotten: str) -> None:
    unknown = {
        "steady": None, "effect": None, "recovered": None, "rolled_back": None,
        "oracle": OracleVerdict.NOT_CHECKED, "seen": Seen.UNKNOWN, "touched": False,
    }  # fmt: skip
    if forgotten not in unknown:
        return
    less = replace(facts, **{forgotten: unknown[forgotten]})  # type: ignore[arg-type]
    if decide(less)[0] is Verdict.PASS:
        # Only what plays no part in a control arm may be unknown in a pass.
        assert less.control
        assert forgotten in ("effect", "recovered", "seen")


@given(FACTS)
def test_what_may_still_be_in_place_outweighs_everything(facts: Facts) -> None:
    verdict, _ = decide(replace(facts, touched=True, rolled_back=False))
    assert verdict is Verdict.ROLLBACK_FAILED
