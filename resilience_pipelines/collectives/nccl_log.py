"""Reading NCCL's own log (NCCL_DEBUG=INFO): which transport carries the channels.

What belongs here: the lines of connections, of NCCL 2.7 to 2.29. What does not: asking for a
transport (`arms`). NCCL variables are wishes; what the log says of a connection is what was built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read"; older: "Channel 00 : ...", "Ring 00 : ...";
# a receiver's line ends its ranks with "[receive]", a sender's to a network with "[send]".
_CONNECTION = re.compile(
    r"NCCL INFO (?:Channel|Ring) \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\]"
    r"(?: \[(?:send|receive)\])? via (?P<transport>[\w/]+(?: pointer)?)"
)
_VERSION = re.compile(r"NCCL version (?P<version>[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4})")


def transports(lines: Iterable[str]) -> tuple[str, ...]:
    """The transports of all connections, each once, in order of their names.

    A network is named with its kind, as in `NET/Socket` or `NET/IB`; others alone: `P2P`, `SHM`.
    """
    found = set()
    for line in lines:
        match = _CONNECTION.search(line)
        if match:
            parts = match["transport"].split("/")
            found.add("/".join(parts[:2]) if parts[0] == "NET" else parts[0])
    return tuple(sorted(found))


def version(lines: Iterable[str]) -> str | None:
    """The version of NCCL, as it names itself."""
    return next((match["version"] for line in lines if (match := _VERSION.search(line))), None)
