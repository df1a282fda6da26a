"""A repository: content once, whole snapshots only, nothing lost to somebody else's prune."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from resilience_pipelines.errors import BusyError, CorruptError, InputError, StorageError
from resilience_pipelines.snapshots.leases import LIFETIME_S, MARGIN_S, Leases, Purpose
from resilience_pipelines.snapshots.manifest import CHUNK_BYTES
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.repository import BLOBS, MANIFESTS, Repository
from resilience_pipelines.snapshots.retention import Policy
from resilience_pipelines.snapshots.sealing import Sealing, parse_compression
from resilience_pipelines.snapshots.storage import FolderStorage, Storage, open_storage
from resilience_pipelines.snapshots.store import SnapshotStore
from tests.support.snapshots import put

KEY = bytes(range(32))
OLD = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["folder", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage(str(tmp_path / "repository"))
    return open_storage(f"memory://{tmp_path.name}-{os.getpid()}/repository")


@pytest.fixture
def here(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "there")


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd-3"])
def test_what_was_put_is_what_is_got(
    storage: Storage, here: SnapshotStore, there: SnapshotStore, key: bytes | None, compression: str
) -> None:
    pages = random.Random(1).randbytes(4096) * 10 + bytes(CHUNK_BYTES) * 2
    snapshot = put(here, pages=pages)
    repository = Repository(storage, Sealing(parse_compression(compression), key))
    report = repository.put(snapshot)
    assert (report.chunks, report.reused_chunks) == (4, 0)
    repository.verify(report.snapshot_id)
    got = repository.get(report.snapshot_id, there)
    there.verify(got)
    assert got.manifest == snapshot.manifest
    assert (got.images / "pages-1.img").read_bytes() == pages
    assert (got.images / "pages-1.img").stat().st_mode & 0o077 == 0


def test_content_of_several_snapshots_is_there_once(storage: Storage, here: SnapshotStore) -> None:
    repository = Repository(storage)
    first = repository.put(put(here, pages=b"same"))
    second = repository.put(put(here, pages=b"same"))
    assert (first.reused_chunks, second.reused_chunks) == (0, second.chunks)
    assert len(storage.sizes(BLOBS)) == first.chunks


def test_a_put_goes_on_where_it_was_broken_off(
    storage: Storage, here: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = put(here, pages=random.Random(2).randbytes(3 * CHUNK_BYTES))
    write, left = storage.put, [4]

    def fail_later(name: str, content: bytes) -> None:
        if name.startswith(BLOBS):
            left[0] -= 1
            if left[0] < 2:
                raise StorageError("the line went dead")
        write(name, content)

    monkeypatch.setattr(storage, "put", fail_later)
    with pytest.raises(StorageError):
        Repository(storage).put(snapshot)
    assert Repository(storage).all() == []
    monkeypatch.undo()
    written = len(storage.sizes(BLOBS))
    report = Repository(storage).put(snapshot)
    assert report.reused_chunks == written > 0
    Repository(storage).verify(report.snapshot_id)


def test_pruning_takes_what_no_snapshot_names_and_nothing_else(
    storage: Storage, here: SnapshotStore
) -> None:
    repository = Repository(storage)
    old, new = put(here, pages=b"old", created_at=OLD), put(here, pages=b"new")
    other = put(here, "2", pages=b"other", created_at=OLD)
    for snapshot in (old, new, other):
        repository.put(snapshot)
    would = repository.prune(Policy(keep=1), dry_run=True)
    assert len(repository.all()) == 3
    report = repository.prune(Policy(keep=1))
    assert report.doomed == would.doomed
    assert report.swept
    assert report.freed_bytes > 0
    assert repository.all() == sorted(
        [new.manifest, other.manifest], key=lambda manifest: manifest.snapshot_id
    )
    for manifest in repository.all():
        repository.verify(manifest.snapshot_id)
    assert len(storage.sizes(BLOBS)) == 3  # new, other and what all three shared


def test_a_pinned_snapshot_is_neither_pruned_nor_removed(
    storage: Storage, here: SnapshotStore
) -> None:
    repository = Repository(storage)
    old = repository.put(put(here, created_at=OLD)).snapshot_id
    repository.put(put(here))
    repository.pin(old)
    assert repository.prune(Policy(keep=1)).doomed == ()
    with pytest.raises(InputError, match="pinned"):
        repository.remove(old)
    repository.unpin(old)
    assert [item.snapshot_id for item in repository.prune(Policy(keep=1)).doomed] == [old]


def test_the_last_good_snapshot_stays_where_newer_ones_are_damaged(
    storage: Storage, here: SnapshotStore
) -> None:
    repository = Repository(storage)
    good = repository.put(put(here, pages=b"good", created_at=OLD)).snapshot_id
    newer = put(here, pages=b"newer")
    repository.put(newer)
    digest = newer.manifest.files[0].sha256[0]
    storage.delete(f"{BLOBS}{digest[:2]}/{digest}")
    assert repository.prune(Policy(keep=1)).doomed == ()
    repository.verify(good)


def test_a_prune_never_takes_the_chunks_of_a_put_under_way(
    storage: Storage, here: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(storage)
    shared = repository.put(put(here, pages=b"shared", created_at=OLD)).snapshot_id
    snapshot = put(here, pages=b"shared")
    seen = []

    def prune_now(done: int, total: int) -> None:
        # Its chunks are there, of a snapshot that is removed just now; it has not named them yet.
        if not seen:
            storage.delete(MANIFESTS + shared)
            seen.append(Repository(storage).prune(Policy()))

    repository.put(snapshot, progress=prune_now)
    assert [report.swept for report in seen] == [False]
    repository.verify(snapshot.manifest.snapshot_id)


def test_a_put_waits_for_a_prune(storage: Storage, here: SnapshotStore) -> None:
    snapshot = put(here)
    leases = Leases(storage)
    with leases.hold(Purpose.PRUNE):
        waiting = threading.Thread(target=Repository(storage).put, args=(snapshot,))
        waiting.start()
        waiting.join(1.5)
        assert waiting.is_alive()
        assert Repository(storage).all() == []
        with pytest.raises(BusyError), leases.hold(Purpose.PUT, wait_s=0):
            pass
    waiting.join(30)
    assert Repository(storage).all() == [snapshot.manifest]


def test_a_lease_of_the_dead_runs_out_and_one_of_the_living_does_not(storage: Storage) -> None:
    now = [1000.0]
    leases = Leases(storage, lambda: now[0])
    with leases.hold(Purpose.PUT) as lease:
        for _ in range(10):
            now[0] += LIFETIME_S * 0.6
            lease.check()
        with pytest.raises(BusyError), leases.hold(Purpose.PRUNE, wait_s=0):
            pass
        now[0] += LIFETIME_S + MARGIN_S + 1
        with leases.hold(Purpose.PRUNE, wait_s=0):
            leases.remove_expired()
        with pytest.raises(BusyError, match="lost its turn"):
            lease.check()


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_no_changed_object_is_accepted(
    tmp_path: Path, here: SnapshotStore, there: SnapshotStore, key: bytes | None
) -> None:
    """Every try flips one bit of one object."""
    storage = FolderStorage(tmp_path / "repository")
    chance = random.Random(3)
    snapshot = put(here, pages=chance.randbytes(20_000))
    sealing = Sealing(parse_compression("lz4"), key)
    Repository(storage, sealing).put(snapshot)
    repository = Repository(storage, sealing)
    snapshot_id = snapshot.manifest.snapshot_id
    objects = [*storage.sizes(BLOBS), MANIFESTS + snapshot_id]
    for place in range(1000):
        path = tmp_path / "repository" / chance.choice(objects)
        before = path.read_bytes()
        after = bytearray(before)
        after[chance.randrange(len(after))] ^= 1 << chance.randrange(8)
        path.write_bytes(after)
        with pytest.raises((SnapshotError, CorruptError, InputError)):
            repository.verify(snapshot_id)
        if place % 10 == 0:
            with pytest.raises((SnapshotError, CorruptError, InputError)):
                repository.get(snapshot_id, there)
        path.write_bytes(before)
    repository.verify(snapshot_id)
    assert list(there.root.iterdir()) == []


def test_a_damaged_local_image_is_not_put(storage: Storage, here: SnapshotStore) -> None:
    snapshot = put(here)
    (snapshot.images / "pages-1.img").write_bytes(b"pagE")
    with pytest.raises(SnapshotError) as caught:
        Repository(storage).put(snapshot)
    assert caught.value.code is SnapshotReason.IMAGE_CORRUPT
    assert Repository(storage).all() == []


def test_putting_again_mends_a_damaged_chunk(storage: Storage, here: SnapshotStore) -> None:
    snapshot = put(here)
    repository = Repository(storage)
    repository.put(snapshot)
    for name in storage.sizes(BLOBS):
        storage.put(name, b"rubbish")
    with pytest.raises(SnapshotError):
        repository.verify(snapshot.manifest.snapshot_id)
    repository.put(snapshot, rewrite=True)
    repository.verify(snapshot.manifest.snapshot_id)


def test_chunks_stay_where_a_manifest_can_not_be_used(
    storage: Storage, here: SnapshotStore
) -> None:
    repository = Repository(storage)
    snapshot_id = repository.put(put(here)).snapshot_id
    before = storage.sizes(BLOBS)
    storage.put(MANIFESTS + snapshot_id, b"rubbish")
    assert repository.unreadable() == [snapshot_id]
    with pytest.raises(CorruptError, match=snapshot_id):
        repository.prune(Policy(keep=1))
    assert storage.sizes(BLOBS) == before
    repository.remove(snapshot_id)
    assert repository.prune(Policy(keep=1)).freed_bytes == sum(before.values())


@pytest.mark.parametrize(
    ("wrote", "reads"), [(KEY, bytes(32)), (KEY, None), (None, KEY)],
    ids=["another key", "no key", "a key for what has none"],
)  # fmt: skip
def test_another_key_is_refused_at_once(
    storage: Storage, here: SnapshotStore, wrote: bytes | None, reads: bytes | None
) -> None:
    Repository(storage, Sealing(key=wrote)).put(put(here))
    with pytest.raises((CorruptError, InputError)):
        Repository(storage, Sealing(key=reads))


def test_nothing_of_an_encrypted_image_can_be_read_or_guessed(
    tmp_path: Path, here: SnapshotStore
) -> None:
    storage = FolderStorage(tmp_path / "repository")
    snapshot = put(here, pages=b"the secret of the process" * 1000)
    Repository(storage, Sealing(key=KEY)).put(snapshot)
    content = b"".join(p.read_bytes() for p in (tmp_path / "repository").rglob("*") if p.is_file())
    assert b"secret" not in content
    assert b"reference" not in content
    names = "".join(storage.sizes(BLOBS))
    assert not any(digest in names for file in snapshot.manifest.files for digest in file.sha256)


@pytest.mark.parametrize(
    "damage",
    [
        lambda parts: parts[:-1],
        lambda parts: [parts[0], parts[2], parts[1], *parts[3:]],
        lambda parts: [*parts, parts[-1]],
        lambda parts: parts[:1],
    ],
    ids=["truncated", "reordered", "repeated", "emptied"],
)
def test_segments_can_not_be_moved_or_left_out(
    damage: Callable[[list[bytes]], list[bytes]],
) -> None:
    sealing = Sealing(key=KEY)
    content = random.Random(4).randbytes(3 * 2**20 + 5)
    sealed = sealing.seal("blobs/x", content)
    assert sealing.open("blobs/x", sealed) == content
    head, size = 15 + 16, 2**20 + 16
    parts = [sealed[:head], *(sealed[at : at + size] for at in range(head, len(sealed), size))]
    with pytest.raises(CorruptError):
        sealing.open("blobs/x", b"".join(damage(parts)))
    with pytest.raises(CorruptError):
        sealing.open("blobs/y", sealed)


def test_an_exposed_folder_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    FolderStorage(root)
    root.chmod(0o755)
    with pytest.raises(SnapshotError) as caught:
        FolderStorage(root)
    assert caught.value.code is SnapshotReason.STORE_EXPOSED


@pytest.mark.parametrize("name", ["../x", "", "snap-1"])
def test_a_name_that_is_no_id_is_refused(storage: Storage, there: SnapshotStore, name: str) -> None:
    repository = Repository(storage)
    for act in (repository.verify, repository.pin, repository.unpin, repository.remove):
        with pytest.raises(InputError):
            act(name)
    with pytest.raises(InputError):
        repository.get(name, there)
