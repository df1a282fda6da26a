"""The formats of feeds: from the bytes that were fetched to releases.

What belongs here: one function for each format. What does not: fetching, and which feed has which
format (`catalogue`).

A feed that is not of its format is refused whole, with the place; one entry that lacks something
optional, such as a date that can be read, is kept without it.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Any, Final
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from resilience_pipelines import strict_json
from resilience_pipelines.errors import CorruptError
from resilience_pipelines.releases.release import Release, is_prerelease, version_of_tag

_ATOM: Final = "{http://www.w3.org/2005/Atom}"
_CUDA_LINK: Final = re.compile(
    r"""href=["']redistrib_(\d{1,4}\.\d{1,4})\.\d{1,4}\.json["'][^\n]{0,200}?"""
    r"""(?:</a>[ \t]*(\d{4}-\d{2}-\d{2})?|$)""",
    re.MULTILINE,
)
MAX_RELEASES: Final = 10_000


class FeedFormatError(CorruptError):
    """A feed does not have its format."""


def parse_nvidia_drivers(body: bytes) -> list[Release]:
    """NVIDIA's data-centre drivers, as in docs.nvidia.com/datacenter/tesla/drivers/releases.json.

    A JSON object: branch -> `type` and `driver_info`, a list of objects with `release_version`,
    `release_date` (YYYY-MM-DD) and `architectures`.

    Raises:
        FeedFormatError
    """
    try:
        branches = strict_json.loads(body)
    except ValueError as error:
        raise FeedFormatError(f"The feed is no JSON: {error}.") from error
    if not isinstance(branches, dict) or not branches:
        raise FeedFormatError("The feed is no JSON object with branches of drivers.")
    releases = [
        _driver(branch, index, entry, facts.get("type"))
        for branch, facts in branches.items()
        for index, entry in enumerate(_driver_entries(branch, facts))
    ]
    return _checked(releases)


def parse_cuda_index(body: bytes) -> list[Release]:
    """CUDA toolkits, as in the index page of developer.download.nvidia.com/compute/cuda/redist/.

    A page of links to `redistrib_X.Y.Z.json`, each with its date where the server shows one. A
    stack's CUDA version is that of its driver, X.Y, and so are these: the date is that of X.Y's
    first toolkit.

    Raises:
        FeedFormatError
    """
    dates: dict[str, list[date]] = {}
    for version, text in _CUDA_LINK.findall(body.decode(errors="replace")):
        found = _date(text)
        dates.setdefault(version, []).extend([found] if found else [])
    return _checked(
        [
            _release(version=version, kind="toolkit", released=min(found, default=None))
            for version, found in dates.items()
        ]
    )


def parse_atom(body: bytes) -> list[Release]:
    """The Atom feed of a code host's release page; an entry's id or link ends in the tag.

    Raises:
        FeedFormatError
    """
    try:
        root: Element = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, LookupError, ValueError) as error:
        raise FeedFormatError(f"The feed is no XML that may be read: {error!r}.") from error
    if root.tag != f"{_ATOM}feed":
        raise FeedFormatError(f"The feed is no Atom feed but <{root.tag[:100]}>.")
    return _checked([_atom_entry(n, entry) for n, entry in enumerate(root.iter(f"{_ATOM}entry"))])


def _driver_entries(branch: str, facts: Any) -> list[Any]:
    entries = facts.get("driver_info") if isinstance(facts, dict) else None
    if not isinstance(entries, list):
        raise FeedFormatError(f"Branch {branch!r} has no list `driver_info`.")
    return entries


def _driver(branch: str, index: int, entry: Any, kind: Any) -> Release:
    version = entry.get("release_version") if isinstance(entry, dict) else None
    if not isinstance(version, str) or not version.strip():
        raise FeedFormatError(f"Branch {branch!r}, entry {index}, has no `release_version`.")
    architectures = entry.get("architectures")
    if not isinstance(architectures, list):
        architectures = []
    return _release(
        version=version.strip(),
        branch=f"R{branch}",
        kind=kind if isinstance(kind, str) and kind else None,
        released=_date(entry.get("release_date")),
        architectures=tuple(a for a in architectures if isinstance(a, str) and a),
    )


def _atom_entry(index: int, entry: Element) -> Release:
    tag = (entry.findtext(f"{_ATOM}id") or "").rpartition("/")[2].strip()
    if not tag:
        link = entry.find(f"{_ATOM}link")
        tag = (link.get("href", "") if link is not None else "").rpartition("/")[2].strip()
    if not tag:
        raise FeedFormatError(f"Entry {index} has neither an id nor a link that names its tag.")
    version = version_of_tag(tag)
    return _release(
        version=version,
        released=_date((entry.findtext(f"{_ATOM}updated") or "")[:10]),
        prerelease=is_prerelease(version),
    )


def _release(**fields: Any) -> Release:
    try:
        return Release(**fields)
    except ValueError as error:
        raise FeedFormatError(f"A release can't be read: {error}.") from error


def _date(text: object) -> date | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        return None


def _checked(releases: list[Release]) -> list[Release]:
    """No release is in a feed twice, and an empty feed says that something is wrong with it."""
    if not releases:
        raise FeedFormatError("The feed holds no release.")
    if len(releases) > MAX_RELEASES:
        raise FeedFormatError(f"The feed holds more than {MAX_RELEASES} releases.")
    return list({release.version: release for release in releases}.values())
