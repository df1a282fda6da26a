"""Device state: what has to happen on an accelerator before a dump and after a restore.

What belongs here: the protocol that every kind of device follows, and the one for machines without
any. What does not: a particular device (`cuda`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from resilience_pipelines.records import Phase


class DeviceEngine(Protocol):
    """Moves a process tree's device state into host memory and back.

    Attributes:
        name: as it appears in the stack's `snapshot_engine`, e.g. `criu` or `criu+cuda`.
        moves_state: whether there is device state to move at all.
    """

    name: str
    moves_state: bool

    def warm_up(self) -> None:
        """Begin with what the first call would else wait for; returns at once."""

    def suspend(self, pids: Sequence[int]) -> Sequence[Phase]:
        """Move device state of all processes to host memory; returns what it took.

        Args:
            pids: the tree's processes, as this process sees them.

        Raises:
            SnapshotError: and everything is running on the device again.
        """

    def resume(self, pids: Sequence[int]) -> Sequence[Phase]:
        """Move it back and let the processes go on; returns what it took.

        Raises:
            SnapshotError
        """

    def close(self) -> None:
        """End what this engine started."""


class NoDevice:
    """For workers that use the CPU alone."""

    name = "criu"
    moves_state = False

    def warm_up(self) -> None:
        """Nothing to begin with."""

    def suspend(self, pids: Sequence[int]) -> Sequence[Phase]:  # noqa: ARG002
        """Nothing to move."""
        return ()

    def resume(self, pids: Sequence[int]) -> Sequence[Phase]:  # noqa: ARG002
        """Nothing to move."""
        return ()

    def close(self) -> None:
        """Nothing was started."""
