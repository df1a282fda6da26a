"""A repository of snapshots: what several machines share, each image's content kept once.

What belongs here: putting, getting, listing, checking, pinning and pruning. What does not: where
objects lie (`storage`), how they are written (`sealing`), taking turns (`leases`), and the local
store (`store`), from which a snapshot is put and into which it is got, since CRIU reads files.

Objects: `blobs/` holds chunks, named by content, so that a chunk of several snapshots is there
once; `manifests/` holds what the local store has as `manifest.json`, which names its chunks by
their SHA-256; `pins/` has the names of what is never pruned; `tuning/` is for trials of
compressions (`tuning`). A manifest is written when all of its chunks are there and removed before
any of them. A put that was broken off goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from resilience_pipelines import strict_json
from resilience_pipelines.errors import BusyError, CorruptError, InputError
from resilience_pipelines.owned_folder import remove_orphans
from resilience_pipelines.plain_files import open_plain
from resilience_pipelines.snapshots.keys import NO_TRUST, Trust
from resilience_pipelines.snapshots.leases import Leases, Purpose
from resilience_pipelines.snapshots.manifest import (
    CHUNK_BYTES,
    SNAPSHOT_ID_PATTERN,
    ImageFile,
    Manifest,
)
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.retention import Doomed, Policy, choose_doomed
from resilience_pipelines.snapshots.sealing import UNSEALED, Sealing
from resilience_pipelines.snapshots.storage import Storage
from resilience_pipelines.snapshots.store import (
    PartialSnapshot,
    SnapshotStore,
    StoredSnapshot,
    chunk_offsets,
    parse_manifest,
    read_manifest,
    read_signature,
    storage_failure,
)

BLOBS: Final = "blobs/"
MANIFESTS: Final = "manifests/"
PINS: Final = "pins/"
TRIALS: Final = "tuning/"
FORMAT: Final = "format"
_FORMAT_CONTENT: Final = b"resilience snapshot repository 1"
THREADS: Final = min(8, 2 * (os.cpu_count() or 1))
"""Chunks that are put or got at the same time."""

Progress = Callable[[int, int], None]
"""Called with the chunks that are done and all of them."""


def _no_progress(done: int, total: int) -> None:
    pass


_S = TypeVar("_S")
_T = TypeVar("_T")


@dataclass(frozen=True)
class PutReport:
    """What a put did.

    Attributes:
        stored_bytes: what was written, after compression and encryption.
        reused_chunks: chunks that were there already.
    """

    snapshot_id: str
    image_bytes: int
    stored_bytes: int
    chunks: int
    reused_chunks: int


@dataclass(frozen=True)
class PruneReport:
    """What a prune did, or with `dry_run` would have done.

    Attributes:
        freed_bytes: of chunks that no snapshot names any more; 0 in a dry run.
        swept: whether chunks were removed; not while somebody puts a snapshot.
    """

    doomed: tuple[Doomed, ...]
    freed_bytes: int
    swept: bool


@dataclass(frozen=True)
class _Chunk:
    file: ImageFile
    offset: int
    sha256: str

    @property
    def bytes(self) -> int:
        return min(CHUNK_BYTES, self.file.bytes - self.offset)


class Repository:
    """Snapshots in a storage.

    Args:
        trust: whose manifests are believed; a signature was made when the snapshot was taken.

    Raises:
        CorruptError, InputError: the storage holds a repository with another key.
    """

    def __init__(
        self,
        storage: Storage,
        sealing: Sealing = UNSEALED,
        *,
        trust: Trust = NO_TRUST,
        leases: Leases | None = None,
    ) -> None:
        self._storage = storage
        self._sealing = sealing
        self._trust = trust
        self._leases = leases or Leases(storage)
        content = storage.get(FORMAT)
        self._begun = content is not None
        if content is not None and sealing.open(FORMAT, content) != _FORMAT_CONTENT:
            raise CorruptError(f"{storage.address} holds a repository of another format.")

    def put(
        self,
        snapshot: StoredSnapshot,
        *,
        rewrite: bool = False,
        progress: Progress = _no_progress,
    ) -> PutReport:
        """Store a snapshot. Each chunk is compared with the manifest as it is read.

        Args:
            rewrite: write chunks that are there already again, to mend damaged ones.

        Raises:
            SnapshotError: the local image is not what was written (`image_corrupt`), or there is
                no space (`store_full`).
            BusyError: a prune is under way for long, or this process stood still.
            StorageError: the storage failed.
        """
        text = read_manifest(snapshot.folder)
        manifest = parse_manifest(snapshot.manifest.snapshot_id, text)
        chunks = _distinct(_chunks(manifest))
        with self._leases.hold(Purpose.PUT) as lease:
            if not self._begun:
                self._write(FORMAT, _FORMAT_CONTENT)
                self._begun = True
            there = set() if rewrite else set(self._storage.sizes(BLOBS))
            missing = [chunk for chunk in chunks if self._blob(chunk.sha256) not in there]
            done = len(chunks) - len(missing)
            progress(done, len(chunks))
            stored = 0
            for written in _parallel(lambda c: self._put_chunk(snapshot, c), missing):
                lease.check()
                done += 1
                stored += written
                progress(done, len(chunks))
            name = MANIFESTS + manifest.snapshot_id
            lease.check()
            envelope = {"manifest": text.decode(), "ed25519": read_signature(snapshot.folder)}
            stored += self._write(name, json.dumps(envelope).encode())
            try:
                lease.check()
            except BusyError:
                self._storage.delete(name)  # its chunks may have been pruned meanwhile
                raise
        return PutReport(
            manifest.snapshot_id, manifest.image_bytes, stored, len(chunks),
            len(chunks) - len(missing),
        )  # fmt: skip

    def get(
        self,
        snapshot_id: str,
        store: SnapshotStore,
        *,
        progress: Progress = _no_progress,
    ) -> StoredSnapshot:
        """Bring a snapshot into a local store; every chunk is compared with the manifest.

        Raises:
            InputError: there is no such snapshot, or the store has it already.
            SnapshotError: the image is not what was written, or the store is full.
            BusyError: another process is getting it.
            StorageError: the storage failed.
        """
        text, signature = self._manifest_text(snapshot_id)
        manifest = parse_manifest(snapshot_id, text)
        if (store.root / snapshot_id).exists():
            raise InputError(
                "snapshot", snapshot_id, "the local store has it already",
                mend="`resilience snapshot verify` says whether it is intact.",
            )  # fmt: skip
        remove_orphans(store.root, f".partial-{snapshot_id}")
        try:
            free = shutil.disk_usage(store.root).free
            if manifest.image_bytes > free:
                # Before anything is written: a manifest of a few bytes may name any number of them.
                raise SnapshotError(
                    SnapshotReason.STORE_FULL, "get",
                    f"{snapshot_id} needs {manifest.image_bytes} bytes, and {free} are free.",
                    mend="`resilience snapshot prune` frees space.",
                )  # fmt: skip
            with store.begin(snapshot_id) as partial:
                self._fetch_into(partial, manifest, progress)
                return store.adopt(partial, text, signature)
        except FileExistsError as error:
            raise BusyError(f"{snapshot_id} is being brought into the store already.") from error
        except OSError as error:
            raise storage_failure(error, "get") from error

    def all(self) -> list[Manifest]:
        """The manifests of all snapshots, oldest first; one that can't be used is left out."""
        return self._survey()[0]

    def unreadable(self) -> list[str]:
        """Ids of snapshots whose manifest can't be used."""
        return self._survey()[1]

    def manifest(self, snapshot_id: str) -> Manifest:
        """One snapshot's manifest.

        Raises:
            InputError: there is no such snapshot.
            SnapshotError, CorruptError: it can't be used.
        """
        text, _ = self._manifest_text(snapshot_id)
        return parse_manifest(snapshot_id, text)

    def verify(self, snapshot_id: str) -> None:
        """Read every chunk of a snapshot and compare it with the manifest.

        Raises:
            InputError: there is no such snapshot.
            SnapshotError: `image_corrupt`, naming the first file that is not what was put.
            CorruptError: the manifest is not what was put.
        """
        manifest = self.manifest(snapshot_id)
        for _ in _parallel(self._read_chunk, _distinct(_chunks(manifest))):
            pass

    def pin(self, snapshot_id: str) -> None:
        """Keep a snapshot whatever a policy says; pinned already, it stays so."""
        self._require(snapshot_id)
        self._storage.put(PINS + snapshot_id, b"")

    def unpin(self, snapshot_id: str) -> None:
        """Let policies decide again."""
        self._require(snapshot_id)
        self._storage.delete(PINS + snapshot_id)

    def pinned(self) -> frozenset[str]:
        """Ids of the snapshots that are pinned."""
        return frozenset(name.removeprefix(PINS) for name in self._storage.sizes(PINS))

    def remove(self, snapshot_id: str) -> None:
        """Remove a snapshot, also one that can't be read; its chunks go with the next prune.

        Raises:
            InputError: there is no such snapshot, or it is pinned.
        """
        self._require(snapshot_id)
        if self._storage.exists(PINS + snapshot_id):
            raise InputError(
                "snapshot",
                snapshot_id,
                "it is pinned",
                mend="`resilience snapshot unpin` it first.",
            )
        self._storage.delete(MANIFESTS + snapshot_id)

    def prune(self, policy: Policy, *, dry_run: bool = False) -> PruneReport:
        """Remove what a policy does not keep, then chunks that no snapshot names.

        Raises:
            CorruptError: a manifest can't be used, so that nobody knows which chunks it names; then
                no chunk is removed.
        """
        doomed = choose_doomed(self.all(), policy, pinned=self.pinned(), is_good=self._is_good)
        if dry_run:
            return PruneReport(tuple(doomed), 0, swept=False)
        for item in doomed:
            if not self._storage.exists(PINS + item.snapshot_id):
                self._storage.delete(MANIFESTS + item.snapshot_id)
        try:
            freed = self._sweep()
        except BusyError:
            return PruneReport(tuple(doomed), 0, swept=False)
        return PruneReport(tuple(doomed), freed, swept=True)

    def _sweep(self) -> int:
        with self._leases.hold(Purpose.PRUNE, wait_s=0) as lease:
            self._leases.remove_expired()
            manifests, lost = self._survey()
            if lost:
                raise CorruptError(
                    f"The manifests of {', '.join(lost)} can't be used, so that nobody knows which "
                    "chunks they need. No chunk was removed.",
                    mend="`resilience snapshot remove` them, or use the key that they have.",
                )
            needed = {
                self._blob(chunk.sha256) for manifest in manifests for chunk in _chunks(manifest)
            }
            freed = 0
            for name, size in self._storage.sizes(BLOBS).items():
                if name not in needed:
                    lease.check()
                    self._storage.delete(name)
                    freed += size
            for name, size in self._storage.sizes(
                TRIALS
            ).items():  # a killed one's: none is at work
                self._storage.delete(name)
                freed += size
            self._storage.tidy()
        return freed

    def _put_chunk(self, snapshot: StoredSnapshot, chunk: _Chunk) -> int:
        try:
            content = _read_range(snapshot.folder / chunk.file.path, chunk.offset, chunk.bytes)
        except OSError as error:
            raise _corrupt(snapshot.manifest.snapshot_id, chunk, str(error)) from error
        if hashlib.sha256(content).hexdigest() != chunk.sha256:
            raise _corrupt(
                snapshot.manifest.snapshot_id, chunk, "does not have the SHA-256 of the manifest"
            )
        return self._write(self._blob(chunk.sha256), content)

    def _read_chunk(self, chunk: _Chunk) -> bytes:
        name = self._blob(chunk.sha256)
        try:
            sealed = self._storage.get(name)
            if sealed is None:
                raise _corrupt("the snapshot", chunk, f"is missing {name}")
            content = self._sealing.open(name, sealed)
        except (CorruptError, InputError) as error:
            raise _corrupt("the snapshot", chunk, f"is damaged: {error.reason}") from error
        if len(content) != chunk.bytes or hashlib.sha256(content).hexdigest() != chunk.sha256:
            raise _corrupt("the snapshot", chunk, f"is damaged: {name} holds something else")
        return content

    def _fetch_into(self, partial: PartialSnapshot, manifest: Manifest, progress: Progress) -> None:
        places: dict[str, list[_Chunk]] = {}
        for chunk in _chunks(manifest):
            places.setdefault(chunk.sha256, []).append(chunk)
        for file in manifest.files:
            path = partial.folder / file.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(handle, file.bytes)
            finally:
                os.close(handle)

        def fetch(same: list[_Chunk]) -> None:
            content = self._read_chunk(same[0])
            for chunk in same:
                with (partial.folder / chunk.file.path).open("r+b") as stream:
                    stream.seek(chunk.offset)
                    stream.write(content)

        for done, _ in enumerate(_parallel(fetch, list(places.values())), 1):
            progress(done, len(places))

    def _survey(self) -> tuple[list[Manifest], list[str]]:
        """All manifests, oldest first, and the ids of those that can't be used."""
        manifests, lost = [], []
        for snapshot_id in self._ids():
            try:
                sealed = self._storage.get(MANIFESTS + snapshot_id)
                if sealed is None:
                    continue  # removed since it was listed
                text, _ = self._open(snapshot_id, sealed)
                manifests.append(parse_manifest(snapshot_id, text))
            except (SnapshotError, CorruptError, InputError):
                lost.append(snapshot_id)
        return manifests, lost

    def _manifest_text(self, snapshot_id: str) -> tuple[bytes, str | None]:
        _check_id(snapshot_id)
        sealed = self._storage.get(MANIFESTS + snapshot_id)
        if sealed is None:
            raise self._unknown(snapshot_id)
        return self._open(snapshot_id, sealed)

    def _open(self, snapshot_id: str, sealed: bytes) -> tuple[bytes, str | None]:
        """A manifest's text, which somebody signed whom we trust, and the signature."""
        try:
            envelope = strict_json.loads(self._sealing.open(MANIFESTS + snapshot_id, sealed))
            manifest, signature = envelope["manifest"], envelope["ed25519"]
            if not isinstance(manifest, str) or not isinstance(signature, str | None):
                raise TypeError("a manifest and its signature are texts")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"The manifest of {snapshot_id} is not what was put.") from error
        text = manifest.encode()
        self._trust.check(snapshot_id, text, signature)
        return text, signature

    def _write(self, name: str, content: bytes) -> int:
        sealed = self._sealing.seal(name, content)
        self._storage.put(name, sealed)
        return len(sealed)

    def _blob(self, sha256: str) -> str:
        name = self._sealing.name(sha256)
        return f"{BLOBS}{name[:2]}/{name}"

    def _ids(self) -> list[str]:
        names = (name.removeprefix(MANIFESTS) for name in self._storage.sizes(MANIFESTS))
        return sorted(name for name in names if re.fullmatch(SNAPSHOT_ID_PATTERN, name))

    def _is_good(self, snapshot_id: str) -> bool:
        try:
            self.verify(snapshot_id)
        except (SnapshotError, CorruptError, InputError):
            return False
        return True

    def _require(self, snapshot_id: str) -> None:
        _check_id(snapshot_id)
        if not self._storage.exists(MANIFESTS + snapshot_id):
            raise self._unknown(snapshot_id)

    def _unknown(self, snapshot_id: str) -> InputError:
        return InputError(
            "snapshot", snapshot_id, f"no such snapshot is in {self._storage.address}",
            mend="`resilience snapshot list --repository` shows those that are.",
        )  # fmt: skip


def _chunks(manifest: Manifest) -> Iterator[_Chunk]:
    for file in manifest.files:
        for offset, digest in zip(chunk_offsets(file.bytes), file.sha256, strict=True):
            yield _Chunk(file, offset, digest)


def _distinct(chunks: Iterable[_Chunk]) -> list[_Chunk]:
    return list({chunk.sha256: chunk for chunk in chunks}.values())


def _parallel(work: Callable[[_S], _T], items: list[_S]) -> Iterator[_T]:
    """Results in order. After the first error nothing new is begun."""
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            yield from pool.map(work, items)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _read_range(path: Path, offset: int, count: int) -> bytes:
    with open_plain(path) as stream:
        stream.seek(offset)
        return stream.read(count)


def _check_id(snapshot_id: str) -> None:
    if not re.fullmatch(SNAPSHOT_ID_PATTERN, snapshot_id):
        raise InputError(
            "snapshot", snapshot_id, "this is no snapshot id",
            mend="`resilience snapshot list` shows the ids.",
        )  # fmt: skip


def _corrupt(whose: str, chunk: _Chunk, problem: str) -> SnapshotError:
    return SnapshotError(
        SnapshotReason.IMAGE_CORRUPT,
        "verify",
        f"{chunk.file.path} of {whose} (byte {chunk.offset} f.): {problem}.",
        mend="Put it again from a machine that has it, with --rewrite, or take a new one.",
    )
