"""Transparent huge pages for as long as a restore runs, where the operator's setting has them off.

CRIU fills memory that no process has touched yet; with pages of 4 KiB the kernel spends more time
on faults than on copying. The kernel has one switch for private and one for shared memory, for the
whole machine. They are set when the first restore begins and put back when the last one ends, also
by another process than the one that set them.

What belongs here: those two switches. What does not: when they are wanted (`engine`).

RESILIENCE_HUGE_PAGES=0 leaves them alone. So does a machine whose switches can't be written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VARIABLE: Final = "RESILIENCE_HUGE_PAGES"
SWITCHES: Final = Path("/sys/kernel/mm/transparent_hugepage")
STATE: Final = Path("/run/resilience-huge-pages")

_NAMES: Final = ("enabled", "shmem_enabled")
_WANTED: Final = "always"


@contextlib.contextmanager
def huge_pages(switches: Path = SWITCHES, state: Path = STATE) -> Iterator[bool]:
    """Have huge pages for memory that is filled in this block; yields whether it has them.

    Args:
        switches: the kernel's folder.
        state: a file that all restores of this machine share: its locks count them, and it holds
            the operator's setting.
    """
    if os.environ.get(VARIABLE) == "0":
        yield False
        return
    try:
        handle = _take(switches, state)
    except OSError:
        yield False  # no such kernel, or not allowed: a restore works without, only slower
        return
    try:
        yield True
    finally:
        _leave(handle, switches)


def _take(switches: Path, state: Path) -> int:
    handle = os.open(state, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                # The first one holds it alone: nobody else is between its steps.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remember(handle, switches)
                for name in _NAMES:
                    (switches / name).write_text(_WANTED)
            fcntl.flock(handle, fcntl.LOCK_SH)
            if os.fstat(handle).st_size > 0:
                return handle
            # The one before us was just putting them back.
            fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError:
        os.close(handle)
        raise


def _remember(handle: int, switches: Path) -> None:
    """Keep the operator's setting, unless a killed restore left one here that still has to be."""
    if os.fstat(handle).st_size == 0:
        settings = {name: _chosen((switches / name).read_text()) for name in _NAMES}
        os.pwrite(handle, json.dumps(settings).encode(), 0)


def _leave(handle: int, switches: Path) -> None:
    try:
        # The last one out is the only one that gets the lock alone.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            settings = json.loads(os.pread(handle, 4096, 0))
            for name in _NAMES:
                (switches / name).write_text(settings[name])
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _chosen(text: str) -> str:
    """The word in brackets, e.g. `madvise` of `always [madvise] never`."""
    return text[text.index("[") + 1 : text.index("]")]
