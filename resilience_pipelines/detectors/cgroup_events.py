"""The detector `cgroup_events`: the kernel's count of processes killed in a memory cgroup.

What belongs here: reading and watching the count, under cgroup v1 and v2. What does not: making
cgroups (`faults.cgroup`).
"""

from __future__ import annotations

from pathlib import Path

from resilience_pipelines.detectors.base import PollingDetector

INTERVAL_S = 0.05
COUNTER_FILES = ("memory.events", "memory.oom_control")
"""Where the count is: cgroup v2, then v1."""


def read_oom_kills(cgroup: Path) -> int:
    """How many processes of a memory cgroup the kernel has killed for memory.

    Raises:
        OSError: the cgroup is gone, or no such count is there.
    """
    for name in COUNTER_FILES:
        path = cgroup / name
        if not path.exists():
            continue
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    raise FileNotFoundError(f"{cgroup} has no count of OOM kills")


class CgroupEvents(PollingDetector):
    """Raises an alarm when the count rises above what it was at the start."""

    name = "cgroup_events"

    def __init__(self, cgroup: Path, *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._cgroup = cgroup
        self._before = 0

    def _open(self) -> None:
        self._before = read_oom_kills(self._cgroup)

    def _look(self) -> str | None:
        killed = read_oom_kills(self._cgroup) - self._before
        return f"{killed} processes killed for memory" if killed > 0 else None
