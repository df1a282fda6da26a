"""Opening a file that may have been put there by somebody else, or that a person names.

What belongs here: that what is read is a file, and no more of it than is wanted. What does not:
what it holds. A pipe that nobody writes to is not waited for; a link is followed where a person
names it, and nowhere else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from resilience_pipelines.errors import InputError


class NotPlainError(OSError):
    """It is a link, a pipe, a device, a socket or a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is no plain file", str(path))


@contextmanager
def open_plain(path: Path) -> Iterator[BufferedReader]:
    """A plain file for reading.

    Raises:
        FileNotFoundError: there is none.
        NotPlainError: it is something else.
        OSError: it can't be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotPlainError(path) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotPlainError(path)
        file = os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
    with file:
        yield file


def read_plain(path: Path, limit_bytes: int) -> bytes:
    """The beginning of a plain file: all of it, or one byte more than the limit.

    Raises:
        FileNotFoundError: there is none.
        NotPlainError: it is something else.
        OSError: it can't be read.
    """
    with open_plain(path) as file:
        return file.read(limit_bytes + 1)


def read_named(field: str, path: Path, limit_bytes: int) -> bytes:
    """The beginning of a file that a person names: all of it, or one byte more than the limit.

    Args:
        field: what the person calls it.

    Raises:
        InputError: it is no file, or can't be read.
    """
    mend = "Give a readable file."
    if not path.is_file():
        raise InputError(field, str(path), "it is no file", mend=mend)
    try:
        with path.open("rb") as file:
            return file.read(limit_bytes + 1)
    except OSError as error:
        raise InputError(
            field, str(path), f"it can't be read ({error.strerror})", mend=mend
        ) from error
