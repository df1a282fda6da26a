"""One rank of the training job: `python -m resilience_pipelines.collectives.rank SPEC`.

What belongs here: the loop of steps, the collective in each, saving and loading checkpoints, and
telling of them as JSON lines on standard output. What does not: starting ranks (`training`).

A collective that fails or runs out of time is told as `collective_failed`, and ends the rank with
status 3. The ranks never wait longer than `timeout_s` for each other.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter

from resilience_pipelines.collectives.checkpoints import CheckpointFolder
from resilience_pipelines.collectives.model import gradients, new_state, state_sha256, update
from resilience_pipelines.collectives.protocol import COLLECTIVE_FAILED_STATUS, Halt, RankSpec
from resilience_pipelines.collectives.rank_recorder import RankRecorder


def main() -> int:
    """Train until told to stop, or until the last step."""
    spec = RankSpec.from_json(sys.argv[1])
    torch.set_num_threads(1)
    device = "cpu"
    if spec.backend == "nccl":
        torch.cuda.set_device(spec.rank % torch.cuda.device_count())
        device = "cuda"
    begun = time.monotonic()
    recorder = RankRecorder(Path(spec.flight), spec.rank, spec.backend)
    trainer = _Trainer(spec, device)
    try:
        dist.init_process_group(
            spec.backend,
            init_method=f"tcp://{spec.master}:{spec.port}",
            rank=spec.rank,
            world_size=spec.ranks,
            timeout=timedelta(seconds=spec.timeout_s),
        )
        recorder.start()
        _tell("recording", rank=spec.rank, works=recorder.works)
        trainer.run()
    except (RuntimeError, CheckpointException) as error:
        recorder.finish()
        _tell(
            "collective_failed",
            rank=spec.rank, step=trainer.step, error=str(error)[:1000],
            waited_s=time.monotonic() - (trainer.asked_at or begun),
        )  # fmt: skip
        sys.stdout.flush()
        os._exit(COLLECTIVE_FAILED_STATUS)  # destroying a broken group may wait for its peers
    dist.destroy_process_group()
    return 0


class _Trainer:
    def __init__(self, spec: RankSpec, device: str) -> None:
        self.step = spec.resume_step or 0
        self.asked_at: float | None = None
        self._spec = spec
        self._device = device
        self._checkpoints = CheckpointFolder(Path(spec.checkpoints))

    def run(self) -> None:
        spec = self._spec
        state = new_state(spec.seed, self._device)
        if spec.resume_folder is not None:
            self.asked_at = time.monotonic()
            dcp.load(state, checkpoint_id=spec.resume_folder)
        _tell("ready", rank=spec.rank, step=self.step, sha256=state_sha256(state))
        while spec.last_step is None or self.step < spec.last_step:
            self._one_step(state)
            if self.step % spec.checkpoint_every == 0:
                self._save(state)
            time.sleep(spec.pace_s)

    def _one_step(self, state: dict[str, Any]) -> None:
        spec, number = self._spec, self.step + 1
        begin = time.monotonic()
        flat, loss = gradients(state, spec.seed, number, spec.rank)
        self.asked_at = time.monotonic()
        dist.all_reduce(flat)
        if self._device == "cuda":
            torch.cuda.synchronize()
        reduced = time.monotonic()
        update(state, flat / spec.ranks)
        self.step = number
        _tell(
            "step",
            rank=spec.rank, step=number, loss=loss, sha256=state_sha256(state),
            compute_s=self.asked_at - begin, wait_s=reduced - self.asked_at,
        )  # fmt: skip

    def _save(self, state: dict[str, Any]) -> None:
        spec = self._spec
        partial = self._checkpoints.partial(self.step)
        halt = Halt.read(Path(spec.control), spec.rank)
        writer = FileSystemWriter(partial)
        if halt is not None and halt.after_bytes is not None:
            writer.fs = _HaltingFileSystem(halt.after_bytes, spec.rank)
        self.asked_at = time.monotonic()
        dcp.save(state, storage_writer=writer)
        if spec.rank:
            return
        if halt is not None and halt.after_bytes is None:
            _halt(spec.rank, "metadata")
        self._checkpoints.commit(self.step, state_sha256(state))
        self._checkpoints.prune(spec.keep)
        _tell("saved", rank=spec.rank, step=self.step)


class _HaltingFileSystem(FileSystem):  # type: ignore[misc, unused-ignore]
    """Stops this process once so many bytes of its first shard are in the file."""

    def __init__(self, after_bytes: int, rank: int) -> None:
        super().__init__()
        self._after_bytes = after_bytes
        self._rank = rank

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            yield _HaltingStream(stream, self._after_bytes, self._rank)


class _HaltingStream(io.IOBase):
    def __init__(self, stream: Any, after_bytes: int, rank: int) -> None:
        self._stream = stream
        self._after_bytes = after_bytes
        self._rank = rank

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        room = self._after_bytes - self._stream.tell()
        if 0 <= room < len(view):
            self._stream.write(view[:room])
            self._stream.flush()
            _halt(self._rank, "data")
            self._stream.write(view[room:])
        else:
            self._stream.write(view)
        return len(view)

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


def _halt(rank: int, at: str) -> None:
    _tell("halted", rank=rank, at=at)
    os.kill(os.getpid(), signal.SIGSTOP)


def _tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, "at_ns": time.monotonic_ns(), **values}), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
