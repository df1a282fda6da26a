"""Addresses on the network that nothing here has any business with.

What belongs here: telling them from a host's name. What does not: refusing them (`alerts`,
`releases.fetch`), which each says in its own words.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket


def own_segment_address(host: str) -> str | None:
    """An address of a host that only its own network segment knows, where there is one.

    Link-local addresses are where clouds give out the credentials of machines. Multicast and the
    unspecified address are nobody's. A host whose name can't be resolved here has none: it is a
    proxy's business, or fails in a moment.
    """
    with contextlib.suppress(OSError, UnicodeError):
        for *_, (found, *_rest) in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            address = ipaddress.ip_address(str(found).partition("%")[0])
            if address.is_link_local or address.is_multicast or address.is_unspecified:
                return str(address)
    return None
