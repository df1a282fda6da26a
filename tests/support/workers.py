"""A `Worker` around the contract server, for tests of the platform itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resilience_pipelines.records import Basis
from resilience_pipelines.workers.base import LaunchPlan, Mark, OutputLine

SERVER = Path(__file__).with_name("contract_server.py")


@dataclass(frozen=True)
class ContractWorker:
    """Starts in milliseconds; `traits` make it misbehave."""

    traits: tuple[str, ...] = ()

    name: str = "contract"
    basis: Basis = Basis.SIMULATED
    engine: str = "contract"
    engine_version: str = "1"
    model: str = "none"
    model_precision: str = "none"
    start_deadline_s: float = 10.0
    request_deadline_s: float = 5.0
    sleep_levels: tuple[int, ...] = (1,)
    snapshot_sleep_level: int = 1
    logprob_tolerance: float = 0.0

    def prepare(self) -> None:
        pass

    def plan(self, port: int, cache: Path) -> LaunchPlan:
        return LaunchPlan((sys.executable, "-S", str(SERVER), str(port), *self.traits), port)

    def weight_files(self) -> Sequence[Path]:
        return (SERVER,)

    def marks(self, lines: Sequence[OutputLine]) -> list[Mark]:
        return []

    def stack_facts(self) -> Mapping[str, str | int | None]:
        return {}
