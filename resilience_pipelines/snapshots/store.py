"""The snapshot store: a folder in which every snapshot is whole, verified before use and private.

What belongs here: names, atomic creation, integrity and removal of snapshots on a file system. What
does not: what is in an image, and how one is made.

Images hold a process's memory. The store's folders are 0700 and are refused if others may read
them. A snapshot is built in `.partial-*` and renamed when everything is on the disk; what a killed
writer left there is told apart from work in progress by a lock that dies with its owner.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from resilience_pipelines import strict_json
from resilience_pipelines.durability import replace_text, sync
from resilience_pipelines.errors import InputError, ResilienceError, StorageError
from resilience_pipelines.owned_folder import LOCK_NAME, owned_folder, remove_orphans, remove_tree
from resilience_pipelines.plain_files import open_plain, read_plain
from resilience_pipelines.snapshots.keys import NO_TRUST, Trust
from resilience_pipelines.snapshots.manifest import (
    CHUNK_BYTES,
    IMAGES,
    SHARED_MEMORY,
    SNAPSHOT_ID_PATTERN,
    ImageFile,
    Manifest,
)
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.retention import Doomed, Policy, choose_doomed

MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "manifest.sig"
_PINS = ".pins"
MAX_MANIFEST_BYTES = 64 * 2**20
MAX_SIGNATURE_BYTES = 1024
_HASH_THREADS = min(8, os.cpu_count() or 1)
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class _SnapshotFolder:
    """The layout that a snapshot has while it is made and afterwards."""

    folder: Path

    @property
    def images(self) -> Path:
        """CRIU's image files."""
        return self.folder / IMAGES

    @property
    def shared_memory(self) -> Path:
        """Files that were in /dev/shm."""
        return self.folder / SHARED_MEMORY

    def list_files(self) -> list[Path]:
        """All regular files of the image, sorted."""
        return sorted(
            path for base in (self.images, self.shared_memory) for path in _regular_files(base)
        )


@dataclass(frozen=True)
class StoredSnapshot(_SnapshotFolder):
    """A snapshot in the store, its manifest read but its files not yet verified."""

    manifest: Manifest


@dataclass(frozen=True)
class PartialSnapshot(_SnapshotFolder):
    """A snapshot that is being made. `commit` is the only way into the store."""

    snapshot_id: str

    def describe_files(self) -> tuple[ImageFile, ...]:
        """Sizes and hashes of everything written so far."""
        return describe_files(self.folder, self.list_files())


def describe_files(folder: Path, paths: Sequence[Path]) -> tuple[ImageFile, ...]:
    """Sizes and hashes of files below a snapshot's folder."""
    sizes = [path.stat().st_size for path in paths]
    chunks = [
        (path, offset)
        for path, size in zip(paths, sizes, strict=True)
        for offset in chunk_offsets(size)
    ]
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        digests = pool.map(lambda chunk: _chunk_sha256(*chunk), chunks)
        return tuple(
            ImageFile(
                path=str(path.relative_to(folder)),
                bytes=size,
                sha256=tuple(next(digests) for _ in chunk_offsets(size)),
            )
            for path, size in zip(paths, sizes, strict=True)
        )


class SnapshotStore:
    """Snapshots below one folder.

    Args:
        trust: signs what is committed, and decides whose manifests are believed.

    Raises:
        SnapshotError: others than the owner may look into the folder (`store_exposed`).
    """

    def __init__(self, root: Path, trust: Trust = NO_TRUST) -> None:
        self.root = root
        self._trust = trust
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_exposed(root)

    @contextmanager
    def begin(self, snapshot_id: str) -> Iterator[PartialSnapshot]:
        """A place to build a snapshot in. What is not committed on leaving is removed."""
        with owned_folder(self.root / f".partial-{snapshot_id}") as folder:
            partial = PartialSnapshot(folder, snapshot_id)
            partial.images.mkdir(mode=0o700)
            partial.shared_memory.mkdir(mode=0o700)
            yield partial

    def commit(self, partial: PartialSnapshot, manifest: Manifest) -> StoredSnapshot:
        """Put everything on the disk, then make the snapshot visible in one step.

        Raises:
            SnapshotError: no space (`store_full`).
        """
        text = manifest.model_dump_json(indent=1).encode()
        return self.adopt(partial, text, self._trust.sign(text))

    def adopt(self, partial: PartialSnapshot, text: bytes, signature: str | None) -> StoredSnapshot:
        """Commit a snapshot whose manifest was written elsewhere; it stays as it is, to the byte.

        Raises:
            SnapshotError: no space (`store_full`), or the manifest can't be used.
        """
        manifest = parse_manifest(partial.snapshot_id, text)
        try:
            _write_private(partial.folder / MANIFEST_NAME, text)
            if signature is not None:
                _write_private(partial.folder / SIGNATURE_NAME, signature.encode())
            for file in manifest.files:
                sync(partial.folder / file.path)
            for folder in (partial.images, partial.shared_memory, partial.folder):
                sync(folder)
            (partial.folder / LOCK_NAME).unlink()
            target = self.root / manifest.snapshot_id
            partial.folder.rename(target)
            sync(self.root)
        except OSError as error:
            raise storage_failure(error, "commit") from error
        return StoredSnapshot(target, manifest)

    def all(self) -> list[StoredSnapshot]:
        """All whole snapshots, oldest first. One whose manifest can't be read is left out."""
        found = []
        for folder in sorted(self.root.iterdir()):
            if re.fullmatch(SNAPSHOT_ID_PATTERN, folder.name):
                try:
                    found.append(self.get(folder.name))
                except SnapshotError:
                    continue  # `verify` names it; a list must not fail for one of its members
        return found

    def unreadable(self) -> list[str]:
        """Ids of snapshots whose manifest can't be read."""
        readable = {snapshot.manifest.snapshot_id for snapshot in self.all()}
        return sorted(
            folder.name
            for folder in self.root.iterdir()
            if re.fullmatch(SNAPSHOT_ID_PATTERN, folder.name) and folder.name not in readable
        )

    def get(self, snapshot_id: str) -> StoredSnapshot:
        """One snapshot by its id.

        Raises:
            InputError: the id is none, or no such snapshot is here.
            SnapshotError: the manifest can't be read or is not trusted, or others may read the
                snapshot.
        """
        folder = self._folder(snapshot_id)
        refuse_exposed(folder)
        text = read_manifest(folder)
        self._trust.check(snapshot_id, text, read_signature(folder))
        manifest = parse_manifest(snapshot_id, text)
        return StoredSnapshot(folder, manifest)

    def verify(self, snapshot: StoredSnapshot) -> None:
        """Read every file and compare it with the manifest.

        Raises:
            SnapshotError: `image_corrupt`, naming the first file that is not what was written.
        """
        self.verify_structure(snapshot)
        self.verify_pages(snapshot)

    def verify_structure(self, snapshot: StoredSnapshot) -> None:
        """Check that the right files with the right sizes are there, and all that CRIU parses.

        Left to `verify_pages` are the contents of memory pages, which CRIU copies but never reads.

        Raises:
            SnapshotError: `image_corrupt`
        """
        listed = {file.path: file for file in snapshot.manifest.files}
        present = {
            str(path.relative_to(snapshot.folder))
            for base in (snapshot.images, snapshot.shared_memory)
            for path in _all_entries(base)
        }
        for path in sorted(listed.keys() - present):
            raise _corrupt(snapshot, path, "is missing")
        for path in sorted(present - listed.keys()):
            raise _corrupt(snapshot, path, "is not in the manifest")
        for file in listed.values():
            if problem := _check_size(snapshot, file):
                raise _corrupt(snapshot, file.path, problem)
        _check_contents(snapshot, [file for file in listed.values() if not holds_pages(file)])

    def verify_pages(self, snapshot: StoredSnapshot) -> None:
        """Check the contents of memory pages.

        Raises:
            SnapshotError: `image_corrupt`
        """
        _check_contents(snapshot, [file for file in snapshot.manifest.files if holds_pages(file)])

    def remove(self, snapshot_id: str) -> int:
        """Delete one snapshot; returns the bytes freed. It vanishes in one step.

        Its space is free then, but nothing is overwritten: a file system or a disk may keep it.

        Raises:
            InputError: there is no such snapshot, or it is pinned.
        """
        folder = self._folder(snapshot_id)
        if snapshot_id in self.pinned():
            raise InputError(
                "snapshot", snapshot_id, "it is pinned",
                mend="`resilience snapshot unpin` it first.",
            )  # fmt: skip
        size = sum(path.stat().st_size for path in _regular_files(folder))
        doomed = self.root / f".removed-{snapshot_id}"
        folder.rename(doomed)
        remove_tree(doomed)  # `clean` may be at it already
        return size

    def prune(self, policy: Policy, *, dry_run: bool = False) -> list[Doomed]:
        """Remove what a policy does not keep; returns what that was."""
        doomed = choose_doomed(
            (snapshot.manifest for snapshot in self.all()),
            policy,
            pinned=self.pinned(),
            is_good=self._is_good,
        )
        if not dry_run:
            for item in doomed:
                self.remove(item.snapshot_id)
        return doomed

    def pin(self, snapshot_id: str) -> None:
        """Keep a snapshot whatever a policy says; pinned already, it stays so."""
        self._folder(snapshot_id)
        replace_text(self.root / _PINS / snapshot_id, "")

    def unpin(self, snapshot_id: str) -> None:
        """Let policies decide again."""
        self._folder(snapshot_id)
        (self.root / _PINS / snapshot_id).unlink(missing_ok=True)

    def pinned(self) -> frozenset[str]:
        """Ids of the snapshots that are pinned."""
        folder = self.root / _PINS
        return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()

    def _is_good(self, snapshot_id: str) -> bool:
        try:
            self.verify(self.get(snapshot_id))
        except ResilienceError:
            return False
        return True

    def clean(self) -> list[Path]:
        """Remove what killed writers left; work in progress is left alone. Returns what it was."""
        return [
            *remove_orphans(self.root, ".removed-*"),
            *remove_orphans(self.root, ".partial-*"),
        ]

    def _folder(self, snapshot_id: str) -> Path:
        if not re.fullmatch(SNAPSHOT_ID_PATTERN, snapshot_id):
            raise InputError(
                "snapshot", snapshot_id, "this is no snapshot id",
                mend="`resilience snapshot list` shows the ids.",
            )  # fmt: skip
        folder = self.root / snapshot_id
        if not folder.is_dir() or folder.is_symlink():
            raise InputError(
                "snapshot", snapshot_id, "no such snapshot is in the store",
                mend="`resilience snapshot list` shows those that are.",
            )  # fmt: skip
        return folder


def read_manifest(folder: Path) -> bytes:
    """The manifest of the snapshot in this folder, as it was written.

    Raises:
        SnapshotError: it can't be read.
    """
    try:
        return read_plain(folder / MANIFEST_NAME, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise _unreadable(folder.name, str(error)) from error


def read_signature(folder: Path) -> str | None:
    """The signature of the manifest in this folder; None where there is none to be read."""
    try:
        return read_plain(folder / SIGNATURE_NAME, MAX_SIGNATURE_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None


def parse_manifest(snapshot_id: str, text: bytes) -> Manifest:
    """The manifest of a snapshot from its text.

    Raises:
        SnapshotError: it can't be used, or is another's.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise _unreadable(snapshot_id, f"it is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        strict_json.loads(text)
        manifest = Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or MANIFEST_NAME
        raise _unreadable(snapshot_id, f"{field}: {first['msg']}") from error
    except ValueError as error:
        raise _unreadable(snapshot_id, f"it is no JSON ({error})") from error
    if manifest.snapshot_id != snapshot_id:
        raise _unreadable(snapshot_id, f"it is the manifest of {manifest.snapshot_id}")
    return manifest


def _unreadable(snapshot_id: str, problem: str) -> SnapshotError:
    return SnapshotError(
        SnapshotReason.MANIFEST_UNREADABLE,
        "gate",
        f"The manifest of {snapshot_id} can't be used: {problem}",
        mend="Take the snapshot again, and remove this one.",
    )


def storage_failure(error: OSError, phase: str) -> SnapshotError | StorageError:
    """The error that a failed write to the store means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SnapshotError(
            SnapshotReason.STORE_FULL,
            phase,
            f"The snapshot store is full ({error.strerror}).",
            mend="`resilience snapshot prune` frees space.",
        )
    return StorageError(f"The snapshot store can't be written: {error}.")


def refuse_exposed(folder: Path) -> None:
    """Refuse a folder that others than its owner may enter.

    Raises:
        SnapshotError: `store_exposed`
    """
    facts = folder.stat()
    if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid not in (0, os.geteuid()):
        raise SnapshotError(
            SnapshotReason.STORE_EXPOSED,
            "gate",
            f"{folder} has mode {stat.S_IMODE(facts.st_mode):04o} and owner {facts.st_uid}: others "
            "may read or change memory images there.",
            mend=f"Look who changed it, then: chown {os.geteuid()} and chmod 0700.",
        )


def _corrupt(snapshot: StoredSnapshot, path: str, problem: str) -> SnapshotError:
    return SnapshotError(
        SnapshotReason.IMAGE_CORRUPT,
        "verify",
        f"{path} of {snapshot.manifest.snapshot_id} {problem}.",
        mend="Remove this snapshot and take a new one.",
    )


def holds_pages(file: ImageFile) -> bool:
    """Whether it holds contents of memory, which CRIU copies and never reads."""
    return Path(file.path).name.startswith("pages-")


def _check_contents(snapshot: StoredSnapshot, files: Iterable[ImageFile]) -> None:
    chunks = [
        (file, offset, digest)
        for file in files
        for offset, digest in zip(chunk_offsets(file.bytes), file.sha256, strict=True)
    ]
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        checks = pool.map(lambda chunk: _check_chunk(snapshot, *chunk), chunks)
        for (file, _, _), problem in zip(chunks, checks, strict=True):
            if problem:
                pool.shutdown(wait=False, cancel_futures=True)
                raise _corrupt(snapshot, file.path, problem)


def _check_size(snapshot: StoredSnapshot, file: ImageFile) -> str:
    try:
        facts = (snapshot.folder / file.path).lstat()
    except OSError as error:
        return f"can't be read ({error.strerror})"
    if not stat.S_ISREG(facts.st_mode):
        return "is no regular file"
    if facts.st_size != file.bytes:
        return f"has {facts.st_size} bytes instead of {file.bytes}"
    return ""


def _check_chunk(snapshot: StoredSnapshot, file: ImageFile, offset: int, digest: str) -> str:
    try:
        found = _chunk_sha256(snapshot.folder / file.path, offset)
    except OSError as error:
        return f"can't be read ({error.strerror})"
    return (
        "" if found == digest else f"does not have the SHA-256 of the manifest (byte {offset} f.)"
    )


def chunk_offsets(size: int) -> range:
    """Where the chunks of a file begin; an empty file has one."""
    return range(0, max(size, 1), CHUNK_BYTES)


def _chunk_sha256(path: Path, offset: int) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    with open_plain(path) as file:
        end = offset + CHUNK_BYTES
        while offset < end:
            count = os.preadv(file.fileno(), [buffer[: end - offset]], offset)
            if count == 0:
                break
            digest.update(buffer[:count])
            offset += count
    return digest.hexdigest()


def _all_entries(base: Path) -> list[Path]:
    return [path for path in base.rglob("*") if path.is_symlink() or not path.is_dir()]


def _regular_files(base: Path) -> list[Path]:
    return [path for path in _all_entries(base) if path.is_file() and not path.is_symlink()]


def _write_private(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
