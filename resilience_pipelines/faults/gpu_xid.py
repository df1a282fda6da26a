"""Real XIDs at no cost: a program's mistake, in the worker's own CUDA context or beside it.

What belongs here: the strategy `gpu_xid`. What does not: the mistakes (`broken_context` of the
torch worker) and XIDs that are only written into a monitor's cache (`dcgm`).

A mistake breaks the context of the process that makes it, for good, and nothing else: in the worker
it has to be noticed and the worker replaced; beside it the worker has to serve on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.nvml_events import NvmlEvents
from resilience_pipelines.detectors.xids import READ, SOURCE, describe
from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.faults import gpu_guards
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError, Target
from resilience_pipelines.faults.gpu_device import GpuInjection, need_gpu
from resilience_pipelines.faults.gpu_program import PROGRAMS, GpuProgram, missing_module, newest
from resilience_pipelines.faults.process import completes, prove_no_remains
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.nvml import XidListener
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.space import holds_within
from resilience_pipelines.workers.torch_host import TorchWorker

STRATEGY = "gpu_xid"
PROGRAM = PROGRAMS / "break_context.py"
EFFECT_DEADLINE_S = 20.0
BREAK_DEADLINE_S = 10.0
XID_DEADLINE_S = 3.0
_PROBE_TIMEOUT_S = 2.0
_STEP_S = 0.05


class Mistake(StrEnum):
    """What a program does wrong."""

    ILLEGAL_ADDRESS = "illegal_address"
    DEVICE_ASSERT = "device_assert"


class Where(StrEnum):
    """Whose context it breaks."""

    IN_WORKER = "in_worker"
    BESIDE_WORKER = "beside_worker"


XIDS_OF: Mapping[Mistake, tuple[int, ...]] = {
    Mistake.ILLEGAL_ADDRESS: (31, 13),
    Mistake.DEVICE_ASSERT: (43, 13),
}
"""Which XIDs a mistake may give; drivers and GPUs differ."""

_WORDS = {
    Mistake.ILLEGAL_ADDRESS: "a kernel writes to an address that is not mapped",
    Mistake.DEVICE_ASSERT: "a kernel's assertion fails",
}


@dataclass(frozen=True)
class RealXid:
    """A program makes a mistake that the driver reports as an XID."""

    mistake: Mistake
    where: Where
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"xid_{self.mistake}_{self.where}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        if self.where is Where.IN_WORKER:
            return f"{_WORDS[self.mistake]} in the worker: a real XID, its CUDA context is lost"
        return f"{_WORDS[self.mistake]} beside the worker: a real XID, it has to serve on"

    @property
    def expected(self) -> Mapping[str, float]:
        """See `Fault.expected`. A worker whose context is lost may still call itself healthy."""
        seen = {"nvml_events": 5.0, "kernel_log": 5.0}
        return seen | ({"canary": 10.0} if self.where is Where.IN_WORKER else {})

    @property
    def recoveries(self) -> tuple[str, ...]:
        """See `Fault.recoveries`."""
        if self.where is Where.BESIDE_WORKER:
            return (Recovery.RESUME,)
        return (Recovery.COLD, Recovery.WARM_CACHE, Recovery.RESTORE)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {
            "mistake": self.mistake.value,
            "where": self.where.value,
            "expected_xids": list(XIDS_OF[self.mistake]),
            "action_source": f"{SOURCE}, read {READ}",
        }

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return gpu_guards.of_a_gpu()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        need_gpu()
        if self.where is Where.IN_WORKER:
            worker = context.worker
            if not isinstance(worker, TorchWorker) or worker.device != "cuda":
                raise ObstacleError(
                    FaultReason.NO_FAULT_HOOK,
                    f"The worker {worker.name} can't be told to break its own CUDA context.",
                )
            return XidInWorker(context, self.mistake, replace(worker, breakable=True))
        if (problem := missing_module("torch")) is not None:
            raise ObstacleError(FaultReason.NO_TORCH, problem)
        return XidBesideWorker(context, self.mistake)


class XidInjection(GpuInjection):
    """What both places share: who has to see the XID, and hearing of it by itself."""

    def __init__(self, context: FaultContext, mistake: Mistake) -> None:
        super().__init__(context)
        self.mistake = mistake
        self.xids: list[int] = []
        self.error = ""
        self._listener: XidListener | None = None

    def attach(self, target: Target) -> None:
        """Begin to listen.

        Raises:
            ObstacleError: this driver reports no XIDs.
        """
        super().attach(target)
        try:
            self._listener = self.nvml.listen(self.gpu)
        except UnsupportedError as error:
            raise ObstacleError(FaultReason.NO_XID_EVENTS, error.reason) from error

    def detectors(self) -> Sequence[Detector]:
        """The driver's own events."""
        return (NvmlEvents(self.gpu),)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {
            "xids": list(self.xids),
            "immediate_actions": [describe(code) for code in self.xids],
            "cuda_error": self.error[:200],
        }

    def hear(self) -> bool:
        """Take in the XIDs that came; whether one of those that the mistake may give was there."""
        assert self._listener is not None
        while (code := self._listener.wait(0)) is not None:
            self.xids.append(code)
        return any(code in XIDS_OF[self.mistake] for code in self.xids)

    def close(self) -> None:
        """See `Injection.close`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        super().close()


class XidInWorker(XidInjection):
    """The mistake in the worker's own process, which it makes when it is asked."""

    def __init__(self, context: FaultContext, mistake: Mistake, worker: Worker) -> None:
        super().__init__(context, mistake)
        self._worker = worker
        self._broken = False

    @property
    def worker(self) -> Worker:
        """The worker, started so that it can be asked."""
        return self._worker

    def inject(self) -> None:
        """Ask it."""
        self._broken = True
        self.error = self.target.running.client.break_context(
            self.mistake, timeout_s=BREAK_DEADLINE_S
        )

    def prove_effect(self) -> Proof:
        """The worker gives no answer any more, to a client or because it has ended."""
        source = "client and NVML events"

        def lost() -> bool:
            return not self.target.alive() or not completes(self.target, _PROBE_TIMEOUT_S)

        if not holds_within(lost, EFFECT_DEADLINE_S, _STEP_S):
            self.hear()
            return Proof(
                proved=False, source=source, detail=f"XIDs {self.xids}; the worker answers"
            )
        # Whether the driver tells of it is what the detectors are asked; here it is only noted.
        holds_within(self.hear, XID_DEADLINE_S, _STEP_S)
        healthy = self.target.alive() and self.target.running.client.healthy(_PROBE_TIMEOUT_S)
        state = "calls itself healthy" if healthy else "is not healthy"
        return Proof(
            proved=True, source=source, detail=f"XIDs {self.xids}; it does not answer and {state}"
        )

    def roll_back(self) -> None:
        """A context can't be mended: a worker that lost it is ended."""
        if self._broken or not self.target.alive():
            self.target.stop()

    def prove_rollback(self) -> Proof:
        """No process with a broken context is left."""
        if self._broken and self.target.alive():
            return Proof(proved=False, source="/proc", detail="the broken worker still lives")
        return prove_no_remains(self.target)


class XidBesideWorker(XidInjection):
    """The mistake in a process of its own on the same GPU."""

    hits_worker = False

    def __init__(self, context: FaultContext, mistake: Mistake) -> None:
        super().__init__(context, mistake)
        self._program: GpuProgram | None = None

    @property
    def helpers(self) -> Collection[int]:
        """See `Injection.helpers`."""
        return () if self._program is None else (self._program.pid,)

    def attach(self, target: Target) -> None:
        """Start the program, which waits; in a control arm it stays at that."""
        super().attach(target)
        self._program = GpuProgram(PROGRAM, self.gpu.uuid, "--mistake", self.mistake.value)

    def inject(self) -> None:
        """Let it make the mistake."""
        assert self._program is not None
        self._program.go()

    def prove_effect(self) -> Proof:
        """The driver reports an XID that the mistake may give."""
        source = "NVML events"
        try:
            heard = holds_within(self.hear, EFFECT_DEADLINE_S, _STEP_S)
        finally:
            assert self._program is not None
            self.error = str(newest(self._program.reports("broken"), "error") or "")
        if not heard:
            return Proof(proved=False, source=source, detail=f"XIDs {self.xids}")
        return Proof(proved=True, source=source, detail=f"XIDs {self.xids}; {self.error}")

    def broken_expectation(self) -> str | None:
        """The worker has to answer: a neighbour's context is not its own."""
        if completes(self.target, self.context.worker.request_deadline_s):
            return None
        return "the worker does not answer after a neighbour's mistake"

    def roll_back(self) -> None:
        """End the program, where it has not ended by itself."""
        if self._program is not None:
            self._program.end()

    def prove_rollback(self) -> Proof:
        """The program has ended, and the worker lives."""
        if self._program is not None and self._program.alive():
            return Proof(proved=False, source="/proc", detail="the program on the GPU still lives")
        return prove_no_remains(self.target)

    def close(self) -> None:
        """See `Injection.close`."""
        self.roll_back()
        super().close()
