"""A fault of placement: the worker runs, and has its memory, far from its GPU.

What belongs here: the strategy `numa_placement`. What does not: reading nodes (`numa`).

What it costs is measured, in place of the figures that are often quoted: pinned copies from the
near node, twice, and from the far one, by a program that does nothing else. Memory that is pinned
already stays where it is; what moves is what the worker allocates and computes on the host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience_pipelines import numa
from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.placement import Placement
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults import gpu_guards
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError, Target
from resilience_pipelines.faults.gpu_device import GpuInjection, need_gpu
from resilience_pipelines.faults.gpu_program import PROGRAMS, GpuProgram, missing_module
from resilience_pipelines.faults.process import completes, prove_no_remains
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.numa import Node
from resilience_pipelines.nvml import Gpu, Nvml
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.space import holds_within

STRATEGY = "numa_placement"
PROGRAM = PROGRAMS / "pinned_copy.py"
EFFECT_DEADLINE_S = 5.0
COPY_DEADLINE_S = 60.0
_STEP_S = 0.02


@dataclass(frozen=True)
class WorkerMisplaced:
    """All of the worker's threads and memory on another node than its GPU."""

    name: str = "numa_far_from_gpu"
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    description: str = (
        "the worker's threads and memory moved to the NUMA node farthest from its GPU"
    )
    expected: Mapping[str, float] = field(default_factory=lambda: {"placement": 3.0})
    recoveries: tuple[str, ...] = (Recovery.RESUME,)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return gpu_guards.of_a_gpu()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        need_gpu()
        nodes = numa.read_nodes(numa.NODES)
        if len(nodes) < 2:
            raise ObstacleError(
                FaultReason.ONE_NUMA_NODE, f"This machine has {len(nodes)} NUMA nodes with CPUs."
            )
        if (problem := missing_module("torch")) is not None:
            raise ObstacleError(FaultReason.NO_TORCH, problem)
        return PlacementInjection(context, nodes)


class PlacementInjection(GpuInjection):
    """One move of a worker to another node, and back."""

    hits_worker = False

    def __init__(self, context: FaultContext, nodes: Sequence[Node]) -> None:
        super().__init__(context)
        self._nodes = nodes
        self._near = self._far = nodes[0]
        self._before: dict[int, set[int]] = {}
        self._moved: set[int] = set()
        self._copies: dict[str, Any] = {}

    def attach(self, target: Target) -> None:
        """Find the near and the farthest node, and measure copies from the near one, twice.

        Raises:
            ObstacleError: nobody tells which node the GPU is on.
        """
        super().attach(target)
        self._near = near_node(self.gpu, self.nvml, self._nodes)
        others = [node for node in self._nodes if node != self._near]
        self._far = max(others, key=lambda node: self._near.distances.get(node.number, 0))
        for name in ("near", "near_again"):
            self._copies[name] = self._measure(self._near)
        self._before = {task: os.sched_getaffinity(task) for task in self._tasks()}

    def detectors(self) -> Sequence[Detector]:
        """What compares the worker's CPUs with those near its GPU."""
        return (Placement(self.target.members[-1].pid, self._near.cpus),)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {
            "near_node": self._near.number, "far_node": self._far.number,
            "distance": self._near.distances.get(self._far.number), "copies": self._copies,
        }  # fmt: skip

    def inject(self) -> None:
        """Move every thread and the memory of every process to the far node."""
        for task in self._tasks():
            self._moved.add(task)
            _place(task, self._far.cpus)
        for member in self.target.living():
            numa.move_memory(member.pid, self._near.number, self._far.number)

    def prove_effect(self) -> Proof:
        """The kernel says of every thread that it may run on the far node alone."""
        return self._prove(lambda _, allowed: allowed <= self._far.cpus, "on the far node")

    def broken_expectation(self) -> str | None:
        """The worker has to answer from there; then measure copies from the far node."""
        if not completes(self.target, self.context.worker.request_deadline_s):
            return "the worker does not answer from the far node"
        self._copies["far"] = self._measure(self._far)
        return None

    def roll_back(self) -> None:
        """Give every thread that was moved its CPUs back, and the memory its node."""
        if not self._moved:
            return
        usual = next(iter(self._before.values()))
        for task in self._tasks():
            _place(task, self._before.get(task, usual))
        for member in self.target.living():
            with contextlib.suppress(ProcessLookupError):
                numa.move_memory(member.pid, self._far.number, self._near.number)

    def prove_rollback(self) -> Proof:
        """The kernel says of every thread what it said before."""
        usual = next(iter(self._before.values()), set())
        proof = self._prove(
            lambda task, allowed: allowed == self._before.get(task, usual), "where it was before"
        )
        remains = prove_no_remains(self.target)
        return proof.model_copy(update={"proved": proof.proved and remains.proved})

    def _prove(self, holds: Any, where: str) -> Proof:
        source = "/proc/PID/task and sched_getaffinity"
        elsewhere: list[int] = []

        def all_hold() -> bool:
            elsewhere.clear()
            for task in self._tasks():
                with contextlib.suppress(ProcessLookupError):
                    if not holds(task, os.sched_getaffinity(task)):
                        elsewhere.append(task)
            return not elsewhere

        if not holds_within(all_hold, EFFECT_DEADLINE_S, _STEP_S):
            return Proof(
                proved=False, source=source, detail=f"{len(elsewhere)} threads are not {where}"
            )
        return Proof(
            proved=True, source=source, detail=f"all {len(self._tasks())} threads are {where}"
        )

    def _tasks(self) -> list[int]:
        tasks = []
        for member in self.target.living():
            with contextlib.suppress(FileNotFoundError):
                tasks += [int(entry.name) for entry in Path(f"/proc/{member.pid}/task").iterdir()]
        return tasks

    def _measure(self, node: Node) -> Mapping[str, float]:
        """Pinned copies from a node, in bytes per second."""
        cpus = ",".join(str(cpu) for cpu in sorted(node.cpus))
        program = GpuProgram(PROGRAM, self.gpu.uuid, "--cpus", cpus)
        try:
            program.go()
            found = program.wait_for("copied", COPY_DEADLINE_S)
        finally:
            program.end()
        return {name: float(value) for name, value in found.items() if name != "event"}


def near_node(gpu: Gpu, nvml: Nvml, nodes: Sequence[Node]) -> Node:
    """The node that a GPU is on: NVML's memory affinity, else sysfs, else NVML's CPUs.

    Raises:
        ObstacleError: nobody tells, or it is a node without CPUs.
    """
    by_number = {node.number: node for node in nodes}
    told = nvml.memory_nodes_near(gpu)
    number = numa.node_of_device(gpu.bus_id)
    candidates = sorted(told) if len(told) == 1 else [] if number is None else [number]
    for candidate in candidates:
        if candidate in by_number:
            return by_number[candidate]
    cpus = nvml.cpus_near(gpu)
    holding = [node for node in nodes if cpus & node.cpus]
    if len(holding) == 1:
        return holding[0]
    raise ObstacleError(
        FaultReason.NUMA_UNKNOWN,
        f"Which NUMA node GPU {gpu.index} is on is not known (sysfs: {number}, NVML: "
        f"memory {sorted(told)}).",
    )


def _place(task: int, cpus: frozenset[int] | set[int]) -> None:
    try:
        os.sched_setaffinity(task, cpus)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise ResilienceError(f"Thread {task} can't be moved: {error.strerror}.") from error
