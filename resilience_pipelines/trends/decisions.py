"""What people decided about changes of level: accepted, muted, or a note.

What belongs here: the file that keeps them, one line for each decision, only ever appended to. What
does not: finding changes (`change_points`), and what follows from a decision (the mart
`change_points`, `warehouse.stack_figures`).
"""

from __future__ import annotations

import errno
import fcntl
import os
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from resilience_pipelines.durability import sync
from resilience_pipelines.errors import CorruptError, StorageError
from resilience_pipelines.home import Home

FILE: Final = "change_decisions.jsonl"

Text = Annotated[str, Field(max_length=2000)]


class Choice(StrEnum):
    """What can be decided. The newest decision on a change counts."""

    ACCEPTED = "accepted"
    """The change is known and wanted: it no longer speaks against an upgrade."""
    MUTED = "muted"
    """Nobody wants to hear of it again: it is not listed, and speaks against nothing."""
    NOTED = "noted"
    """Something to know about it; it counts as before."""


class Decision(BaseModel):
    """One decision, as a line of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    change_id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    decision: Choice
    note: Text = ""
    decided_by: Annotated[str, Field(min_length=1, max_length=200)]
    decided_at: AwareDatetime


def decide(home: Home, change_id: str, choice: Choice, note: str, by: str) -> Decision:
    """Keep a decision.

    Raises:
        ValidationError: a value is not of its form.
        StorageError: it can't be written; what was decided before stays.
    """
    decision = Decision(
        change_id=change_id, decision=choice, note=note, decided_by=by, decided_at=datetime.now(UTC)
    )
    line = decision.model_dump_json().encode() + b"\n"
    path = home.root / FILE
    try:
        # Unbuffered: what a buffer still held after a failure would be written when it is closed.
        with path.open("ab", buffering=0) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            size = stream.seek(0, os.SEEK_END)
            try:
                if stream.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(stream.fileno())
            except OSError:
                # Half a line would make the file unreadable.
                stream.truncate(size)
                raise
        sync(home.root)  # the file may be new
    except OSError as error:
        raise StorageError(
            f"{path} can't be written ({error.strerror}).",
            mend="Check its rights and the free space; what was decided before is kept.",
        ) from error
    return decision


def decisions(home: Home) -> list[Decision]:
    """All decisions, the oldest first.

    Raises:
        CorruptError: a line is none; names it.
    """
    path = home.root / FILE
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(Decision.model_validate_json(line))
        except ValidationError as error:
            raise CorruptError(
                f"{path}, line {number}: it is no decision ({error.errors()[0]['msg']}).",
                mend="Mend or remove the line.",
            ) from error
    return found
