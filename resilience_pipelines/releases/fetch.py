"""Fetching one feed: with time-outs, a size limit, an ETag, and patience with a busy server.

What belongs here: from an address to bytes. What does not: what the bytes mean (`formats`).

Redirects are followed by hand: to https only (or from http to http), never to an address of the
machine's own network segment, where clouds keep their metadata, and never nearer to this machine
than they come from: what the world answers leads to no private network, and nothing to loopback.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

import httpx

from resilience_pipelines.addresses import (
    Destination,
    ForbiddenAddressError,
    Network,
    find_destination,
)
from resilience_pipelines.errors import DeadlineError, InputError, ResilienceError

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 15.0
DEADLINE_S: Final = 120.0
MAX_BYTES: Final = 16 * 2**20
MAX_REDIRECTS: Final = 5
FIRST_PAUSE_S: Final = 1.0

_BUSY: Final = frozenset({429, 500, 502, 503, 504})


class FetchError(ResilienceError):
    """A feed could not be fetched. Nothing is known to have changed."""


@dataclass(frozen=True)
class Fetched:
    """What came back.

    Attributes:
        body: None where the server says that nothing changed since `etag`.
        etag: to be given the next time; None where the server gives none.
    """

    body: bytes | None
    etag: str | None


def fetch(
    url: str,
    etag: str | None = None,
    *,
    deadline_s: float = DEADLINE_S,
    pause: Callable[[float], None] = time.sleep,
) -> Fetched:
    """Fetch a feed.

    Args:
        url: https, http, or a file on this machine as `file://`.
        etag: what the last fetch gave.
        deadline_s: limit of everything together, pauses before a new try included.
        pause: waits for so many seconds.

    Raises:
        InputError: an address of another kind.
        FetchError: the server refuses, answers with too much, or leads somewhere it may not.
        DeadlineError: it did not come in time.
    """
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return Fetched(_read_file(url), None)
    if scheme not in ("http", "https"):
        raise InputError(
            "url",
            url,
            "this is no address of a feed",
            mend="Give an https://, http:// or file:// one.",
        )
    end = time.monotonic() + deadline_s
    attempt = 0
    with httpx.Client(
        timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S), follow_redirects=False
    ) as client:
        while True:
            try:
                return _try(client, url, etag, end)
            except _BusyError as busy:
                wait_s = busy.retry_after_s
                if wait_s is None:
                    # Spread out, so that many machines do not come back in the same moment.
                    wait_s = FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311
                if time.monotonic() + wait_s >= end:
                    raise DeadlineError(f"{url}: {busy}, and {deadline_s:g} s are over.") from busy
                pause(wait_s)
                attempt += 1


class _BusyError(Exception):
    """The server asks to come again, or could not be reached."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


def _try(client: httpx.Client, url: str, etag: str | None, end: float) -> Fetched:
    headers = {"If-None-Match": etag} if etag else {}
    nearest = Network.LOOPBACK
    for _ in range(MAX_REDIRECTS + 1):
        found = _find(url, nearest)
        nearest = found.network
        try:
            with client.stream(
                "GET", found.url, headers=headers | dict(found.headers),
                extensions=dict(found.extensions),
            ) as response:  # fmt: skip
                if response.is_redirect and response.status_code != httpx.codes.NOT_MODIFIED:
                    url = _next(url, response.headers.get("Location", ""))
                    continue
                return _answer(url, response, end)
        except httpx.TransportError as error:
            raise _BusyError(f"it can't be reached ({error!r})") from error
    raise FetchError(f"{url}: more than {MAX_REDIRECTS} redirects.")


def _answer(url: str, response: httpx.Response, end: float) -> Fetched:
    status = response.status_code
    if status == httpx.codes.NOT_MODIFIED:
        return Fetched(None, response.headers.get("ETag"))
    if status in _BUSY:
        raise _BusyError(f"status {status}", _retry_after_s(response.headers.get("Retry-After")))
    if status != httpx.codes.OK:
        raise FetchError(f"{url}: status {status}.", mend="Is the address still the right one?")
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise FetchError(f"{url}: more than {MAX_BYTES} bytes.")
        if time.monotonic() > end:
            raise DeadlineError(f"{url}: it came too slowly.")
    return Fetched(bytes(body), response.headers.get("ETag"))


def _next(url: str, location: str) -> str:
    target = urljoin(url, location)
    old, new = urlsplit(url).scheme, urlsplit(target).scheme
    if not location or new not in (old, "https"):
        raise FetchError(f"{url}: a redirect to {location!r} is not followed.")
    return target


def _find(url: str, nearest: Network) -> Destination:
    try:
        return find_destination(url, nearest=nearest)
    except ForbiddenAddressError as error:
        raise FetchError(f"{url}: no feed is at an address like {error}.") from error
    except OSError as error:
        raise _BusyError(f"it can't be reached ({error!r})") from error
    except (ValueError, httpx.InvalidURL) as error:
        raise FetchError(f"{url}: this is no address of a feed ({error}).") from error


def _retry_after_s(text: str | None) -> float | None:
    """Seconds, from a number or a date."""
    if not text:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return None


def _read_file(url: str) -> bytes:
    path = Path(url2pathname(urlsplit(url).path))
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FetchError(f"{url}: more than {MAX_BYTES} bytes.")
        return path.read_bytes()
    except OSError as error:
        raise FetchError(
            f"{url}: {error.strerror}.", mend="Give a file that can be read."
        ) from error
