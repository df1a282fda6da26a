"""Which stacks are being measured at this moment, as every process of a data home can see it.

What belongs here: the note that a job leaves in its own work folder, and reading the notes of all.
What does not: starting and ending jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import ValidationError

from resilience_pipelines.home import Home
from resilience_pipelines.owned_folder import owned_by_the_living
from resilience_pipelines.stack import Stack

FOLDERS: Final = "*-*-????????"
"""Names of jobs' folders below `Home.work`: each is its run's ID."""

_NOTE: Final = "stack.json"


def note_stack(work: Path, stack: Stack) -> None:
    """Say in a job's own work folder which stack it measures."""
    (work / _NOTE).write_text(stack.model_dump_json())


def running_stacks(home: Home) -> list[Stack]:
    """The stack of every job that is at work and knows it already."""
    found = []
    for folder in owned_by_the_living(home.work, FOLDERS):
        try:
            found.append(Stack.model_validate_json((folder / _NOTE).read_bytes()))
        except (OSError, ValidationError):
            continue  # it begins, ends, is just writing its note, or is another user's
    return found
