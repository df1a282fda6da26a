"""The reference worker from the host's side: how to start it and how to read its output.

What belongs here: what `Worker` asks for. What does not: the worker's own process, which lives in
`reference/` and imports nothing from here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from resilience_pipelines.errors import StorageError
from resilience_pipelines.records import Basis
from resilience_pipelines.workers.base import LaunchPlan, Mark, OutputLine
from resilience_pipelines.workers.phase_lines import in_order, phase_mark
from resilience_pipelines.workers.reference import MODEL_NAME, VERSION, WEIGHTS_FORMAT

_CLOCK = "worker_monotonic"
_RESOLUTION_S = 1e-9
_PHASES = ("import", "weights", "compile", "warm_up", "server_up")


@dataclass(frozen=True)
class ReferenceWorker:
    """A small decoder on the CPU that stands for an engine where there is no GPU.

    Args:
        cache: folder for its weights, which are made from a seed.
    """

    cache: Path
    seed: int = 20260101

    name: str = "reference"
    basis: Basis = Basis.REFERENCE
    engine: str = "reference"
    engine_version: str = VERSION
    model: str = MODEL_NAME
    model_precision: str = "float32"
    start_deadline_s: float = 180.0
    request_deadline_s: float = 60.0
    sleep_levels: tuple[int, ...] = (1, 2)
    snapshot_sleep_level: int = 1
    logprob_tolerance: float = 0.0

    @property
    def weights(self) -> Path:
        """The safetensors file."""
        return self.cache / f"{WEIGHTS_FORMAT}-{self.seed}.safetensors"

    def prepare(self) -> None:
        """Write the weights, once.

        Raises:
            StorageError: they can't be written.
        """
        # Imported here: NumPy and numba take long, and most callers never prepare a worker.
        from resilience_pipelines.workers.reference.weights import DEFAULT, write_weights

        if self.weights.exists():
            return
        try:
            write_weights(self.weights, DEFAULT, self.seed)
        except OSError as error:
            raise StorageError(
                f"The weights {self.weights} can't be written: {error}.",
                mend="Free space, or give a data home on another disk.",
            ) from error

    def plan(self, port: int, cache: Path) -> LaunchPlan:
        """See `Worker.plan`. numba's compiled functions are the cache."""
        return LaunchPlan(
            argv=(
                sys.executable, "-m", "resilience_pipelines.workers.reference",
                "--port", str(port), "--weights", str(self.weights),
            ),
            port=port,
            # One thread: two that wait for each other make figures noisy on a busy machine.
            env={"NUMBA_CACHE_DIR": str(cache), "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    def weight_files(self) -> Sequence[Path]:
        """See `Worker.weight_files`."""
        return (self.weights,)

    def with_weights_in(self, folder: Path) -> ReferenceWorker:
        """See `Worker.with_weights_in`."""
        return replace(self, cache=folder)

    def marks(self, lines: Sequence[OutputLine]) -> list[Mark]:
        """See `Worker.marks`. The worker writes its phases itself, as JSON lines."""
        found = []
        for line in lines:
            mark = phase_mark(line.text, _CLOCK, _RESOLUTION_S)
            if mark is not None and mark.name in _PHASES:
                found.append(mark)
        return in_order(found)

    def stack_facts(self) -> Mapping[str, str | int | None]:
        """See `Worker.stack_facts`."""
        return {}
