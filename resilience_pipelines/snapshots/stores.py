"""What is done in the same way with the local store and with a repository.

What belongs here: opening one of the two, and listing, verifying, scanning, pruning and tuning as
an operator asks for it. What does not: how each of them does it (`store`, `repository`, `tuning`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resilience_pipelines.errors import InputError, ResilienceError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.snapshots.manifest import Manifest
from resilience_pipelines.snapshots.repository import Repository
from resilience_pipelines.snapshots.retention import Doomed
from resilience_pipelines.snapshots.secret_scan import Finding, scan
from resilience_pipelines.snapshots.settings import (
    TUNED,
    open_repository,
    open_repository_storage,
    open_store,
    read_settings,
)
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot
from resilience_pipelines.snapshots.tuning import CANDIDATES, Progress, Tuning, keep_tuning, tune

Store = SnapshotStore | Repository


@dataclass(frozen=True)
class Verified:
    """What became of reading every byte of one snapshot.

    Attributes:
        seconds: how long that took.
        problem: the first one; empty where the snapshot is intact.
    """

    snapshot_id: str
    seconds: float
    problem: str

    @property
    def intact(self) -> bool:
        """Whether every byte is as its manifest says."""
        return not self.problem


@dataclass(frozen=True)
class Pruned:
    """What a prune removed, or would remove.

    Attributes:
        swept: false where content stays until the next prune, since somebody puts a snapshot.
    """

    doomed: tuple[Doomed, ...]
    swept: bool = True


@dataclass(frozen=True)
class Tuned:
    """A choice of compression, and whether it is used.

    Attributes:
        kept_in: the file that keeps it.
        overruled_by: the compression that the settings name instead; None where it is used.
    """

    tuning: Tuning
    kept_in: Path
    overruled_by: str | None


def manifests(store: Store) -> list[Manifest]:
    """The manifests of all readable snapshots, oldest first."""
    if isinstance(store, Repository):
        return store.all()
    return [snapshot.manifest for snapshot in store.all()]


def verify(store: Store, snapshots: Sequence[str] = ()) -> list[Verified]:
    """Read every byte of snapshots and compare it with their manifests; damage is a result.

    Args:
        snapshots: their ids; all of the store, unreadable ones too, when empty.

    Raises:
        InputError: there is no such snapshot.
    """
    chosen = snapshots or [
        *(manifest.snapshot_id for manifest in manifests(store)), *store.unreadable(),
    ]  # fmt: skip
    return [_verify(store, snapshot_id) for snapshot_id in chosen]


def _verify(store: Store, snapshot_id: str) -> Verified:
    begin = time.monotonic()
    problem = ""
    try:
        if isinstance(store, Repository):
            store.verify(snapshot_id)
        else:
            store.verify(store.get(snapshot_id))
    except InputError:
        raise
    except ResilienceError as error:
        problem = error.reason
    return Verified(snapshot_id, time.monotonic() - begin, problem)


def find_secrets(
    store: SnapshotStore, snapshots: Sequence[str] = ()
) -> Iterator[tuple[str, Finding]]:
    """Well-known secrets in images, each with the id of its snapshot.

    Args:
        snapshots: their ids; all of the store when empty.

    Raises:
        InputError: there is no such snapshot.
        StorageError: an image can't be read.
    """
    chosen = [store.get(name) for name in snapshots] if snapshots else store.all()
    for snapshot in chosen:
        try:
            for finding in scan(snapshot.folder, [file.path for file in snapshot.manifest.files]):
                yield snapshot.manifest.snapshot_id, finding
        except OSError as error:
            raise StorageError(
                f"The image of {snapshot.manifest.snapshot_id} can't be read: {error}.",
                mend="`resilience snapshot verify` says which files are damaged.",
            ) from error


def prune(
    home: Home,
    store: Store,
    *,
    keep: int | None = None,
    max_age_days: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove what limits do not keep, and what killed jobs left.

    Args:
        keep, max_age_days, max_bytes: see `retention.Policy`; the settings' when None.
        dry_run: only say what would go.

    Raises:
        InputError: a limit is none.
    """
    asked: dict[str, Any] = {"keep": keep, "max_age_days": max_age_days, "max_bytes": max_bytes}
    given = {name: limit for name, limit in asked.items() if limit is not None}
    policy = replace(read_settings(home).policy, **given)
    if isinstance(store, Repository):
        report = store.prune(policy, dry_run=dry_run)
        return Pruned(tuple(report.doomed), swept=dry_run or report.swept)
    doomed = store.prune(policy, dry_run=dry_run)
    if not dry_run:
        store.clean()
    return Pruned(tuple(doomed))


def tune_repository(
    home: Home,
    address: str | None = None,
    snapshot_id: str | None = None,
    *,
    compressions: Sequence[str] = CANDIDATES,
    repeats: int = 3,
    progress: Progress = lambda _done, _total: None,
) -> Tuned:
    """Choose a repository's compression by a trial with a snapshot of the local store; keep it.

    Args:
        address: the repository; that of the settings when None.
        snapshot_id: whose image is tried; the newest when None.

    Raises:
        InputError: there is no such snapshot or repository; and as `tuning.tune` raises.
    """
    snapshot = _chosen(open_store(home), snapshot_id)
    open_repository(home, address)  # refuses another key than it has
    storage, settings, key = open_repository_storage(home, read_settings(home), address)
    tuning = tune(
        storage, key, snapshot, candidates=compressions, repeats=repeats, progress=progress
    )
    overruled_by = None if settings.compression == TUNED else settings.compression
    return Tuned(tuning, keep_tuning(home, tuning), overruled_by)


def _chosen(store: SnapshotStore, snapshot_id: str | None) -> StoredSnapshot:
    if snapshot_id is not None:
        return store.get(snapshot_id)
    newest = next(reversed(store.all()), None)
    if newest is None:
        raise InputError(
            "snapshot_id", None, "the local store has none to try with",
            mend="`resilience snapshot create` takes one.",
        )  # fmt: skip
    return newest
