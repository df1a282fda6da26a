"""A feed: from a project's own page of releases to releases in order.

This one reads a list of tags as many projects' APIs give it: `[{"name": "v1.2.0", "date":
"2026-01-31"}, ...]`. What is no such list is refused whole, with the place; then nothing that is
known changes.
"""

from __future__ import annotations

import json
from datetime import date

from resilience_pipelines.releases.catalogue import Feed
from resilience_pipelines.releases.formats import FeedFormatError
from resilience_pipelines.releases.release import Release, is_prerelease, version_of_tag


def parse_tags(body: bytes) -> list[Release]:
    """Releases of a list of tags.

    Raises:
        FeedFormatError: it is no such list; names the entry.
    """
    try:
        entries = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FeedFormatError(f"The feed is no JSON: {error}.") from error
    if not isinstance(entries, list) or not entries:
        raise FeedFormatError("The feed is no JSON list of tags.")
    return [_release(index, entry) for index, entry in enumerate(entries)]


def _release(index: int, entry: object) -> Release:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name:
        raise FeedFormatError(f"Entry {index} has no `name`.")
    assert isinstance(entry, dict)
    try:
        released = date.fromisoformat(entry.get("date", ""))
    except (TypeError, ValueError):
        released = None  # a date that can't be read is no reason to forget the release
    version = version_of_tag(name)
    return Release(version=version, released=released, prerelease=is_prerelease(version))


FEED = Feed(
    name="table",
    product="Table engine",
    dimension="engine_version",
    url="https://example.com/table/tags.json",
    parse=parse_tags,
    engine="table",
)
"""`dimension` and `engine` say which value of which stacks its versions are."""
