"""A look for well-known secrets in an image, which holds all that its processes had in memory.

What belongs here: the forms of keys and tokens that can be told by themselves, and where in an
image they are. What does not: what is done about them. A finding never holds the secret.

Nothing found is no proof that there is none: passwords and most keys look like anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from resilience_pipelines.plain_files import open_plain

_WINDOW_BYTES: Final = 16 * 2**20
_LONGEST_BYTES: Final = 8192
"""Windows overlap by this, more than any form is long, so that no secret is cut in two."""


@dataclass(frozen=True)
class Form:
    """What one kind of secret looks like.

    Attributes:
        beginnings: what it starts with; quick to look for.
        pattern: all of it, from its beginning on.
    """

    kind: str
    beginnings: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


def _form(kind: str, pattern: bytes, *beginnings: bytes) -> Form:
    return Form(kind, beginnings, re.compile(pattern))


# As their issuers document them or hand them out. A header of a private key alone is in every
# library that can write one; only with a body after it is it a key.
FORMS: Final = (
    _form(
        "private_key",
        rb"-----BEGIN (?:[A-Z]{2,9} )?PRIVATE KEY-----[\r\n]+(?:[\x20-\x7e]{1,76}[\r\n]+){0,4}"
        rb"[A-Za-z0-9+/=]{40,76}[\r\n]",
        b"-----BEGIN ",
    ),
    _form("aws_access_key", rb"A[KS]IA[A-Z2-7]{16}(?![A-Za-z0-9])", b"AKIA", b"ASIA"),
    _form(
        "github_token",
        rb"(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{82})(?![A-Za-z0-9_])",
        b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_",
    ),
    _form("gitlab_token", rb"glpat-[A-Za-z0-9_-]{20}", b"glpat-"),
    _form("hugging_face_token", rb"hf_[A-Za-z0-9]{34}(?![A-Za-z0-9_])", b"hf_"),
    _form("nvidia_api_key", rb"nvapi-[A-Za-z0-9_-]{60}", b"nvapi-"),
    _form("google_api_key", rb"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])", b"AIza"),
    _form("slack_token", rb"xox[abprs]-[0-9]{8,}-[A-Za-z0-9-]{16,}", b"xox"),
    _form(
        "json_web_token",
        rb"eyJ[A-Za-z0-9_-]{12,2000}\.eyJ[A-Za-z0-9_-]{12,4000}\.[A-Za-z0-9_-]{32,1000}",
        b"eyJ",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A kind of secret in one file of an image.

    Attributes:
        places: how often it is there; memory holds copies.
        first_offset: where it is first, in bytes.
    """

    kind: str
    file: str
    places: int
    first_offset: int


def scan(folder: Path, files: Iterable[str]) -> Iterator[Finding]:
    """Look through files of an image, in their order.

    Args:
        files: paths below the folder.

    Raises:
        OSError: a file can't be read, or is a link.
    """
    for name in files:
        places: dict[str, set[int]] = {}
        for offset, window in _windows(folder / name):
            for form in FORMS:
                found = {offset + place for place in _find(form, window)}
                if found:
                    places.setdefault(form.kind, set()).update(found)
        for kind, offsets in places.items():
            yield Finding(kind, name, len(offsets), min(offsets))


def _windows(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_plain(path) as stream:
        offset, kept = 0, b""
        while content := stream.read(_WINDOW_BYTES):
            window = kept + content
            yield offset, window
            kept = window[-_LONGEST_BYTES:]
            offset += len(window) - len(kept)


def _find(form: Form, window: bytes) -> Iterator[int]:
    for beginning in form.beginnings:
        place = window.find(beginning)
        while place >= 0:
            if form.pattern.match(window, place):
                yield place
            place = window.find(beginning, place + 1)
