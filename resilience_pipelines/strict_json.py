"""Reading JSON from outside: what is ambiguous or no JSON is refused, and nothing overflows.

What belongs here: from bytes to plain values. What does not: what they mean. The standard parser
takes the last of two equal names, numbers that are none (`NaN`, `Infinity`, `1e400`), halves of
characters that no text can hold, and nesting that whoever walks it later has no stack for.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

MAX_DEPTH: Final = 200
"""Of lists and objects inside each other. Nothing that is read here comes near it."""

_CONTAINERS: Final = (list, dict)
_HALF_CHARACTER: Final = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")


def loads(content: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is no JSON, or ambiguous.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_depth(value)
    if (not text.isascii() or "\\u" in text) and _HALF_CHARACTER.search(text):
        # A pair of halves is a character; one alone can't be encoded, which is a ValueError.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:100]!r} is there twice in one object")
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:50]} is too large")
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return
    raise ValueError("it is nested too deeply")
