"""Damage to snapshot images: it is real, it stays in the file it is meant for, and in the copy."""

from __future__ import annotations

import hashlib
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience_pipelines.errors import StorageError
from resilience_pipelines.faults.fault import ObstacleError
from resilience_pipelines.faults.snapshot_image import (
    Damage,
    choose_files,
    damage,
    same_content,
)
from resilience_pipelines.snapshots.copies import copy_snapshot
from resilience_pipelines.snapshots.manifest import Manifest, new_snapshot_id
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.oracle import RecordedAnswer

CONTENTS = st.lists(st.binary(max_size=200), min_size=2, max_size=5, unique=True).filter(
    lambda contents: sum(map(bool, contents)) >= 2
)


def put(root: Path, contents: list[bytes]) -> tuple[SnapshotStore, StoredSnapshot]:
    store = SnapshotStore(root / "store")
    snapshot_id = new_snapshot_id()
    with store.begin(snapshot_id) as partial:
        for index, content in enumerate(contents):
            folder = partial.images if index else partial.shared_memory
            (folder / f"part-{index}.img").write_bytes(content)
        manifest = Manifest(
            snapshot_id=snapshot_id, created_at=datetime.now(UTC), engine="criu",
            criu_version="4.2.1", worker="test", stack=Stack(engine="test", engine_version="1"),
            cpu_features=(), port=8000, root_pid=1000, output_pipe="pipe:[1]",
            answer=RecordedAnswer(prompt="p", token_ids=(1,), logprobs=(-1.0,)),
            files=partial.describe_files(), mapped_files=(),
        )  # fmt: skip
        return store, store.commit(partial, manifest)


def contents_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@settings(deadline=None)
@given(contents=CONTENTS, kind=st.sampled_from(Damage))
def test_damage_changes_the_chosen_files_and_nothing_else(
    contents: list[bytes], kind: Damage
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store, snapshot = put(root, contents)
        original = contents_of(snapshot.folder)
        chosen = choose_files(snapshot, kind)
        copy = StoredSnapshot(root / "copy", snapshot.manifest)
        copy_snapshot(snapshot, copy.folder, chosen)
        store.verify(copy)
        before = contents_of(copy.folder)

        damage(kind, [copy.folder / path for path in chosen])

        after = contents_of(copy.folder)
        changed = {path for path in before if after.get(path) != before[path]}
        assert changed == set(chosen)
        assert set(after) == set(before) - (set(chosen) if kind is Damage.MISSING_FILE else set())
        assert not any(same_content(copy.folder / path, snapshot.folder / path) for path in chosen)
        with pytest.raises(SnapshotError) as caught:
            store.verify(copy)
        assert caught.value.code is SnapshotReason.IMAGE_CORRUPT
        assert contents_of(snapshot.folder) == original
        store.verify(snapshot)


@settings(deadline=None)
@given(content=st.binary(min_size=1, max_size=500), seed=st.integers(0, 1000))
def test_a_bit_flip_flips_one_bit(content: bytes, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        path.write_bytes(content)
        damage(Damage.BIT_FLIP, [path], seed)
        after = path.read_bytes()
    assert len(after) == len(content)
    assert sum((a ^ b).bit_count() for a, b in zip(content, after, strict=True)) == 1


@pytest.mark.parametrize("kind", Damage)
def test_a_file_with_a_second_link_is_not_damaged(tmp_path: Path, kind: Damage) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_bytes(path.name.encode())
    os.link(paths[0], tmp_path / "the original")
    with pytest.raises(StorageError, match="second link"):
        damage(kind, paths if kind is Damage.SWAPPED_FILES else paths[:1])
    assert contents_of(tmp_path) == {
        name: hashlib.sha256(text).hexdigest()
        for name, text in (("one", b"one"), ("the original", b"one"), ("two", b"two"))
    }


def test_only_the_files_to_damage_are_copied(tmp_path: Path) -> None:
    _, snapshot = put(tmp_path, [b"shared", b"small", b"the largest of them"])
    copy_snapshot(snapshot, tmp_path / "copy", ("images/part-2.img",))
    for file in snapshot.manifest.files:
        one, other = tmp_path / "copy" / file.path, snapshot.folder / file.path
        assert os.path.samefile(one, other) == (file.path != "images/part-2.img")


def test_the_largest_file_is_chosen(tmp_path: Path) -> None:
    _, snapshot = put(tmp_path, [b"shared", b"small", b"the largest of them"])
    assert choose_files(snapshot, Damage.BIT_FLIP) == ("images/part-2.img",)
    assert choose_files(snapshot, Damage.SWAPPED_FILES) == ("images/part-2.img", "shm/part-0.img")


def test_equal_files_are_not_swapped(tmp_path: Path) -> None:
    _, snapshot = put(tmp_path, [b"", b"same", b"same"])
    with pytest.raises(ObstacleError, match="too few files"):
        choose_files(snapshot, Damage.SWAPPED_FILES)


def test_a_missing_file_is_not_the_same(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"")
    assert not same_content(tmp_path / "one", tmp_path / "two")
    assert not same_content(tmp_path / "two", tmp_path / "one")
    assert same_content(tmp_path / "one", tmp_path / "one")
