"""Guards: conditions that are looked at before anything is injected.

What belongs here: one class for each condition. What does not: undoing a fault (`lease`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from resilience_pipelines.faults.fault import FaultContext, Guard, Target

MIN_MEMORY_BYTES = 512 * 2**20
MIN_DISK_BYTES = 256 * 2**20


@dataclass(frozen=True)
class FreeMemory:
    """The machine has memory left for what the experiment starts."""

    min_bytes: int
    name: str = "free_memory"

    def objection(self, target: Target | None) -> str | None:  # noqa: ARG002
        """See `Guard.objection`."""
        available = psutil.virtual_memory().available
        if available >= self.min_bytes:
            return None
        return f"{available} bytes of memory are available, {self.min_bytes} are needed"


@dataclass(frozen=True)
class FreeDisk:
    """A file system has space left."""

    folder: Path
    min_bytes: int
    name: str = "free_disk"

    def objection(self, target: Target | None) -> str | None:  # noqa: ARG002
        """See `Guard.objection`."""
        free = shutil.disk_usage(self.folder).free
        if free >= self.min_bytes:
            return None
        return f"{free} bytes are free at {self.folder}, {self.min_bytes} are needed"


@dataclass(frozen=True)
class OwnWorker:
    """Every process that may be hit descends from this one, and none of them is this one.

    A worker on another machine has guards of its own (`cluster.OwnPod`).
    """

    name: str = "own_worker"

    def objection(self, target: Target | None) -> str | None:
        """See `Guard.objection`."""
        if target is None or not target.on_this_machine:
            return None
        if not target.members:
            return "the worker has no process"
        for member in target.members:
            try:
                ancestors = [parent.pid for parent in member.parents()]
            except psutil.NoSuchProcess:
                return f"process {member.pid} of the worker has ended"
            if member.pid == os.getpid() or os.getpid() not in ancestors:
                return f"process {member.pid} was not started by this process ({os.getpid()})"
        return None


def common(context: FaultContext) -> Sequence[Guard]:
    """The guards of every experiment."""
    return (
        FreeMemory(MIN_MEMORY_BYTES),
        FreeDisk(context.scratch, MIN_DISK_BYTES),
        OwnWorker(),
    )
