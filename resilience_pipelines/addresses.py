"""Where a request may go, and going to the very address that was looked at.

What belongs here: telling networks apart, and from a URL to the address that is connected to. What
does not: refusing one (`alerts`, `releases.fetch`), which each says in its own words.

A name is looked up once: were it looked up again for the connection, whoever answers for it could
name a harmless address first and the machine's own network afterwards.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpx

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Link-local addresses are where most clouds give out the credentials of machines. These are where
# the others do: AWS over IPv6, Alibaba, Oracle, Azure's host.
_METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class Network(IntEnum):
    """How far an address can be reached from; a lower one is nearer to this machine."""

    LOOPBACK = 1
    PRIVATE = 2
    PUBLIC = 3


class ForbiddenAddressError(Exception):
    """Nothing here has any business with an address of that kind. Holds the address alone."""


@dataclass(frozen=True)
class Destination:
    """How to send a request to the address that was looked at.

    Attributes:
        url: with the address in the place of the name, where no proxy stands between.
        headers: name the host, as the URL did.
        extensions: of httpx: the name that a certificate has to have.
    """

    url: str
    headers: Mapping[str, str]
    extensions: Mapping[str, str]
    network: Network


def find_destination(url: str, *, nearest: Network = Network.LOOPBACK) -> Destination:
    """Look a URL's host up, and refuse addresses that it must not lead to.

    A loopback address has to be written as one (or as `localhost`): a name that somebody else
    answers for does not lead there. Through a proxy of the environment the proxy does the rest.

    Args:
        nearest: nothing nearer than this is gone to: where a URL comes from an answer, what the
            answer came from.

    Raises:
        ForbiddenAddressError
        OSError: the name is not known.
        ValueError: it is no URL with a host.
    """
    parsed = httpx.URL(url)
    if not parsed.host:
        raise ValueError("the URL has no host")
    proxied = parsed.scheme in getproxies() and not proxy_bypass(parsed.host)
    try:
        addresses = look_up(parsed.host)
    except OSError:
        if not proxied:
            raise
        return Destination(url, {}, {}, Network.PUBLIC)
    network = min(network_of(address) for address in addresses)
    if network < nearest:
        raise ForbiddenAddressError(str(addresses[0]))
    if proxied:
        return Destination(url, {}, {}, network)
    return Destination(
        str(parsed.copy_with(host=str(addresses[0]))),
        {"Host": parsed.netloc.decode("ascii")},
        {"sni_hostname": parsed.host},
        network,
    )


def look_up(host: str) -> list[_Address]:
    """The addresses of a host, none of which is forbidden.

    Raises:
        ForbiddenAddressError: one is.
        OSError: the name is not known.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError("it is no name of a host") from error
    written = host.rstrip(".").lower()
    addresses = []
    for *_, (text, *_rest) in found:
        address = ipaddress.ip_address(str(text).partition("%")[0])
        if is_forbidden(address):
            raise ForbiddenAddressError(str(address))
        if network_of(address) is Network.LOOPBACK and not _is_written_as_loopback(written):
            raise ForbiddenAddressError(str(address))
        addresses.append(address)
    if not addresses:
        raise OSError("the name has no address")
    return addresses


def is_forbidden(address: _Address) -> bool:
    """Whether it is one that only its own network segment knows, a cloud's own, or nobody's."""
    inner = _plain(address)
    return (
        inner.is_link_local or inner.is_multicast or inner.is_unspecified or inner in _METADATA
    )  # fmt: skip


def network_of(address: _Address) -> Network:
    """How far an address can be reached from."""
    inner = _plain(address)
    if inner.is_loopback:
        return Network.LOOPBACK
    return Network.PUBLIC if inner.is_global else Network.PRIVATE


def _plain(address: _Address) -> _Address:
    """The address of IPv4 that one of IPv6 stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_written_as_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
