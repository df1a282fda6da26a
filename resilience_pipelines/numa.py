"""NUMA nodes of this machine, from sysfs, and moving a process's memory between them.

What belongs here: which CPUs a node has, how far nodes are from each other, which node a device is
on, and one system call. What does not: what a placement costs (`faults.numa_placement`).
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

NODES = Path("/sys/devices/system/node")
DEVICES = Path("/sys/bus/pci/devices")
_MIGRATE_PAGES = {"x86_64": 256, "aarch64": 238}
_MASK_BITS = 64


@dataclass(frozen=True)
class Node:
    """One node that has CPUs.

    Attributes:
        distances: how far each node's memory is, by the firmware's measure; 10 is its own.
    """

    number: int
    cpus: frozenset[int]
    distances: dict[int, int]


def read_nodes(root: Path = NODES) -> tuple[Node, ...]:
    """All nodes with CPUs that this process may use, by number; empty where there is no sysfs."""
    usable = os.sched_getaffinity(0)
    folders = {
        int(folder.name.removeprefix("node")): folder
        for folder in root.glob("node*")
        if folder.name.removeprefix("node").isdecimal()
    }
    found = []
    for number, folder in sorted(folders.items()):
        cpus = parse_cpus((folder / "cpulist").read_text()) & usable
        if cpus:
            far = [int(word) for word in (folder / "distance").read_text().split()]
            found.append(Node(number, cpus, dict(zip(sorted(folders), far, strict=False))))
    return tuple(found)


def node_of_device(bus_id: str, root: Path = DEVICES) -> int | None:
    """The node that a PCI device is on; None where the firmware does not tell (-1)."""
    try:
        number = int((root / bus_id / "numa_node").read_text())
    except OSError:
        return None
    return number if number >= 0 else None


def parse_cpus(text: str) -> frozenset[int]:
    """The numbers of a list as the kernel writes it, such as `0-3,8`.

    Raises:
        ValueError: it is no such list.
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def move_memory(pid: int, source: int, destination: int) -> int:
    """Move a process's pages from one node to another; those that are pinned stay.

    Returns:
        How many pages could not be moved.

    Raises:
        OSError: the kernel refuses.
    """
    number = _MIGRATE_PAGES.get(platform.machine())
    if number is None:
        raise OSError(f"pages can't be moved on {platform.machine()}")
    masks = (_mask({source}), _mask({destination}))
    libc = ctypes.CDLL(None, use_errno=True)
    left = libc.syscall(number, pid, _MASK_BITS + 1, ctypes.byref(masks[0]), ctypes.byref(masks[1]))
    if left < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "migrate_pages")
    return int(left)


def _mask(numbers: Collection[int]) -> ctypes.c_ulong:
    return ctypes.c_ulong(sum(1 << number for number in numbers))
