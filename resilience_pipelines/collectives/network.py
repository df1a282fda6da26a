"""Networks that join the ranks of a job: one loopback for all, or one namespace for each rank.

What belongs here: making spaces for ranks, joining them, cutting and mending a link. What does not:
what runs inside (`training`), and why a link is cut (`faults.training`).

A `BridgedNetwork` has a capsule for each rank and one for the switch between them: a bridge, with a
veth pair to each rank. No capsule has a default route, or any other interface. The namespaces, and
the links with them, end with their capsules, also when this process is killed.
"""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from resilience_pipelines.collectives import ras
from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.workers.space import (
    Capsule,
    HostSpace,
    Space,
    SpaceSupport,
    free_port,
    open_space,
)

_PORT = 29500
_COMMAND_DEADLINE_S = 10.0
_SUBNET = "10.77.0"
_BRIDGE = "switch"


class Network(ABC):
    """Spaces of the ranks and how they reach each other. Closing it ends all inside.

    Attributes:
        interface: the one that the ranks speak over.
        master: address of rank 0, with `port` where the ranks meet.
        ras_port: where the RAS threads of NCCL listen, on the loopback of each rank.
    """

    interface: str
    master: str
    port: int
    ras_port: int = ras.PORT

    @abstractmethod
    def space(self, rank: int) -> Space:
        """Where a rank lives."""

    @abstractmethod
    def close(self) -> None:
        """End everything inside."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SharedNetwork(Network):
    """All ranks in one space, over its loopback, as the ranks of one node are."""

    interface = "lo"
    master = "127.0.0.1"

    def __init__(self, support: SpaceSupport) -> None:
        self._space = open_space(support)
        self.port = _PORT
        if isinstance(self._space, HostSpace):
            self.port, self.ras_port = free_port(), free_port()

    def space(self, rank: int) -> Space:  # noqa: ARG002
        """See `Network.space`."""
        return self._space

    def close(self) -> None:
        """See `Network.close`."""
        self._space.close()


class BridgedNetwork(Network):
    """A namespace for each rank, as if each was a node, joined by a bridge in one more.

    Raises:
        UnsupportedError: capsules, veth pairs or bridges can't be made here.
    """

    interface = "eth0"
    master = f"{_SUBNET}.1"
    port = _PORT

    def __init__(self, ranks: int) -> None:
        self._owned = ExitStack()
        try:
            self._switch = self._open()
            self._ip(self._switch, "link", "add", _BRIDGE, "type", "bridge")
            self._ip(self._switch, "link", "set", _BRIDGE, "up")
            self._nodes = [self._join(rank) for rank in range(ranks)]
        except BaseException:
            self.close()
            raise

    def space(self, rank: int) -> Space:
        """See `Network.space`."""
        return self._nodes[rank]

    def close(self) -> None:
        """See `Network.close`."""
        self._owned.close()

    def cut(self, rank: int) -> None:
        """Take the switch's port of a rank down: no packet passes, connections stay open.

        Raises:
            UnsupportedError: it can't be done.
        """
        self._ip(self._switch, "link", "set", f"port{rank}", "down")

    def mend(self, rank: int) -> None:
        """Take the port up again."""
        self._ip(self._switch, "link", "set", f"port{rank}", "up")

    def limit(self, rank: int, bits_per_s: int) -> None:
        """Limit what leaves a rank (a token bucket on its interface), in bits per second.

        Raises:
            UnsupportedError: the kernel has no such queue.
        """
        node = self._nodes[rank]
        self._run(
            node, "tc", "qdisc", "replace", "dev", self.interface, "root",
            "tbf", "rate", f"{bits_per_s}bit", "burst", "256kb", "latency", "50ms",
        )  # fmt: skip

    def has_carrier(self, rank: int) -> bool:
        """Whether the rank's own interface sees a carrier."""
        (found,) = json.loads(self._ip(self._nodes[rank], "-json", "link", "show", self.interface))
        return "LOWER_UP" in found["flags"]

    def reaches(self, rank: int, other: int, timeout_s: float) -> bool:
        """Whether a rank gets another's answer to a connection, be it accepted or refused."""
        with self._nodes[rank].socket() as probe:
            probe.settimeout(timeout_s)
            try:
                probe.connect((_address(other), _PORT))
            except ConnectionRefusedError:
                return True
            except OSError:
                return False
        return True

    def routes(self, rank: int) -> list[dict[str, object]]:
        """The routes of a rank's namespace."""
        return list(json.loads(self._ip(self._nodes[rank], "-json", "route", "show")))

    def _open(self) -> Capsule:
        capsule = Capsule()
        self._owned.callback(capsule.close)
        return capsule

    def _join(self, rank: int) -> Capsule:
        node, port = self._open(), f"port{rank}"
        self._ip(
            self._switch,
            "link", "add", port, "type", "veth", "peer", "name", self.interface,
            "netns", str(node.init_pid),
        )  # fmt: skip
        self._ip(self._switch, "link", "set", port, "master", _BRIDGE, "up")
        self._ip(node, "address", "add", f"{_address(rank)}/24", "dev", self.interface)
        self._ip(node, "link", "set", self.interface, "up")
        return node

    def _ip(self, capsule: Capsule, *arguments: str) -> str:
        return self._run(capsule, "ip", *arguments)

    def _run(self, capsule: Capsule, *command: str) -> str:
        # In its network namespace alone: process ids are this process's, and so is /sys.
        argv = ["nsenter", "-t", str(capsule.init_pid), "-n", "--", *command]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=_COMMAND_DEADLINE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnsupportedError(f"`{' '.join(argv)}` can't be run: {error}.") from error
        if done.returncode:
            raise UnsupportedError(f"`{' '.join(command)}` failed: {done.stderr.strip()}.")
        return done.stdout


def _address(rank: int) -> str:
    return f"{_SUBNET}.{rank + 1}"
