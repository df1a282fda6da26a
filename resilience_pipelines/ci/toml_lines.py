"""Where a value stands in a TOML file, for errors that a person can follow.

What belongs here: from a path of keys to a line. What does not: what the keys mean.

The standard parser tells no positions, so it is asked: the first beginning of the file that has the
value ends where the value does. That is slow and only done for a file that is wrong.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any, Final

_MISSING: Final = object()


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line, counted from 1, on which a value begins; of its table where there is no value.

    Args:
        text: a TOML file that can be parsed.
        path: keys, and indices of arrays, from the top.
    """
    lines = text.splitlines()
    whole = tomllib.loads(text)
    while path and _at(whole, path) is _MISSING:
        path = path[:-1]
    if not path:
        return 1
    begin = 0  # lines of the longest beginning that lacks the value
    for end in range(1, len(lines) + 1):
        try:
            found = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # within a value of several lines
        if _at(found, path) is not _MISSING:
            break
        begin = end
    while lines[begin].strip() == "" or lines[begin].lstrip().startswith("#"):
        begin += 1
    return begin + 1


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value
