"""The interlock of faults that others may take for real: is anybody about to act on them?

What belongs here: the guard that refuses where automatic remediation is armed. What does not: any
other guard. A node that is drained, or a GPU that is reset, because of a value that was only
written into a cache would be a real outage.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import psutil

from resilience_pipelines.faults.fault import Target

VARIABLE = "RESILIENCE_SYNTHETIC_XIDS"
"""Set to 1 by an operator who knows that nothing acts on XIDs of this machine by itself."""
AGENTS = (
    "node-problem-detector", "nvsentinel", "health-monitor", "fault-remediation", "node-drainer",
    "fault-quarantine", "draino",
)  # fmt: skip
"""Programs that watch for XIDs and act, or let others act, by how their processes are called."""


@dataclass(frozen=True)
class NoAutomaticRemediation:
    """Nobody acts on XIDs by itself, as far as can be seen, and an operator says so too."""

    name: str = "remediation_interlock"

    def objection(self, target: Target | None) -> str | None:
        """See `Guard.objection`. It is asked right before the injection."""
        if target is None:
            return None
        if armed := running_agents():
            return f"{', '.join(armed)} runs on this machine and may act on an XID that is not real"
        if os.environ.get(VARIABLE) != "1":
            where = (
                "this is a Kubernetes pod, from which agents of its node can't be seen"
                if "KUBERNETES_SERVICE_HOST" in os.environ
                else "agents that run elsewhere can't be seen"
            )
            return (
                f"{where}; set {VARIABLE}=1 when nothing drains, reboots or resets on an XID here"
            )
        return None


def running_agents() -> list[str]:
    """Processes of this machine that are called like a known agent."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = (process.name(), *process.cmdline()[:2])
            names = {os.path.basename(word).lower() for word in words}  # noqa: PTH119 - any text
            found |= {agent for agent in AGENTS if any(agent in name for name in names)}
    return sorted(found)
