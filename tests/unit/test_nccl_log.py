"""What NCCL's log says of its connections, in the forms that its releases have used."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_pipelines.collectives.nccl_log import transports, version

LOG = (Path(__file__).parent / "data/nccl-transports.log").read_text().splitlines()


def test_all_transports_are_found_and_networks_named_with_their_kind() -> None:
    assert transports(LOG) == ("NET/IB", "NET/Socket", "P2P", "SHM")
    assert version(LOG) == "2.27.5"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Channel 14/0 : 15[7] -> 0[0] [send] via NET/Socket/0", ("NET/Socket",)),
        ("Channel 05 : 11[3] -> 12[4] via SHM/direct/direct", ("SHM",)),
        ("Channel 07/0 : 6[6] -> 7[7] via P2P/direct pointer", ("P2P",)),
        ("Ring 00 : 12[41000] -> 11[2d000] via P2P/IPC", ("P2P",)),
        ("NET/IB : No device found.", ()),
        ("NET/Socket : Using [0]eth0:10.0.0.1<0>", ()),
        ("Connected all rings", ()),
    ],
)
def test_only_connections_tell_a_transport(text: str, expected: tuple[str, ...]) -> None:
    assert transports([f"node-a:1:2 [0] NCCL INFO {text}"]) == expected


def test_no_log_tells_nothing() -> None:
    assert transports([]) == ()
    assert version([]) is None
