"""The detector `kernel_log`: what the kernel says about a worker in /dev/kmsg.

What belongs here: reading the kernel's log and picking the lines that concern one worker. What does
not: counters of the kernel (`cgroup_events`).
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Collection
from pathlib import Path

from resilience_pipelines.detectors.base import Detector

KMSG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_WAKE_MS = 50
_KILLED = re.compile(r"[Oo]ut of memory.*: Killed process (?P<pid>[0-9]{1,10})")
_KILLED_IN = re.compile(r"oom-kill:.*task_memcg=(?P<cgroup>[^,]*)")
# The driver names the process that it blames, in some releases in quotes; not in each message.
_XID = re.compile(r"NVRM: Xid \(PCI:[^)]*\): (?P<xid>[0-9]{1,5})(?:, pid='?(?P<pid>[0-9]{1,10}))?")


def unavailable(path: Path = KMSG) -> str | None:
    """Why the kernel's log can't be read here; None when it can."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return f"{path} can't be read ({error.strerror})"
    return None


def concerns(message: str, pids: Collection[int], cgroup: str | None) -> bool:
    """Whether a kernel message says that one of these was killed for memory, or of an XID.

    An XID that names no process may be of any: it counts. One of another process does not.

    Args:
        message: the text of a record, without its prefix.
        pids: the worker's processes.
        cgroup: the name of the worker's own memory cgroup, where it has one.
    """
    if killed := _KILLED.search(message):
        return int(killed["pid"]) in pids
    if xid := _XID.search(message):
        return xid["pid"] is None or int(xid["pid"]) in pids
    inside = _KILLED_IN.search(message)
    return bool(inside and cgroup and inside["cgroup"].rstrip("/").endswith(f"/{cgroup}"))


class KernelLog(Detector):
    """Reads records as the kernel writes them. The kernel wakes it: it does not poll.

    Args:
        pids: the worker's processes. Where this process lives in a PID namespace of its own, the
            kernel numbers them otherwise, and only `cgroup` can be recognised.
        cgroup: see `concerns`.
        path: the device.
    """

    name = "kernel_log"

    def __init__(self, pids: Collection[int], cgroup: str | None = None, path: Path = KMSG) -> None:
        super().__init__()
        self._pids = frozenset(pids)
        self._cgroup = cgroup
        self._path = path
        self._device = -1

    def _open(self) -> None:
        self._device = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._device, 0, os.SEEK_END)

    def _close(self) -> None:
        if self._device >= 0:
            os.close(self._device)
            self._device = -1

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._device, select.POLLIN)
        while not self._stopping.is_set():
            if poller.poll(_WAKE_MS):
                self._read()

    def _read(self) -> None:
        """Read all records that are there; each read(2) gives one."""
        while not self._stopping.is_set():
            try:
                record = os.read(self._device, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                # Records were overwritten before they were read. One of them may have been ours.
                self._failure = "the kernel's log overran, messages were lost"
                continue
            if not record:
                return
            _, _, message = record.decode(errors="replace").partition(";")
            if concerns(message, self._pids, self._cgroup):
                self._alarm(message.splitlines()[0][:500])
