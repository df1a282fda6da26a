"""What a release would make of a stack that is known: the stack after the upgrade.

What belongs here: drawing those stacks. What does not: registering them anywhere, and measuring.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from resilience_pipelines.releases.catalogue import Feed
from resilience_pipelines.releases.release import Release, version_key
from resilience_pipelines.releases.states import version_on
from resilience_pipelines.stack import Stack


@dataclass(frozen=True)
class Candidate:
    """A release, and the stack that it would make: all else is as it was."""

    feed: str
    release: Release
    stack: Stack


def candidates(feed: Feed, releases: Iterable[Release], bases: Iterable[Stack]) -> list[Candidate]:
    """The upgrades that a feed offers to some stacks.

    Releases that are older than what a stack has, that were withdrawn and that come before a
    release are none, and neither are those of a product that a stack does not have.
    """
    wanted = [item for item in releases if not item.prerelease and not item.withdrawn]
    found = []
    for base in bases:
        own = version_on(feed, base)
        if feed.dimension is None or own is None:
            continue
        found += [
            Candidate(feed.name, item, base.model_copy(update={feed.dimension: item.version}))
            for item in wanted
            if version_key(item.version) > version_key(own)
        ]
    return found


def release_of(feed: Feed, releases: Iterable[Release], stack: Stack) -> Release | None:
    """The release of a feed that a stack has; None where the feed does not list it."""
    own = version_on(feed, stack)
    return next((item for item in releases if item.version == own), None)
