"""The context of a job: what this machine is, what it can do, and the tools to do it with.

What belongs here: putting together stack, space support, CRIU, device and store, once for each job.
What does not: any measurement.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from resilience_pipelines import job_environment
from resilience_pipelines.collectives.support import torch_version
from resilience_pipelines.errors import InputError, ResilienceError, UnsupportedError
from resilience_pipelines.home import Home
from resilience_pipelines.snapshots.compatibility import this_host
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.criu_binary import find_criu
from resilience_pipelines.snapshots.cuda import CudaEngine
from resilience_pipelines.snapshots.device import DeviceEngine, NoDevice
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.settings import open_store
from resilience_pipelines.stack import Stack, read_gpu, read_host
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.reference_host import ReferenceWorker
from resilience_pipelines.workers.space import SpaceSupport, probe_spaces
from resilience_pipelines.workers.torch_host import TorchWorker
from resilience_pipelines.workers.vllm_host import VllmWorker, find_vllm

_FACTORIES: Mapping[str, Callable[[Path], Worker]] = {
    "reference": ReferenceWorker,
    "torch": TorchWorker,
    "vllm": find_vllm,
}
"""Each makes a worker; it gets the folder for models and weights."""

WORKERS = tuple(_FACTORIES)
"""Names of all workers; the name of its engine begins with each."""


def workers_here() -> tuple[str, ...]:
    """Names of the workers that can run on this machine."""
    return tuple(name for name in _FACTORIES if _obstacle(name) is None)


def make_worker(name: str, home: Home) -> Worker:
    """The worker of a name.

    Raises:
        InputError: there is none of that name.
        UnsupportedError: its engine is not installed, or it needs a GPU and there is none.
    """
    if name not in _FACTORIES:
        raise InputError(
            "worker", name, "no such worker", mend=f"Choose from {', '.join(_FACTORIES)}."
        )
    obstacle = _obstacle(name)
    if obstacle is not None:
        raise obstacle
    return _FACTORIES[name](home.cache)


def _obstacle(name: str) -> UnsupportedError | None:
    """Why a worker can't run here, if it can't."""
    if name == "reference":
        return None
    if importlib.util.find_spec(name) is None:
        return UnsupportedError(
            f"The engine of the worker {name} is not installed in this Python.",
            mend="pip install 'resilience-pipelines[gpu]'",
        )
    if not read_gpu()["gpu_count"]:
        return UnsupportedError(
            f"The worker {name} needs an NVIDIA GPU, and NVML finds none here.",
            mend="`--worker reference` runs without one; `resilience doctor` says more.",
        )
    return None


def make_device(worker: Worker) -> DeviceEngine:
    """What moves a worker's device state."""
    return CudaEngine() if isinstance(worker, VllmWorker | TorchWorker) else NoDevice()


@dataclass(frozen=True)
class MachineContext:
    """This machine as a job for one worker sees it.

    Attributes:
        device: moves the worker's device state; at work in `open_machine`.
        engine: None where snapshots can't be taken here; `no_engine_why` says why.
    """

    worker: Worker
    stack: Stack
    support: SpaceSupport
    device: DeviceEngine
    engine: SnapshotEngine | None
    no_engine_why: str


def read_machine(worker: Worker, home: Home) -> MachineContext:
    """Look at this machine."""
    device = make_device(worker)
    criu, why = _find_criu()
    support = probe_spaces()
    if criu is not None and not support.capsule:
        criu, why = None, f"Namespaces can't be made here: {support.reason}"
    stack = read_stack(worker, home, criu, device)
    engine = None
    if criu is not None:
        engine = SnapshotEngine(open_store(home), criu, device, this_host(stack), home.work)
    return MachineContext(worker, stack, support, device, engine, why)


def stack_here(home: Home, worker: str = "reference") -> Stack:
    """The stack that a worker's results on this machine belong to.

    Raises:
        InputError, UnsupportedError: as `make_worker`.
    """
    return read_machine(make_worker(worker, home), home).stack


def read_machines(home: Home) -> dict[str, MachineContext]:
    """This machine as each worker that can run here sees it, by the worker's name."""
    return {name: read_machine(make_worker(name, home), home) for name in workers_here()}


@contextmanager
def open_machine(worker: Worker, home: Home) -> Iterator[MachineContext]:
    """Look at this machine, and have what moves device state at work while the block runs."""
    machine = read_machine(worker, home)
    machine.device.warm_up()
    try:
        yield machine
    finally:
        machine.device.close()


def read_stack(worker: Worker, home: Home, criu: Criu | None, device: DeviceEngine) -> Stack:
    """The stack that results of this worker on this machine belong to."""
    facts: dict[str, object] = {
        **read_host(home.root),
        **read_gpu(),
        "criu_version": criu.version if criu else None,
        "snapshot_engine": device.name if criu else None,
        "engine": worker.engine,
        "engine_version": worker.engine_version,
        "model": worker.model,
        "model_precision": worker.model_precision,
        "image_digest": job_environment.told(job_environment.IMAGE_DIGEST),
    }
    extra: Mapping[str, object] = worker.stack_facts()
    return Stack.model_validate(facts | dict(extra))


def read_collective_stack(home: Home) -> Stack:
    """The stack that measurements of collectives on this machine belong to.

    NCCL's version is not in it: only a process that has loaded it can tell.
    """
    torch = torch_version()
    return Stack.model_validate(
        {
            **read_host(home.root),
            **read_gpu(),
            "engine": "torch.distributed",
            "engine_version": torch,
            "torch_version": torch,
            "image_digest": os.environ.get("RESILIENCE_IMAGE_DIGEST"),
        }
    )


def platform_commit(root: Path | None = None) -> str | None:
    """The commit of the checkout this package runs from; None where it is no checkout."""
    git = (root or Path(__file__).resolve().parents[1]) / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        return (git / head.removeprefix("ref: ")).read_text().strip()
    except OSError:
        return os.environ.get("RESILIENCE_COMMIT")


def _find_criu() -> tuple[Criu | None, str]:
    try:
        return Criu(find_criu()), ""
    except ResilienceError as error:
        return None, str(error)
