"""What is remembered of each feed: its releases, and how far it was read.

What belongs here: the file of one feed, and taking what was fetched into it. What does not:
fetching and parsing.

A release is never forgotten: one that a feed no longer lists is marked as withdrawn when the feed
goes back behind it, and simply kept where the feed only lists the newest ones. Whatever goes wrong
with a feed, its file stays as it was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from resilience_pipelines.durability import replace_text
from resilience_pipelines.errors import CorruptError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.releases.catalogue import Feed
from resilience_pipelines.releases.fetch import fetch
from resilience_pipelines.releases.release import Release, version_key


class Remembered(BaseModel):
    """The content of a feed's file.

    Attributes:
        address: where it was read from; an ETag of one address says nothing about another.
        releases: newest version first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = ""
    etag: str | None = None
    checked_at: AwareDatetime | None = None
    releases: tuple[Release, ...] = ()


@dataclass(frozen=True)
class Refreshed:
    """What a refresh brought.

    Attributes:
        new: releases that were not known before, newest first.
        changed: whether the feed had changed at all.
    """

    feed: str
    new: tuple[Release, ...]
    changed: bool


def remembered(home: Home, feed: str) -> Remembered:
    """What is known of a feed; nothing where it was never read.

    Raises:
        CorruptError: its file can't be read.
    """
    path = _path(home, feed)
    try:
        return Remembered.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Remembered()
    except (OSError, ValidationError) as error:
        raise CorruptError(
            f"{path} can't be read ({error}).",
            mend="Move it away: the feed is then read again from its beginning.",
        ) from error


def refresh(home: Home, feed: Feed) -> Refreshed:
    """Read a feed and remember what is new.

    Raises:
        ResilienceError: it could not be fetched or has not its format; nothing was changed.
    """
    known = remembered(home, feed.name)
    etag = known.etag if known.address == feed.address else None
    fetched = fetch(feed.address, etag)
    now = datetime.now(UTC)
    if fetched.body is None:
        _write(home, feed.name, known.model_copy(update={"checked_at": now}))
        return Refreshed(feed.name, (), changed=False)
    listed = feed.parse(fetched.body)
    before = {release.version for release in known.releases}
    merged = merge(known.releases, listed)
    _write(
        home,
        feed.name,
        Remembered(address=feed.address, etag=fetched.etag, checked_at=now, releases=tuple(merged)),
    )
    new = tuple(release for release in merged if release.version not in before)
    return Refreshed(feed.name, new, changed=True)


def merge(known: tuple[Release, ...], listed: list[Release]) -> list[Release]:
    """Known and listed releases together, newest version first.

    A known one that is missing is withdrawn if the feed lists older ones, since then it is not
    missing for its age.
    """
    now = {release.version: release for release in listed}
    oldest = min(version_key(version) for version in now)
    for release in known:
        if release.version not in now:
            gone = version_key(release.version) >= oldest
            now[release.version] = release.model_copy(
                update={"withdrawn": release.withdrawn or gone}
            )
    return sorted(now.values(), key=lambda release: version_key(release.version), reverse=True)


def _path(home: Home, feed: str) -> Path:
    return home.root / "releases" / f"{feed}.json"


def _write(home: Home, feed: str, content: Remembered) -> None:
    path = _path(home, feed)
    try:
        replace_text(path, json.dumps(content.model_dump(mode="json"), indent=1))
    except OSError as error:
        raise StorageError(
            f"{path} can't be written ({error.strerror}).", mend="What was known before is kept."
        ) from error
