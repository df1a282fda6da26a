"""The life of a fault: one experiment, from the steady state to the verdict.

guards -> prepare -> start a worker -> detectors -> steady state -> guards -> inject -> prove the
effect -> detect -> recover -> roll back -> prove the rollback -> oracle.

What belongs here: this order, the deadlines of its steps, and what is recorded of them. What does
not: any one fault, guard, detector or recovery, and the rules of the verdict (`verdict`).

All times are of one CLOCK_MONOTONIC and count from just before the act of injecting. Recovering
begins when the effect is proved and the first expected detector has seen it. Only where recovering
would hide the fault from the detectors, since the worker lives and has to be ended or continued,
it waits until each expected detector has seen it or is out of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

import psutil

from resilience_pipelines.detectors import canary, kernel_log
from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.canary import Canary
from resilience_pipelines.detectors.health_probe import HealthProbe
from resilience_pipelines.detectors.kernel_log import KernelLog
from resilience_pipelines.detectors.process_watch import ProcessWatch
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults import guards
from resilience_pipelines.faults.fault import (
    Fault,
    FaultContext,
    Injection,
    ObstacleError,
    Target,
)
from resilience_pipelines.faults.observation import Observation
from resilience_pipelines.faults.recovery import (
    Recovered,
    Recovery,
    check_possible,
    reason_of,
    recover,
    start_target,
)
from resilience_pipelines.faults.verdict import Facts, FaultReason, decide
from resilience_pipelines.records import Detection, Event, FaultRun, Oracle, OracleVerdict, Proof
from resilience_pipelines.telemetry import process_source
from resilience_pipelines.workers.oracle import NOT_CHECKED, check_answer
from resilience_pipelines.workers.process import RunningWorker, WorkerFailedError

CONTROL_OBSERVATION_S = 3.0
STEADY_DEADLINE_S = 30.0
CANARY_PATIENCE = 2
CANARY_MAX_TIMEOUT_S = 4.0
_STEP_S = 0.005
_DETAIL_CHARACTERS = 4000

# What a step of an experiment may raise without being a mistake in this program.
_STEP_ERRORS = (ResilienceError, OSError, psutil.Error)


def run_experiment(
    fault: Fault,
    recovery: Recovery | None,
    context: FaultContext,
    *,
    repeat: int,
    control: bool = False,
) -> FaultRun:
    """Make one experiment. Whatever happens, the fault is rolled back and nothing stays.

    Args:
        recovery: how service is brought back; None in a control arm, where it is not lost.
        repeat: number of the experiment among its like, from 0.
        control: go through the same life without the injection.
    """
    assert control == (recovery is None), "a control arm, and only it, has no recovery"
    return _Experiment(fault, recovery, context, repeat).run()


class _Aborted(Exception):  # noqa: N818 - an order, not an error
    """The experiment has to end now."""

    def __init__(self, reason: FaultReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class _Experiment:
    """One experiment while it is made. Every step notes what it found in `_facts`."""

    def __init__(
        self, fault: Fault, recovery: Recovery | None, context: FaultContext, repeat: int
    ) -> None:
        self._fault = fault
        self._recovery = recovery
        self._context = context
        self._repeat = repeat
        self._control = recovery is None
        self._id = f"{fault.name}-{recovery or 'control'}-{repeat}"
        self._end = time.monotonic() + context.limit_s()
        self._facts = Facts(control=self._control)
        self._why: dict[str, str] = {}
        self._moments: list[tuple[int, str, str]] = []
        self._detections: tuple[Detection, ...] = ()
        self._observation: Observation | None = None
        self._telemetry = ExitStack()
        self._owned = ExitStack()
        self._injection: Injection | None = None
        self._serving: RunningWorker | None = None
        self._canary_timeout_s = canary.TIMEOUT_S
        self._injected_ns: int | None = None
        self._decided_ns: int | None = None
        self._first_right_ns: int | None = None
        self._effect: Proof | None = None
        self._rollback: Proof | None = None
        self._oracle = NOT_CHECKED

    def run(self) -> FaultRun:
        """Go through the whole life."""
        started_at = datetime.now(UTC)
        try:
            self._check_time()
            if self._recovery is not None:
                check_possible(self._recovery, self._context)
            self._guards(None)
            with self._owned:
                self._live()
        except _Aborted as order:
            self._learn(order.reason, str(order), aborted=order.reason)
        except ObstacleError as obstacle:
            fact = "missing" if obstacle.applicable else "obstacle"
            self._learn(obstacle.code, obstacle.reason, **{fact: obstacle.code})
        except _STEP_ERRORS as error:
            # Steps keep their own errors: this one comes from ending what was started.
            self._learn(
                FaultReason.ROLLBACK_NOT_PROVED, str(error), touched=True, rolled_back=False
            )
        return self._record(started_at)

    def _live(self) -> None:
        injection = self._prepare()
        target = self._start(injection) if injection else None
        if injection is None or target is None or not self._is_right(target):
            return
        observation = self._observe(injection, target)
        if not self._is_quiet(observation):
            return
        self._guards(target)
        try:
            self._fault_and_recovery(injection, target, observation)
        finally:
            self._roll_back(injection)
        self._ask_oracle(target)

    def _fault_and_recovery(
        self, injection: Injection, target: Target, observation: Observation
    ) -> None:
        if self._control:
            self._watch_control(observation)
        elif self._inject(injection, observation):
            self._await_detection(observation, first=True)
            self._recover(injection, target, observation)

    # Before the injection.

    def _guards(self, target: Target | None) -> None:
        for guard in (*guards.common(self._context), *self._fault.guards(self._context)):
            try:
                objection = guard.objection(target)
            except _STEP_ERRORS as error:
                objection = f"it can't be looked at ({error})"
            if objection is not None:
                raise _Aborted(FaultReason.GUARD_REFUSED, f"{guard.name}: {objection}")
        if target is not None:
            self._note("guards_passed")

    def _prepare(self) -> Injection | None:
        try:
            injection = self._fault.prepare(self._context)
        except ObstacleError:
            raise
        except _STEP_ERRORS as error:
            self._learn(
                FaultReason.PREPARATION_FAILED, str(error), missing=FaultReason.PREPARATION_FAILED
            )
            return None
        self._owned.callback(self._close, injection)
        self._injection = injection
        return injection

    def _start(self, injection: Injection) -> Target | None:
        try:
            elsewhere = injection.start_elsewhere()
            if elsewhere is not None:
                running, self._context = elsewhere.running, elsewhere.context
            else:
                running = start_target(self._context, injection.worker)
            target = Target(running)
            self._owned.callback(target.stop)
            injection.attach(target)
        except ObstacleError:
            raise
        except _STEP_ERRORS as error:
            self._keep_output(error)
            self._learn(
                FaultReason.PREPARATION_FAILED, str(error), missing=FaultReason.PREPARATION_FAILED
            )
            return None
        self._serving = running
        return target

    def _observe(self, injection: Injection, target: Target) -> Observation:
        """Start every detector that applies, and telemetry."""
        running, worker = target.running, self._context.worker
        detectors: list[Detector] = [
            HealthProbe(running.client),
            Canary(
                running.client,
                self._context.answer,
                tolerance=worker.logprob_tolerance,
                timeout_s=self._canary_timeout_s,
            ),
            *injection.detectors(),
        ]
        here = running.space.on_this_machine
        no_log = kernel_log.unavailable() if here else "the worker is on another machine"
        if here:
            detectors.append(ProcessWatch(running.process))
        if no_log is None:
            pids = {member.pid for member in target.members} | set(injection.helpers)
            cgroup = injection.cgroup
            detectors.append(KernelLog(pids, cgroup.name if cgroup else None))
        else:
            self._note("detector_unavailable", f"{KernelLog.name}: {no_log}")
        for name, why in injection.unavailable_detectors().items():
            self._note("detector_unavailable", f"{name}: {why}")
        observation = Observation(detectors, self._fault.expected, control=self._control)
        self._observation = observation
        self._owned.callback(self._retire)
        observation.start()
        if here:
            self._telemetry.enter_context(
                self._context.telemetry.watching(self._id, process_source(running.process))
            )
        return observation

    def _is_right(self, target: Target) -> bool:
        """The first half of a steady state: healthy, and the whole answer is right."""
        # Before the canary asks: a worker that computes one answer at a time would keep it waiting.
        begin = time.monotonic()
        oracle = self._compare(target.running)
        took_s = time.monotonic() - begin
        # A worker that is slow, on a busy machine, is no lost one.
        self._canary_timeout_s = min(
            max(canary.TIMEOUT_S, CANARY_PATIENCE * took_s), CANARY_MAX_TIMEOUT_S
        )
        healthy = target.running.client.healthy()
        if healthy and oracle.verdict is OracleVerdict.EQUAL:
            return True
        self._oracle = oracle
        self._unsteady(f"healthy: {healthy}, answer: {oracle.verdict} {oracle.detail}")
        return False

    def _is_quiet(self, observation: Observation) -> bool:
        """The second half: every detector has looked, and none sees a problem."""
        began_ns = time.monotonic_ns()
        self._wait(
            lambda: observation.all_looked_since(began_ns) and not observation.alarmed(),
            STEADY_DEADLINE_S,
        )
        alarmed = observation.alarmed()
        if alarmed or not observation.all_looked_since(began_ns):
            self._unsteady(f"alarms of {', '.join(alarmed) or 'no detector, but not all looked'}")
            return False
        self._facts = replace(self._facts, steady=True)
        self._note("steady_state")
        return True

    def _unsteady(self, detail: str) -> None:
        self._note("steady_state_not_reached", detail)
        self._learn(FaultReason.STEADY_STATE_NOT_REACHED, detail, steady=False)

    # The fault.

    def _watch_control(self, observation: Observation) -> None:
        """The place of the injection, and as long as it takes every detector to look after it."""
        moment_ns = self._begin("control", observation)
        self._wait(lambda: False, CONTROL_OBSERVATION_S)
        self._wait(
            lambda: observation.all_looked_since(moment_ns), max(self._fault.expected.values())
        )

    def _inject(self, injection: Injection, observation: Observation) -> bool:
        """Inject and prove it; whether the experiment can go on."""
        self._check_time()
        self._begin("injected", observation)
        try:
            injection.inject()
        except _STEP_ERRORS as error:
            self._learn(FaultReason.INJECTION_FAILED, str(error), injection_error=True)
            return False
        try:
            effect = injection.prove_effect()
        except _STEP_ERRORS as error:
            self._learn(FaultReason.EFFECT_UNKNOWN, f"{type(error).__name__}: {error}")
            return False
        self._effect = effect
        self._note("effect_proved" if effect.proved else "effect_not_proved", effect.detail)
        self._learn(
            FaultReason.EFFECT_NOT_PROVED, f"{effect.source}: {effect.detail}", effect=effect.proved
        )
        return effect.proved

    def _begin(self, name: str, observation: Observation) -> int:
        now_ns = time.monotonic_ns()
        self._injected_ns = observation.injected_ns = now_ns
        self._facts = replace(self._facts, touched=True)
        self._note(name, at_ns=now_ns)
        return now_ns

    def _await_detection(self, observation: Observation, *, first: bool) -> None:
        """Wait for the first expected detector, or for each, as long as one has time left."""
        while observation.expected_may_see() and not (first and observation.expected_saw()):
            self._check_time()
            time.sleep(_STEP_S)

    # After the fault.

    def _recover(self, injection: Injection, target: Target, observation: Observation) -> None:
        assert self._recovery is not None
        hides = injection.hidden_by_recovery
        if hides:
            self._await_detection(observation, first=False)
            observation.hidden_ns = time.monotonic_ns()
        self._check_time()
        self._decided_ns = time.monotonic_ns()
        self._note("decided_to_recover", self._recovery, at_ns=self._decided_ns)
        self._serving = None
        try:
            if hides and self._recovery is not Recovery.RESUME:
                self._retire()
                if injection.hits_worker:
                    target.stop()
            elif injection.hits_worker and not hides:
                target.end_survivors()
            broken = injection.broken_expectation()
            if broken is not None:
                self._learn(FaultReason.EXPECTATION_BROKEN, broken, expectation_broken=True)
            if self._recovery is Recovery.CHECKPOINT:
                back = Recovered(target.running, *injection.come_back())
            else:
                back = recover(self._recovery, self._context, target, self._id, self._owned)
            self._answered(back)
        except _STEP_ERRORS as error:
            self._keep_output(error)
            reason = reason_of(error)
            self._learn(reason, str(error), recovered=False, recovery_reason=reason)
            self._note("not_recovered", str(error))
        if not hides:
            self._await_detection(observation, first=False)

    def _answered(self, back: Recovered) -> None:
        self._serving = back.running
        if back.right:
            self._first_right_ns = back.first_answer_ns
            self._note("recovered", at_ns=back.first_answer_ns)
            self._facts = replace(self._facts, recovered=True)
        else:
            reason = FaultReason.WRONG_ANSWER.value
            differs = "the first result after the recovery differs"
            self._learn(reason, differs, recovered=False, recovery_reason=reason)
            self._note("not_recovered", differs, at_ns=back.first_answer_ns)

    def _roll_back(self, injection: Injection) -> None:
        """Undo and prove it, in whatever state the experiment is."""
        self._retire()
        problem = ""
        try:
            injection.roll_back()
        except _STEP_ERRORS as error:
            problem = f"rolling back failed: {error}; "
        self._note("rolled_back", problem)
        try:
            proof = injection.prove_rollback()
        except _STEP_ERRORS as error:
            proof = Proof(proved=False, source="none", detail=f"{type(error).__name__}: {error}")
        self._rollback = proof.model_copy(update={"detail": _cut(problem + proof.detail)})
        self._learn(
            FaultReason.ROLLBACK_NOT_PROVED, self._rollback.detail, rolled_back=proof.proved
        )
        self._note("rollback_proved" if proof.proved else "rollback_not_proved", proof.detail)

    def _close(self, injection: Injection) -> None:
        try:
            injection.close()
        except _STEP_ERRORS as error:
            self._learn(
                FaultReason.ROLLBACK_NOT_PROVED, str(error), touched=True, rolled_back=False
            )

    def _ask_oracle(self, target: Target) -> None:
        serving = self._serving
        if serving is None or (serving is target.running and not target.alive()):
            self._why[FaultReason.ORACLE_NOT_CHECKED] = "no worker serves"
            return
        self._oracle = self._compare(serving)
        self._note("oracle", f"{self._oracle.verdict} {self._oracle.detail}".strip())
        reason = (
            FaultReason.ORACLE_NOT_CHECKED
            if self._oracle.verdict is OracleVerdict.NOT_CHECKED
            else FaultReason.WRONG_ANSWER
        )
        self._learn(reason, self._oracle.detail, oracle=self._oracle.verdict)

    def _compare(self, running: RunningWorker) -> Oracle:
        worker = self._context.worker
        try:
            return check_answer(
                running.client, self._context.answer,
                tolerance=worker.logprob_tolerance, timeout_s=worker.request_deadline_s,
            )  # fmt: skip
        except ResilienceError as error:
            return NOT_CHECKED.model_copy(update={"detail": _cut(str(error))})

    def _retire(self) -> None:
        """Stop the detectors and note what they saw. A second call does nothing."""
        observation, self._observation = self._observation, None
        if observation is None:
            return
        self._telemetry.close()
        observation.stop()
        self._moments.extend(observation.moments())
        self._detections = observation.detections()
        expected = ", ".join(d.detector for d in self._detections if d.expected)
        alarms = [d for d in self._detections if d.detected] if self._control else []
        failed = observation.failed()
        self._why |= {
            FaultReason.NOT_DETECTED: f"none of {expected} saw it",
            FaultReason.DETECTED_LATE: f"none of {expected} saw it in time",
            FaultReason.DETECTOR_FAILED: f"failed: {', '.join(failed)}",
            FaultReason.FALSE_ALARM: "; ".join(f"{d.detector}: {d.detail}" for d in alarms),
        }
        self._facts = replace(
            self._facts,
            seen=observation.outcome(),
            expected_detector_failed=observation.expected_failed(),
            false_alarms=len(alarms),
            detector_failures=len(failed) if self._control else 0,
        )

    # Book-keeping.

    def _check_time(self) -> None:
        if self._context.abort.is_set():
            raise _Aborted(FaultReason.OPERATOR_ABORT, "the operator ended the run")
        if time.monotonic() > self._end:
            limit_s = self._context.limit_s()
            raise _Aborted(FaultReason.DEADLINE, f"the experiment took longer than {limit_s:g} s")

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Wait for a condition, or for the time to pass."""
        end = time.monotonic() + limit_s
        while not condition() and time.monotonic() < end:
            self._check_time()
            time.sleep(_STEP_S)

    def _learn(self, reason: str, detail: str, **facts: object) -> None:
        """Note facts, and the words for the reason that they may become."""
        self._why[reason] = detail
        self._facts = replace(self._facts, **facts)  # type: ignore[arg-type]

    def _note(self, name: str, detail: str = "", at_ns: int | None = None) -> None:
        moment = time.monotonic_ns() if at_ns is None else at_ns
        self._moments.append((moment, name, _cut(detail)))

    def _keep_output(self, error: Exception) -> None:
        if isinstance(error, WorkerFailedError):
            (self._context.evidence / f"worker-{self._id}.log").write_text(error.output)

    def _record(self, started_at: datetime) -> FaultRun:
        verdict, reason = decide(self._facts)
        # Where nothing was injected, moments count back from the end.
        zero_ns = self._injected_ns if self._injected_ns is not None else time.monotonic_ns()
        first = [
            d.detected_after_s
            for d in self._detections
            if d.expected and d.detected_after_s is not None
        ]
        found = self._injection.parameters() if self._injection else {}
        back_ns, decided_ns = self._first_right_ns, self._decided_ns
        if self._oracle.verdict is OracleVerdict.DIFFERENT:
            back_ns = None  # the first token was right, and the answer is not
        return FaultRun(
            measurement_id=self._id,
            fault=self._fault.name,
            strategy=self._fault.strategy,
            layer=self._fault.layer,
            control=self._control,
            recovery=self._recovery.value if self._recovery else None,
            repeat=self._repeat,
            parameters={**self._fault.parameters, **found},
            started_at=started_at,
            verdict=verdict,
            reason_code=reason,
            detail=_cut(self._why.get(reason, "")) if reason else "",
            effect=self._effect,
            detections=self._detections,
            time_to_detect_s=min(first, default=None),
            # Nobody called for a recovery that no detector asked for: its start was a time-out.
            time_to_recover_s=(back_ns - zero_ns) / 1e9 if back_ns and first else None,
            recovery_s=(back_ns - decided_ns) / 1e9 if back_ns and decided_ns else None,
            rollback=self._rollback,
            oracle=self._oracle,
            events=tuple(
                Event(name=name, at_s=(at_ns - zero_ns) / 1e9, detail=detail)
                for at_ns, name, detail in sorted(self._moments)
            ),
        )


def _cut(text: str) -> str:
    return text[:_DETAIL_CHARACTERS]
