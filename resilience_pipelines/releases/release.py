"""A release of a product, and how versions are ordered.

What belongs here: the data model of one release. What does not: where releases are read from
(`formats`, `fetch`) and what is remembered of them (`ledger`).
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Final

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1, max_length=500)]

# What stands before a version in a tag, e.g. `v1.2`, `release-1.2`.
_TAG_PREFIX: Final = re.compile(r"^[a-zA-Z_/-]*(?=\d)")


class Release(BaseModel):
    """One version that was released.

    Attributes:
        version: as the project writes it, without a tag's prefix.
        branch: the line of development it belongs to, where the feed tells, e.g. `R580`.
        kind: what the feed calls it, e.g. `production branch`.
        released: None where the feed has no date that can be read.
        architectures: those it is for; empty where the feed does not say.
        withdrawn: it was in the feed once and no longer is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Text
    branch: Text | None = None
    kind: Text | None = None
    released: date | None = None
    architectures: tuple[Text, ...] = ()
    prerelease: bool = False
    withdrawn: bool = False


VersionKey = tuple[int, Version | tuple[int, ...], str]


def version_key(version: str) -> VersionKey:
    """Orders versions as their projects do: 0.9 before 0.10, 1.0rc1 before 1.0.

    Versions that Python's rules do not know are ordered by their numbers, before all others.
    """
    try:
        return (1, Version(version), version)
    except InvalidVersion:
        return (0, tuple(int(number) for number in re.findall(r"\d+", version)), version)


def version_of_tag(tag: str) -> str:
    """`0.24.0` of `v0.24.0`; a tag without a number is its own version."""
    return _TAG_PREFIX.sub("", tag, count=1)


def is_prerelease(version: str) -> bool:
    """Whether a version says of itself that it comes before a release."""
    try:
        return Version(version).is_prerelease
    except ValueError:  # none of Python's, or with a number of too many digits
        return bool(re.search(r"\d[-.]?(alpha|beta|rc|dev|pre)", version, re.IGNORECASE))
