"""Putting what was written on the disk, before anything is said to be there.

What belongs here: that call, and replacing a small text file as a whole. What does not: formats of
several files, each of which has its own order of writing, syncing and renaming.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file's or folder's content is on the disk.

    Raises:
        OSError
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Make a file hold a text, in one step: a reader finds the old one or the new one.

    Its folder is made if its parent is there.

    Args:
        mode: the file's, from the moment that it is there.

    Raises:
        OSError: it can't be written; what was there before stays, and nothing is left behind.
    """
    path.parent.mkdir(exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "w") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)
        raise
    sync(path.parent)
