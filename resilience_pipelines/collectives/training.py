"""A data-parallel training job as the host sees it: its ranks, and what they tell.

What belongs here: starting ranks in the spaces of a network, reading what they tell, waiting for
steps, ending them. What does not: what a rank does (`rank`), and what happens to one (`faults`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from resilience_pipelines import strict_json
from resilience_pipelines.collectives import flight_recorder
from resilience_pipelines.collectives.checkpoints import Checkpoint, CheckpointFolder
from resilience_pipelines.collectives.network import Network
from resilience_pipelines.collectives.protocol import RankSpec
from resilience_pipelines.collectives.support import NCCL
from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.workers.process import INHERITED_VARIABLES, WorkerFailedError
from resilience_pipelines.workers.space import Process

START_DEADLINE_S = 90.0
END_DEADLINE_S = 10.0
_STEP_S = 0.01
LINES_KEPT = 20_000


@dataclass(frozen=True)
class TrainingPlan:
    """What is trained, and how.

    Args:
        ranks: how many processes.
        backend: `gloo` or `nccl`.
        collective_timeout_s: how long a collective may take before a rank gives up.
        pace_s: pause after each step: a job that waits is the rule, and two cores are few.
        checkpoint_every: steps between two checkpoints.
        keep: how many checkpoints stay.
        last_step: None: train until stopped.
        environment: more variables of every rank.
    """

    ranks: int = 2
    backend: str = "gloo"
    collective_timeout_s: float = 3.0
    seed: int = 7
    pace_s: float = 0.05
    checkpoint_every: int = 10
    keep: int = 3
    last_step: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def transport(self) -> str:
        """What carries the collectives, for the record."""
        return "nccl" if self.backend == NCCL else "gloo over TCP, on the CPU"


@dataclass(frozen=True)
class Told:
    """One line of a rank.

    Attributes:
        received_ns: CLOCK_MONOTONIC when the host read it, in nanoseconds.
        values: the JSON object; `event` says which.
    """

    received_ns: int
    values: Mapping[str, Any]

    @property
    def event(self) -> str:
        """What it tells of."""
        return str(self.values["event"])


class Rank:
    """One process of a job, and all that it told."""

    def __init__(self, number: int, process: Process, read_end: int) -> None:
        self.number = number
        self.process = process
        self.told: list[Told] = []
        self._other: deque[str] = deque(maxlen=LINES_KEPT)
        self._thread = threading.Thread(
            target=self._read, args=(read_end,), name=f"rank-{number}", daemon=True
        )
        self._thread.start()

    def of(self, event: str) -> list[Told]:
        """What it told of one kind, in order."""
        return [told for told in list(self.told) if told.event == event]

    def hashes(self) -> dict[int, str]:
        """The hash of its state after each step that it told of, the one it began from too."""
        told = [*self.of("ready"), *self.of("step")]
        return {int(each.values["step"]): str(each.values["sha256"]) for each in told}

    def last_step(self) -> int:
        """The last step that it told of; 0 before the first."""
        steps = self.of("step") or self.of("ready")
        return int(steps[-1].values["step"]) if steps else 0

    def lines(self) -> list[str]:
        """The lines that are no events, the last `LINES_KEPT` of them."""
        return list(self._other)

    def tail(self) -> str:
        """The last lines that are no events: warnings and a traceback."""
        return "\n".join(list(self._other)[-15:])

    def join(self, timeout_s: float) -> None:
        """Wait until all that it wrote is read."""
        self._thread.join(timeout_s)

    def _read(self, read_end: int) -> None:
        with os.fdopen(read_end, "rb") as pipe:
            for raw in pipe:
                text = raw.decode(errors="replace").rstrip("\n")
                values = _event(text)
                if values is None:
                    self._other.append(text)
                else:
                    self.told.append(Told(time.monotonic_ns(), values))


class TrainingJob:
    """The ranks of one life of a job. A context manager: leaving it ends them and their network.

    Args:
        network: where they live; owned by the job from now on.
        folder: holds `checkpoints/`, `control/` and `flight/`, which outlive one life of the job.
        resume: the checkpoint to begin from; None: from the beginning.
    """

    def __init__(
        self, network: Network, plan: TrainingPlan, folder: Path, resume: Checkpoint | None = None
    ) -> None:
        self.network = network
        self.plan = plan
        self.checkpoints = CheckpointFolder(folder / "checkpoints")
        self.control = folder / "control"
        self.flight = folder / "flight"
        self.ranks: list[Rank] = []
        try:
            for path in (self.checkpoints.root, self.control, self.flight):
                path.mkdir(parents=True, exist_ok=True)
            self.checkpoints.remove_partials()  # of an earlier life: files of it would be committed
            for number in range(plan.ranks):
                self.ranks.append(self._start(number, resume))
        except BaseException:
            self.stop()
            raise

    def wait_for(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Wait for something that the ranks bring about.

        Raises:
            WorkerFailedError: a rank ended before.
            DeadlineError: it did not come about in time.
        """
        end = time.monotonic() + deadline_s
        while not condition():
            gone = [rank for rank in self.ranks if not rank.process.alive()]
            if gone and not condition():
                gone[0].join(1.0)
                raise WorkerFailedError(f"Rank {gone[0].number} ended: {what}.", self._why(gone[0]))
            if time.monotonic() > end:
                raise DeadlineError(
                    f"{what} within {deadline_s:g} s: it did not happen (step {self.last_step()}). "
                    + self.ranks[0].tail()
                )
            time.sleep(_STEP_S)

    def wait_step(self, step: int, deadline_s: float = START_DEADLINE_S) -> int:
        """Wait until every rank has made a step; returns CLOCK_MONOTONIC in ns of the last's word.

        Raises:
            WorkerFailedError, DeadlineError
        """
        self.wait_for(lambda: self.last_step() >= step, f"Step {step}", deadline_s)
        return max(
            next(t.received_ns for t in rank.of("step") if int(t.values["step"]) >= step)
            for rank in self.ranks
        )

    def last_step(self) -> int:
        """The last step that every rank has made."""
        return min(rank.last_step() for rank in self.ranks)

    def wait_end(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until all ranks have ended of themselves.

        Raises:
            DeadlineError
        """
        end = time.monotonic() + deadline_s
        for rank in self.ranks:
            if not rank.process.wait_gone(max(0.0, end - time.monotonic())):
                raise DeadlineError(f"Rank {rank.number} did not end within {deadline_s:g} s.")
            rank.join(1.0)

    def hashes(self) -> dict[int, str]:
        """The hash of the state after each step; those on which the ranks differ are left out."""
        each = [rank.hashes() for rank in self.ranks]
        return {
            step: sha256
            for step, sha256 in each[0].items()
            if all(other.get(step, sha256) == sha256 for other in each[1:])
        }

    def living(self) -> list[Rank]:
        """The ranks that have not ended."""
        return [rank for rank in self.ranks if rank.process.alive()]

    def output(self) -> str:
        """The last words of each rank, for evidence."""
        return "\n".join(f"rank {rank.number}:\n{self._why(rank)}" for rank in self.ranks)

    def end_ranks(self) -> None:
        """End all ranks; their network stays.

        Raises:
            DeadlineError: one did not end.
        """
        for rank in self.ranks:
            rank.process.send(signal.SIGKILL)
        self.wait_end(END_DEADLINE_S)

    def stop(self) -> None:
        """End all ranks and their network. May be called twice."""
        self.network.close()
        for rank in self.ranks:
            rank.process.wait_gone(END_DEADLINE_S)
            rank.join(1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _why(self, rank: Rank) -> str:
        failed = [str(told.values["error"]) for told in rank.of("collective_failed")]
        return "\n".join([*failed, rank.tail()]).strip()

    def _start(self, number: int, resume: Checkpoint | None) -> Rank:
        plan = self.plan
        spec = RankSpec(
            rank=number,
            ranks=plan.ranks,
            backend=plan.backend,
            master=self.network.master,
            port=self.network.port,
            timeout_s=plan.collective_timeout_s,
            seed=plan.seed,
            pace_s=plan.pace_s,
            checkpoint_every=plan.checkpoint_every,
            checkpoints=str(self.checkpoints.root.resolve()),
            control=str(self.control.resolve()),
            flight=str(self.flight.resolve()),
            keep=plan.keep,
            last_step=plan.last_step,
        )
        if resume is not None:
            spec = replace(
                spec, resume_folder=str(resume.folder.resolve()), resume_step=resume.step
            )
        more = {"NCCL_RAS_ADDR": f"127.0.0.1:{self.network.ras_port}", **plan.environment}
        module = "resilience_pipelines.collectives.rank"
        return start_rank(self.network, number, module, spec.to_json(), more)


def start_rank(
    network: Network, number: int, module: str, spec: str, more: Mapping[str, str] | None = None
) -> Rank:
    """Start one rank where it lives in a network.

    Args:
        module: what it runs, with `spec` as its one argument.
        more: variables of an arm.
    """
    read_end, write_end = os.pipe()
    try:
        process = network.space(number).spawn(
            [sys.executable, "-m", module, spec],
            env=rank_environment(network.interface, more),
            output=write_end,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return Rank(number, process, read_end)


def rank_environment(interface: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a rank.

    Args:
        interface: the network interface that collectives use.
        more: variables of an arm.
    """
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    # The package may be run from its sources, and a rank starts in another folder.
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, inherited.get("PYTHONPATH", "")) if part)
    return {
        **inherited,
        "PYTHONPATH": path,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "NCCL_NVLS_ENABLE": "0",  # NVLink multicast can't be relied on where GPUs are shared
        "TORCH_NCCL_BLOCKING_WAIT": "1",  # a collective out of time raises, as with gloo
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **flight_recorder.ENVIRONMENT,
        **(more or {}),
    }


def _event(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        values = strict_json.loads(text)
    except ValueError:
        return None
    return values if isinstance(values, dict) and "event" in values else None
