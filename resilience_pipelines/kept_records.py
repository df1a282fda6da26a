"""Records that the data home keeps, one in a file each.

What belongs here: reading all of a kind. What does not: what they hold, and writing one
(`durability.replace_text`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from resilience_pipelines.errors import CorruptError

Kept = TypeVar("Kept", bound=BaseModel)


def read_records(paths: Iterable[Path], kind: type[Kept], *, mend: str) -> list[Kept]:
    """The records of these files, in the order of their paths.

    Args:
        mend: what to do with a file that can't be read.

    Raises:
        CorruptError: a file can't be read; names it.
    """
    found = []
    for path in sorted(paths):
        try:
            found.append(kind.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            raise CorruptError(
                f"{path} can't be read ({str(error).splitlines()[0]}).", mend=mend
            ) from error
    return found
