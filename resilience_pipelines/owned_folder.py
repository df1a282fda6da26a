"""Temporary folders that can be told from what a killed process left behind.

What belongs here: making such a folder, and removing those whose owner is gone. The owner holds a
lock that dies with it, by whatever signal. What does not: what is put into them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LOCK_NAME = ".owner.lock"

UNLOCKED_AGE_S: Final = 60.0
"""A folder without a lock is being made, removed or given away, unless that was longer ago."""

_UNLOCKED_NAME = ".owner.lock.new"


@contextmanager
def owned_folder(folder: Path) -> Iterator[Path]:
    """Make a folder (0700) that is locked while the block runs and removed at its end.

    A folder that the block renames away is not removed.

    Raises:
        FileExistsError: it is there already.
    """
    folder.mkdir(mode=0o700)
    # Locked before it has its name: whoever finds the name finds the lock, or nobody alive.
    lock = os.open(folder / _UNLOCKED_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / _UNLOCKED_NAME).rename(folder / LOCK_NAME)
        yield folder
    finally:
        if folder.exists():
            shutil.rmtree(folder)
        os.close(lock)


def remove_orphans(parent: Path, pattern: str) -> list[Path]:
    """Remove the owned folders below `parent` that nobody owns any more; returns them.

    One whose owner was killed before it was locked goes a minute later (`UNLOCKED_AGE_S`).
    """
    removed = []
    for folder in sorted(parent.glob(pattern)):
        if folder.is_dir() and not folder.is_symlink() and not _owner_lives(folder):
            remove_tree(folder)
            removed.append(folder)
    return removed


def owned_by_the_living(parent: Path, pattern: str) -> list[Path]:
    """The owned folders below `parent` whose owner is at work."""
    return [folder for folder in sorted(parent.glob(pattern)) if _owner_lives(folder)]


def remove_tree(folder: Path) -> None:
    """Remove a folder, also while somebody else is removing it.

    Raises:
        OSError: something in it can't be removed.
    """

    def forgive(function: object, path: str, error: tuple[type, BaseException, object]) -> None:  # noqa: ARG001
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    shutil.rmtree(folder, onerror=forgive)


def _owner_lives(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return _is_young(folder)
    except NotADirectoryError:
        return False
    except PermissionError:
        return True  # another user's: who can't look must not take it for dead
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def _is_young(folder: Path) -> bool:
    try:
        return abs(time.time() - folder.lstat().st_mtime) < UNLOCKED_AGE_S
    except FileNotFoundError:
        return False
