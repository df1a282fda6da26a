"""The Worker protocol: what the platform has to know of an engine to start and to measure it.

What belongs here: the protocol and the plain data that passes through it. What does not: any one
engine, and the processes of a started worker (`process`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from resilience_pipelines.records import Basis


@dataclass(frozen=True)
class OutputLine:
    """A line of a worker's standard output or error.

    Attributes:
        received_ns: CLOCK_MONOTONIC when the host read it, in nanoseconds.
    """

    received_ns: int
    text: str


@dataclass(frozen=True)
class Mark:
    """A phase as a worker's output tells it, on CLOCK_MONOTONIC in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    clock: str
    resolution_s: float


@dataclass(frozen=True)
class LaunchPlan:
    """How to start a worker.

    Attributes:
        argv: program and arguments.
        env: variables beside the few that every worker gets from the host.
        port: where it will listen, on loopback.
    """

    argv: tuple[str, ...]
    port: int
    env: Mapping[str, str] = field(default_factory=dict)


class Worker(Protocol):
    """An inference engine with one model, as the platform sees it; immutable."""

    @property
    def name(self) -> str:
        """How a user names it, e.g. `reference`."""
        ...

    @property
    def basis(self) -> Basis:
        """What its results stand for."""
        ...

    @property
    def engine(self) -> str:
        """The engine's name as it goes into the stack."""
        ...

    @property
    def engine_version(self) -> str:
        """The engine's version as it goes into the stack."""
        ...

    @property
    def model(self) -> str:
        """The name it serves its model under."""
        ...

    @property
    def model_precision(self) -> str:
        """The data type of its weights."""
        ...

    @property
    def start_deadline_s(self) -> float:
        """How long a cold start may take, in seconds."""
        ...

    @property
    def request_deadline_s(self) -> float:
        """How long one request may take, in seconds."""
        ...

    @property
    def sleep_levels(self) -> tuple[int, ...]:
        """What `POST /sleep?level=` accepts; the first is the default."""
        ...

    @property
    def snapshot_sleep_level(self) -> int:
        """The level that it sleeps at while its snapshot is taken, unless asked otherwise."""
        ...

    @property
    def logprob_tolerance(self) -> float:
        """Greatest difference of a log-probability that still is the same answer."""
        ...

    def prepare(self) -> None:
        """Make what a start needs and what is no part of a measurement, such as weights."""

    def plan(self, port: int, cache: Path) -> LaunchPlan:
        """How to start it with its compile caches in the folder `cache`."""

    def weight_files(self) -> Sequence[Path]:
        """The files whose place in the page cache decides how fast a start loads weights."""

    def with_weights_in(self, folder: Path) -> Worker:
        """The same worker, reading its files from a copy of the folder that they lie in."""

    def marks(self, lines: Sequence[OutputLine]) -> list[Mark]:
        """The phases of a start that its output tells, in order, not overlapping."""

    def stack_facts(self) -> Mapping[str, str | int | None]:
        """Stack dimensions that this engine knows (torch, NCCL), beside engine and model."""
