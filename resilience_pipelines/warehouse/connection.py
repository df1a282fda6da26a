"""Opening DuckDB files, and saying in this package's words what went wrong.

What belongs here: making the warehouse's file, the connection to it, waiting for its lock, and the
translation of DuckDB's errors. What does not: any statement.
"""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Final, TypeVar

import duckdb

from resilience_pipelines.durability import sync
from resilience_pipelines.errors import BusyError, CorruptError, InputError, StorageError
from resilience_pipelines.owned_folder import owned_folder, remove_orphans

LOCK_WAIT_S: Final = 30.0
_POLL_S = 0.2
_LOCKED = "Could not set lock"
_DAMAGED = ("not a valid DuckDB database file", "replaying WAL file")
_HOLDER = re.compile(r"\(PID (\d+)\)")
_MEND_WAREHOUSE = (
    "Move it away, and the .wal file beside it, and load again: everything is made from the "
    "landing folders."
)

T = TypeVar("T")

# Two connections of one process share DuckDB's lock, and would meet in each other's transactions.
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def open_warehouse(
    path: Path, *, lock_wait_s: float = LOCK_WAIT_S
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The warehouse, open for this thread alone.

    Raises:
        InputError: DuckDB can't have files at such a path.
        BusyError: another process or thread held it for all of `lock_wait_s`.
        CorruptError: the file is no DuckDB database.
        StorageError: it can't be opened.
    """
    if "?" in str(path):
        # DuckDB takes what follows for options when it names its write-ahead log.
        raise InputError(
            "home", str(path.parent), "DuckDB can't keep a file below a name with a question mark",
            mend="Choose another data home.",
        )  # fmt: skip
    deadline = time.monotonic() + lock_wait_s
    with alone_in_process(path, lock_wait_s):
        _prepare(path)
        connection = when_unlocked(lambda: duckdb.connect(str(path)), path, deadline)
        try:
            connection.execute("set TimeZone = 'UTC'")
            yield connection
        finally:
            connection.close()


def _prepare(path: Path) -> None:
    """Make the warehouse where there is none, and remove what a killed maker left.

    Raises:
        StorageError: it can't be written.
    """
    prefix = f".{path.name}-"
    try:
        remove_orphans(path.parent, f"{escape(prefix)}*")
        if not path.exists():
            _make(path, prefix)
    except duckdb.Error as error:
        raise storage_error(path, error) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(
            f"{path} can't be made ({error.strerror or error}).",
            mend="Free space on this file system." if full else "Check the path and its rights.",
        ) from error


def _make(path: Path, prefix: str) -> None:
    """An empty warehouse, whole or not at all: DuckDB opens no file that is only begun."""
    with owned_folder(path.parent / f"{prefix}{secrets.token_hex(4)}") as work:
        made = work / path.name
        duckdb.connect(str(made)).close()
        sync(made)
        with contextlib.suppress(FileExistsError):  # another process was faster
            path.hardlink_to(made)
    sync(path.parent)


@contextmanager
def alone_in_process(path: Path, lock_wait_s: float) -> Iterator[None]:
    """Keep other threads of this process from the warehouse.

    Raises:
        BusyError: another one kept it for all of `lock_wait_s`.
    """
    if not _ONE_AT_A_TIME.acquire(timeout=lock_wait_s):
        raise BusyError(
            f"{path} has been in use by another thread of this process for {lock_wait_s:g} s.",
            mend="Load, build and publish one after the other.",
        )
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


def when_unlocked(opening: Callable[[], T], path: Path, deadline: float) -> T:
    """Open a file, trying again until `deadline` (monotonic) while another process has it open.

    Raises:
        BusyError: it still has; names the process that DuckDB names.
        CorruptError: the file is no DuckDB database.
        StorageError: it can't be opened.
    """
    while True:
        try:
            return opening()
        except duckdb.Error as error:
            if not is_locked(str(error)):
                raise storage_error(path, error) from error
            if time.monotonic() >= deadline:
                raise busy_error(path, str(error)) from error
        time.sleep(_POLL_S)


def is_locked(message: str) -> bool:
    """Whether DuckDB's message says that another process has the file open."""
    return _LOCKED in message


def busy_error(path: Path, message: str) -> BusyError:
    """The error for a file that another process has open."""
    holder = _HOLDER.search(message)
    who = f"process {holder[1]}" if holder else "another process"
    return BusyError(
        f"{path} is open in {who}.",
        mend="Wait for it to end, or close it. To look at results, open the published file.",
    )


def storage_error(path: Path, error: duckdb.Error) -> StorageError | CorruptError:
    """The error for a DuckDB file that can't be read or written."""
    message = str(error).strip() or type(error).__name__
    first = message.splitlines()[0].rstrip(".")
    if is_full(message):
        return StorageError(
            f"{path} could not be written ({first}).", mend="Free space on this file system."
        )
    if any(words in message for words in _DAMAGED) or isinstance(
        error, duckdb.SerializationException | duckdb.FatalException | duckdb.InternalException
    ):
        return CorruptError(f"{path} can't be read ({first}).", mend=_MEND_WAREHOUSE)
    return StorageError(f"{path} can't be opened ({first}).", mend="Check the path and its rights.")


def is_full(message: str) -> bool:
    """Whether DuckDB's message says that there is no space."""
    return "No space left" in message or "out of disk space" in message.lower()
