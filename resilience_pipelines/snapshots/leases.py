"""Leases: what keeps a prune from taking what a put is about to name.

What belongs here: taking turns through objects of the repository itself, since its writers share
nothing else. What does not: what is done under a lease (`repository`).

A put says that it is there before it looks which chunks are stored already, and a prune says so
before it looks for puts; each gives way to the other that it finds. Whoever looks second finds the
first, so that never both go on. It takes a storage that shows a write to every later read, as POSIX
file systems and S3 do. Many puts go on at once. A lease that its owner no longer renews runs out:
clocks have to agree within `MARGIN_S`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from resilience_pipelines import strict_json
from resilience_pipelines.errors import BusyError, CorruptError
from resilience_pipelines.snapshots.storage import Storage

FOLDER: Final = "leases/"
LIFETIME_S: Final = 600.0
MARGIN_S: Final = 120.0
WAIT_S: Final = 300.0
_POLL_S: Final = 0.5


class Purpose(StrEnum):
    """Who holds a lease. Those of one kind don't disturb each other."""

    PUT = "put"
    PRUNE = "prune"


class Lease:
    """A lease that is held. `check` before anything that would be wrong without it."""

    def __init__(self, storage: Storage, name: str, clock: Callable[[], float]) -> None:
        self._storage = storage
        self._name = name
        self._clock = clock
        self._ends_at = 0.0
        self._write()

    def check(self) -> None:
        """Renew it in good time.

        Raises:
            BusyError: it has run out, and another may have acted on that.
        """
        left = self._ends_at - self._clock()
        if left <= 0:
            raise BusyError(
                f"This process stood still for over {LIFETIME_S:.0f} s and lost its turn in the "
                "repository.",
                mend="Run it again: what it has written is not written again.",
            )
        if left < LIFETIME_S / 2:
            self._write()

    def release(self) -> None:
        """Give it back."""
        self._storage.delete(self._name)

    def _write(self) -> None:
        ends_at = self._clock() + LIFETIME_S
        self._storage.put(self._name, json.dumps({"ends_at": ends_at}).encode())
        self._ends_at = ends_at


class Leases:
    """The leases of one repository.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.time) -> None:
        self._storage = storage
        self._clock = clock

    @contextmanager
    def hold(self, purpose: Purpose, *, wait_s: float = WAIT_S) -> Iterator[Lease]:
        """Hold a lease while the block runs.

        Raises:
            BusyError: others hold leases of the other kind, for longer than `wait_s`.
        """
        other = Purpose.PRUNE if purpose is Purpose.PUT else Purpose.PUT
        deadline = time.monotonic() + wait_s
        while True:
            lease = Lease(self._storage, f"{FOLDER}{purpose}-{secrets.token_hex(8)}", self._clock)
            try:
                if not self._held(other):
                    yield lease
                    return
            finally:
                lease.release()
            if time.monotonic() > deadline:
                raise BusyError(
                    f"{self._storage.address} is in use: somebody's {other} has been under way "
                    f"for {wait_s:.0f} s.",
                    mend=f"Wait. A {other} that was killed stands in the way for at most "
                    f"{LIFETIME_S + MARGIN_S:.0f} s.",
                )
            time.sleep(_POLL_S)

    def remove_expired(self) -> None:
        """Remove the leases of owners that are gone."""
        for name in self._storage.sizes(FOLDER):
            if self._ended(name):
                self._storage.delete(name)

    def _held(self, purpose: Purpose) -> bool:
        names = self._storage.sizes(FOLDER)
        return any(
            name.startswith(f"{FOLDER}{purpose}-") and not self._ended(name) for name in names
        )

    def _ended(self, name: str) -> bool:
        try:
            content = self._storage.get(name)
            if content is None:
                return True
            ends_at = strict_json.loads(content)["ends_at"]
        except (CorruptError, ValueError, KeyError, TypeError):
            return False  # who can't read a lease must not take it for void
        if isinstance(ends_at, bool) or not isinstance(ends_at, int | float):
            return False
        return bool(self._clock() - MARGIN_S > ends_at)
