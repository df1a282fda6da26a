"""What this data home and its machine know of releases, gathered.

What belongs here: putting together the ledgers of feeds, this machine, the jobs at work and the
published results. What does not: what follows from it (`releases.states`, `releases.candidates`).
"""

from __future__ import annotations

from collections.abc import Collection

from resilience_pipelines.context import read_machines
from resilience_pipelines.home import Home
from resilience_pipelines.releases.candidates import Candidate, candidates
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.releases.ledger import remembered
from resilience_pipelines.releases.states import ReleaseStatus, SeenStacks, states_of
from resilience_pipelines.running_jobs import running_stacks
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.side_tables import MakeRows, ReleaseRow
from resilience_pipelines.warehouse.stack_figures import failing_stacks, measured_stacks


def survey(home: Home) -> SeenStacks:
    """Look at this machine, its jobs and the published results."""
    return SeenStacks(
        here=tuple(machine.stack for machine in read_machines(home).values()),
        running=tuple(running_stacks(home)),
        measured=tuple(measured_stacks(home)),
        failing=tuple(failing_stacks(home)),
    )


def statuses(home: Home, feeds: Collection[str] = tuple(FEEDS)) -> list[ReleaseStatus]:
    """How far every release of some feeds has come, newest version of each feed first.

    Raises:
        CorruptError: what is remembered of a feed can't be read.
    """
    seen = survey(home)
    return [
        status
        for name in feeds
        for status in states_of(FEEDS[name], remembered(home, name).releases, seen)
    ]


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

    def rows(measured: tuple[Stack, ...], failing: tuple[Stack, ...]) -> list[ReleaseRow]:
        seen = SeenStacks(here, running, measured, failing)
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
