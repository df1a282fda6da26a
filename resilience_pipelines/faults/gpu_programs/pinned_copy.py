"""Measures copies between pinned host memory and a GPU: `pinned_copy.py --cpus 0,1`.

The kernel gives a thread memory of the node that it runs on, so the CPUs decide where the pinned
buffer lies. Reports: `copied` (host_to_device_bytes_per_s, device_to_host_bytes_per_s).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from resilience_pipelines.faults.gpu_programs.protocol import hold_signal, report, wait_for_go

BUFFER_BYTES = 256 * 2**20
COPIES = 16
WARM_UP_COPIES = 2


def bytes_per_s(copy: Callable[[], Any], synchronize: Callable[[], Any], size: int) -> float:
    """How fast a copy of `size` bytes is, over several in a row."""
    for _ in range(WARM_UP_COPIES):
        copy()
    synchronize()
    begin = time.monotonic()
    for _ in range(COPIES):
        copy()
    synchronize()
    return size * COPIES / (time.monotonic() - begin)


def main() -> int:
    """Move to the CPUs, wait for the signal, then copy."""
    hold_signal()
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpus", required=True, help="numbers, separated by commas")
    options = parser.parse_args()
    os.sched_setaffinity(0, {int(number) for number in options.cpus.split(",")})
    import torch

    wait_for_go()
    host = torch.ones(BUFFER_BYTES, dtype=torch.uint8).pin_memory()
    device = torch.empty(BUFFER_BYTES, dtype=torch.uint8, device="cuda")
    synchronize = torch.cuda.synchronize
    up = bytes_per_s(lambda: device.copy_(host, non_blocking=True), synchronize, BUFFER_BYTES)
    down = bytes_per_s(lambda: host.copy_(device, non_blocking=True), synchronize, BUFFER_BYTES)
    report("copied", host_to_device_bytes_per_s=up, device_to_host_bytes_per_s=down)
    return 0


if __name__ == "__main__":
    sys.exit(main())
