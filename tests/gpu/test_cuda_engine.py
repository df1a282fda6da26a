"""On a real GPU: device state leaves and comes back unchanged; failures leave a live process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from resilience_pipelines.snapshots.cuda import CudaEngine, Deadlines
from resilience_pipelines.snapshots.cuda_driver import CudaUnavailableError
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.workers.process import WorkerOutput
from resilience_pipelines.workers.space import Capsule, HostSpace, Process, Space, wait_until

pytestmark = pytest.mark.gpu

MEMORY_MIB = 512

# Holds a pattern on the device and, once a second at most, checks it and says so.
PROGRAM = f"""
import time, torch
pattern = torch.arange({MEMORY_MIB} << 18, dtype=torch.int32, device="cuda")
graph, total = torch.cuda.CUDAGraph(), torch.zeros((), dtype=torch.int64, device="cuda")
pattern.sum()
with torch.cuda.graph(graph):
    total.copy_(pattern.sum())
for round in range(100_000):
    total.zero_()
    graph.replay()
    print(round, int(total), flush=True)
    time.sleep(0.02)
"""


@dataclass
class Holder:
    """A process that holds device memory."""

    process: Process
    output: WorkerOutput

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self.process.tree()]

    def says(self) -> list[str]:
        return [line.text for line in self.output.lines()]

    def wait_for_more(self) -> None:
        """Wait until it has worked again since now."""
        before = len(self.says())
        wait_until(lambda: len(self.says()) > before + 1, 20, "The process works", 0.02)


@pytest.fixture(params=[HostSpace, Capsule], ids=["host", "capsule"])
def holder(request: pytest.FixtureRequest) -> Iterator[Holder]:
    pytest.importorskip("torch", reason="needs torch")
    space: Space = request.param()
    with space:
        output = WorkerOutput()
        process = space.spawn(
            [sys.executable, "-c", PROGRAM], env=dict(os.environ), output=output.write_end
        )
        output.close_write_end()
        holder = Holder(process, output)
        wait_until(lambda: len(holder.says()) > 2, 60, "The process starts", 0.05)
        yield holder


@pytest.fixture
def engine() -> Iterator[CudaEngine]:
    made = CudaEngine()
    try:
        made.driver.wait_ready()
    except CudaUnavailableError as error:
        pytest.skip(f"no GPU here: {error}")
    yield made
    made.close()


def test_device_memory_is_freed_and_comes_back_as_it_was(
    engine: CudaEngine, holder: Holder
) -> None:
    engine.suspend(holder.pids)
    assert engine.held_bytes is not None
    assert engine.held_bytes >= MEMORY_MIB << 20
    silent = len(holder.says())
    engine.resume(holder.pids)
    holder.wait_for_more()
    answers = {line.split()[1] for line in holder.says()}
    assert len(answers) == 1
    assert len(holder.says()) > silent


def test_it_works_again_and_again(engine: CudaEngine, holder: Holder) -> None:
    for _ in range(3):
        engine.suspend(holder.pids)
        engine.resume(holder.pids)
    holder.wait_for_more()


def test_a_process_that_does_not_answer_is_given_up_in_time_and_works_on(holder: Holder) -> None:
    engine = CudaEngine(deadlines=Deadlines(lock_s=2.0, find_s=2.0))
    try:
        holder.process.send(signal.SIGSTOP)
        with pytest.raises(SnapshotError) as caught:
            engine.suspend(holder.pids)
        assert caught.value.code in {
            SnapshotReason.CUDA_LOCK_TIMEOUT,
            SnapshotReason.CUDA_UNAVAILABLE,
            SnapshotReason.SOURCE_LOST,
        }
    finally:
        holder.process.send(signal.SIGCONT)
        engine.close()
    fresh = CudaEngine()
    fresh.suspend(holder.pids)
    fresh.resume(holder.pids)
    fresh.close()
    holder.wait_for_more()


def test_a_resume_without_a_suspend_is_refused_and_harmless(
    engine: CudaEngine, holder: Holder
) -> None:
    with pytest.raises(SnapshotError) as caught:
        engine.resume(holder.pids)
    assert caught.value.code is SnapshotReason.CUDA_RESTORE_FAILED
    holder.wait_for_more()


def test_a_process_without_cuda_is_told_apart(engine: CudaEngine) -> None:
    with pytest.raises(SnapshotError) as caught:
        engine.suspend([1])
    assert caught.value.code is SnapshotReason.CUDA_NO_PROCESS
