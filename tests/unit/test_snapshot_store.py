"""The snapshot store: whole snapshots only, nothing lost, nobody else looks in."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from resilience_pipelines.errors import InputError
from resilience_pipelines.snapshots.manifest import CHUNK_BYTES, new_snapshot_id
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.retention import Policy
from resilience_pipelines.snapshots.store import MANIFEST_NAME, SnapshotStore
from tests.support.snapshots import put


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "snapshots")


def test_what_was_put_is_what_is_got(store: SnapshotStore) -> None:
    put_one = put(store)
    got = store.get(put_one.manifest.snapshot_id)
    assert got == put_one
    store.verify(got)
    assert [file.path for file in got.manifest.files] == ["images/pages-1.img", "shm/psm_1"]


@pytest.mark.parametrize("extra", [-1, 0, 1, 5])
def test_every_byte_of_a_file_of_several_chunks_is_checked(
    store: SnapshotStore, extra: int
) -> None:
    content = bytes(CHUNK_BYTES * 2 + extra)
    snapshot = put(store, pages=content)
    store.verify(snapshot)
    path = snapshot.images / "pages-1.img"
    for offset in (0, CHUNK_BYTES - 1, CHUNK_BYTES, len(content) - 1):
        path.write_bytes(content[:offset] + b"x" + content[offset + 1 :])
        with pytest.raises(SnapshotError) as caught:
            store.verify(snapshot)
        assert caught.value.code is SnapshotReason.IMAGE_CORRUPT
    path.write_bytes(content)
    store.verify(snapshot)


def test_a_bit_that_flipped_anywhere_in_an_image_is_found(store: SnapshotStore) -> None:
    chance = random.Random(5)
    snapshot = put(store, pages=chance.randbytes(20_000))
    files = [(snapshot.folder / file.path, file.bytes) for file in snapshot.manifest.files]
    for _ in range(1000):
        path, size = chance.choice(files)
        before = path.read_bytes()
        after = bytearray(before)
        after[chance.randrange(size)] ^= 1 << chance.randrange(8)
        path.write_bytes(after)
        with pytest.raises(SnapshotError) as caught:
            store.verify(snapshot)
        assert caught.value.code is SnapshotReason.IMAGE_CORRUPT
        path.write_bytes(before)
    store.verify(snapshot)


def test_leaving_without_a_commit_leaves_nothing(store: SnapshotStore) -> None:
    def fail_half_way() -> None:
        with store.begin(new_snapshot_id()) as partial:
            (partial.images / "pages-1.img").write_bytes(b"half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()
    assert list(store.root.iterdir()) == []


def test_pruning_keeps_the_newest_of_each_stack(store: SnapshotStore) -> None:
    made = [put(store, version) for version in ("1", "1", "2", "1")]
    order = sorted(made, key=lambda s: s.manifest.snapshot_id)
    doomed = store.prune(Policy(keep=1), dry_run=True)
    assert len(store.all()) == 4
    assert store.prune(Policy(keep=1)) == doomed
    kept = {s.manifest.stack.engine_version: s for s in store.all()}
    assert set(kept) == {"1", "2"}
    assert kept["1"] == [s for s in order if s.manifest.stack.engine_version == "1"][-1]


@pytest.mark.parametrize("keep", [0, -1])
def test_the_last_snapshot_is_never_pruned(store: SnapshotStore, keep: int) -> None:
    put(store)
    with pytest.raises(InputError, match="keep"):
        store.prune(Policy(keep=keep))
    assert len(store.all()) == 1


@pytest.mark.parametrize(
    "name", ["../snapshots", "snap-1", "", "/etc", "snap-20260101T000000Z-0000000g"]
)
def test_a_name_that_is_no_id_is_refused(store: SnapshotStore, name: str) -> None:
    with pytest.raises(InputError):
        store.get(name)
    with pytest.raises(InputError):
        store.remove(name)


def test_a_link_is_no_snapshot(store: SnapshotStore, tmp_path: Path) -> None:
    real = put(store)
    link = store.root / new_snapshot_id()
    link.symlink_to(real.folder)
    with pytest.raises(InputError):
        store.get(link.name)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: text.replace("images/pages-1.img", "../../etc/passwd"),
        lambda text: text.replace("images/pages-1.img", "/etc/passwd"),
        lambda text: text.replace('"port": 8000', '"port": 0'),
        lambda text: text.replace("snap-", "snap-2", 1),
    ],
)
def test_a_manifest_that_lies_is_refused_and_hides_no_other(
    store: SnapshotStore, damage: object
) -> None:
    good, bad = put(store), put(store)
    path = bad.folder / MANIFEST_NAME
    assert callable(damage)
    path.write_text(damage(path.read_text()))
    with pytest.raises(SnapshotError) as caught:
        store.get(bad.folder.name)
    assert caught.value.code is SnapshotReason.MANIFEST_UNREADABLE
    assert store.all() == [good]
    assert store.unreadable() == [bad.folder.name]


def test_an_image_file_that_became_a_link_is_corrupt(store: SnapshotStore, tmp_path: Path) -> None:
    snapshot = put(store)
    page = snapshot.images / "pages-1.img"
    twin = tmp_path / "twin"
    twin.write_bytes(page.read_bytes())
    page.unlink()
    page.symlink_to(twin)
    with pytest.raises(SnapshotError) as caught:
        store.verify(snapshot)
    assert caught.value.code is SnapshotReason.IMAGE_CORRUPT


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o770, 0o777])
def test_an_exposed_store_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "snapshots"
    SnapshotStore(root)
    root.chmod(mode)
    with pytest.raises(SnapshotError) as caught:
        SnapshotStore(root)
    assert caught.value.code is SnapshotReason.STORE_EXPOSED


def test_cleaning_takes_what_a_killed_writer_left_and_nothing_else(store: SnapshotStore) -> None:
    script = (
        "import os, signal, sys, pathlib\n"
        "from resilience_pipelines.snapshots.store import SnapshotStore\n"
        "store = SnapshotStore(pathlib.Path(sys.argv[1]))\n"
        "with store.begin('snap-20260101T000000Z-deadbeef') as p:\n"
        "    (p.images / 'pages-1.img').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(store.root)], check=False, timeout=60,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    kept = put(store)
    with store.begin(new_snapshot_id()) as in_progress:
        removed = store.clean()
        assert [path.name for path in removed] == [".partial-snap-20260101T000000Z-deadbeef"]
        assert in_progress.folder.is_dir()
    assert store.all() == [kept]


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = SnapshotStore(tmp_path / "snapshots")
        snapshot = put(store)
    finally:
        os.umask(before)
    assert store.root.stat().st_mode & 0o077 == 0
    assert snapshot.folder.stat().st_mode & 0o077 == 0
    assert (snapshot.folder / MANIFEST_NAME).stat().st_mode & 0o077 == 0


def test_a_pinned_snapshot_stays_until_it_is_unpinned(store: SnapshotStore) -> None:
    old = put(store, created_at=datetime(2026, 1, 1, tzinfo=UTC)).manifest.snapshot_id
    put(store)
    store.pin(old)
    assert store.prune(Policy(keep=1)) == []
    with pytest.raises(InputError, match="pinned"):
        store.remove(old)
    store.unpin(old)
    assert [item.snapshot_id for item in store.prune(Policy(keep=1))] == [old]
    assert store.pinned() == frozenset()


def test_the_last_good_snapshot_stays_where_newer_ones_are_damaged(store: SnapshotStore) -> None:
    good = put(store, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    damaged = put(store)
    (damaged.images / "pages-1.img").write_bytes(b"pagE")
    assert store.prune(Policy(keep=1)) == []
    store.verify(good)
