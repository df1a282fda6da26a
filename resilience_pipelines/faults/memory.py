"""A fault of memory: the kernel's OOM killer.

What belongs here: the strategy `memory_pressure`. What does not: cgroups as such (`cgroup`), and
limits of a process (`limits`).

The pressure stays inside a memory cgroup that holds nothing but the worker and a helper. The
machine's memory is never at stake.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.cgroup_events import CgroupEvents, read_oom_kills
from resilience_pipelines.errors import ResilienceError, UnsupportedError
from resilience_pipelines.faults.cgroup import ENTER, MemoryCgroup, find_place, inside
from resilience_pipelines.faults.fault import (
    FaultContext,
    Guard,
    Injection,
    ObstacleError,
    Target,
)
from resilience_pipelines.faults.process import completes, prove_no_remains
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.space import holds_within

STRATEGY = "memory_pressure"
HEADROOM_BYTES = 16 * 2**20
EFFECT_DEADLINE_S = 10.0
_PROBE_TIMEOUT_S = 1.0
_STEP_S = 0.01
_END_GRACE_S = 0.5
_HELPER_DEADLINE_S = 10.0

# Takes as many bytes as the line says, and keeps them until its input ends: when this process lets
# go of it, or dies.
_EAT = """
import sys
sys.stdout.write("ready\\n")
sys.stdout.flush()
kept = []
for _ in range(int(sys.stdin.readline() or 0) >> 20):
    kept.append(bytearray(1 << 20))
sys.stdin.read()
"""


@dataclass(frozen=True)
class MemoryExhausted:
    """The worker's memory cgroup has no room left, and the kernel kills."""

    name: str = "memory_exhausted"
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    description: str = "the worker's own memory cgroup filled up until the kernel's OOM killer acts"
    expected: Mapping[str, float] = field(
        default_factory=lambda: {
            "cgroup_events": 2.0,
            "kernel_log": 2.0,
            "process_watch": 3.0,
            "health_probe": 5.0,
            "canary": 7.0,
        }
    )
    recoveries: tuple[str, ...] = (Recovery.WARM_CACHE, Recovery.RESTORE)
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"headroom_bytes": HEADROOM_BYTES}
    )

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`. The common ones are enough: the limit keeps the pressure inside."""
        return ()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        try:
            cgroup = MemoryCgroup(find_place())
        except (UnsupportedError, OSError) as error:
            raise ObstacleError(FaultReason.NO_MEMORY_CGROUP, str(error)) from error
        return OomInjection(context, cgroup)


class OomInjection(Injection):
    """One memory cgroup, and a helper in it that eats."""

    def __init__(self, context: FaultContext, cgroup: MemoryCgroup) -> None:
        super().__init__(context)
        self._cgroup = cgroup
        self._helper: subprocess.Popen[str] | None = None
        self._kills_before = 0
        self._limit_bytes: int | None = None

    @property
    def worker(self) -> Worker:
        """The worker, started inside the cgroup, so that its memory is charged there."""
        return inside(self.context.worker, self._cgroup.folder)

    @property
    def cgroup(self) -> Path:
        """See `Injection.cgroup`."""
        return self._cgroup.folder

    def attach(self, target: Target) -> None:
        """Start the helper, which waits; in a control arm it stays at that."""
        super().attach(target)
        outside = {member.pid for member in target.members} - set(self._cgroup.pids())
        if outside:
            raise ResilienceError(f"Processes {sorted(outside)} of the worker left its cgroup.")
        self._kills_before = read_oom_kills(self._cgroup.folder)
        self._helper = subprocess.Popen(
            ["sh", "-c", ENTER, "sh", str(self._cgroup.folder),
             sys.executable, "-I", "-S", "-c", _EAT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, start_new_session=True, cwd="/",
        )  # fmt: skip
        assert self._helper.stdout is not None
        ready, _, _ = select.select([self._helper.stdout], [], [], _HELPER_DEADLINE_S)
        if not ready or self._helper.stdout.readline() != "ready\n":
            raise ResilienceError("The helper could not be started inside the memory cgroup.")

    def detectors(self) -> Sequence[Detector]:
        """The kernel's count for this cgroup."""
        return (CgroupEvents(self._cgroup.folder),)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {"cgroup_version": self._cgroup.version, "limit_bytes": self._limit_bytes}

    def inject(self) -> None:
        """Lower the limit to little more than what is used, then let the helper eat the rest."""
        self._limit_bytes = self._cgroup.set_limit_near_usage(HEADROOM_BYTES)
        assert self._helper is not None
        assert self._helper.stdin is not None
        self._helper.stdin.write(f"{self._limit_bytes}\n")
        self._helper.stdin.flush()

    def prove_effect(self) -> Proof:
        """The kernel counts a kill in the cgroup, and the worker is gone or no longer answers."""
        source = "kernel's count of OOM kills in the cgroup, and the worker"

        def killed() -> int:
            return read_oom_kills(self._cgroup.folder) - self._kills_before

        was_killed = holds_within(lambda: killed() > 0, EFFECT_DEADLINE_S, _STEP_S)
        if not was_killed or not holds_within(self._lost, EFFECT_DEADLINE_S, _STEP_S):
            return Proof(
                proved=False, source=source, detail=f"{killed()} kills, and the worker serves"
            )
        state = "does not answer" if self.target.alive() else "has ended"
        return Proof(proved=True, source=source, detail=f"{killed()} kills, the worker {state}")

    def _lost(self) -> bool:
        # It takes a moment from the kill to the end of a process with much memory.
        gone = self.target.running.process.wait_gone(_END_GRACE_S)
        return gone or not completes(self.target, _PROBE_TIMEOUT_S)

    def roll_back(self) -> None:
        """Let a worker that lives go on without the limit, and remove the cgroup."""
        self._end_helper()
        if self.target.alive():
            self._cgroup.lift()
        else:
            self.target.stop()
        self._cgroup.remove()

    def prove_rollback(self) -> Proof:
        """The cgroup is gone, and nothing of a worker that died is left."""
        if self._cgroup.folder.exists():
            return Proof(
                proved=False, source="/sys/fs/cgroup", detail=f"{self._cgroup.folder} is there"
            )
        remains = prove_no_remains(self.target)
        return Proof(
            proved=remains.proved,
            source="/sys/fs/cgroup and /proc",
            detail=f"the cgroup is removed, {remains.detail}",
        )

    def close(self) -> None:
        """See `Injection.close`."""
        self._end_helper()
        self._cgroup.remove()

    def _end_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        helper.kill()
        for pipe in (helper.stdin, helper.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        helper.wait(_HELPER_DEADLINE_S)
