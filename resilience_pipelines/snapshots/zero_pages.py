"""Leaves pages of zeros out of an image: memory that is not in it reads as zeros anyway.

CRIU writes every page that a process has touched. Large parts of an inference engine's memory are
tables that were allocated and never filled, above all device memory that the CUDA driver moved into
the process. Without them an image takes less room, and a restore copies less.

What belongs here: rewriting the page files of one image. What does not: which images (`engine`).

Only runs of `MIN_RUN_PAGES` and more are left out, since each gap costs CRIU a further read. Only
private anonymous memory and shared anonymous memory are touched: elsewhere a page that is missing
would be read from a file.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from resilience_pipelines.errors import CorruptError
from resilience_pipelines.snapshots.image_files import load_image

PAGE_BYTES: Final = 4096
MIN_RUN_PAGES: Final = 16

_CHUNK_PAGES: Final = 4096
_THREADS: Final = min(8, os.cpu_count() or 1)

# CRIU's flags of an area: an ordinary one of private anonymous memory, and what it must not be.
_REGULAR: Final = 1 << 0
_SPECIAL: Final = 1 << 2 | 1 << 3 | 1 << 12  # vsyscall, vdso, vvar
_ANONYMOUS_PRIVATE: Final = 1 << 9
_GROWS_DOWN: Final = 0x0100
_HUGE_TLB: Final = 0x40000

# CRIU's flags of a range of pages.
_IN_PARENT: Final = 1 << 0
_PRESENT: Final = 1 << 2


@dataclass(frozen=True)
class _Run:
    """Pages that follow each other, in memory and in the file of pages."""

    address: int
    first: int
    """Index of the first page in the file."""
    count: int


def drop_zero_pages(images: Path, pycriu: ModuleType) -> int:
    """Rewrite an image without its runs of zero pages; returns the bytes that it lost.

    An image that depends on another one, or that has a form not known here, stays as it is.

    Raises:
        OSError: it can't be read or written; then it is as it was.
    """
    return sum(_slim(pagemap, pycriu) for pagemap in sorted(images.glob("pagemap-*.img")))


def _slim(pagemap: Path, pycriu: ModuleType) -> int:
    name = pagemap.name.removeprefix("pagemap-").removesuffix(".img")
    try:
        if name.startswith("shmem-"):
            areas = [(0, 1 << 63)]
        else:
            memory = load_image(pagemap.with_name(f"mm-{name}.img"), pycriu)
            areas = _droppable_areas(memory["entries"][0])
        return _rewrite(pagemap, areas, pycriu)
    except (CorruptError, KeyError, IndexError, TypeError, ValueError):
        return 0  # a form not known here; nothing was replaced


def _droppable_areas(memory: dict[str, Any]) -> list[tuple[int, int]]:
    return sorted(
        (int(area["start"]), int(area["end"]))
        for area in memory["vmas"]
        if area["status"] & _REGULAR
        and area["status"] & _ANONYMOUS_PRIVATE
        and not area["status"] & _SPECIAL
        and not area["flags"] & (_GROWS_DOWN | _HUGE_TLB)
    )


def _rewrite(pagemap: Path, areas: Sequence[tuple[int, int]], pycriu: ModuleType) -> int:
    image = load_image(pagemap, pycriu)
    head, *entries = image["entries"]
    if any(
        entry["flags"] & _IN_PARENT or not entry["flags"] & _PRESENT or entry.get("in_parent")
        for entry in entries
    ):
        return 0
    pages = pagemap.with_name(f"pages-{head['pages_id']}.img")
    count = sum(int(entry["nr_pages"]) for entry in entries)
    if count == 0 or not pages.is_file() or pages.stat().st_size != count * PAGE_BYTES:
        return 0
    zero = _zero_pages(pages, count)
    kept: list[dict[str, Any]] = []
    runs: list[_Run] = []
    first = 0
    for entry in entries:
        length = int(entry["nr_pages"])
        for run in _runs_to_keep(int(entry["vaddr"]), first, length, zero, areas):
            runs.append(run)
            kept.append(entry | {"vaddr": run.address, "nr_pages": run.count})
        first += length
    left = sum(run.count for run in runs)
    if left == count:
        return 0
    slim = pages.with_suffix(".slim")
    slim_map = pagemap.with_suffix(".slim")
    try:
        _copy_runs(pages, slim, runs)
        with slim_map.open("xb") as stream:
            pycriu.images.dump(image | {"entries": [head, *kept]}, stream)
        slim.replace(pages)
        slim_map.replace(pagemap)
    finally:
        slim.unlink(missing_ok=True)
        slim_map.unlink(missing_ok=True)
    return (count - left) * PAGE_BYTES


def _zero_pages(pages: Path, count: int) -> bytes:
    """One byte for each page of the file: 1 where it is all zeros."""
    # Imported here: NumPy takes long, and most callers of the engine never take a snapshot.
    import numpy as np

    handle = os.open(pages, os.O_RDONLY | os.O_CLOEXEC)

    def scan(first: int) -> bytes:
        wanted = min(_CHUNK_PAGES, count - first) * PAGE_BYTES
        buffer = bytearray(wanted)
        filled = 0
        while filled < wanted:
            got = os.preadv(handle, [memoryview(buffer)[filled:]], first * PAGE_BYTES + filled)
            if got == 0:
                raise OSError(f"{pages} got shorter while it was read")
            filled += got
        words = np.frombuffer(buffer, dtype=np.uint64).reshape(-1, PAGE_BYTES // 8)
        zero: bytes = (~words.any(axis=1)).astype(np.uint8).tobytes()
        return zero

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            return b"".join(pool.map(scan, range(0, count, _CHUNK_PAGES)))
    finally:
        os.close(handle)


def _runs_to_keep(
    address: int, first: int, length: int, zero: bytes, areas: Sequence[tuple[int, int]]
) -> Iterator[_Run]:
    """What stays of a range of pages when its long runs of zeros are taken out."""
    begin = 0
    for gap_start, gap_end in _gaps(address, first, length, zero, areas):
        if gap_start > begin:
            yield _Run(address + begin * PAGE_BYTES, first + begin, gap_start - begin)
        begin = gap_end
    if begin < length:
        yield _Run(address + begin * PAGE_BYTES, first + begin, length - begin)


def _gaps(
    address: int, first: int, length: int, zero: bytes, areas: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Runs of zero pages, as page numbers within the range, each inside one droppable area."""
    at = max(0, bisect.bisect_right(areas, (address, 1 << 64)) - 1)
    end_address = address + length * PAGE_BYTES
    for start, end in areas[at:]:
        if start >= end_address:
            return
        low = max(0, (start - address) // PAGE_BYTES)
        high = min(length, (end - address) // PAGE_BYTES)
        if high <= low:
            continue  # it ends before the range
        position = first + low
        while (begin := zero.find(1, position, first + high)) >= 0:
            stop = zero.find(0, begin, first + high)
            stop = first + high if stop < 0 else stop
            if stop - begin >= MIN_RUN_PAGES:
                yield begin - first, stop - first
            position = stop


def _copy_runs(source: Path, target: Path, runs: Sequence[_Run]) -> None:
    read = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    write = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for run in runs:
            offset, left = run.first * PAGE_BYTES, run.count * PAGE_BYTES
            while left:
                copied = os.copy_file_range(read, write, left, offset)
                if copied == 0:
                    raise OSError(f"{source} got shorter while it was copied")
                offset += copied
                left -= copied
    finally:
        os.close(write)
        os.close(read)
