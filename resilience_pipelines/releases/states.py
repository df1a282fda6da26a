"""How far each release has come on this machine: known, available, or measured.

What belongs here: drawing that from what is remembered of feeds, from this machine's stacks and
from the stacks that were measured. What does not: making releases available, and measuring them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from resilience_pipelines.releases.catalogue import Feed
from resilience_pipelines.releases.release import Release


class ReleaseState(StrEnum):
    """In the order in which a release goes through them."""

    KNOWN = "known"
    """A feed lists it."""
    AVAILABLE = "available"
    """This machine has it, and nothing was measured with it yet."""
    MEASURED = "measured"
    """There are results with it."""


@dataclass(frozen=True)
class ReleaseStatus:
    """A release and how far it has come."""

    feed: str
    release: Release
    state: ReleaseState


def states_of(
    feed: Feed,
    releases: Iterable[Release],
    here: Iterable[Mapping[str, Any]],
    measured: Iterable[Mapping[str, Any]],
) -> list[ReleaseStatus]:
    """The state of each release of a feed.

    Args:
        here: this machine's stacks, dimension -> value.
        measured: stacks that there are results of, likewise.
    """
    on_machine, with_results = _versions(feed, here), _versions(feed, measured)
    return [
        ReleaseStatus(feed.name, release, _state(release.version, on_machine, with_results))
        for release in releases
    ]


def _state(version: str, on_machine: set[str], with_results: set[str]) -> ReleaseState:
    if version in with_results:
        return ReleaseState.MEASURED
    return ReleaseState.AVAILABLE if version in on_machine else ReleaseState.KNOWN


def _versions(feed: Feed, stacks: Iterable[Mapping[str, Any]]) -> set[str]:
    if feed.dimension is None:
        return set()
    return {
        _public(str(stack[feed.dimension]))
        for stack in stacks
        if stack[feed.dimension] is not None and feed.engine in (None, stack["engine"])
    }


def _public(version: str) -> str:
    """Without a local part: `2.11.0` of the build `2.11.0+cu130`."""
    return version.partition("+")[0]
