"""Where a repository of snapshots keeps its objects: a folder, or a store that fsspec reaches.

What belongs here: writing, reading, listing and deleting named objects, each of which is there as a
whole or not at all. What does not: what objects mean (`repository`) and their encoding (`sealing`).

A folder (also of NFS, or a volume that several pods mount) is written by files of its own, because
fsspec's local file system neither syncs nor renames. Objects are at most a chunk of an image large,
so that they pass through memory.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from resilience_pipelines.durability import sync
from resilience_pipelines.errors import CorruptError, InputError, StorageError, UnsupportedError
from resilience_pipelines.plain_files import NotPlainError, read_plain
from resilience_pipelines.snapshots.store import refuse_exposed, storage_failure

CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60

MAX_OBJECT_BYTES: Final = 257 * 2**20
"""No object is larger, and no file is read that is."""

_TEMPORARY: Final = ".partial"
_ABANDONED_AFTER_S: Final = 24 * 3600.0


class Storage(Protocol):
    """Named objects. Names are relative, of letters, digits, `-`, `_`, `.` and `/`.

    Each call raises StorageError where the storage fails, SnapshotError (`store_full`) where it has
    no space, and CorruptError where an object is nothing that `put` wrote.
    """

    @property
    def address(self) -> str:
        """Where this is, for a person; holds no credentials."""

    def put(self, name: str, content: bytes) -> None:
        """Write an object, durably and in one step; one of that name is replaced."""

    def get(self, name: str) -> bytes | None:
        """What an object holds; None where there is no such object."""

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Names and bytes of all objects below `prefix`, a name that ends with `/`."""

    def delete(self, name: str) -> None:
        """Remove an object; it may be gone already."""

    def tidy(self) -> None:
        """Remove what killed writers left and no name leads to."""

    def drop_cached(self, prefix: str) -> None:
        """Have this machine's page cache forget all objects below `prefix`, where it has them."""


class FolderStorage:
    """Objects as files below a folder that only its owner may enter.

    Raises:
        SnapshotError: others than the owner may look into it (`store_exposed`).
        InputError: it can't be made.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._temporary = root / _TEMPORARY
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_exposed(root)
            self._temporary.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(
                "repository", str(root), f"it can't be written ({error.strerror})",
                mend="Give a folder that this user may write.",
            ) from error  # fmt: skip

    @property
    def address(self) -> str:
        """Where this is, for a person."""
        return str(self._root)

    def put(self, name: str, content: bytes) -> None:
        """Write an object, durably and in one step."""
        target = self._root / name
        temporary = self._temporary / secrets.token_hex(16)
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                self._make_folder(target.parent)
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            sync(target.parent)
        except OSError as error:
            raise storage_failure(error, "put") from error

    def get(self, name: str) -> bytes | None:
        """What an object holds; None where there is no such object."""
        with _failing(f"{name} can't be read from {self.address}"):
            try:
                content = read_plain(self._root / name, MAX_OBJECT_BYTES)
            except FileNotFoundError:
                return None
            except NotPlainError as error:
                raise CorruptError(f"{name} of {self.address} is no plain file.") from error
        if len(content) > MAX_OBJECT_BYTES:
            raise CorruptError(f"{name} of {self.address} has more than {MAX_OBJECT_BYTES} bytes.")
        return content

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        with _failing(f"{name} can't be looked up in {self.address}"):
            return (self._root / name).is_file()

    def sizes(self, prefix: str) -> dict[str, int]:
        """Names and bytes of all objects below `prefix`."""
        found = {}
        with _failing(f"{prefix} of {self.address} can't be listed"):
            for folder, _, files in os.walk(self._root / prefix):
                for file in files:
                    path = Path(folder, file)
                    try:
                        size = path.stat().st_size
                    except FileNotFoundError:
                        continue  # somebody removed it meanwhile
                    found[path.relative_to(self._root).as_posix()] = size
        return found

    def delete(self, name: str) -> None:
        """Remove an object; it may be gone already."""
        with _failing(f"{name} can't be removed from {self.address}"):
            (self._root / name).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what killed writers left long ago."""
        with _failing(f"{self.address} can't be cleaned"):
            for path in self._temporary.iterdir():
                try:
                    if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
                        path.unlink()
                except FileNotFoundError:
                    continue  # its writer lives, and has just renamed it

    def drop_cached(self, prefix: str) -> None:
        """Have the page cache forget all objects below `prefix`, and nothing else."""
        with _failing(f"{prefix} of {self.address} can't be read"):
            for name in self.sizes(prefix):
                handle = os.open(self._root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(handle)

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)


class FsspecStorage:
    """Objects in a store that fsspec reaches, such as S3, where writing one is a single step.

    Args:
        url: e.g. `s3://bucket/prefix`.
        options: for fsspec's file system of that protocol, e.g. `endpoint_url`.

    Raises:
        InputError: there is no such protocol, or the options don't suit it.
        UnsupportedError: its package is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        # Loading fsspec and a client takes a second that a folder need not wait for.
        import fsspec

        protocol, _, self._base = url.partition("://")
        self._base = self._base.rstrip("/")
        self.address = url
        self._failures = _client_failures(protocol)
        try:
            self._files = fsspec.filesystem(protocol, **(_defaults(protocol) | dict(options)))
        except ImportError as error:
            raise UnsupportedError(
                f"{protocol}:// needs a package that is not installed here ({error}).",
                mend="pip install 'resilience-pipelines[s3]'" if protocol == "s3" else "",
            ) from error
        except (ValueError, TypeError) as error:
            raise InputError(
                "repository", url, str(error), mend="docs/snapshots.md shows addresses and options."
            ) from error

    def put(self, name: str, content: bytes) -> None:
        """Write an object, durably and in one step."""
        with self._failing("write", name):
            self._files.pipe_file(self._path(name), content)

    def get(self, name: str) -> bytes | None:
        """What an object holds; None where there is no such object."""
        with self._failing("read", name):
            try:
                content: bytes = self._files.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return content

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        with self._failing("look up", name):
            self._files.invalidate_cache()
            return bool(self._files.exists(self._path(name)))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Names and bytes of all objects below `prefix`."""
        start = self._path("").lstrip("/")
        with self._failing("list", prefix):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                return {}
        return {
            path.lstrip("/").removeprefix(start): int(facts["size"])
            for path, facts in found.items()
        }

    def delete(self, name: str) -> None:
        """Remove an object; it may be gone already."""
        with self._failing("remove", name):
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def tidy(self) -> None:
        """Nothing: an upload that was broken off has no object."""

    def drop_cached(self, prefix: str) -> None:
        """Nothing: a client keeps no content."""

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

    @contextmanager
    def _failing(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise StorageError(
                f"{self.address} failed to {verb} {name}: {str(error) or type(error).__name__}.",
                mend="Try again: what was written stays, and is not written again.",
            ) from error


def open_storage(address: str, options: Mapping[str, Any] | None = None) -> Storage:
    """The storage at an address: a folder's path, or a URL of fsspec.

    Raises:
        InputError: it can't be used.
        UnsupportedError: its package is not installed.
        SnapshotError: the folder is open to others.
    """
    if "://" in address and not address.startswith("file://"):
        return FsspecStorage(address, options or {})
    if options:
        raise InputError(
            "options", sorted(options), "a folder has none", mend="Leave them out, or give a URL."
        )
    return FolderStorage(Path(address.removeprefix("file://")).expanduser().absolute())


def _defaults(protocol: str) -> dict[str, Any]:
    if protocol != "s3":
        return {}
    return {
        "use_listings_cache": False,
        "config_kwargs": {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S},
    }


def _client_failures(protocol: str) -> tuple[type[Exception], ...]:
    if protocol == "s3":
        try:
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            return (OSError,)  # then the file system can't be made either, which says why
        return (OSError, BotoCoreError, ClientError)
    return (OSError,)


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what} ({error.strerror or error}).") from error
