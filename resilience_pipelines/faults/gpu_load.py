"""A fault of load: another process burns the worker's GPU, and checks what it computes.

What belongs here: the strategy `gpu_load`, by our own program and by the real `gpu-burn`. What does
not: the programs (`gpu_programs.burn`, `gpu_burn_tool`) and device memory (`gpu_memory`).

The worker has to serve on, slower, with the same answer. A burn that finds one wrong result breaks
the expectation: then this GPU computes wrongly, and that is what the record says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.gpu_watch import GpuClocks, GpuTenants
from resilience_pipelines.faults import gpu_guards
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError, Target
from resilience_pipelines.faults.gpu_burn_tool import VARIABLE, find_gpu_burn, parse_gpu_burn
from resilience_pipelines.faults.gpu_device import GpuInjection, need_gpu
from resilience_pipelines.faults.gpu_program import PROGRAMS, GpuProgram, missing_module, newest
from resilience_pipelines.faults.process import prove_no_remains
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.base import LaunchPlan
from resilience_pipelines.workers.process import WorkerOutput, worker_environment
from resilience_pipelines.workers.space import HostSpace, Process, holds_within

STRATEGY = "gpu_load"
PROGRAM = PROGRAMS / "burn.py"
MATRIX_ROWS = 8192
BURN_LIMIT_S = 120.0
TOOL_SECONDS = 20
TOOL_END_S = 60.0
MIN_UTILIZATION = 50
EFFECT_DEADLINE_S = 30.0
_STEP_S = 0.05


class Burner(StrEnum):
    """What burns."""

    CHECKED = "checked"
    GPU_BURN = "gpu_burn"


@dataclass(frozen=True)
class GpuBurned:
    """Another process burns the GPU that the worker serves from."""

    burner: Burner
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    expected: Mapping[str, float] = field(default_factory=lambda: {"gpu_tenants": 10.0})
    recoveries: tuple[str, ...] = (Recovery.RESUME,)

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"gpu_burned_{self.burner}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        how = "matrix products, each checked," if self.burner is Burner.CHECKED else "gpu-burn"
        return f"{how} on the worker's GPU; it has to serve on with the same answer"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"burner": self.burner.value, "max_temperature_c": gpu_guards.MAX_TEMPERATURE_C}

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return gpu_guards.of_a_gpu()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        need_gpu()
        if self.burner is Burner.CHECKED:
            if (problem := missing_module("torch")) is not None:
                raise ObstacleError(FaultReason.NO_TORCH, problem)
            return CheckedBurn(context)
        program = find_gpu_burn()
        if program is None or not program.is_file():
            raise ObstacleError(
                FaultReason.NO_GPU_BURN, f"gpu-burn is not on PATH, and {VARIABLE} names none."
            )
        return ToolBurn(context, program)


class BurnInjection(GpuInjection):
    """What both burns share: who has to see them, and that nothing of them is left."""

    hits_worker = False

    def detectors(self) -> Sequence[Detector]:
        """Who else computes on the GPU, and whether it gets too hot."""
        return (GpuTenants(self.gpu, self.own_pids), GpuClocks(self.gpu))

    def prove_rollback(self) -> Proof:
        """Nothing but the worker computes on the GPU any more, and it lives."""

        def gone() -> bool:
            return not self.nvml.processes(self.gpu) - self.own_pids() and not self.burning()

        source = "NVML and /proc"
        if not holds_within(gone, EFFECT_DEADLINE_S, _STEP_S):
            others = self.nvml.processes(self.gpu) - self.own_pids()
            return Proof(proved=False, source=source, detail=f"burning, others: {sorted(others)}")
        remains = prove_no_remains(self.target)
        return Proof(
            proved=remains.proved, source=source, detail=f"the burn is gone, {remains.detail}"
        )

    @abstractmethod
    def burning(self) -> bool:
        """Whether the burn's process lives and has begun."""

    def prove_load(self, gflops: Callable[[], float | None]) -> Proof:
        """The burn reports Gflop/s above 0, and NVML says that the GPU is busy."""
        source = "NVML utilization and the burn's own count"
        busy = 0

        def burns() -> bool:
            nonlocal busy
            busy = max(busy, self.nvml.utilization(self.gpu))
            return busy >= MIN_UTILIZATION and (gflops() or 0) > 0

        if not holds_within(burns, EFFECT_DEADLINE_S, _STEP_S):
            return Proof(
                proved=False, source=source, detail=f"{gflops() or 0:.0f} Gflop/s, {busy} % busy"
            )
        return Proof(
            proved=True, source=source, detail=f"{gflops():.0f} Gflop/s, the GPU is {busy} % busy"
        )


class CheckedBurn(BurnInjection):
    """Our own program: it waits with torch imported and nothing on the GPU, then burns."""

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._program: GpuProgram | None = None
        self._begun = False

    def attach(self, target: Target) -> None:
        """Start the program, which waits; in a control arm it stays at that."""
        super().attach(target)
        self._program = GpuProgram(
            PROGRAM, self.gpu.uuid, "--uuid", self.gpu.uuid, "--size", str(MATRIX_ROWS),
            "--seconds", str(BURN_LIMIT_S),
            "--max-temperature-c", str(gpu_guards.MAX_TEMPERATURE_C),
        )  # fmt: skip

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        rounds = self._reports("round")
        return {
            "gflops": newest(rounds, "gflops"),
            "products": sum(found["products"] for found in rounds),
            "mismatches": self._mismatches(),
            "hottest_c": max((found["temperature_c"] for found in rounds), default=None),
        }

    def inject(self) -> None:
        """Let it burn."""
        assert self._program is not None
        self._begun = True
        self._program.go()

    def prove_effect(self) -> Proof:
        """See `BurnInjection.prove_load`."""
        return self.prove_load(lambda: newest(self._reports("round"), "gflops"))

    def broken_expectation(self) -> str | None:
        """Everything it computed has to be right, and it may not have been stopped by heat."""
        if wrong := self._mismatches():
            return f"the GPU computes wrongly: {wrong} entries of products differ"
        if hot := self._reports("aborted"):
            return f"the burn was stopped at {hot[-1]['temperature_c']} degrees Celsius"
        if not self.burning():
            return "the burn ended early"
        return None

    def roll_back(self) -> None:
        """End the program."""
        if self._program is not None:
            self._program.end()

    def burning(self) -> bool:
        """See `BurnInjection.burning`."""
        return self._begun and self._program is not None and self._program.alive()

    def close(self) -> None:
        """See `Injection.close`."""
        self.roll_back()
        super().close()

    def _reports(self, event: str) -> list[Any]:
        return [] if self._program is None else list(self._program.reports(event))

    def _mismatches(self) -> int:
        checked = (*self._reports("reference"), *self._reports("round"))
        return sum(int(found["mismatches"]) for found in checked)


class ToolBurn(BurnInjection):
    """The real gpu-burn, for a fixed time: its verdict comes at its end."""

    def __init__(self, context: FaultContext, program: Path) -> None:
        super().__init__(context)
        self._path = program.resolve()
        self._space = HostSpace()
        self._output = WorkerOutput()
        self._process: Process | None = None

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        found = parse_gpu_burn(self._text())
        return {
            "seconds": TOOL_SECONDS,
            "gflops": found[0].gflops if found else None,
            "tool_verdict": found[0].verdict if found else None,
        }

    def inject(self) -> None:
        """Start it. It looks for its compare kernel in the folder that it lies in."""
        argv = (
            "sh", "-c", 'cd "$1" && exec "$2" "$3"', "sh",
            str(self._path.parent), str(self._path), str(TOOL_SECONDS),
        )  # fmt: skip
        plan = LaunchPlan(argv, 0, {"CUDA_VISIBLE_DEVICES": self.gpu.uuid})
        self._process = self._space.spawn(
            argv, env=worker_environment(plan), output=self._output.write_end
        )
        self._output.close_write_end()

    def prove_effect(self) -> Proof:
        """See `BurnInjection.prove_load`."""
        return self.prove_load(self._gflops)

    def broken_expectation(self) -> str | None:
        """It has to come to its verdict by itself, and that has to be a good one."""
        if self._process is None or not self._process.wait_gone(TOOL_SECONDS + TOOL_END_S):
            return "gpu-burn did not come to an end"
        self._output.join(1.0)
        found = parse_gpu_burn(self._text())
        if not found:
            return f"gpu-burn says nothing of any GPU: {self._output.tail(3)}"
        bad = [gpu for gpu in found if not gpu.passed]
        return f"gpu-burn: {bad[0]}" if bad else None

    def roll_back(self) -> None:
        """End it, with the processes that it started."""
        self._space.close()
        self._output.close_write_end()

    def burning(self) -> bool:
        """See `BurnInjection.burning`."""
        return self._process is not None and self._process.alive()

    def close(self) -> None:
        """See `Injection.close`."""
        self.roll_back()
        super().close()

    def _text(self) -> str:
        return "\n".join(line.text for line in self._output.lines())

    def _gflops(self) -> float | None:
        found = parse_gpu_burn(self._text())
        return found[0].gflops if found else None
