"""The torch worker from the host's side: how to start it and how to read its output.

What belongs here: what `Worker` asks for. What does not: the worker's own process, which lives in
`torch_reference/`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from resilience_pipelines.records import Basis
from resilience_pipelines.workers.base import LaunchPlan, Mark, OutputLine
from resilience_pipelines.workers.phase_lines import in_order, phase_mark
from resilience_pipelines.workers.seeded_model import PRECISION, WEIGHTS_NAME, Shape, write_model
from resilience_pipelines.workers.torch_reference import MODEL_NAME, VERSION
from resilience_pipelines.workers.vllm_host import distribution_version

SEED: Final = 20260101
SHAPE: Final = Shape(
    MODEL_NAME, hidden=1024, intermediate=3072, layers=8, heads=8, tied=True, vocabulary=512,
    end_token=257,
)  # fmt: skip

_CLOCK: Final = "worker_monotonic"
_RESOLUTION_S: Final = 1e-9
# oneDNN would use AMX, whose permission CRIU does not give back: SIGILL after a restore.
_WITHOUT_GPU: Final = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
_CACHES: Final = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


@dataclass(frozen=True)
class TorchWorker:
    """A small decoder on one GPU: a quick real test of everything that vLLM needs.

    Args:
        cache: folder for its model, which is made from a seed.
        device: `cpu` runs it without a GPU, for tests of the contract alone.
        copied_to: a folder with a copy of its model, to be read in its place.
        breakable: let it serve `POST /break`, for experiments alone.
    """

    cache: Path
    device: str = "cuda"
    copied_to: Path | None = None
    breakable: bool = False

    name: str = "torch"
    basis: Basis = Basis.REFERENCE
    engine: str = "torch-reference"
    engine_version: str = VERSION
    model: str = MODEL_NAME
    model_precision: str = PRECISION
    start_deadline_s: float = 300.0
    request_deadline_s: float = 60.0
    sleep_levels: tuple[int, ...] = (1, 2)
    snapshot_sleep_level: int = 1
    logprob_tolerance: float = 0.0

    @property
    def folder(self) -> Path:
        """The model's folder."""
        return self.copied_to or self.cache / "models" / f"{MODEL_NAME}-seed-{SEED}"

    def prepare(self) -> None:
        """Write the model, once."""
        write_model(self.folder, SHAPE, SEED)

    def plan(self, port: int, cache: Path) -> LaunchPlan:
        """See `Worker.plan`. What inductor and Triton compile is the cache."""
        caches = {variable: str(cache / folder) for variable, folder in _CACHES.items()}
        return LaunchPlan(
            argv=(
                sys.executable, "-m", "resilience_pipelines.workers.supervisor", "--",
                sys.executable, "-m", "resilience_pipelines.workers.torch_reference",
                "--port", str(port), "--model", str(self.folder), "--device", self.device,
                *(("--breakable",) if self.breakable else ()),
            ),
            port=port,
            env=caches if self.device == "cuda" else caches | _WITHOUT_GPU,
        )  # fmt: skip

    def weight_files(self) -> Sequence[Path]:
        """See `Worker.weight_files`."""
        return (self.folder / WEIGHTS_NAME,)

    def with_weights_in(self, folder: Path) -> TorchWorker:
        """See `Worker.with_weights_in`."""
        return replace(self, copied_to=folder)

    def marks(self, lines: Sequence[OutputLine]) -> list[Mark]:
        """See `Worker.marks`. The worker writes its phases itself, as JSON lines."""
        marks = (phase_mark(line.text, _CLOCK, _RESOLUTION_S) for line in lines)
        return in_order(mark for mark in marks if mark is not None)

    def stack_facts(self) -> Mapping[str, str | int | None]:
        """See `Worker.stack_facts`."""
        return {"torch_version": distribution_version("torch")}
