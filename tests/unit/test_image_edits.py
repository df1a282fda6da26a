"""Edited copies: the stored snapshot stays as it is; the copy is private, whole, and then gone.

Images are JSON here. What CRIU makes of real ones is for the integration tests.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from resilience_pipelines.errors import InputError
from resilience_pipelines.job_spec import CompatibilitySpec, parse_spec
from resilience_pipelines.snapshots.copies import edited_copy
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.image_edits import ImageEdit, ImageFolder, NotInImageError
from resilience_pipelines.snapshots.manifest import MappedFile
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot
from tests.support.snapshots import put

LIBRARY = MappedFile(path="/usr/lib/one.so", bytes=7, mtime_ns=1, build_id="00ff", mode=0o644)


def with_images(store: SnapshotStore, **images: list[dict[str, Any]]) -> StoredSnapshot:
    """A stored snapshot with these image files; a word's last `_` stands for its process id."""
    stored = put(store)
    with store.begin("snap-20260101T000000Z-deadbeef") as partial:
        (partial.images / "pages-1.img").write_bytes(b"page" * 100)
        for name, entries in images.items():
            path = partial.images / f"{name.replace('_', '-1000')}.img"
            path.write_text(json.dumps({"entries": entries}))
        manifest = stored.manifest.model_copy(
            update={
                "snapshot_id": partial.snapshot_id,
                "files": partial.describe_files(),
                "mapped_files": (LIBRARY,),
            }
        )
        return store.commit(partial, manifest)


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "store")


@pytest.fixture
def criu() -> Criu:
    """Reads and writes images as JSON."""

    def dump(image: object, stream: Any) -> None:
        stream.write(json.dumps(image).encode())

    pycriu = ModuleType("pycriu")
    pycriu.images = SimpleNamespace(load=json.load, dump=dump)  # type: ignore[attr-defined]

    def opened(path: Path, pid: int) -> ImageFolder:
        return ImageFolder(path, pid, pycriu)

    return cast("Criu", SimpleNamespace(open_images=opened))


def test_an_edit_changes_the_copy_alone(store: SnapshotStore, criu: Criu, tmp_path: Path) -> None:
    stored = with_images(store, inventory=[{"img_version": 2}], pstree=[{}])
    with edited_copy(stored, ImageEdit.CRIU_FORM, criu, tmp_path) as copy:
        assert json.loads((copy.images / "inventory.img").read_text()) == {
            "entries": [{"img_version": 3}]
        }
        assert copy.manifest.criu_version == "5.0"
        store.verify(copy)
        pages = copy.images / "pages-1.img"
        assert pages.samefile(stored.images / "pages-1.img"), "they may be many gigabytes"
        assert stat.S_IMODE(copy.folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((copy.images / "inventory.img").stat().st_mode) == 0o600
        folder = copy.folder
    assert not folder.exists()
    store.verify(stored)


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        (ImageEdit.FILE_SIZE, {"bytes": 8}),
        (ImageEdit.FILE_BUILD, {"build_id": "ff00"}),
        (ImageEdit.FILE_GONE, {"path": "/mnt/not-mounted/library.so"}),
    ],
)
def test_a_manifest_says_of_a_file_what_the_image_says(
    store: SnapshotStore, criu: Criu, tmp_path: Path, edit: ImageEdit, changed: dict[str, object]
) -> None:
    stored = with_images(store, files=[{"id": 1, "reg": {"name": LIBRARY.path, "size": 7}}])
    with edited_copy(stored, edit, criu, tmp_path) as copy:
        assert copy.manifest.mapped_files == (LIBRARY.model_copy(update=changed),)
        (entry,) = json.loads((copy.images / "files.img").read_text())["entries"]
    words = {"bytes": "size", "path": "name", "build_id": "build_id"}
    for name, value in changed.items():
        inside = [0x00FF] if name == "build_id" else value
        assert entry["reg"][words[name]] == inside


def test_a_tree_moves_to_another_process_id_as_a_whole(
    store: SnapshotStore, criu: Criu, tmp_path: Path
) -> None:
    root = {"pid": 1000, "ppid": 0, "pgid": 1000, "sid": 1000, "threads": [1000, 1003]}
    child = {"pid": 1002, "ppid": 1000, "pgid": 1000, "sid": 1000, "threads": [1002]}
    stored = with_images(store, pstree=[root, child], core_=[{}])
    with edited_copy(stored, ImageEdit.PROCESS_ID, criu, tmp_path) as copy:
        tree = json.loads((copy.images / "pstree.img").read_text())["entries"]
        assert tree[0] == {"pid": 1, "ppid": 0, "pgid": 1, "sid": 1, "threads": [1, 1003]}
        assert tree[1] == child | {"ppid": 1, "pgid": 1, "sid": 1}
        assert copy.manifest.root_pid == 1
        assert (copy.images / "core-1.img").is_file()
        store.verify(copy)


@pytest.mark.parametrize("edit", [edit for edit in ImageEdit if edit is not ImageEdit.NOTHING])
def test_an_image_that_lacks_what_is_to_be_changed_is_left_alone_and_says_so(
    store: SnapshotStore, criu: Criu, tmp_path: Path, edit: ImageEdit
) -> None:
    names = ("inventory", "files", "core_", "ids_", "fs_", "timens-0")
    stored = with_images(store, pstree=[{}], **{name: [] for name in names})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NotInImageError), edited_copy(stored, edit, criu, tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == before
    store.verify(stored)


def test_edits_are_named_in_a_specification() -> None:
    spec = parse_spec('{"kind": "compatibility", "edits": ["tcp_state"]}')
    assert isinstance(spec, CompatibilitySpec)
    assert spec.edits == (ImageEdit.TCP_STATE,)
    with pytest.raises(InputError, match=r"edits\.0.*'nothing'"):
        parse_spec('{"kind": "compatibility", "edits": ["everything"]}')
