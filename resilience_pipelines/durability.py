"""Putting what was written on the disk, before anything is said to be there.

What belongs here: that call, making folders, and replacing a small file as a whole. What does not:
formats of several files, each of which has its own order of writing, syncing and renaming.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

TAKE_DEADLINE_S: Final = 30.0
"""How long to wait for another writer of the same file."""

_TAKE_POLL_S = 0.01
_UNFINISHED = ".resilience-new"


def sync(path: Path) -> None:
    """Wait until a file's or folder's content is on the disk.

    Raises:
        OSError
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, each on the disk when this returns.

    Raises:
        OSError: one can't be made.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def replace_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Make a file hold a text as `replace_file` does; its folder is made if its parent is there."""
    if path.parent.parent.is_dir():
        make_folder(path.parent)
    replace_file(path, text.encode(), mode=mode)


def replace_file(path: Path, content: bytes, *, mode: int | None = 0o600) -> None:
    """Make a file hold this, in one step: a reader finds the old content or the new one.

    A writer that is killed leaves a hidden file beside it, one at most, which the next writer of
    the same file takes over and `remove_unfinished` removes.

    Args:
        mode: the file's, from the moment that it is there; None: as the umask has it.

    Raises:
        OSError: it can't be written; what was there before stays, and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}{_UNFINISHED}")
    handle = _take(temporary, 0o666 if mode is None else mode)
    with os.fdopen(handle, "wb") as stream:
        try:
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            # While it is ours: afterwards somebody else may write a file of this name.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    sync(path.parent)


def remove_unfinished(folder: Path, below: str = "") -> list[Path]:
    """Remove what killed writers left in a folder, or in those that `below` finds in it.

    Args:
        below: a pattern that ends in a slash, e.g. `*/`.

    Raises:
        OSError
    """
    removed = []
    for path in folder.glob(f"{below}.*{_UNFINISHED}"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # it is being written
            # It may have been renamed since, and this name be another's. A writer that had not
            # locked its file yet makes another.
            if os.fstat(stream.fileno()).st_ino == path.lstat().st_ino:
                path.unlink()
                removed.append(path)
    return removed


def _take(path: Path, mode: int) -> int:
    """An empty file that this process alone writes, until it closes or renames it."""
    deadline = time.monotonic() + TAKE_DEADLINE_S
    while True:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            # The lock dies with its owner. The file may be another one's that was renamed since.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == path.lstat().st_ino:
                os.ftruncate(handle, 0)
                return handle
        except (BlockingIOError, FileNotFoundError):
            if time.monotonic() > deadline:
                os.close(handle)
                raise
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        time.sleep(_TAKE_POLL_S)
