"""Memory that goes back to the operating system when it is given up.

What belongs here: the mappings that stand for device memory. What does not: what lies in
them (`weights`, `model`).
"""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Arena:
    """A private anonymous mapping, zero at first, that arrays are laid out in.

    `release` gives its pages up while its addresses stay, and so do all arrays over it; vLLM's
    sleep mode treats device memory in the same way. It is unmapped with the last of these arrays.
    """

    def __init__(self, size_bytes: int) -> None:
        self._mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages: slower, and no more
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.size_bytes = size_bytes

    def array(self, offset_bytes: int, shape: tuple[int, ...]) -> Array:
        """The float32 array of a shape that begins at an offset."""
        count = int(np.prod(shape))
        return np.frombuffer(self._mapping, np.float32, count, offset_bytes).reshape(shape)

    def release(self) -> None:
        """Give all pages up. What was in them is lost: they read as zeros."""
        self._mapping.madvise(mmap.MADV_DONTNEED)


def resident_bytes() -> int:
    """Resident memory of this process without the pages of files, in whole pages.

    A kernel takes pages of mapped files, as libraries are, from a process and gives them back as it
    sees fit; what the process itself gives up is told apart from that only in the rest.
    """
    _, resident, of_files, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(of_files)) * mmap.PAGESIZE
