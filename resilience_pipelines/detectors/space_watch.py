"""The detector `space_watch`: how much a file system can still take.

What belongs here: asking the kernel. What does not: making space.
"""

from __future__ import annotations

import os
from pathlib import Path

from resilience_pipelines.detectors.base import PollingDetector

INTERVAL_S = 0.1
MIN_BYTES = 2**20
MIN_INODES = 8


class SpaceWatch(PollingDetector):
    """Raises an alarm when few bytes or few inodes are left where a folder lies."""

    name = "space_watch"

    def __init__(self, folder: Path, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._folder = folder

    def _look(self) -> str | None:
        found = os.statvfs(self._folder)
        free_bytes = found.f_bavail * found.f_frsize
        if free_bytes < MIN_BYTES:
            return f"{free_bytes} bytes are free"
        # A file system without a fixed number of inodes says 0 of 0.
        if found.f_files and found.f_favail < MIN_INODES:
            return f"{found.f_favail} inodes are free"
        return None
