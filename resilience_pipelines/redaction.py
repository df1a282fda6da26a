"""Taking secrets out of what is kept or shown: records, evidence, errors.

What belongs here: telling a secret and putting a word in its place. What does not: finding secrets
in images, where nothing can be taken out (`snapshots.secret_scan`).

A secret is what has the form of a well-known one, what stands between a URL's scheme and its host,
what follows `Bearer`, and what a variable of this process holds whose name says that it is one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from resilience_pipelines.snapshots.secret_scan import FORMS
from resilience_pipelines.stack import Stack

REDACTED: Final = "(redacted)"
MIN_CHARACTERS: Final = 8
"""Of a variable's value: a shorter one is in too many words by chance."""

_NAMES: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|_KEY$"
    r"|^RESILIENCE_ALERT_(?:WEBHOOK|SLACK)$|^RESILIENCE_SMTP$",
    re.IGNORECASE,
)
_IN_URL: Final = re.compile(rb"(\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://)[^\s/?#\"'<>@]{1,500}@")
_BEARER: Final = re.compile(rb"(\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,4000}", re.IGNORECASE)
_PART = TypeVar("_PART")


def redact_bytes(content: bytes, environment: Mapping[str, str] | None = None) -> bytes:
    """Text of any encoding that keeps ASCII, without the secrets in it.

    Args:
        environment: whose values are secrets; this process's by default.
    """
    return _clean(content, _secret_values(environment))


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """A text without the secrets in it."""
    return _clean_text(text, _secret_values(environment))


def redact_record(part: _PART, environment: Mapping[str, str] | None = None) -> _PART:
    """A record, or a part of one, without the secrets in its texts.

    Stacks stay as they are: their key is of what they say.
    """
    return _clean_part(part, _secret_values(environment))


def _clean(content: bytes, values: Sequence[bytes]) -> bytes:
    for value in values:
        content = content.replace(value, REDACTED.encode())
    for form in FORMS:
        if any(beginning in content for beginning in form.beginnings):
            content = form.pattern.sub(REDACTED.encode(), content)
    content = _IN_URL.sub(rb"\1" + REDACTED.encode() + b"@", content)
    return _BEARER.sub(rb"\1" + REDACTED.encode(), content)


def _clean_text(text: str, values: Sequence[bytes]) -> str:
    return _clean(text.encode(errors="surrogatepass"), values).decode(errors="surrogatepass")


def _clean_part(part: _PART, values: Sequence[bytes]) -> _PART:
    cleaned: Any = part
    if isinstance(part, BaseModel) and not isinstance(part, Stack):
        changes = {name: _clean_part(value, values) for name, value in part}
        cleaned = part.model_copy(update=changes)
    elif isinstance(part, tuple | list):
        cleaned = type(part)(_clean_part(item, values) for item in part)
    elif isinstance(part, dict):
        cleaned = {name: _clean_part(value, values) for name, value in part.items()}
    elif isinstance(part, str) and not isinstance(part, Enum):
        cleaned = _clean_text(part, values)
    return cleaned  # type: ignore[no-any-return]


def _secret_values(environment: Mapping[str, str] | None) -> list[bytes]:
    """The longest first: one may be in another."""
    environment = os.environ if environment is None else environment
    found = {
        value.encode(errors="surrogateescape")
        for name, value in environment.items()
        if _NAMES.search(name) and len(value) >= MIN_CHARACTERS
    }
    return sorted(found, key=len, reverse=True)
