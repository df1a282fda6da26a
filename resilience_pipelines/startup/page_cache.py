"""The page cache: whether files are in memory, and bringing them in or out.

What belongs here: reading and changing the residency of named files. What does not: which files
matter for which arm (`benchmark`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from resilience_pipelines.records import PageCache

_READ_BYTES = 4 << 20


def resident_fraction(paths: Iterable[Path]) -> float | None:
    """Share of the files' pages that are in memory, by mincore(2); None where there are none."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = resident = 0
    for path in paths:
        size = path.stat().st_size
        if size == 0:
            continue
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, mmap.MAP_PRIVATE) as view:
            count = -(-size // mmap.PAGESIZE)
            vector = (ctypes.c_ubyte * count)()
            start = ctypes.byref(ctypes.c_char.from_buffer(view))
            failed = libc.mincore(start, ctypes.c_size_t(size), vector)
            del start  # a live export of the buffer would keep the map open
            if failed:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
            pages += count
            resident += sum(flag & 1 for flag in vector)
    return resident / pages if pages else None


def evict(paths: Iterable[Path]) -> None:
    """Ask the kernel to drop the files' clean pages. Pages that somebody has mapped stay."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)  # dirty pages can't be dropped
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def load(paths: Iterable[Path]) -> None:
    """Read the files so that they are in memory."""
    buffer = bytearray(_READ_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def classify(fraction: float | None) -> PageCache:
    """Warm from 95 % resident, cold up to 5 %."""
    if fraction is None:
        return PageCache.UNKNOWN
    if fraction >= 0.95:
        return PageCache.WARM
    return PageCache.COLD if fraction <= 0.05 else PageCache.MIXED
