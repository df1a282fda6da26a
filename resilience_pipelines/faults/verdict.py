"""The verdict over an experiment: a pure function of what was found.

What belongs here: the facts a verdict needs, and the rules. What does not: finding the facts
(`experiment`). A fact that is None was not found out, and no unknown fact can make a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from resilience_pipelines.records import OracleVerdict, Verdict


class FaultReason(StrEnum):
    """Why a verdict is not a pass. Failed recoveries may carry a `SnapshotReason` instead."""

    OPERATOR_ABORT = "operator_abort"
    DEADLINE = "deadline"
    GUARD_REFUSED = "guard_refused"
    PREPARATION_FAILED = "preparation_failed"
    STEADY_STATE_NOT_REACHED = "steady_state_not_reached"
    INJECTION_FAILED = "injection_failed"
    EFFECT_NOT_PROVED = "effect_not_proved"
    EFFECT_UNKNOWN = "effect_unknown"
    EXPECTATION_BROKEN = "expectation_broken"
    NOT_DETECTED = "not_detected"
    DETECTED_LATE = "detected_late"
    NO_EXPECTED_DETECTOR = "no_expected_detector"
    DETECTOR_FAILED = "detector_failed"
    FALSE_ALARM = "false_alarm"
    RECOVERY_FAILED = "recovery_failed"
    WRONG_ANSWER = "wrong_answer"
    ORACLE_NOT_CHECKED = "oracle_not_checked"
    ROLLBACK_NOT_PROVED = "rollback_not_proved"
    NO_SNAPSHOT = "no_snapshot"
    NO_MEMORY_CGROUP = "no_memory_cgroup"
    NO_RESOURCE_LIMIT = "no_resource_limit"
    NO_MOUNT = "no_mount"
    NO_WEIGHTS = "no_weights"
    NO_GPU = "no_gpu"
    NO_GPU_WORKER = "no_gpu_worker"
    NO_GPU_BURN = "no_gpu_burn"
    NO_TORCH = "no_torch"
    NO_XID_EVENTS = "no_xid_events"
    NO_FAULT_HOOK = "no_fault_hook"
    NO_DCGM = "no_dcgm"
    NO_DCGM_FIELD = "no_dcgm_field"
    NO_POWER_LIMIT = "no_power_limit"
    ONE_NUMA_NODE = "one_numa_node"
    NUMA_UNKNOWN = "numa_unknown"
    SETTERS_NOT_ALLOWED = "setters_not_allowed"
    NO_NAMESPACES = "no_namespaces"
    NO_CHECKPOINT = "no_checkpoint"
    NO_PEER = "no_peer"
    NO_CLUSTER = "no_cluster"
    NO_CHAOS_MESH = "no_chaos_mesh"
    NO_LITMUS = "no_litmus"
    NO_POD_WORKER = "no_pod_worker"
    CLUSTER_FORBIDS = "cluster_forbids"


class Seen(StrEnum):
    """What came of waiting for the expected detectors."""

    IN_TIME = "in_time"
    LATE = "late"
    """Only after the deadline of each that saw it."""
    NOT = "not"
    """At least one worked to the end of its time and saw nothing; none saw anything."""
    UNKNOWN = "unknown"
    """None of them ran, or those that saw nothing failed."""


@dataclass(frozen=True)
class Facts:
    """What was found of one experiment.

    Attributes:
        obstacle: why the experiment can't be made here at all.
        missing: why it can be made here and could not be made now.
        aborted: why it was ended before its time.
        steady: whether the worker was healthy and right beforehand.
        touched: whether the injection was begun, or in a control arm, its place was reached.
        injection_error: whether the act itself failed.
        effect: whether the effect was proved.
        expectation_broken: whether something that has to hold did not, e.g. a refusal.
        seen: what came of the expected detectors.
        false_alarms: alarms in a control arm.
        detector_failures: detectors of a control arm that failed.
        recovered: whether a right answer came after the recovery.
        recovery_reason: why not.
        oracle: the comparison of the whole answer at the end.
        rolled_back: whether the rollback was proved.
    """

    control: bool
    obstacle: str | None = None
    missing: str | None = None
    aborted: str | None = None
    steady: bool | None = None
    touched: bool = False
    injection_error: bool = False
    effect: bool | None = None
    expectation_broken: bool = False
    seen: Seen = Seen.UNKNOWN
    expected_detector_failed: bool = False
    false_alarms: int = 0
    detector_failures: int = 0
    recovered: bool | None = None
    recovery_reason: str | None = None
    oracle: OracleVerdict = OracleVerdict.NOT_CHECKED
    rolled_back: bool | None = None


def decide(facts: Facts) -> tuple[Verdict, str | None]:
    """The verdict, and the reason for each but a pass.

    What may still be in place weighs most; then why there is no result; then what failed; then what
    is unknown. A known failure is not made inconclusive by something else that is unknown.
    """
    if facts.touched and facts.rolled_back is not True:
        return Verdict.ROLLBACK_FAILED, FaultReason.ROLLBACK_NOT_PROVED
    if facts.obstacle:
        return Verdict.NOT_APPLICABLE, facts.obstacle
    if facts.aborted:
        return Verdict.ABORTED, facts.aborted
    if facts.missing:
        return Verdict.INCONCLUSIVE, facts.missing
    if facts.steady is not True or not facts.touched:
        return Verdict.INCONCLUSIVE, FaultReason.STEADY_STATE_NOT_REACHED
    if not facts.control:
        if facts.injection_error:
            return Verdict.NOT_INJECTED, FaultReason.INJECTION_FAILED
        if facts.effect is None:
            return Verdict.INCONCLUSIVE, FaultReason.EFFECT_UNKNOWN
        if not facts.effect:
            return Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED
    failure = _control_failure(facts) if facts.control else _failure(facts)
    if failure:
        return Verdict.FAIL, failure
    unknown = _control_unknown(facts) if facts.control else _unknown(facts)
    if unknown:
        return Verdict.INCONCLUSIVE, unknown
    return Verdict.PASS, None


def _control_failure(facts: Facts) -> str | None:
    if facts.false_alarms:
        return FaultReason.FALSE_ALARM
    if facts.oracle is OracleVerdict.DIFFERENT:
        return FaultReason.WRONG_ANSWER
    return None


def _control_unknown(facts: Facts) -> str | None:
    if facts.detector_failures:
        return FaultReason.DETECTOR_FAILED
    if facts.oracle is OracleVerdict.NOT_CHECKED:
        return FaultReason.ORACLE_NOT_CHECKED
    return None


def _failure(facts: Facts) -> str | None:
    if facts.expectation_broken:
        return FaultReason.EXPECTATION_BROKEN
    if facts.recovered is False:
        return facts.recovery_reason or FaultReason.RECOVERY_FAILED
    if facts.oracle is OracleVerdict.DIFFERENT:
        return FaultReason.WRONG_ANSWER
    if facts.seen is Seen.NOT:
        return FaultReason.NOT_DETECTED
    if facts.seen is Seen.LATE:
        return FaultReason.DETECTED_LATE
    return None


def _unknown(facts: Facts) -> str | None:
    if facts.recovered is None:
        return FaultReason.RECOVERY_FAILED
    if facts.oracle is OracleVerdict.NOT_CHECKED:
        return FaultReason.ORACLE_NOT_CHECKED
    if facts.seen is Seen.UNKNOWN:
        if facts.expected_detector_failed:
            return FaultReason.DETECTOR_FAILED
        return FaultReason.NO_EXPECTED_DETECTOR
    return None
