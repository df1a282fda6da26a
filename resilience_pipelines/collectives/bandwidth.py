"""Measuring collectives: bandwidth at fixed sizes, in the healthy arm and each degraded one.

What belongs here: the plan, its order, one life of the ranks, and bandwidths from times. What does
not: the collectives themselves (`bandwidth_rank`), and records of anything else.

Bandwidths are nccl-tests' (doc/PERFORMANCE.md): algbw = size / time, and busbw = algbw x factor,
the factor being what a perfect algorithm moves over the busiest link: 2(n-1)/n for an all-reduce,
(n-1)/n for an all-gather, 1 for send and receive. With one rank nothing moves, and busbw is 0.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from resilience_pipelines.collectives import support
from resilience_pipelines.collectives.arms import BandwidthArm, choose_arms
from resilience_pipelines.collectives.nccl_log import transports
from resilience_pipelines.collectives.network import BridgedNetwork, Network, SharedNetwork
from resilience_pipelines.collectives.training import Rank, start_rank
from resilience_pipelines.errors import DeadlineError, InputError, ResilienceError, UnsupportedError
from resilience_pipelines.records import CollectiveMeasurement, CollectiveOperation, Outcome
from resilience_pipelines.workers.space import SpaceSupport

DEFAULT_SIZES = (64 * 1024, 1024**2, 16 * 1024**2)
ARM_DEADLINE_S = 300.0
COLLECTIVE_TIMEOUT_S = 60.0
_END_DEADLINE_S = 10.0
_STEP_S = 0.02

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class BandwidthPlan:
    """What to measure.

    Args:
        arms: names; all that the backend has when empty.
        sizes: bytes.
        ranks: None: one for each GPU, or two on the CPU.
        repeats: lives of the ranks in each arm.
        iterations: of each collective in one life, after two that are not timed.

    Raises:
        InputError: a size or a number that can't be measured.
    """

    arms: tuple[str, ...] = ()
    operations: tuple[CollectiveOperation, ...] = tuple(CollectiveOperation)
    sizes: tuple[int, ...] = DEFAULT_SIZES
    ranks: int | None = None
    repeats: int = 5
    iterations: int = 10
    backend: str = field(default_factory=support.choose_backend)

    def __post_init__(self) -> None:
        if self.ranks is not None and self.ranks < 1:
            raise InputError("ranks", self.ranks, "there is no such job", mend="Give 1 or more.")
        for name, listed in (("operations", self.operations), ("sizes", self.sizes)):
            if len(set(listed)) != len(listed):
                raise InputError(
                    name, [str(item) for item in listed], "each has to be named once",
                    mend="Leave out what is there twice; repeats measures all of it again.",
                )  # fmt: skip
        for size in self.sizes:
            if size < 1024:
                raise InputError(
                    "sizes", size, "too small to tell its bandwidth", mend="Give 1024 or more."
                )
        if self.backend == support.NCCL and (self.ranks or 1) > support.gpu_count():
            raise InputError(
                "ranks", self.ranks, "NCCL refuses two ranks on one GPU",
                mend=f"Give {support.gpu_count()} or less.",
            )  # fmt: skip
        choose_arms(self.arms, self.backend)

    @property
    def world(self) -> int:
        """How many ranks."""
        return self.ranks or support.gpu_count() or support.MIN_CPU_RANKS


@dataclass(frozen=True)
class BandwidthResult:
    """What was found.

    Attributes:
        nccl_version: as torch names it; None over gloo.
        unsupported: what was asked and can't be done here, and why.
    """

    measurements: tuple[CollectiveMeasurement, ...]
    nccl_version: str | None
    unsupported: Mapping[str, str]


def run_bandwidth(
    plan: BandwidthPlan, space: SpaceSupport, evidence: Path, progress: Progress
) -> BandwidthResult:
    """Measure every arm, one after the other, again and again, each time from another one on.

    An arm that fails is a result; the run goes on.

    Raises:
        UnsupportedError: PyTorch is not installed.
    """
    why = support.unavailable()
    if why is not None:
        raise UnsupportedError(why, mend="pip install 'resilience-pipelines[collectives]'")
    arms, unsupported = choose_arms(plan.arms, plan.backend)
    if not space.capsule:
        for arm in [arm for arm in arms if arm.bridged]:
            arms.remove(arm)
            unsupported[f"arm {arm.name}"] = f"Namespaces can't be made here: {space.reason}"
    operations = list(plan.operations)
    if plan.world == 1 and CollectiveOperation.SEND_RECV in operations:
        operations.remove(CollectiveOperation.SEND_RECV)
        unsupported[CollectiveOperation.SEND_RECV] = "One rank has nobody to send to."
    found: list[CollectiveMeasurement] = []
    nccl_version = None
    order = [
        (repeat, arm)
        for repeat in range(plan.repeats)
        for arm in (*arms[repeat % len(arms) :], *arms[: repeat % len(arms)])
    ] if arms else []  # fmt: skip
    for done, (repeat, arm) in enumerate(order):
        progress(f"{arm.name}, repeat {repeat + 1}", done, len(order))
        life = _Life(plan, arm, operations, repeat)
        found += life.measure(space, evidence)
        nccl_version = life.nccl_version or nccl_version
    progress("finished", len(order), len(order))
    return BandwidthResult(tuple(found), nccl_version, unsupported)


def bus_factor(operation: CollectiveOperation, ranks: int) -> float:
    """By what algbw is multiplied for busbw (nccl-tests, doc/PERFORMANCE.md)."""
    match operation:
        case CollectiveOperation.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks
        case CollectiveOperation.ALL_GATHER:
            return (ranks - 1) / ranks
        case CollectiveOperation.SEND_RECV:
            return 1.0 if ranks > 1 else 0.0


class _Life:
    """One life of the ranks, in one arm."""

    def __init__(
        self,
        plan: BandwidthPlan,
        arm: BandwidthArm,
        operations: list[CollectiveOperation],
        repeat: int,
    ) -> None:
        self.nccl_version: str | None = None
        self._plan = plan
        self._arm = arm
        self._operations = operations
        self._repeat = repeat
        self._started_at = datetime.now(UTC)
        self._transports: tuple[str, ...] = ()

    def measure(self, space: SpaceSupport, evidence: Path) -> list[CollectiveMeasurement]:
        ranks: list[Rank] = []
        problem: ResilienceError | None = None
        try:
            with self._network(space) as network:
                try:
                    ranks.extend(self._start(network, number) for number in range(self._plan.world))
                    self._wait(ranks)
                finally:
                    for rank in ranks:
                        rank.join(1.0)
        except (ResilienceError, OSError) as error:
            problem = error if isinstance(error, ResilienceError) else ResilienceError(str(error))
        lines = [line for rank in ranks for line in rank.lines()]
        self._transports = self._seen(lines)
        wrong = self._wrong_transport()
        if problem or wrong:
            log = evidence / f"collectives-{self._arm.name}-{self._repeat}.log"
            log.write_text("\n".join(lines))
        return [
            self._record(operation, size, ranks, problem, wrong)
            for operation in self._operations
            for size in self._plan.sizes
        ]

    def _network(self, space: SpaceSupport) -> Network:
        if not self._arm.bridged:
            return SharedNetwork(space)
        network = BridgedNetwork(self._plan.world)
        if self._arm.bits_per_s is not None:
            try:
                for rank in range(self._plan.world):
                    network.limit(rank, self._arm.bits_per_s)
            except BaseException:
                network.close()
                raise
        return network

    def _start(self, network: Network, number: int) -> Rank:
        plan = self._plan
        spec = {
            "rank": number, "ranks": plan.world, "backend": plan.backend,
            "master": network.master, "port": network.port, "timeout_s": COLLECTIVE_TIMEOUT_S,
            "operations": self._operations, "sizes": plan.sizes, "iterations": plan.iterations,
        }  # fmt: skip
        more = dict(self._arm.environment)
        if plan.backend == support.NCCL:
            more |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET,GRAPH"}
        module = "resilience_pipelines.collectives.bandwidth_rank"
        return start_rank(network, number, module, json.dumps(spec), more)

    def _wait(self, ranks: list[Rank]) -> None:
        end = time.monotonic() + ARM_DEADLINE_S
        while not all(rank.of("done") for rank in ranks):
            gone = next((r for r in ranks if not r.process.alive()), None)
            if gone is not None:
                gone.join(1.0)
                if not gone.of("done"):
                    raise ResilienceError(f"Rank {gone.number} ended early: {gone.tail()[-1000:]}")
            if time.monotonic() > end:
                raise DeadlineError(f"The ranks took longer than {ARM_DEADLINE_S:g} s.")
            time.sleep(_STEP_S)
        self.nccl_version = ranks[0].of("done")[0].values["nccl"]

    def _seen(self, lines: list[str]) -> tuple[str, ...]:
        # gloo has one transport, and no log of it.
        return ("TCP",) if self._plan.backend == support.GLOO else transports(lines)

    def _wrong_transport(self) -> str | None:
        wanted = self._arm.transports
        if not wanted or self._plan.world == 1 or set(self._transports) == set(wanted):
            return None
        seen = ", ".join(self._transports) or "no connection"
        return f"the log shows {seen}, not {', '.join(wanted)}"

    def _record(
        self,
        operation: CollectiveOperation,
        size: int,
        ranks: list[Rank],
        problem: ResilienceError | None,
        wrong_transport: str | None,
    ) -> CollectiveMeasurement:
        plan, arm = self._plan, self._arm
        told = [
            values
            for rank in ranks
            for values in (dict(each.values) for each in rank.of("measured"))
            if (values["operation"], values["bytes"]) == (operation.value, size)
        ]
        outcome, reason, detail = _judge(told, plan.world, problem, wrong_transport)
        time_s = fmean(float(values["time_s"]) for values in told) if told else None
        algbw = size / time_s if time_s and outcome is Outcome.OK else None
        return CollectiveMeasurement(
            measurement_id=f"{arm.name}-{operation}-{size}-{self._repeat}",
            operation=operation,
            arm=arm.name,
            backend=plan.backend,
            transports=self._transports,
            ranks=plan.world,
            bytes=size,
            repeat=self._repeat,
            iterations=plan.iterations,
            started_at=self._started_at,
            outcome=outcome,
            reason_code=reason,
            detail=detail,
            time_s=time_s if outcome is Outcome.OK else None,
            algbw_bytes_per_s=algbw,
            busbw_bytes_per_s=None if algbw is None else algbw * bus_factor(operation, plan.world),
            environment=dict(arm.environment),
        )


def _judge(
    told: list[dict[str, Any]],
    world: int,
    problem: ResilienceError | None,
    wrong_transport: str | None,
) -> tuple[Outcome, str | None, str]:
    if any(not values["correct"] for values in told):
        return Outcome.FAILED, "wrong_result", "a rank got another result than it has to"
    if len(told) < world:
        if isinstance(problem, UnsupportedError):
            return Outcome.UNSUPPORTED, "no_network", str(problem)[:4000]
        reason = "deadline" if isinstance(problem, DeadlineError) else "rank_failed"
        return Outcome.FAILED, reason, str(problem or "a rank told of nothing")[:4000]
    if wrong_transport:
        return Outcome.FAILED, "wrong_transport", wrong_transport
    return Outcome.OK, None, ""
