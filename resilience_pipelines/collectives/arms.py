"""The arms of a measurement of collectives: the healthy one, and each way to degrade it.

What belongs here: names, what is set for each, and the transport that the log has to show. What
does not: running them (`bandwidth`). NCCL's variables set initial conditions: an arm is no fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilience_pipelines.collectives.support import GLOO, NCCL
from resilience_pipelines.errors import InputError

HEALTHY = "healthy"
"""The arm of each backend that degrades nothing."""
SLOW_LINK_BITS_PER_S = 200_000_000


@dataclass(frozen=True)
class BandwidthArm:
    """One way to run collectives.

    Args:
        environment: variables of every rank.
        bridged: each rank lives in a network namespace of its own.
        bits_per_s: limit of each rank's link, where they are bridged.
        transports: of which the log has to show nothing else; empty: any.
    """

    name: str
    backend: str
    description: str
    environment: Mapping[str, str] = field(default_factory=dict)
    bridged: bool = False
    bits_per_s: int | None = None
    transports: tuple[str, ...] = ()


_NO_P2P = {"NCCL_P2P_DISABLE": "1"}
_NO_SHM = {"NCCL_SHM_DISABLE": "1"}

ARMS: Sequence[BandwidthArm] = (
    BandwidthArm(HEALTHY, NCCL, "as NCCL chooses, with NVLink multicast off"),
    BandwidthArm("p2p_off", NCCL, "no peer-to-peer access", _NO_P2P, transports=("SHM",)),
    BandwidthArm("shm_off", NCCL, "no shared host memory", _NO_SHM),
    BandwidthArm(
        "socket_only", NCCL, "sockets on loopback alone",
        {**_NO_P2P, **_NO_SHM, "NCCL_NET": "Socket"}, transports=("NET/Socket",),
    ),
    BandwidthArm(
        "one_channel", NCCL, "one channel",
        {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"},
    ),
    BandwidthArm("small_buffers", NCCL, "buffers of 64 KiB", {"NCCL_BUFFSIZE": "65536"}),
    BandwidthArm("algo_ring", NCCL, "rings alone", {"NCCL_ALGO": "Ring"}),
    BandwidthArm("algo_tree", NCCL, "trees, where a collective has any", {"NCCL_ALGO": "Tree"}),
    BandwidthArm("proto_simple", NCCL, "the protocol Simple", {"NCCL_PROTO": "Simple"}),
    BandwidthArm("proto_ll", NCCL, "the protocol LL", {"NCCL_PROTO": "LL"}),
    BandwidthArm(HEALTHY, GLOO, "loopback of one node"),
    BandwidthArm("bridge", GLOO, "a namespace for each rank, joined by a bridge", bridged=True),
    BandwidthArm(
        "slow_link", GLOO, "the same, each link limited to 200 Mbit/s",
        bridged=True, bits_per_s=SLOW_LINK_BITS_PER_S,
    ),
)  # fmt: skip


def choose_arms(names: Sequence[str], backend: str) -> tuple[list[BandwidthArm], dict[str, str]]:
    """The arms of these names that a backend has, all when none is named.

    Returns:
        Them, and for each named one that only the other backend has: why it can't be run.

    Raises:
        InputError: there is no such arm.
    """
    known = list(dict.fromkeys(arm.name for arm in ARMS))
    for name in names:
        if name not in known:
            raise InputError("arms", name, "no such arm", mend=f"Choose from {', '.join(known)}.")
    chosen = [arm for arm in ARMS if arm.backend == backend and (not names or arm.name in names)]
    missing = [name for name in known if name in names and name not in {a.name for a in chosen}]
    left_out = {f"arm {name}": f"The backend {backend} has no such arm." for name in missing}
    return chosen, left_out
