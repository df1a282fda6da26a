"""Retention: which snapshots go, by number, age and size.

What belongs here: the decision, and which workers need a new snapshot. What does not: removing
anything (`store`, `repository`).

Snapshots of one worker and stack are judged together. Never removed are a pinned snapshot and the
last one of a stack that is known to be good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from resilience_pipelines.errors import InputError
from resilience_pipelines.snapshots.manifest import Manifest
from resilience_pipelines.stack import Stack


@dataclass(frozen=True)
class Policy:
    """How much of each worker and stack stays. A limit that is None does not count.

    Attributes:
        keep: how many of the newest, 1 or more.
        max_age_days: how old they may be.
        max_bytes: how large their images together, counted from the newest.

    Raises:
        InputError: a limit would leave nothing.
    """

    keep: int | None = None
    max_age_days: float | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("keep", self.keep, 1), ("max-age-days", self.max_age_days, 0),
            ("max-bytes", self.max_bytes, 0),
        ):  # fmt: skip
            if value is not None and not value >= least:
                raise InputError(
                    name, value, "at least one snapshot of each stack stays",
                    mend=f"Give {least} or more.",
                )  # fmt: skip


@dataclass(frozen=True)
class Doomed:
    """A snapshot that has to go.

    Attributes:
        why: the limit that it exceeds: `count`, `age` or `size`.
    """

    snapshot_id: str
    image_bytes: int
    why: str


def choose_doomed(
    manifests: Iterable[Manifest],
    policy: Policy,
    *,
    pinned: frozenset[str],
    is_good: Callable[[str], bool],
    now: datetime | None = None,
) -> list[Doomed]:
    """The snapshots that a policy removes, oldest first.

    Args:
        is_good: whether every byte of a snapshot is what was written. Only asked where something
            would be removed, for as many as it takes to find a good one that stays.
    """
    groups: dict[tuple[str, str], list[Manifest]] = {}
    for manifest in manifests:
        groups.setdefault((manifest.worker, manifest.stack.key), []).append(manifest)
    moment = now or datetime.now(UTC)
    doomed = [
        item for group in groups.values() for item in _of_group(group, policy, pinned, moment)
    ]
    condemned = {item.snapshot_id for item in doomed}
    for group in groups.values():
        condemned -= _spared(group, condemned, is_good)
    return sorted(
        (item for item in doomed if item.snapshot_id in condemned), key=lambda d: d.snapshot_id
    )


def without_current_stack(manifests: Iterable[Manifest], here: Mapping[str, Stack]) -> list[str]:
    """The workers that have snapshots, but none of their stack on this machine.

    Args:
        here: the stack of each worker that can run on this machine.
    """
    stacks: dict[str, set[str]] = {}
    for manifest in manifests:
        stacks.setdefault(manifest.worker, set()).add(manifest.stack.key)
    return sorted(
        worker for worker, keys in stacks.items() if worker in here and here[worker].key not in keys
    )


def _of_group(
    group: list[Manifest], policy: Policy, pinned: frozenset[str], now: datetime
) -> list[Doomed]:
    found = []
    total = 0
    for place, manifest in enumerate(_newest_first(group)):
        total += manifest.image_bytes
        why = ""
        if policy.keep is not None and place >= policy.keep:
            why = "count"
        elif policy.max_age_days is not None and now - manifest.created_at > timedelta(
            days=policy.max_age_days
        ):
            why = "age"
        elif policy.max_bytes is not None and total > policy.max_bytes:
            why = "size"
        if why and manifest.snapshot_id not in pinned:
            found.append(Doomed(manifest.snapshot_id, manifest.image_bytes, why))
    return found


def _spared(group: list[Manifest], doomed: set[str], is_good: Callable[[str], bool]) -> set[str]:
    """Which of the doomed stays so that a good one does: none, if one stays anyway."""
    ids = [manifest.snapshot_id for manifest in _newest_first(group)]
    condemned = [name for name in ids if name in doomed]
    staying = [name for name in ids if name not in doomed]
    if not condemned or any(is_good(name) for name in staying):
        return set()
    good = next((name for name in condemned if is_good(name)), None)
    if good is not None:
        return {good}
    return set() if staying else {condemned[0]}


def _newest_first(group: list[Manifest]) -> list[Manifest]:
    return sorted(group, key=lambda manifest: manifest.snapshot_id, reverse=True)
