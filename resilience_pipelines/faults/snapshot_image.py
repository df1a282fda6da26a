"""Faults of a stored snapshot: bits flipped, files cut, missing or swapped.

What belongs here: the strategy `snapshot_image`: damaging a private copy and watching that a
restore from it is refused. What does not: verifying images (`snapshots.store`).

The snapshot in the store is never written: the files to damage are copied, byte by byte, and only
the others are hard links to it. `damage` refuses a file that has a second link.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.image_verifier import ImageVerifier
from resilience_pipelines.errors import StorageError
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError
from resilience_pipelines.faults.guards import FreeDisk
from resilience_pipelines.faults.recovery import Recovery, check_possible
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.snapshots.copies import copy_snapshot
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.startup.arms import restore_worker

STRATEGY = "snapshot_image"
FAMILY = "snapshot_image_corrupted"
_SPARE_BYTES = 256 * 2**20
_COMPARE_BYTES = 1 << 20


class Damage(StrEnum):
    """What is done to an image."""

    BIT_FLIP = "bit_flip"
    TRUNCATION = "truncation"
    MISSING_FILE = "missing_file"
    SWAPPED_FILES = "swapped_files"


_DESCRIPTIONS = {
    Damage.BIT_FLIP: "one bit flipped in the memory pages of a copy of the snapshot",
    Damage.TRUNCATION: "the memory pages of a copy of the snapshot cut in half",
    Damage.MISSING_FILE: "a file of a copy of the snapshot removed",
    Damage.SWAPPED_FILES: "two files of a copy of the snapshot exchanged",
}


@dataclass(frozen=True)
class SnapshotImageCorrupted:
    """A worker is to be restored, and its image has been damaged since it was made."""

    damage: Damage
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE
    expected: Mapping[str, float] = field(default_factory=lambda: {"image_verifier": 15.0})
    recoveries: tuple[str, ...] = (Recovery.WARM_CACHE, Recovery.RESTORE)

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"{FAMILY}_{self.damage}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return f"{_DESCRIPTIONS[self.damage]}; a restore from it has to be refused"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"damage": self.damage.value}

    def guards(self, context: FaultContext) -> Sequence[Guard]:
        """See `Fault.guards`."""
        if context.snapshot is None:
            return ()
        copied = sum(
            (context.snapshot.folder / path).stat().st_size
            for path in choose_files(context.snapshot, self.damage)
        )
        return (FreeDisk(context.scratch, copied + _SPARE_BYTES),)

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        check_possible(Recovery.RESTORE, context)
        assert context.engine is not None
        assert context.snapshot is not None
        return ImageInjection(context, context.engine, context.snapshot, self.damage)


class ImageInjection(Injection):
    """One damaged copy."""

    hits_worker = False

    def __init__(
        self,
        context: FaultContext,
        engine: SnapshotEngine,
        snapshot: StoredSnapshot,
        damage: Damage,
    ) -> None:
        super().__init__(context)
        self._engine = engine
        self._original = snapshot
        self._damage = damage
        self._files = choose_files(snapshot, damage)
        self._at_load: str | None = None
        self._folder = Path(tempfile.mkdtemp(dir=context.scratch, prefix="damaged-"))
        self.copy = StoredSnapshot(self._folder / "snapshot", snapshot.manifest)
        try:
            copy_snapshot(snapshot, self.copy.folder, self._files)
        except BaseException:
            self.close()
            raise

    def detectors(self) -> Sequence[Detector]:
        """A scrubber on the copy."""
        return (ImageVerifier(self._engine.store, self.copy),)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {
            "files": list(self._files),
            "snapshot_id": self._original.manifest.snapshot_id,
            "image_bytes": self._original.manifest.image_bytes,
            "at_load": self._at_load,
        }

    def inject(self) -> None:
        """See `Injection.inject`."""
        damage(self._damage, [self.copy.folder / path for path in self._files])

    def prove_effect(self) -> Proof:
        """Compare the copy with the original, byte by byte."""
        differing = [
            path
            for path in self._files
            if not same_content(self.copy.folder / path, self._original.folder / path)
        ]
        return Proof(
            proved=differing == list(self._files),
            source="comparison with the original",
            detail=f"differing: {', '.join(differing) or 'no file'}",
        )

    def broken_expectation(self) -> str | None:
        """A restore from the damaged copy has to be refused, with `image_corrupt`."""
        try:
            started = restore_worker(
                self._engine,
                self.copy,
                self.context.worker,
                evidence=self.context.evidence,
                name=f"damaged-{self._damage}",
            )
        except SnapshotError as error:
            self._at_load = "refused"
            if error.code is SnapshotReason.IMAGE_CORRUPT:
                return None
            return f"the restore was refused as {error.code}, not as image_corrupt: {error}"
        self._at_load = "restored"
        started.running.stop()
        return "a worker was restored from the damaged image"

    def roll_back(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self._folder)

    def prove_rollback(self) -> Proof:
        """The copy is gone, and the original is what was written."""
        source = "verification of the original"
        if self._folder.exists():
            return Proof(proved=False, source=source, detail="the damaged copy is still there")
        try:
            self._engine.store.verify(self._original)
        except SnapshotError as error:
            return Proof(proved=False, source=source, detail=f"the original is damaged: {error}")
        return Proof(
            proved=True, source=source, detail="the original is intact, the copy is removed"
        )

    def close(self) -> None:
        """Remove the copy if it is still there."""
        if self._folder.exists():
            shutil.rmtree(self._folder)


def choose_files(snapshot: StoredSnapshot, damage: Damage) -> tuple[str, ...]:
    """The files to damage: the largest, which holds memory pages, or the two largest to swap.

    Raises:
        ObstacleError: the snapshot has too few files that hold anything.
    """
    ordered = sorted(
        (file for file in snapshot.manifest.files if file.bytes),
        key=lambda file: (-file.bytes, file.path),
    )
    first = ordered[0] if ordered else None
    if first is None:
        raise _nothing_to_damage(snapshot)
    if damage is not Damage.SWAPPED_FILES:
        return (first.path,)
    for other in ordered[1:]:
        if other.sha256 != first.sha256:  # swapping equal files would be no damage
            return (first.path, other.path)
    raise _nothing_to_damage(snapshot)


def _nothing_to_damage(snapshot: StoredSnapshot) -> ObstacleError:
    return ObstacleError(
        FaultReason.NO_SNAPSHOT,
        f"{snapshot.manifest.snapshot_id} has too few files to damage.",
        applicable=True,
    )


def damage(kind: Damage, files: Sequence[Path], seed: int = 0) -> None:
    """Damage files that are nobody else's.

    Args:
        files: one file, not empty; two for `SWAPPED_FILES`.
        seed: chooses the bit to flip.

    Raises:
        StorageError: a file has another link, through which an original would be damaged too.
        OSError: it can't be done.
    """
    for path in files:
        if path.lstat().st_nlink != 1:
            raise StorageError(f"{path} has a second link: damaging it would damage another file.")
    first = files[0]
    match kind:
        case Damage.BIT_FLIP:
            _flip_any_bit(first, random.Random(seed))  # noqa: S311 - a place, not a secret
        case Damage.TRUNCATION:
            os.truncate(first, first.stat().st_size // 2)
        case Damage.MISSING_FILE:
            first.unlink()
        case Damage.SWAPPED_FILES:
            _, second = files
            aside = first.with_name(f"{first.name}.aside")
            first.rename(aside)
            second.rename(first)
            aside.rename(second)


def same_content(one: Path, other: Path) -> bool:
    """Whether both files are there and hold the same bytes."""
    try:
        with one.open("rb") as left, other.open("rb") as right:
            while True:
                a, b = left.read(_COMPARE_BYTES), right.read(_COMPARE_BYTES)
                if a != b:
                    return False
                if not a:
                    return True
    except FileNotFoundError:
        return False


def flip_bit(path: Path, offset: int, bit: int) -> None:
    """Flip one bit of a file that is no link; bit 0 is the lowest of the byte at `offset`."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        (value,) = os.pread(handle, 1, offset)
        os.pwrite(handle, bytes([value ^ (1 << bit)]), offset)
    finally:
        os.close(handle)


def _flip_any_bit(path: Path, chance: random.Random) -> None:
    offset = chance.randrange(path.lstat().st_size)
    flip_bit(path, offset, chance.randrange(8))
