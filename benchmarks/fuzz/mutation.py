"""Making bad input out of good input: bytes, text and JSON, each in its own way.

What belongs here: mutations, all drawn from a `random.Random`, so that a seed names an input. What
does not: running anything on them (`engine`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Any, Final

MAX_BYTES: Final = 400_000
"""Inputs are cut at this: limits on size have tests of their own."""


class Form(StrEnum):
    """What an input is, which decides how it is broken."""

    BINARY = "binary"
    TEXT = "text"
    JSON = "json"


NUMBERS: Final = (
    b"0", b"-1", b"-0", b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity", b"-Infinity", b"nan",
    b"inf", b"2147483648", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551616", b"9" * 400, b"9" * 5000, b"0x10", b"1_000", b"00012", b"1.5", b"1e3",
    "\u0661\u0662".encode(), "\u00b2".encode(), b"true", b"null", b"99999999999",
)  # fmt: skip
WORDS: Final = (
    b"", b" ", b"../../../etc/passwd", b"/etc/passwd", b"..", b".", b"a/../b", b"..\\..\\x",
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\\ud800", b"\\u0000", b"\r\n",
    "\u2028".encode(), "\u202e".encode(), b"\x1b[31m", b"\x0b\x0c\x1c", b"<script>1</script>",
    b"' or 1=1; drop table x; --", b"'\"`", b"$(id)", b"${jndi:ldap://x}", b"{{7*7}}", b"%s%n%x",
    b"__proto__", b"None", b"null", b"A" * 5000, b"\n" * 300, b"{", b"[", b"]", b"}", b":", b",",
    b"*?[a]", b"-rf", b"--help", b"2026-02-30", b"9999-12-31T23:59:59.999999+23:59",
    b"0001-01-01T00:00:00-23:59", b"2026-03-02T09:00:00",
)  # fmt: skip
NESTED: Final = (
    b"[" * 5000, b"[" * 5000 + b"]" * 5000, b'{"a":' * 5000, b"(" * 3000, b"<a>" * 3000,
    b"[" * 990 + b"]" * 990, b'{"a":' * 900 + b"1" + b"}" * 900,
)  # fmt: skip
_NUMBER: Final = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")


def mutate(random: Random, seeds: Sequence[bytes], form: Form) -> bytes:
    """One bad input, made from one or two good ones by one to four changes."""
    content = random.choice(seeds)
    if form is Form.JSON and random.random() < 0.75:
        changed = _mutate_json(random, content)
        if changed is not None:
            # Damage to the text besides would mostly hide the change.
            return changed[:MAX_BYTES]
    kinds = _OF_BYTES if form is Form.BINARY else _OF_BYTES + _OF_TEXT
    for _ in range(random.choice((1, 1, 2, 4))):
        content = random.choice(kinds)(random, content, seeds)
    return content[:MAX_BYTES]


def _place(random: Random, content: bytes) -> int:
    return random.randrange(len(content) + 1)


def _flip(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    del seeds
    if not content:
        return content
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 3, 16))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    del seeds
    return content[: _place(random, content)]


def _take_out(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    del seeds
    begin = _place(random, content)
    return content[:begin] + content[begin + random.choice((1, 4, 64, 1024)) :]


def _repeat(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    del seeds
    begin = _place(random, content)
    end = begin + random.choice((1, 8, 80, 2000))
    times = random.choice((2, 2, 3, 50))
    return content[:begin] + content[begin:end] * times + content[end:]


def _noise(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    del seeds
    begin = _place(random, content)
    return content[:begin] + random.randbytes(random.choice((1, 4, 32))) + content[begin:]


def _splice(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    other = random.choice(seeds)
    return content[: _place(random, content)] + other[_place(random, other) :]


def _insert(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    del seeds
    begin = _place(random, content)
    return content[:begin] + random.choice(NUMBERS + WORDS + NESTED) + content[begin:]


def _renumber(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    """Another number where there is one."""
    del seeds
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    match = random.choice(found)
    return content[: match.start()] + random.choice(NUMBERS) + content[match.end() :]


def _shuffle_lines(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    del seeds
    lines = content.split(b"\n")
    first, second = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(3):
        case 0:
            lines[first], lines[second] = lines[second], lines[first]
        case 1:
            lines.insert(second, lines[first])
        case _:
            del lines[first]
    return b"\n".join(lines)


_OF_BYTES: Final = (_flip, _cut, _take_out, _repeat, _noise, _splice)
_OF_TEXT: Final = (_insert, _renumber, _shuffle_lines)


class _Raw:
    """Text that stands in JSON as it is, right or wrong."""

    def __init__(self, text: bytes) -> None:
        self.text = text.decode(errors="surrogateescape")


class _Pairs(list[Any]):
    """An object as a list of its pairs, so that a name can be there twice."""


def _mutate_json(random: Random, content: bytes) -> bytes | None:
    """JSON of another structure; None where the input is none."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    at = random.randrange(len(lines)) if lines else 0
    try:
        tree = json.loads(lines[at], object_pairs_hook=_Pairs)
    except (ValueError, IndexError, RecursionError):
        return None
    root = [tree]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _change_node(random, root)
    lines[at] = _dump(root[0]).encode(errors="surrogateescape")
    return b"\n".join(lines)


def _nodes(root: list[Any]) -> list[tuple[list[Any], int]]:
    """Every place that holds a value: a list and an index; in `_Pairs` of the pair."""
    found: list[tuple[list[Any], int]] = []
    waiting = [root]
    while waiting:
        holder = waiting.pop()
        for index, item in enumerate(holder):
            found.append((holder, index))
            value = item[1] if isinstance(holder, _Pairs) else item
            if isinstance(value, list):
                waiting.append(value)
    return found


def _change_node(random: Random, root: list[Any]) -> None:
    places = _nodes(root)
    holder, index = random.choice(places)
    if isinstance(holder, _Pairs):
        name, value = holder[index]
        match random.randrange(6):
            case 0:
                del holder[index]
            case 1:  # the same name again, with another value
                holder.insert(random.randrange(len(holder) + 1), (name, _nasty(random, value)))
            case 2:
                holder[index] = (random.choice((name + "x", "", "__class__", "\ud800")), value)
            case 3:
                other, at = random.choice(places)
                taken = other[at][1] if isinstance(other, _Pairs) else other[at]
                # A copy: a node below itself would have no end.
                holder[index] = (name, _Raw(_dump(taken).encode(errors="surrogateescape")))
            case _:
                holder[index] = (name, _nasty(random, value))
    else:
        match random.randrange(4):
            case 0 if holder is not root:
                del holder[index]
            case 1 if holder is not root:
                holder.insert(index, holder[index])
            case _:
                holder[index] = _nasty(random, holder[index])


def _nasty(random: Random, value: Any) -> Any:
    """A value in the place of another: mostly of its own type, else of any."""
    kind = random.random()
    if kind < 0.45 and isinstance(value, int | float) and not isinstance(value, bool):
        return _Raw(random.choice(NUMBERS))
    if kind < 0.45 and isinstance(value, str):
        word = random.choice(WORDS)
        mixed = random.choice((word, value.encode(errors="replace") + word))
        return _quoted(mixed)
    if kind < 0.55:
        return _Raw(random.choice(NESTED))
    return random.choice(
        (None, True, False, 0, -1, 1.5, "", "1", "true", [], {}, [value], _Pairs([("a", value)]),
         _Raw(random.choice(NUMBERS)), _quoted(random.choice(WORDS)))
    )  # fmt: skip


def _quoted(word: bytes) -> _Raw:
    """A JSON string of a word, with escapes that the word itself holds left as they are."""
    text = word.decode(errors="surrogateescape")
    inner = re.sub(r'["\x00-\x1f]', lambda match: f"\\u{ord(match[0]):04x}", text)
    return _Raw(f'"{inner}"'.encode(errors="surrogateescape"))


def _dump(node: Any) -> str:
    if isinstance(node, _Raw):
        return node.text
    if isinstance(node, _Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{_dump(value)}" for name, value in node) + "}"
    if isinstance(node, list):
        return "[" + ",".join(map(_dump, node)) + "]"
    return json.dumps(node)
