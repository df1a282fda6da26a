"""Regeneration: snapshots whose stack is gone, taken again on the stack that there is now.

What belongs here: which workers need it on this machine, and taking theirs one after the other.
What does not: the rule (`snapshots.retention`), and how a snapshot is taken (`job`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from resilience_pipelines.context import read_machines
from resilience_pipelines.errors import InputError, ResilienceError
from resilience_pipelines.home import Home
from resilience_pipelines.records import Outcome, RunRecord
from resilience_pipelines.snapshots.retention import without_current_stack
from resilience_pipelines.snapshots.settings import open_store


@dataclass(frozen=True)
class Regenerated:
    """What became of one worker.

    Attributes:
        snapshot_id: None where none came out.
        problem: why not; empty where one did.
    """

    worker: str
    snapshot_id: str | None
    problem: str


def workers_without_snapshot(home: Home) -> list[str]:
    """The workers with snapshots in the local store, none of them of their stack on this machine.

    A worker that can't run here is none of them: its snapshots may be another machine's.
    """
    here = {name: machine.stack for name, machine in read_machines(home).items()}
    return without_current_stack([item.manifest for item in open_store(home).all()], here)


def choose_workers(stale: Sequence[str], asked: str | None) -> tuple[str, ...]:
    """Those to regenerate: all that need it, or the one that was asked for.

    Raises:
        InputError: that one needs none.
    """
    if asked is None:
        return tuple(stale)
    if asked not in stale:
        raise InputError(
            "worker", asked, "it has a snapshot of its present stack, or none at all, or can't run "
            "on this machine",
            mend=f"`resilience snapshot create --worker {asked}` takes one all the same.",
        )  # fmt: skip
    return (asked,)


def stale_workers(home: Home, asked: str | None = None) -> tuple[str, ...]:
    """The workers to regenerate: all of `workers_without_snapshot`, or the one of them asked for.

    Raises:
        InputError: that one needs none.
    """
    return choose_workers(workers_without_snapshot(home), asked)


def regenerate(workers: Sequence[str], take: Callable[[str], RunRecord]) -> Iterator[Regenerated]:
    """Take a snapshot of each worker in turn; one that fails does not keep the others from theirs.

    The old snapshots stay: pruning decides on them.

    Args:
        take: runs the job that takes a worker's snapshot.
    """
    for worker in workers:
        try:
            record = take(worker)
        except ResilienceError as error:
            yield Regenerated(worker, None, error.reason)
            continue
        taken = next((item for item in record.snapshots if item.outcome is Outcome.OK), None)
        if taken is not None:
            yield Regenerated(worker, taken.snapshot_id, "")
            continue
        reasons = [item.detail or str(item.reason_code) for item in record.snapshots]
        yield Regenerated(
            worker, None, "; ".join([*reasons, *record.unsupported.values()]) or "none was taken"
        )
