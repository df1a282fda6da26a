"""Memory cgroups for one worker, under cgroup v1 or v2, that never outlive this process.

What belongs here: where a cgroup can be made, making it, starting in it, its limit, its removal.
What does not: eating memory in it (`memory`) and counting kills (`detectors.cgroup_events`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.faults.lease import Lease
from resilience_pipelines.workers.base import LaunchPlan, Worker

NAME_PREFIX = "resilience-fault-"
REMOVE_DEADLINE_S = 15.0

# Only processes that were put there are there. A cgroup can't be removed before the kernel has
# done with the last of them, so this is tried again for a while.
_UNDO = """
for attempt in $(seq 200); do
    for pid in $(cat "$1/cgroup.procs"); do kill -s KILL "$pid"; done
    rmdir "$1" && exit 0
    [ -d "$1" ] || exit 0
    sleep 0.05
done
exit 1
"""


# Writing 0 moves the writer, whatever its process id is inside its space.
ENTER = 'echo 0 > "$1/cgroup.procs" && shift && exec "$@"'
"""Shell that enters the cgroup `$1` and becomes the program `$2` with its arguments."""


@dataclass(frozen=True)
class Place:
    """A folder below which a memory cgroup can be made.

    Attributes:
        version: 1 or 2.
    """

    folder: Path
    version: int


def find_place(proc: Path = Path("/proc/self")) -> Place:
    """Where this process may make a memory cgroup without changing any that is there.

    Args:
        proc: where `cgroup` and `mountinfo` are read.

    Raises:
        UnsupportedError: nowhere.
    """
    reasons = []
    for version, folder in _candidates(proc):
        if version == 2 and not _passes_memory_on(folder):
            reasons.append(f"{folder} does not pass the memory controller on")
        elif not os.access(folder, os.W_OK | os.X_OK):
            reasons.append(f"{folder} can't be written")
        else:
            return Place(folder, version)
    raise UnsupportedError(
        f"No memory cgroup can be made here: {'; '.join(reasons) or 'no memory controller'}.",
        mend="Run as root, or where a cgroup is delegated to this user.",
    )


class MemoryCgroup:
    """A memory cgroup. A watchdog ends what is in it and removes it when this process ends.

    Raises:
        OSError: it can't be made, e.g. on a read-only file system.
    """

    def __init__(self, place: Place) -> None:
        self.version = place.version
        self.folder = place.folder / f"{NAME_PREFIX}{secrets.token_hex(6)}"
        self._parent = place.folder
        self._limit = self.folder / (
            "memory.max" if place.version == 2 else "memory.limit_in_bytes"
        )
        self._unlimited = "max" if place.version == 2 else "-1"
        # The watchdog comes first: there is no moment at which only this process knows of it.
        self._lease = Lease(f"The cgroup {self.folder}", _UNDO, str(self.folder))
        try:
            self.folder.mkdir()
            self._forbid_swap()
        except BaseException:
            self.remove()
            raise

    def usage_bytes(self) -> int:
        """Memory charged to it."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return int((self.folder / name).read_text())

    def file_cache_bytes(self) -> int:
        """The part of its memory that is clean or dirty page cache, which the kernel takes back."""
        prefix = "" if self.version == 2 else "total_"
        wanted = (f"{prefix}inactive_file", f"{prefix}active_file")
        lines = (self.folder / "memory.stat").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.split()[0] in wanted)

    def pids(self) -> list[int]:
        """The processes in it, as this process sees them."""
        return [int(word) for word in (self.folder / "cgroup.procs").read_text().split()]

    def limit_bytes(self) -> int | None:
        """Its limit; None when it has none."""
        word = self._limit.read_text().strip()
        # Version 1 says "no limit" with the greatest number that it can hold.
        return None if word == "max" or int(word) >= 2**62 else int(word)

    def set_limit_near_usage(self, headroom_bytes: int) -> int:
        """Leave room for `headroom_bytes` more than what can't be taken back; returns the limit.

        Raises:
            OSError: the kernel refused, or the limit read back is not in force.
        """
        needed = self.usage_bytes() - self.file_cache_bytes()
        try:
            self._limit.write_text(str(max(needed, 0) + headroom_bytes))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # Version 1 refuses a limit below what it can reclaim to, e.g. mapped pages in use.
            self._limit.write_text(str(self.usage_bytes() + headroom_bytes))
        limit = self.limit_bytes()
        if limit is None:
            raise OSError(errno.EIO, "the limit is not in force", str(self._limit))
        return limit

    def lift(self) -> None:
        """Take the limit away and move the processes out, to where they would be without it."""
        self._limit.write_text(self._unlimited)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                (self._parent / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """End what is in it and remove it. A second call does nothing.

        Raises:
            DeadlineError, ResilienceError: it is still there.
        """
        self._lease.release(REMOVE_DEADLINE_S)

    def _forbid_swap(self) -> None:
        name, value = ("memory.swap.max", "0") if self.version == 2 else ("memory.swappiness", "0")
        path = self.folder / name
        if path.exists():
            path.write_text(value)


def inside(worker: Worker, cgroup: Path) -> Worker:
    """The same worker, started inside a cgroup: all its memory is charged there from the start."""
    return cast("Worker", _Inside(worker, cgroup))


class _Inside:
    """Hands everything but its launch on to the worker that it wraps."""

    def __init__(self, worker: Worker, cgroup: Path) -> None:
        self._worker = worker
        self._cgroup = cgroup

    def plan(self, port: int, cache: Path) -> LaunchPlan:
        plan = self._worker.plan(port, cache)
        return replace(plan, argv=("sh", "-c", ENTER, "sh", str(self._cgroup), *plan.argv))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


def _candidates(proc: Path) -> Iterable[tuple[int, Path]]:
    """Own cgroup of the memory controller and, under version 2, the one above it."""
    paths = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path
    for mount in (proc / "mountinfo").read_text().splitlines():
        before, _, after = mount.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = [*after.split(), "", "", ""][:3]
        if kind == "cgroup" and "memory" in options.split(","):
            own = next((p for c, p in paths.items() if "memory" in c.split(",")), None)
            if own is not None:
                yield 1, _below(Path(point), root, own)
        elif kind == "cgroup2" and "" in paths:
            own_folder = _below(Path(point), root, paths[""])
            yield 2, own_folder
            if own_folder != Path(point):
                yield 2, own_folder.parent


def _below(mount_point: Path, root: str, path: str) -> Path:
    """Where a cgroup of path `path` is, when the mount shows the hierarchy from `root` on."""
    if path == root or root == "/":
        return mount_point / path.removeprefix(root).lstrip("/")
    if path.startswith(f"{root}/"):
        return mount_point / path.removeprefix(f"{root}/")
    return mount_point


def _passes_memory_on(folder: Path) -> bool:
    try:
        return "memory" in (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
