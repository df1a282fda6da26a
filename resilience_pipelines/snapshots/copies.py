"""Copies of a stored snapshot that may be changed, while the original stays as it is.

What belongs here: copying what will be changed and linking the rest, and an edited copy with a
manifest of its own. What does not: what is changed (`image_edits`, `faults.snapshot_image`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.image_edits import ImageEdit, apply_edit
from resilience_pipelines.snapshots.store import StoredSnapshot, describe_files, holds_pages


@contextmanager
def edited_copy(
    snapshot: StoredSnapshot, edit: ImageEdit, criu: Criu, scratch: Path
) -> Iterator[StoredSnapshot]:
    """A copy (0700) whose image was edited and whose manifest names it so; removed at the end.

    It is in no store and nobody signed it: verification finds what the edit left.

    Args:
        scratch: a folder that is removed also when this process is killed.

    Raises:
        NotInImageError: the image has nothing that this edit could change.
        OSError: no space, or no permission.
    """
    kept = {file.path: file for file in snapshot.manifest.files if holds_pages(file)}
    with tempfile.TemporaryDirectory(dir=scratch, prefix="edited-") as parent:
        folder = Path(parent) / "snapshot"
        copy_snapshot(
            snapshot, folder, {file.path for file in snapshot.manifest.files} - kept.keys()
        )
        copy = StoredSnapshot(folder, snapshot.manifest)
        manifest = apply_edit(
            edit, criu.open_images(copy.images, snapshot.manifest.root_pid), snapshot.manifest
        )
        # Pages are linked, not edited, and may be many gigabytes to hash again.
        changed = [path for path in copy.list_files() if str(path.relative_to(folder)) not in kept]
        files = (*describe_files(folder, changed), *kept.values())
        yield StoredSnapshot(folder, manifest.model_copy(update={"files": files}))


def copy_snapshot(snapshot: StoredSnapshot, target: Path, private: Collection[str]) -> None:
    """Make a private look-alike of a snapshot.

    Args:
        private: files that are copied, to be changed; all others become links to the originals.

    Raises:
        OSError: no space, or no permission.
    """
    target.mkdir(mode=0o700)
    for file in snapshot.manifest.files:
        source, copy = snapshot.folder / file.path, target / file.path
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.path in private:
            shutil.copyfile(source, copy)
            copy.chmod(0o600)
            continue
        try:
            copy.hardlink_to(source)
        except OSError:  # another file system
            shutil.copyfile(source, copy)
    for folder in (snapshot.images, snapshot.shared_memory):
        (target / folder.name).mkdir(mode=0o700, exist_ok=True)
