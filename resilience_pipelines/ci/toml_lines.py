"""Where a value stands in a TOML file, for errors that a person can follow.

What belongs here: from a path of keys to a line. What does not: what the keys mean.

The standard parser tells no positions, so it is asked: the first beginning of the file that has the
value ends where the value does. It is halved in on, and the parser is asked so often at most that a
file without end costs no more than a moment; the line is near the value then.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any, Final

MAX_ASKED: Final = 60
_MISSING: Final = object()


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line, counted from 1, on which a value begins; of its table where there is no value.

    Args:
        text: a TOML file that can be parsed.
        path: keys, and indices of arrays, from the top.
    """
    lines = text.split("\n")  # nothing else ends a line of TOML
    whole = tomllib.loads(text)
    while path and _at(whole, path) is _MISSING:
        path = path[:-1]
    if not path:
        return 1
    begin, end = 0, len(lines)  # beginnings of so many lines: one lacks the value, one has it
    asked = 0
    while end - begin > 1 and asked < MAX_ASKED:
        middle = (begin + end) // 2
        while middle < end and asked < MAX_ASKED:
            asked += 1
            try:
                found = tomllib.loads("\n".join(lines[:middle]))
            except ValueError:
                middle += 1  # within a value of several lines
                continue
            if _at(found, path) is _MISSING:
                begin = middle
            else:
                end = middle
            break
        else:
            if middle >= end:
                # All from the middle on is one value: look in what comes before it.
                end = (begin + end) // 2
    while begin < len(lines) - 1 and _says_nothing(lines[begin]):
        begin += 1
    return begin + 1


def _says_nothing(line: str) -> bool:
    return line.strip() == "" or line.lstrip().startswith("#")


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value
