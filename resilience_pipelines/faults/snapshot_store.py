"""Faults of the place where snapshots are kept: no bytes left, no inodes left.

What belongs here: the strategy `snapshot_store`: filling a small file system of the experiment's
own, and watching that taking a snapshot there fails without harm. What does not: the store
(`snapshots.store`), and images that are damaged (`snapshot_image`).

The file system is a tmpfs of a few MiB that nobody else uses. It is unmounted, with all that is in
it, also when this process is killed.
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.space_watch import MIN_BYTES, MIN_INODES, SpaceWatch
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError
from resilience_pipelines.faults.lease import Lease
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.snapshots.store import SnapshotStore

STRATEGY = "snapshot_store"
SIZE_BYTES = 16 * 2**20
INODES = 256
_MOUNT_DEADLINE_S = 10.0
_CHUNK = bytes(64 * 2**10)

# Lazily: what still has a file open there keeps it, and nobody can reach it any more.
_UNDO = """
if mountpoint -q "$1"; then umount -l "$1" || exit 1; fi
[ ! -d "$1" ] || rmdir "$1"
"""


class Exhausted(StrEnum):
    """What the file system of the store has no more of."""

    BYTES = "bytes"
    INODES = "inodes"


@dataclass(frozen=True)
class SnapshotStoreFull:
    """A snapshot is to be taken, and its store has no room for it."""

    exhausted: Exhausted
    strategy: str = STRATEGY
    layer: Layer = Layer.REAL
    expected: Mapping[str, float] = field(default_factory=lambda: {"space_watch": 2.0})
    recoveries: tuple[str, ...] = (Recovery.RESUME,)

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"snapshot_store_out_of_{self.exhausted}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return (
            f"no {self.exhausted} left where snapshots are kept; taking one has to fail as "
            "store_full and leave the worker serving"
        )

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"exhausted": self.exhausted.value, "size_bytes": SIZE_BYTES, "inodes": INODES}

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`. The common ones are enough: the tmpfs is small."""
        return ()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        if context.engine is None:
            raise ObstacleError(SnapshotReason.NO_CRIU, context.no_engine_why)
        if not context.support.capsule:
            raise ObstacleError(SnapshotReason.NO_NAMESPACES, context.support.reason)
        return StoreInjection(context, context.engine, self.exhausted)


class StoreInjection(Injection):
    """One small file system, with a store on it."""

    hits_worker = False

    def __init__(self, context: FaultContext, engine: SnapshotEngine, what: Exhausted) -> None:
        super().__init__(context)
        self._what = what
        scratch = context.scratch.resolve()
        self._mount = Path(tempfile.mkdtemp(dir=scratch, prefix="small-store-"))
        # Before the mount: whatever ends this process after it finds somebody who undoes it.
        try:
            self._lease = Lease(f"The mount {self._mount}", _UNDO, str(self._mount))
        except OSError:
            self._mount.rmdir()
            raise
        try:
            _mount(self._mount)
            self._store = SnapshotStore(self._mount / "snapshots")
        except BaseException:
            self.close()
            raise
        self._engine = engine.with_store(self._store)

    def detectors(self) -> Sequence[Detector]:
        """What watches the free space of the store."""
        return (SpaceWatch(self._store.root),)

    def inject(self) -> None:
        """Take all bytes, or all inodes."""
        fill(self._mount, self._what)

    def prove_effect(self) -> Proof:
        """The kernel's own count of what is left."""
        found = os.statvfs(self._mount)
        free_bytes, free_inodes = found.f_bavail * found.f_frsize, found.f_favail
        proved = free_bytes < MIN_BYTES if self._what is Exhausted.BYTES else (
            free_inodes < MIN_INODES
        )  # fmt: skip
        return Proof(
            proved=proved,
            source="statvfs",
            detail=f"{free_bytes} bytes and {free_inodes} inodes are free",
        )

    def broken_expectation(self) -> str | None:
        """A snapshot has to fail as `store_full`, leave nothing, and leave the worker serving."""
        taken = self._engine.take(
            self.target.running,
            self._engine.host.stack,
            self.context.answer,
            measurement_id="no-room",
            sleep_level=self.context.worker.snapshot_sleep_level,
            evidence=self.context.evidence,
        )
        found = taken.measurement
        if taken.snapshot is not None:
            return "a snapshot was taken where there is no room for one"
        if found.reason_code != SnapshotReason.STORE_FULL:
            return f"it failed as {found.reason_code}, not as store_full: {found.detail}"
        if not found.source_serving_after:
            return "the worker does not serve after the snapshot failed"
        left = sorted(path.name for path in self._store.root.iterdir())
        return f"the failed snapshot left {', '.join(left)}" if left else None

    def roll_back(self) -> None:
        """Unmount the file system, with all that is in it."""
        self._lease.release(_MOUNT_DEADLINE_S)

    def prove_rollback(self) -> Proof:
        """Nothing is mounted there any more, and the folder is gone."""
        gone = not self._mount.is_mount() and not self._mount.exists()
        detail = "unmounted and removed" if gone else f"{self._mount} is still there"
        return Proof(proved=gone, source="stat", detail=detail)

    def close(self) -> None:
        """See `Injection.close`."""
        self._lease.release(_MOUNT_DEADLINE_S)


def _mount(folder: Path) -> None:
    options = f"size={SIZE_BYTES},nr_inodes={INODES},mode=0700"
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True, text=True, timeout=_MOUNT_DEADLINE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ObstacleError(FaultReason.NO_MOUNT, f"mount can't be run: {error}") from error
    if done.returncode:
        raise ObstacleError(FaultReason.NO_MOUNT, f"no tmpfs can be mounted: {done.stderr}")


def fill(folder: Path, what: Exhausted) -> None:
    """Use up all bytes or all inodes of the file system of a folder.

    Raises:
        OSError: anything but having done so.
    """
    filler = folder / "filler"
    filler.mkdir()
    number = 0
    try:
        with (filler / "bytes").open("wb", buffering=0) as stream:
            while what is Exhausted.BYTES:
                stream.write(_CHUNK)
        while True:
            (filler / str(number)).touch()
            number += 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
