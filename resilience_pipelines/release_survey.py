"""What this data home and its machine know of releases, gathered.

What belongs here: reading feeds again, putting together their ledgers, this machine, what a cluster
offers, the jobs at work and the published results, and which suite measures an offer. What does
not: what follows from it (`releases.states`, `releases.candidates`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from resilience_pipelines.context import read_machines
from resilience_pipelines.errors import InputError, ResilienceError
from resilience_pipelines.home import Home
from resilience_pipelines.launchers.choice import kubernetes_settings_if_any
from resilience_pipelines.launchers.kubernetes.offers import Offer, offers, read_inventory
from resilience_pipelines.launchers.kubernetes.settings import image_digest
from resilience_pipelines.releases.candidates import Candidate, candidates
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.releases.ledger import Refreshed, refresh, remembered
from resilience_pipelines.releases.states import (
    ReleaseStatus,
    SeenStacks,
    states_of,
    version_on,
)
from resilience_pipelines.running_jobs import running_stacks
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.side_tables import MakeRows, ReleaseRow
from resilience_pipelines.warehouse.stack_figures import failing_stacks, measured_stacks


@dataclass(frozen=True)
class OfferedSuite:
    """An offer of a cluster and the stack that its suite is expected to measure.

    Attributes:
        stack: None where neither a measured stack nor this machine's tells what else it has.
    """

    offer: Offer
    stack: Stack | None


def cluster_offers(home: Home) -> list[Offer]:
    """What the launcher's settings and the cluster's nodes, as last seen, offer.

    Raises:
        InputError: the settings can't be used.
        CorruptError: what is remembered of the nodes can't be read.
    """
    settings = kubernetes_settings_if_any(home)
    return [] if settings is None else offers(settings, read_inventory(home))


def offered_suites(home: Home) -> list[OfferedSuite]:
    """One suite for each offer, on the stack that it would make of the newest one that is known.

    A stack that was measured on a cluster is preferred, and of those one on the same GPUs.

    Raises:
        InputError, CorruptError: as `cluster_offers`.
    """
    found = cluster_offers(home)
    if not found:
        return []
    here = [machine.stack for machine in read_machines(home).values()]
    bases = list(dict.fromkeys((*measured_stacks(home), *here)))
    return [OfferedSuite(offer, _offered_stack(offer, bases)) for offer in found]


def _offered_stack(offer: Offer, bases: list[Stack]) -> Stack | None:
    feed = FEEDS[offer.feed]

    def rank(base: Stack) -> tuple[bool, bool]:
        same = (base.gpu_sku, base.gpu_count) == (offer.gpu_sku, offer.gpu_count)
        return (base.kubernetes_version is None, offer.gpu_sku is not None and not same)

    fitting = sorted((base for base in bases if version_on(feed, base) is not None), key=rank)
    if feed.dimension is None or not fitting:
        return None
    changes: dict[str, object] = {feed.dimension: offer.version}
    if offer.image is not None:
        changes["image_digest"] = image_digest(offer.image)
    if offer.gpu_sku is not None:
        changes |= {"gpu_sku": offer.gpu_sku, "gpu_count": offer.gpu_count}
    return fitting[0].model_copy(update=changes)


def _offered(home: Home) -> frozenset[tuple[str, str]]:
    return frozenset((offer.feed, offer.version) for offer in cluster_offers(home))


def survey(home: Home) -> SeenStacks:
    """Look at this machine, its jobs, its cluster's offers and the published results."""
    return SeenStacks(
        here=tuple(machine.stack for machine in read_machines(home).values()),
        running=tuple(running_stacks(home)),
        measured=tuple(measured_stacks(home)),
        failing=tuple(failing_stacks(home)),
        offered=_offered(home),
    )


def statuses(
    home: Home, feeds: Collection[str] = tuple(FEEDS), *, prereleases: bool = True
) -> list[ReleaseStatus]:
    """How far every release of some feeds has come, newest version of each feed first.

    Args:
        prereleases: whether pre-releases are among them.

    Raises:
        InputError: there is no such feed.
        CorruptError: what is remembered of a feed can't be read.
    """
    require_feeds(feeds)
    seen = survey(home)
    return [
        status
        for name in feeds
        for status in states_of(FEEDS[name], remembered(home, name).releases, seen)
        if prereleases or not status.release.prerelease
    ]


def refresh_feeds(
    home: Home, feeds: Collection[str], tell: Callable[[str], None] = lambda _: None
) -> tuple[list[Refreshed], dict[str, ResilienceError]]:
    """Read feeds again, one after the other; one that fails does not keep the others from theirs.

    Args:
        tell: called with what is being done.

    Returns:
        What came of those that could be read, and by their names why others could not.

    Raises:
        InputError: there is no such feed; then none is read.
    """
    require_feeds(feeds)
    done = []
    failed: dict[str, ResilienceError] = {}
    for name in feeds:
        tell(f"reading {FEEDS[name].product}")
        try:
            done.append(refresh(home, FEEDS[name]))
        except ResilienceError as error:
            failed[name] = error
    return done, failed


def require_feeds(names: Collection[str]) -> None:
    """Refuse names that no feed has.

    Raises:
        InputError: naming the first of them.
    """
    for name in names:
        if name not in FEEDS:
            raise InputError("feeds", name, "no such feed", mend=f"Choose from {', '.join(FEEDS)}.")


def release_rows(home: Home) -> MakeRows:
    """What makes the warehouse's rows of releases, once the loaded stacks are known.

    Raises:
        CorruptError: what is remembered of a feed can't be read.
    """
    ledgers = {name: remembered(home, name) for name in FEEDS}
    if not any(ledger.releases for ledger in ledgers.values()):
        return lambda *_: []  # every load comes here: it need not wait for a look
    here = tuple(machine.stack for machine in read_machines(home).values())
    running = tuple(running_stacks(home))
    offered = _offered(home)

    def rows(measured: tuple[Stack, ...], failing: tuple[Stack, ...]) -> list[ReleaseRow]:
        seen = SeenStacks(here, running, measured, failing, offered)
        return [
            ReleaseRow(
                status.feed,
                FEEDS[name].product,
                status.release,
                status.state.value,
                ledger.checked_at,
            )
            for name, ledger in ledgers.items()
            for status in states_of(FEEDS[name], ledger.releases, seen)
        ]

    return rows


def upgrades(home: Home) -> list[Candidate]:
    """The stacks that releases would make of this machine's and of the measured ones."""
    here = [machine.stack for machine in read_machines(home).values()]
    bases = list(dict.fromkeys((*here, *measured_stacks(home))))
    return [
        candidate
        for name, feed in FEEDS.items()
        for candidate in candidates(feed, remembered(home, name).releases, bases)
    ]
