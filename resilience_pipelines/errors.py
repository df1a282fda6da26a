"""The errors a caller may want to tell apart, and the exit code that each one means.

What belongs here: error classes shared by several modules. What does not: errors that only one
module raises and handles, and the reason codes of snapshots and faults, which are data in a record.
"""

from __future__ import annotations

from typing import ClassVar, Final

_SHOWN_CHARACTERS: Final = 2000


class ResilienceError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        reason: what is wrong, with the value that is wrong.
        mend: what the reader can do about it; empty where nothing can be done.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, reason: str, *, mend: str = "") -> None:
        super().__init__(f"{reason} {mend}".strip())
        self.reason = reason
        self.mend = mend


class InputError(ResilienceError):
    """A value that a caller gave is not one that can be used.

    Args:
        field: the option, key or argument, as the caller spells it.
        value: what was given.
        reason: why it can't be used.
        mend: what to give instead.

    Attributes:
        why: the reason alone, for whoever tells of the field by another name.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, reason: str, *, mend: str) -> None:
        super().__init__(f"{field} = {_shown(value)}: {reason}.", mend=mend)
        self.field = field
        self.value = value
        self.why = reason


def _shown(value: object) -> str:
    """A value as it was given, as far as a message has room for it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, a list without a bottom
        return f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


class UnsupportedError(ResilienceError):
    """This machine can't do what was asked, for a reason that is not the caller's fault."""

    exit_code = 3


class BusyError(ResilienceError):
    """Something else holds what is needed (a lock, a port); trying again later may help."""

    exit_code = 4


class StorageError(ResilienceError):
    """A file could not be written or read: no space, no permission, an I/O error."""

    exit_code = 5


class CorruptError(ResilienceError):
    """Stored data is not what was written: a hash, a size or a schema does not match."""

    exit_code = 6


class DeadlineError(ResilienceError):
    """A wait ended without what it waited for."""

    exit_code = 7


class Stopped(SystemExit):
    """An operator ended this process by a signal; what was measured so far is worth keeping.

    A `SystemExit`, so that every owner on the way out ends what it started.
    """
