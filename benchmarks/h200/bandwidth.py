"""How fast this machine moves bytes over each hop that a snapshot takes: one JSON object.

Hops: a file in the page cache to touched and to untouched memory, SHA-256 on several threads, a
file to the disk, pinned and pageable host memory to the device and back. GB are 10^9 bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK_BYTES = 16 * 2**20
REPEATS = 5


def rate(size: int, action: Callable[[], None]) -> float:
    """Median GB/s of an action that moves `size` bytes."""
    seconds = []
    for _ in range(REPEATS):
        begin = time.monotonic()
        action()
        seconds.append(time.monotonic() - begin)
    return round(size / statistics.median(seconds) / 1e9, 2)


def host_rates(folder: Path, size: int) -> dict[str, float]:
    """Hops of the host."""
    path = folder / "bandwidth.tmp"
    block = os.urandom(CHUNK_BYTES)
    found = {}

    def write() -> None:
        with path.open("wb", buffering=0) as stream:
            for _ in range(size // CHUNK_BYTES):
                stream.write(block)
            os.fsync(stream.fileno())

    found["file_write_and_sync"] = rate(size, write)
    handle = os.open(path, os.O_RDONLY)
    kept = mmap.mmap(-1, size)

    def read_into(buffer: mmap.mmap) -> None:
        view = memoryview(buffer)
        offset = 0
        while offset < size:
            offset += os.preadv(handle, [view[offset : offset + CHUNK_BYTES]], offset)
        view.release()

    def read_fresh(huge: bool) -> Callable[[], None]:
        def action() -> None:
            with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
                if huge:
                    fresh.madvise(mmap.MADV_HUGEPAGE)
                read_into(fresh)

        return action

    read_into(kept)
    found["page_cache_to_touched_memory"] = rate(size, lambda: read_into(kept))
    found["page_cache_to_fresh_memory"] = rate(size, read_fresh(False))
    found["page_cache_to_fresh_huge_pages"] = rate(size, read_fresh(True))
    view = memoryview(kept)

    def digest(offset: int) -> None:
        hashlib.sha256(view[offset : offset + CHUNK_BYTES]).digest()

    for threads in (1, 8, os.cpu_count() or 1):

        def digest_all(threads: int = threads) -> None:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(digest, range(0, size, CHUNK_BYTES)))

        found[f"sha256_{threads}_threads"] = rate(size, digest_all)
    os.close(handle)
    path.unlink()
    return found


def device_rates(size: int) -> dict[str, float]:
    """Hops between host and device; none where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return {}
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    found = {}
    for kind, pinned in (("pinned", True), ("pageable", False)):
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)

        def to_device(host: torch.Tensor = host) -> None:
            device.copy_(host)
            torch.cuda.synchronize()

        def to_host(host: torch.Tensor = host) -> None:
            host.copy_(device)
            torch.cuda.synchronize()

        found[f"{kind}_host_to_device"] = rate(size, to_device)
        found[f"device_to_{kind}_host"] = rate(size, to_host)
    begin = time.monotonic()
    torch.empty(size + 1, dtype=torch.uint8, pin_memory=True)
    found["pinning_fresh_memory"] = round(size / (time.monotonic() - begin) / 1e9, 2)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--gib", type=int, default=2)
    options = parser.parse_args()
    size = options.gib * 2**30
    print(json.dumps(host_rates(options.folder, size) | device_rates(size), indent=1))
