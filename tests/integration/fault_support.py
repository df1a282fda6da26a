"""What tests of faults share: a context with real parts, and faults with one thing broken."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from resilience_pipelines.collectives import support as collectives
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.cgroup import NAME_PREFIX, find_place
from resilience_pipelines.faults.fault import Fault, FaultContext, Guard, Injection
from resilience_pipelines.records import Layer
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.telemetry import Telemetry
from resilience_pipelines.workers.base import LaunchPlan, Worker
from resilience_pipelines.workers.oracle import RecordedAnswer, record_answer
from resilience_pipelines.workers.process import launch
from resilience_pipelines.workers.space import SpaceSupport, open_space
from tests.support.workers import ContractWorker, write_contract_weights

GPU_STRATEGIES = frozenset(
    {
        "gpu_load",
        "gpu_memory",
        "gpu_xid",
        "dcgm_injection",
        "gpu_power",
        "numa_placement",
        "snapshot_device",
    }
)
CLUSTER_STRATEGIES = frozenset({"chaos_mesh", "litmus"})
NEED_GPU = tuple(name for name, fault in CATALOGUE.items() if fault.strategy in GPU_STRATEGIES)
NEED_CLUSTER = tuple(
    name for name, fault in CATALOGUE.items() if fault.strategy in CLUSTER_STRATEGIES
)
NEED_NO_GPU = tuple(name for name in CATALOGUE if name not in NEED_GPU + NEED_CLUSTER)
"""What runs on any machine, with the worker of these tests."""

# With some memory of its own, so that it is the largest process in its cgroup.
_WITH_BALLAST = (
    "import runpy, sys; ballast = bytearray(64 << 20); sys.argv = sys.argv[1:];"
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)

_NEED_TORCH = ("nccl", "distributed_checkpoint")
NEEDS_TORCH = pytest.mark.skipif(
    collectives.unavailable() is not None, reason=str(collectives.unavailable())
)


def needed_by(name: str) -> list[pytest.MarkDecorator]:
    """The marks of a test that injects a fault: it is skipped where the fault's parts lack."""
    return [NEEDS_TORCH] if CATALOGUE[name].strategy in _NEED_TORCH else []


@functools.cache
def contract_weights() -> Path:
    """A weight file of the contract server, in a folder of its own, for all tests of a process."""
    folder = Path(tempfile.mkdtemp(prefix="contract-weights-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_contract_weights(folder / "model.safetensors")


@dataclasses.dataclass(frozen=True)
class HeavyWorker(ContractWorker):
    """The contract server with 64 MiB of memory."""

    def plan(self, port: int, cache: Path) -> LaunchPlan:
        plan = super().plan(port, cache)
        python, _, *server = plan.argv
        return LaunchPlan((python, "-S", "-c", _WITH_BALLAST, *server), port)


def make_context(
    root: Path,
    support: SpaceSupport,
    engine: SnapshotEngine | None,
    answer: RecordedAnswer,
    snapshot: StoredSnapshot | None,
    **changes: Any,
) -> FaultContext:
    """A context whose folders are below `root`."""
    for name in ("cache", "evidence", "scratch"):
        (root / name).mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "worker": HeavyWorker(weights=contract_weights()),
        "support": support,
        "answer": answer,
        "engine": engine,
        "no_engine_why": "" if engine else "no CRIU here",
        "snapshot": snapshot,
        "no_snapshot_why": "" if snapshot else "the dump failed",
        "warm_cache": root / "cache",
        "evidence": root / "evidence",
        "scratch": root / "scratch",
        "telemetry": Telemetry(0.05),
    }
    return FaultContext(**(facts | changes))


def record(
    support: SpaceSupport, engine: SnapshotEngine | None, cache: Path
) -> tuple[RecordedAnswer, StoredSnapshot | None]:
    """The answer of a worker that is well, and its snapshot."""
    worker = HeavyWorker(weights=contract_weights())
    with launch(worker, open_space(support), cache) as running:
        running.wait_ready()
        answer = record_answer(running.client, timeout_s=5)
        if engine is None:
            return answer, None
        taken = engine.take(
            running, engine.host.stack, answer, measurement_id="test", sleep_level=1
        )
        assert taken.snapshot is not None, taken.measurement.detail
        return answer, taken.snapshot


@dataclasses.dataclass(frozen=True)
class Planted:
    """A fault of the catalogue in which something is different.

    Attributes:
        change: gets each injection right after it was made.
    """

    inner: Fault
    change: Callable[[Injection], None] = lambda injection: None
    expected_instead: Mapping[str, float] | None = None
    extra_guards: Sequence[Guard] = ()

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def strategy(self) -> str:
        return self.inner.strategy

    @property
    def layer(self) -> Layer:
        return self.inner.layer

    @property
    def description(self) -> str:
        return self.inner.description

    @property
    def expected(self) -> Mapping[str, float]:
        return self.inner.expected if self.expected_instead is None else self.expected_instead

    @property
    def recoveries(self) -> tuple[str, ...]:
        return self.inner.recoveries

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.inner.parameters

    def guards(self, context: FaultContext) -> Sequence[Guard]:
        return (*self.inner.guards(context), *self.extra_guards)

    def prepare(self, context: FaultContext) -> Injection:
        injection = self.inner.prepare(context)
        self.change(injection)
        return injection


def instead(name: str, function: Callable[..., Any]) -> Callable[[Injection], None]:
    """A change for `Planted`: one method of the injection does something else."""
    return lambda injection: setattr(injection, name, function)


def after(name: str, action: Callable[[], None]) -> Callable[[Injection], None]:
    """A change for `Planted`: an action after one method of the injection."""

    def change(injection: Injection) -> None:
        original = getattr(injection, name)

        def both(*args: Any) -> Any:
            result = original(*args)
            action()
            return result

        setattr(injection, name, both)

    return change


def cgroups_left() -> list[str]:
    """Memory cgroups of faults that are there."""
    return [path.name for path in find_place().folder.glob(f"{NAME_PREFIX}*")]


def started_as(worker: Worker) -> Callable[[Injection], None]:
    """A change for `Planted`: the target is this worker, whatever replaces it."""

    def change(injection: Injection) -> None:
        changed = {"worker": property(lambda self: worker)}
        injection.__class__ = type("Changed", (type(injection),), changed)

    return change


@contextmanager
def nothing_stays(context: FaultContext) -> Iterator[None]:
    """No process, cgroup or file of an experiment is there afterwards that was not before."""
    before = set(children()), set(cgroups_left())
    yield
    assert set(children()) - before[0] == set()
    assert set(cgroups_left()) - before[1] == set()
    assert list(context.scratch.iterdir()) == []


def children() -> list[int]:
    """Processes below this one."""
    return [process.pid for process in psutil.Process().children(recursive=True)]
