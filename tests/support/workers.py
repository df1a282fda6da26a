"""A `Worker` around the contract server, for tests of the platform itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from resilience_pipelines.records import Basis
from resilience_pipelines.workers.base import LaunchPlan, Mark, OutputLine


def write_contract_weights(path: Path) -> Path:
    """The contract server's state as a safetensors file."""
    state = b"state" * 2400  # what the server has without a file
    header = json.dumps(
        {"state": {"dtype": "U8", "shape": [len(state)], "data_offsets": [0, len(state)]}}
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + state)
    return path


SERVER = Path(__file__).with_name("contract_server.py")


@dataclass(frozen=True)
class ContractWorker:
    """Starts in milliseconds; `traits` make it misbehave."""

    traits: tuple[str, ...] = ()
    weights: Path | None = None
    python: Path = Path(sys.executable)
    env: Mapping[str, str] = field(default_factory=dict)

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
        traits = [*self.traits, *([f"weights={self.weights}"] if self.weights else [])]
        argv = (str(self.python), "-S", str(SERVER), str(port), *traits)
        return LaunchPlan(argv, port, self.env)

    def weight_files(self) -> Sequence[Path]:
        return (self.weights or SERVER,)

    def with_weights_in(self, folder: Path) -> ContractWorker:
        assert self.weights is not None
        return replace(self, weights=folder / self.weights.name)

    def marks(self, lines: Sequence[OutputLine]) -> list[Mark]:
        return []

    def stack_facts(self) -> Mapping[str, str | int | None]:
        return {}
