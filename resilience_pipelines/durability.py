"""Putting what was written on the disk, before anything is said to be there.

What belongs here: that call. What does not: files written and synced through an open stream, and
the order of writing, syncing and renaming, which each format has for itself.
"""

from __future__ import annotations

import os
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
