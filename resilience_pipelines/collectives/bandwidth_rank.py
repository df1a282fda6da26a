"""One rank of a measurement of collectives: `python -m ...bandwidth_rank SPEC`.

What belongs here: running each collective at each size, timing it, checking what came out of it,
and telling so as JSON lines. What does not: bandwidths from times (`bandwidth`).

Sizes are those of nccl-tests: the bytes of an all-reduce's or a send's buffer, and of all that an
all-gather collects on a rank.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

WARM_UPS = 2
_ELEMENT_BYTES = 4

Operation = tuple[Callable[[], None], Callable[[], bool]]
"""A collective on prepared buffers, and whether it left in them what it has to."""


def main() -> int:
    """Measure what the argument asks."""
    spec = json.loads(sys.argv[1])
    rank, ranks = int(spec["rank"]), int(spec["ranks"])
    torch.set_num_threads(1)
    device = "cpu"
    if spec["backend"] == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
        device = "cuda"
    dist.init_process_group(
        spec["backend"],
        init_method=f"tcp://{spec['master']}:{spec['port']}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=spec["timeout_s"]),
    )
    for name in spec["operations"]:
        for size in spec["sizes"]:
            _measure(name, int(size), int(spec["iterations"]), rank, ranks, device)
    _tell("done", rank=rank, nccl=_nccl_version() if device == "cuda" else None)
    dist.destroy_process_group()
    return 0


def _measure(name: str, size: int, iterations: int, rank: int, ranks: int, device: str) -> None:
    run, right = _OPERATIONS[name](max(size // _ELEMENT_BYTES, ranks), rank, ranks, device)
    run()
    _synchronize(device)
    correct = right()
    for _ in range(WARM_UPS):
        run()
    _synchronize(device)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        run()
    _synchronize(device)
    took_s = time.perf_counter() - begin
    _tell(
        "measured",
        rank=rank, operation=name, bytes=size, iterations=iterations,
        time_s=took_s / iterations, correct=correct,
    )  # fmt: skip


def _all_reduce(count: int, rank: int, ranks: int, device: str) -> Operation:
    # In place, as training does it: the values grow with each run, so the first alone is checked.
    buffer = torch.full((count,), float(rank + 1), device=device)
    expected = ranks * (ranks + 1) / 2

    def run() -> None:
        dist.all_reduce(buffer)

    def right() -> bool:
        correct = bool((buffer == expected).all())
        buffer.zero_()  # sums of nothing stay finite
        return correct

    return run, right


def _all_gather(count: int, rank: int, ranks: int, device: str) -> Operation:
    part = count // ranks
    mine = torch.full((part,), float(rank + 1), device=device)
    gathered = torch.zeros((part * ranks,), device=device)
    parts = list(gathered.chunk(ranks))

    def run() -> None:
        dist.all_gather(parts, mine)

    def right() -> bool:
        return all(bool((found == other + 1).all()) for other, found in enumerate(parts))

    return run, right


def _send_recv(count: int, rank: int, ranks: int, device: str) -> Operation:
    """Each rank sends to the next and receives from the one before, as nccl-tests' sendrecv."""
    mine = torch.full((count,), float(rank + 1), device=device)
    received = torch.zeros((count,), device=device)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks

    def run() -> None:
        both = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, received, before)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    def right() -> bool:
        return bool((received == before + 1).all())

    return run, right


_OPERATIONS: dict[str, Callable[[int, int, int, str], Operation]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "send_recv": _send_recv,
}


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _nccl_version() -> str:
    found: Any = torch.cuda.nccl.version()
    return ".".join(str(part) for part in found)


def _tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
