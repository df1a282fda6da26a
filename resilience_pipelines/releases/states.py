"""How far each release has come: known, available, running, measured or incompatible.

What belongs here: drawing that from what is remembered of feeds, from this machine's stacks, from
what a cluster offers and from the stacks that were measured. What does not:
making releases available, measuring them, and gathering what is seen (`release_survey`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from resilience_pipelines.releases.catalogue import Feed
from resilience_pipelines.releases.release import Release
from resilience_pipelines.stack import Stack


class ReleaseState(StrEnum):
    """In the order in which a release goes through them; the last two are ends."""

    KNOWN = "known"
    """A feed lists it."""
    AVAILABLE = "available"
    """This machine has it or a cluster offers it, and nothing was measured with it yet."""
    RUNNING = "running"
    """A job that measures it is at work, and nothing else was measured with it yet."""
    MEASURED = "measured"
    """There are results with it."""
    INCOMPATIBLE = "incompatible"
    """On every stack with it, some way to start the worker or every snapshot failed each time."""


@dataclass(frozen=True)
class SeenStacks:
    """The stacks from which states are drawn.

    Attributes:
        here: what this machine has, one for each worker.
        running: what jobs measure at this moment.
        measured: what there are results of, failing ones too.
        failing: the part of `measured` on which an arm, or every snapshot, failed each time.
        offered: names of feeds and versions that a cluster offers, by its nodes or by an image.
    """

    here: tuple[Stack, ...] = ()
    running: tuple[Stack, ...] = ()
    measured: tuple[Stack, ...] = ()
    failing: tuple[Stack, ...] = ()
    offered: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class ReleaseStatus:
    """A release and how far it has come."""

    feed: str
    release: Release
    state: ReleaseState


def states_of(feed: Feed, releases: Iterable[Release], seen: SeenStacks) -> list[ReleaseStatus]:
    """The state of each release of a feed, in the order in which they are given."""
    here, running = _versions(feed, seen.here), _versions(feed, seen.running)
    measured = _versions(feed, seen.measured)
    well = _versions(feed, (stack for stack in seen.measured if stack not in seen.failing))

    def state(version: str) -> ReleaseState:
        if version in measured:
            return ReleaseState.MEASURED if version in well else ReleaseState.INCOMPATIBLE
        if version in running:
            return ReleaseState.RUNNING
        if version in here or (feed.name, version) in seen.offered:
            return ReleaseState.AVAILABLE
        return ReleaseState.KNOWN

    return [ReleaseStatus(feed.name, release, state(release.version)) for release in releases]


def public_version(version: str) -> str:
    """Without a local part: `2.11.0` of the build `2.11.0+cu130`."""
    return version.partition("+")[0]


def version_on(feed: Feed, stack: Stack) -> str | None:
    """The version of a feed's product that a stack has; None where it has or names none."""
    if feed.dimension is None or feed.engine not in (None, stack.engine):
        return None
    value = getattr(stack, feed.dimension)
    return None if value is None else public_version(value)


def _versions(feed: Feed, stacks: Iterable[Stack]) -> set[str]:
    return {version for stack in stacks if (version := version_on(feed, stack)) is not None}
