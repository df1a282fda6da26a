"""Takes a GPU's memory until little is free, and keeps taking what gets free.

Plain allocations (`cudaMalloc`), never managed memory: that could hang the GPU for everybody.
Reports: `taken` (bytes, free_bytes) whenever it took more. It ends with whoever started it.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from resilience_pipelines.faults.gpu_programs.protocol import hold_signal, report, wait_for_go

LARGEST_BYTES = 2**30
SMALLEST_BYTES = 2**21
STEP_S = 0.02


def next_bytes(free_bytes: int, headroom_bytes: int, largest_bytes: int) -> int:
    """How much to take now, in bytes; 0 when no more has to be taken."""
    surplus = min(free_bytes - headroom_bytes, largest_bytes)
    return surplus - surplus % SMALLEST_BYTES if surplus >= SMALLEST_BYTES else 0


def take(torch: Any, headroom_bytes: int, end: float) -> None:
    """Take memory of the current CUDA device until CLOCK_MONOTONIC `end`, in seconds."""
    kept = []
    taken, largest = 0, LARGEST_BYTES
    while time.monotonic() < end:
        free, _ = torch.cuda.mem_get_info()
        size = next_bytes(free, headroom_bytes, largest)
        if size == 0:
            largest = LARGEST_BYTES
            time.sleep(STEP_S)
            continue
        try:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            # Somebody was faster, or what is free is in pieces: try less, down to the smallest.
            largest = max(SMALLEST_BYTES, size // 2)
            time.sleep(STEP_S)
            continue
        taken += size
        report("taken", bytes=taken, free_bytes=torch.cuda.mem_get_info()[0])


def main() -> int:
    """Wait for the signal, then take memory until the deadline or the end."""
    hold_signal()
    parser = argparse.ArgumentParser()
    parser.add_argument("--headroom-bytes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    import torch

    wait_for_go()
    take(torch, options.headroom_bytes, time.monotonic() + options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
