"""A run over faults: which experiments are made, and in which order.

What belongs here: the plan, its validation, the order. What does not: one experiment
(`experiment`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from resilience_pipelines.errors import InputError
from resilience_pipelines.faults.catalogue import CATALOGUE, choose
from resilience_pipelines.faults.experiment import run_experiment
from resilience_pipelines.faults.fault import Fault, FaultContext
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.records import FaultRun
from resilience_pipelines.startup.benchmark import BenchmarkContext, Progress, Source
from resilience_pipelines.workers.pod import PodPlace


@dataclass(frozen=True)
class FaultPlan:
    """What to inject.

    Args:
        faults: names from the catalogue, or the beginnings of several; all when empty.
        recoveries: ways to recover; all that a fault allows when empty.
        repeats: experiments of each fault and recovery, and control arms of each fault.
        controls: whether control arms are made.
        backend: what the ranks of training jobs speak through: `gloo`, `nccl`, or None for what
            suits the machine.

    Raises:
        InputError: an unknown name, a recovery that a named fault does not allow, or no repeat.
    """

    faults: tuple[str, ...] = ()
    recoveries: tuple[str, ...] = ()
    repeats: int = 1
    controls: bool = True
    backend: str | None = None
    catalogue: Mapping[str, Fault] = field(default_factory=lambda: CATALOGUE)

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InputError(
                "repeats", self.repeats, "nothing would be injected", mend="Give 1 or more."
            )
        known = [str(recovery) for recovery in Recovery]
        for name in self.recoveries:
            if name not in known:
                raise InputError(
                    "recoveries", name, "no such recovery", mend=f"Choose from {', '.join(known)}."
                )
        for fault in choose(self.faults, self.catalogue):
            if self.faults and not self.recoveries_of(fault):
                raise InputError(
                    "recoveries", ", ".join(self.recoveries), f"{fault.name} allows none of them",
                    mend=f"Choose from {', '.join(fault.recoveries)}.",
                )  # fmt: skip

    def recoveries_of(self, fault: Fault) -> list[Recovery]:
        """The recoveries that are tried after a fault."""
        return [
            Recovery(name)
            for name in fault.recoveries
            if not self.recoveries or name in self.recoveries
        ]

    def schedule(self) -> list[tuple[int, Fault, Recovery | None]]:
        """(repeat, fault, recovery) in order; None stands for the control arm.

        Recoveries of one fault alternate, and each repeat begins with another one, so that a drift
        of the machine does not fall on one of them alone.
        """
        order: list[tuple[int, Fault, Recovery | None]] = []
        for repeat in range(self.repeats):
            for fault in choose(self.faults, self.catalogue):
                recoveries = self.recoveries_of(fault)
                if not recoveries:
                    continue
                if self.controls:
                    order.append((repeat, fault, None))
                shift = repeat % len(recoveries)
                rotated = (*recoveries[shift:], *recoveries[:shift])
                order.extend((repeat, fault, recovery) for recovery in rotated)
        return order


def run_faults(
    plan: FaultPlan,
    context: BenchmarkContext,
    source: Source,
    progress: Progress,
    *,
    abort: threading.Event | None = None,
    cluster: PodPlace | None = None,
    no_cluster_why: str = "",
) -> list[FaultRun]:
    """Make every experiment of the plan. One that fails is a result; the run goes on.

    Args:
        source: the oracle's answer, and the snapshot to restore from if there is one.
        abort: set by an operator; the experiments that are left are recorded as aborted.
        cluster: where workers may be started in pods; `no_cluster_why` says why there is none.
    """
    fault_context = replace(
        make_context(context, source, abort or threading.Event()),
        cluster=cluster,
        no_cluster_why=no_cluster_why,
        backend=plan.backend,
    )
    schedule = plan.schedule()
    runs = []
    for done, (repeat, fault, recovery) in enumerate(schedule):
        what = f"recovery {recovery}" if recovery else "control"
        progress(f"{fault.name}, {what}, experiment {repeat + 1}", done, len(schedule))
        runs.append(
            run_experiment(fault, recovery, fault_context, repeat=repeat, control=recovery is None)
        )
    progress("finished", len(schedule), len(schedule))
    return runs


def make_context(context: BenchmarkContext, source: Source, abort: threading.Event) -> FaultContext:
    """What experiments work with, from what a job has prepared."""
    no_snapshot_why = ""
    if source.snapshot is None:
        attempts = [taken.detail for taken in source.snapshots]
        no_snapshot_why = f"No snapshot was taken: {attempts[-1] if attempts else 'none asked for'}"
    return FaultContext(
        worker=context.worker,
        support=context.support,
        answer=source.answer,
        engine=context.engine,
        no_engine_why=context.no_engine_why,
        snapshot=source.snapshot,
        no_snapshot_why=no_snapshot_why,
        warm_cache=context.warm_cache,
        evidence=context.evidence,
        scratch=context.scratch,
        telemetry=context.telemetry,
        port=context.port,
        abort=abort,
    )
