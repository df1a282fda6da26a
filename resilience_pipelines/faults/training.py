"""Faults of a training job whose ranks work together: one is killed, hung, slow or cut off.

What belongs here: the strategy `nccl`, and what all faults of a training job share: the job beside
the worker, and its way back from the last good checkpoint. What does not: the job itself
(`collectives`), its checkpoints' content (`distributed_checkpoint`), and who notices (`detectors`).

Ranks speak through NCCL where there are two GPUs or somebody asks for it, else through gloo on the
CPU; `transport` of the record says which. With one GPU there is one rank, which has no peer. The
job runs beside the worker, which serves on: none of these faults may touch it. A job came back
rightly when every step that it made a second time gave the state that it gave the first time, bit
for bit.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from resilience_pipelines.collectives import support
from resilience_pipelines.collectives.checkpoints import Checkpoint
from resilience_pipelines.collectives.network import BridgedNetwork, Network, SharedNetwork
from resilience_pipelines.collectives.ras import RasClient
from resilience_pipelines.collectives.training import Rank, TrainingJob, TrainingPlan
from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.flight_recorder import FlightRecorder
from resilience_pipelines.detectors.nccl_ras import NcclRas
from resilience_pipelines.detectors.ranks import (
    CollectiveWatchdog,
    RankHeartbeat,
    RankWatch,
    StragglerWatch,
    step_times_s,
)
from resilience_pipelines.errors import ResilienceError, UnsupportedError
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError
from resilience_pipelines.faults.guards import FreeMemory
from resilience_pipelines.faults.process import task_states
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.space import holds_within

STRATEGY = "nccl"
RANK_BYTES = 512 * 2**20
MIN_NCCL_RANKS = 2
EFFECT_DEADLINE_S = 8.0
BACK_DEADLINE_S = 120.0
_STEP_S = 0.01
_STOPPED_S = 0.45
_RUNNING_S = 0.05
_SLOW_FACTOR = 3.0
_SLOW_STEPS = 3
_STILL_S = 0.5
_REACH_TIMEOUT_S = 0.5
_STEPS_PAST_CHECKPOINT = 5


class Trouble(StrEnum):
    """What happens to one rank."""

    KILLED = "killed"
    HUNG = "hung"
    SLOW = "slow"
    LINK_CUT = "link_cut"


_DESCRIPTIONS = {
    Trouble.KILLED: "SIGKILL to one rank of a training job",
    Trouble.HUNG: "SIGSTOP to one rank of a training job; its connections stay open",
    Trouble.SLOW: "one rank of a training job stopped for nine tenths of the time",
    Trouble.LINK_CUT: "the switch's port of one rank taken down; its connections stay open",
}
_EXPECTED = {
    Trouble.KILLED: {
        "rank_watch": 1.0, "collective_watchdog": 8.0, "flight_recorder": 8.0, "nccl_ras": 8.0,
    },
    Trouble.HUNG: {
        "rank_heartbeat": 5.0, "collective_watchdog": 8.0, "flight_recorder": 8.0, "nccl_ras": 8.0,
    },
    Trouble.SLOW: {"straggler_watch": 10.0, "flight_recorder": 10.0},
    Trouble.LINK_CUT: {
        "rank_heartbeat": 5.0, "collective_watchdog": 8.0, "flight_recorder": 8.0, "nccl_ras": 8.0,
    },
}  # fmt: skip
_ONE_RANK = "one rank has no other to wait for"
# Else the GPUs would speak over NVLink or host memory, which no cut of a network touches.
_OVER_SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}
NCCL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RankFault:
    """Something happens to one rank of a training job, and all the others wait for it."""

    trouble: Trouble
    strategy: str = STRATEGY
    recoveries: tuple[str, ...] = (Recovery.CHECKPOINT,)

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"rank_{self.trouble}"

    @property
    def layer(self) -> Layer:
        """See `Fault.layer`."""
        return Layer.REAL if self.trouble is Trouble.LINK_CUT else Layer.USERSPACE

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return _DESCRIPTIONS[self.trouble]

    @property
    def expected(self) -> Mapping[str, float]:
        """See `Fault.expected`."""
        return _EXPECTED[self.trouble]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"trouble": self.trouble.value}

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return job_guards()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        plan = plan_job(context.backend)
        match self.trouble:
            case Trouble.KILLED:
                return RankKilled(context, plan)
            case Trouble.HUNG:
                return RankHung(context, plan)
            case Trouble.SLOW:
                return RankSlow(context, plan)
            case Trouble.LINK_CUT:
                if plan.ranks < 2:
                    raise ObstacleError(FaultReason.NO_PEER, f"{_ONE_RANK}: no link joins it")
                return LinkCut(context, replace(plan, environment=_OVER_SOCKETS))


def plan_job(backend: str | None = None) -> TrainingPlan:
    """A job that suits this machine.

    Args:
        backend: None: NCCL where there are GPUs for two ranks, as it refuses two on one.

    Raises:
        ObstacleError: none can be run here.
    """
    why = support.unavailable()
    if why is not None:
        raise ObstacleError(FaultReason.NO_TORCH, why)
    gpus = support.gpu_count()
    if backend == support.NCCL and not gpus:
        raise ObstacleError(FaultReason.NO_GPU, "NCCL needs a GPU, and there is none")
    if backend == support.NCCL or (backend is None and gpus >= MIN_NCCL_RANKS):
        return TrainingPlan(ranks=gpus, backend=support.NCCL, collective_timeout_s=NCCL_TIMEOUT_S)
    return TrainingPlan(ranks=support.MIN_CPU_RANKS, backend=support.GLOO)


def job_guards() -> Sequence[Guard]:
    """Guards of every fault of a training job."""
    return (FreeMemory(support.MIN_CPU_RANKS * RANK_BYTES),)


class JobInjection(Injection):
    """One use of a fault of a training job. It owns the job, and the one that comes back."""

    hits_worker = False

    def __init__(self, context: FaultContext, plan: TrainingPlan) -> None:
        super().__init__(context)
        self.plan = plan
        self._back: TrainingJob | None = None
        self._unavailable: dict[str, str] = {}
        self._found: dict[str, Any] = {
            "ranks": plan.ranks, "backend": plan.backend, "transport": plan.transport,
            "checkpoint_every": plan.checkpoint_every,
        }  # fmt: skip
        self._folder = Path(tempfile.mkdtemp(dir=context.scratch, prefix="training-"))
        try:
            self.job = TrainingJob(self._network(), plan, self._folder)
        except BaseException:
            shutil.rmtree(self._folder)
            raise

    @property
    def hidden_by_recovery(self) -> bool:
        """The hit job is ended before another one begins."""
        return True

    @property
    def victim(self) -> Rank:
        """The rank that is hit: the last, as the first is also where the ranks met."""
        return self.job.ranks[-1]

    def attach(self, target: Any) -> None:
        """Wait until the job has saved a checkpoint and gone on."""
        super().attach(target)
        self.job.wait_step(self.plan.checkpoint_every + _STEPS_PAST_CHECKPOINT)
        self._unavailable = self._find_unavailable()

    def detectors(self) -> Sequence[Detector]:
        """What watches the job."""
        all_of_them = (
            RankWatch(self.job),
            RankHeartbeat(self.job),
            CollectiveWatchdog(self.job),
            StragglerWatch(self.job),
            FlightRecorder(self.job),
            NcclRas(self._ras()),
        )
        return tuple(each for each in all_of_them if each.name not in self._unavailable)

    def unavailable_detectors(self) -> Mapping[str, str]:
        """See `Injection.unavailable_detectors`."""
        return self._unavailable

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return self._found

    def come_back(self) -> tuple[int, bool]:
        """End the hit job, and start another from the last good checkpoint.

        It is back with the first step that the hit one had not made.
        """
        before, at_step = self.job.hashes(), self.job.last_step()
        self.job.end_ranks()
        good = self.job.checkpoints.latest_good()
        if good is None:
            raise ResilienceError("No checkpoint is what its manifest says.")
        return self.resume_from(good, before, at_step)

    def resume_from(
        self, good: Checkpoint, before: Mapping[int, str], at_step: int
    ) -> tuple[int, bool]:
        """Start a job from a checkpoint, and wait for its first new step.

        Args:
            before: hashes of the state after each step of the hit job.
            at_step: the last step that it made.
        """
        plan = replace(self.plan, last_step=None)
        network = SharedNetwork(self.context.support)
        self._back = TrainingJob(network, plan, self._folder, good)
        back_ns = self._back.wait_step(at_step + 1, BACK_DEADLINE_S)
        after = self._back.hashes()
        again = sorted(step for step in after if step in before)
        right = bool(again) and all(before[step] == after[step] for step in again)
        self._found |= {
            "lost_at_step": at_step, "resumed_from_step": good.step,
            "steps_lost": at_step - good.step, "states_compared": len(again),
        }  # fmt: skip
        return back_ns, right

    def roll_back(self) -> None:
        """End what is left of the jobs, with their checkpoints."""
        self.stop_jobs()
        shutil.rmtree(self._folder)

    def prove_rollback(self) -> Proof:
        """No rank lives, and nothing of the job is on disk."""
        left = [str(rank.process.pid) for rank in self.living()]
        if left or self._folder.exists():
            detail = f"ranks {', '.join(left) or 'none'}, folder exists: {self._folder.exists()}"
            return Proof(proved=False, source="pidfd and stat", detail=detail)
        return Proof(
            proved=True, source="pidfd and stat", detail="no rank lives, no file of the job is left"
        )

    def close(self) -> None:
        """See `Injection.close`."""
        self.stop_jobs()
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def living(self) -> list[Rank]:
        """The ranks that live, of the hit job and of the one that came back."""
        jobs = [self.job, *([self._back] if self._back else [])]
        return [rank for job in jobs for rank in job.living()]

    def stop_jobs(self) -> None:
        """End both jobs and their networks."""
        self.job.stop()
        if self._back is not None:
            self._back.stop()

    def _network(self) -> Network:
        return SharedNetwork(self.context.support)

    def _ras(self) -> RasClient:
        return RasClient(self.job.network.space(0).socket, self.job.network.ras_port)

    def _find_unavailable(self) -> dict[str, str]:
        """Detectors of a job that can't work on this one, which is well."""
        found = {}
        if self.plan.ranks < 2:
            found[CollectiveWatchdog.name] = _ONE_RANK
        if not all(told.values["works"] for r in self.job.ranks for told in r.of("recording")):
            found[FlightRecorder.name] = (
                f"this PyTorch has no flight recorder for {self.plan.backend} that speaks JSON"
            )
        if self.plan.backend != support.NCCL:
            found[NcclRas.name] = f"RAS is a part of NCCL, and the ranks speak {self.plan.backend}"
        else:
            try:
                self._found["nccl_version"] = self._ras().status().nccl_version
            except ResilienceError as error:
                found[NcclRas.name] = error.reason
        return found


class RankKilled(JobInjection):
    """One rank is killed."""

    def inject(self) -> None:
        """See `Injection.inject`."""
        self.victim.process.send(signal.SIGKILL)

    def prove_effect(self) -> Proof:
        """The rank has ended."""
        gone = self.victim.process.wait_gone(EFFECT_DEADLINE_S)
        detail = f"rank {self.victim.number} {'has ended' if gone else 'lives'}"
        return Proof(proved=gone, source="pidfd", detail=detail)


class RankHung(JobInjection):
    """One rank is stopped."""

    def inject(self) -> None:
        """See `Injection.inject`."""
        self.victim.process.send(signal.SIGSTOP)

    def prove_effect(self) -> Proof:
        """All its tasks are in state T, and the job makes no step."""
        source = "/proc/PID/task/*/stat and steps"
        pid = self.victim.process.pid

        def stopped() -> bool:
            states = task_states(pid)
            return bool(states) and set(states) == {"T"}

        if not holds_within(stopped, EFFECT_DEADLINE_S, _STEP_S):
            detail = f"states {''.join(task_states(pid)) or 'unknown'}"
            return Proof(proved=False, source=source, detail=detail)
        before = self.job.last_step()
        threading.Event().wait(_STILL_S)
        made = self.job.last_step() - before
        return Proof(
            proved=made == 0 and stopped(),
            source=source,
            detail=f"{len(task_states(pid))} tasks in state T, {made} steps in {_STILL_S:g} s",
        )


class RankSlow(JobInjection):
    """One rank is stopped and continued, again and again."""

    def __init__(self, context: FaultContext, plan: TrainingPlan) -> None:
        super().__init__(context, plan)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._usual_s = 0.0

    def attach(self, target: Any) -> None:
        """See `JobInjection.attach`; also learns how long a step takes."""
        super().attach(target)
        self._usual_s = statistics.median(step_times_s(self.job.ranks[0]))
        self._found["usual_step_s"] = self._usual_s

    def inject(self) -> None:
        """See `Injection.inject`."""
        # The thread ends with this process, and so does the job.
        self._thread = threading.Thread(target=self._throttle, name="throttle", daemon=True)
        self._thread.start()

    def prove_effect(self) -> Proof:
        """Several steps in a row took much longer than usual, by the first rank's clock."""
        before = len(step_times_s(self.job.ranks[0]))
        limit_s = _SLOW_FACTOR * self._usual_s

        def slow() -> bool:
            took_s = step_times_s(self.job.ranks[0])[before:][-_SLOW_STEPS:]
            return len(took_s) == _SLOW_STEPS and min(took_s) > limit_s

        source = "times of steps of rank 0"
        if not holds_within(slow, EFFECT_DEADLINE_S, _STEP_S):
            took_s = step_times_s(self.job.ranks[0])[-_SLOW_STEPS:]
            detail = f"{took_s} s, {self._usual_s:.3f} s is usual"
            return Proof(proved=False, source=source, detail=detail)
        slow_s = statistics.median(step_times_s(self.job.ranks[0])[-_SLOW_STEPS:])
        self._found["slow_step_s"] = slow_s
        detail = f"a step takes {slow_s:.3f} s, {self._usual_s:.3f} s is usual"
        return Proof(proved=True, source=source, detail=detail)

    def stop_jobs(self) -> None:
        """End the throttle first."""
        self._release()
        super().stop_jobs()

    def come_back(self) -> tuple[int, bool]:
        """See `JobInjection.come_back`."""
        self._release()
        return super().come_back()

    def _throttle(self) -> None:
        process = self.victim.process
        while not self._ending.is_set() and process.alive():
            process.send(signal.SIGSTOP)
            self._ending.wait(_STOPPED_S)
            process.send(signal.SIGCONT)
            self._ending.wait(_RUNNING_S)

    def _release(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(EFFECT_DEADLINE_S)


class LinkCut(JobInjection):
    """The link of one rank is cut at the switch between the ranks."""

    def inject(self) -> None:
        """See `Injection.inject`."""
        self._bridge.cut(self.victim.number)

    def prove_effect(self) -> Proof:
        """The rank's interface has no carrier, and no packet of it reaches the first rank."""
        source, number = "ip link and TCP connect, inside the rank's namespace", self.victim.number
        if not holds_within(lambda: not self._bridge.has_carrier(number), 1.0, _STEP_S):
            return Proof(proved=False, source=source, detail=f"rank {number} has a carrier")
        reaches = self._bridge.reaches(number, 0, _REACH_TIMEOUT_S)
        detail = f"rank {number} has no carrier and {'reaches' if reaches else 'does not reach'} 0"
        return Proof(proved=not reaches, source=source, detail=detail)

    def roll_back(self) -> None:
        """Take the port up again, and end the ranks; the namespaces stay to be looked at."""
        self._bridge.mend(self.victim.number)
        self.job.end_ranks()

    def prove_rollback(self) -> Proof:
        """The rank's namespace has a carrier, and reaches that of the first."""
        source, number = "ip link and TCP connect, inside the rank's namespace", self.victim.number

        def joined() -> bool:
            return self._bridge.has_carrier(number) and self._bridge.reaches(number, 0, 1.0)

        if not holds_within(joined, EFFECT_DEADLINE_S, _STEP_S):
            carrier = self._bridge.has_carrier(number)
            return Proof(proved=False, source=source, detail=f"carrier: {carrier}, no way to 0")
        return Proof(proved=True, source=source, detail=f"rank {number} reaches rank 0 again")

    @property
    def _bridge(self) -> BridgedNetwork:
        assert isinstance(self.job.network, BridgedNetwork)
        return self.job.network

    def _network(self) -> Network:
        if not self.context.support.capsule:
            raise ObstacleError(FaultReason.NO_NAMESPACES, self.context.support.reason)
        try:
            return BridgedNetwork(self.plan.ranks)
        except UnsupportedError as error:
            raise ObstacleError(FaultReason.NO_NAMESPACES, str(error)) from error
