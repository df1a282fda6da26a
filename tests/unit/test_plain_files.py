"""What is read is a plain file: no link is followed, no pipe waited for, and nothing has no end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from resilience_pipelines.errors import CorruptError
from resilience_pipelines.plain_files import NotPlainError, open_plain, read_plain
from resilience_pipelines.snapshots import storage as storages
from resilience_pipelines.snapshots.reasons import SnapshotError
from resilience_pipelines.snapshots.repository import Repository
from resilience_pipelines.snapshots.storage import FolderStorage
from resilience_pipelines.snapshots.store import (
    MANIFEST_NAME,
    SnapshotStore,
    read_manifest,
    read_signature,
)
from tests.support.snapshots import put


def make(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero has no end


KINDS = ["pipe", "link", "folder", *(["device"] if os.geteuid() == 0 else [])]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_a_plain_file_is_opened(tmp_path: Path, kind: str) -> None:
    try:
        make(kind, tmp_path / "x")
    except PermissionError:
        pytest.skip("this machine lets nobody make a device")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotPlainError), open_plain(tmp_path / "x"):
        pass
    with pytest.raises(NotPlainError):
        read_plain(tmp_path / "x", 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_read_no_further_than_one_byte_beyond_its_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert [read_plain(tmp_path / "x", limit) for limit in (3, 5, 9)] == [
        b"1234", b"12345", b"12345",
    ]  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_store_does_not_wait_for_a_pipe_or_follow_a_link(tmp_path: Path, kind: str) -> None:
    store = SnapshotStore(tmp_path / "store")
    stored = put(store)
    page = stored.images / "pages-1.img"
    page.unlink()
    make(kind, page)
    with pytest.raises(SnapshotError):
        store.verify(stored)
    (stored.folder / MANIFEST_NAME).unlink()
    make(kind, stored.folder / MANIFEST_NAME)
    with pytest.raises(SnapshotError):
        read_manifest(stored.folder)
    make(kind, stored.folder / "manifest.sig")
    assert read_signature(stored.folder) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_an_object_that_is_no_plain_file_hides_no_other(tmp_path: Path, kind: str) -> None:
    repository = Repository(FolderStorage(tmp_path / "repository"))
    stored = put(SnapshotStore(tmp_path / "store"))
    repository.put(stored)
    bad = "snap-20260302T090000Z-00000000"
    make(kind, tmp_path / "repository" / "manifests" / bad)
    assert [item.snapshot_id for item in repository.all()] == [stored.manifest.snapshot_id]
    assert repository.unreadable() == [bad]


def test_an_object_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "MAX_OBJECT_BYTES", 1000)
    storage = FolderStorage(tmp_path / "repository")
    storage.put("blobs/x", bytes(1000))
    assert storage.get("blobs/x") == bytes(1000)
    storage.put("blobs/x", bytes(1001))
    with pytest.raises(CorruptError, match="more than 1000 bytes"):
        storage.get("blobs/x")


def test_an_image_that_has_no_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(FolderStorage(tmp_path / "repository"))
    stored = put(SnapshotStore(tmp_path / "store"))
    repository.put(stored)
    other = SnapshotStore(tmp_path / "other")
    monkeypatch.setattr(
        "resilience_pipelines.snapshots.repository.shutil.disk_usage",
        lambda _: SimpleNamespace(free=3),
    )
    with pytest.raises(SnapshotError, match="3 are free"):
        repository.get(stored.manifest.snapshot_id, other)
    assert list(other.root.iterdir()) == []
