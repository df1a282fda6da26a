"""Checkpoints of a training job in a folder: committed with a manifest of hashes, or not at all.

What belongs here: the names in the folder, the manifest, its verification, and choosing the last
good checkpoint. What does not: what a checkpoint's files hold (`rank` saves, with torch's
distributed checkpoint), and damaging them (`faults.distributed_checkpoint`).

A checkpoint is written to `step-00000010.partial`. Its manifest is written last, and then the
folder is renamed to `step-00000010`: whoever ends the job in between leaves a `.partial`, which is
never loaded. torch's distributed checkpoint itself has no checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
PARTIAL = ".partial"
_NAME = re.compile(r"^step-(\d{8})$")


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint.

    Attributes:
        step: the last step that went into it.
    """

    folder: Path
    step: int


@dataclass(frozen=True)
class Manifest:
    """What was written.

    Attributes:
        state_sha256: of all tensors, as `model.state_sha256` computes it.
        files: SHA-256 of each file.
    """

    step: int
    state_sha256: str
    files: Mapping[str, str]


class CheckpointFolder:
    """The checkpoints of one job. One process writes at a time (rank 0 commits)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def partial(self, step: int) -> Path:
        """Where the checkpoint of a step is written before it is committed."""
        return self.root / f"step-{step:08d}{PARTIAL}"

    def commit(self, step: int, state_sha256: str) -> Checkpoint:
        """Write the manifest of a partial checkpoint, and give it its name.

        Raises:
            OSError: it could not be written; the checkpoint stays partial.
        """
        partial = self.partial(step)
        files = {path.name: file_sha256(path) for path in sorted(partial.iterdir())}
        manifest = {"step": step, "state_sha256": state_sha256, "files": files}
        with (partial / MANIFEST).open("w") as stream:
            json.dump(manifest, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        final = self.root / f"step-{step:08d}"
        if final.exists():  # a job that came back makes steps again that an earlier one had saved
            shutil.rmtree(final)
        partial.rename(final)
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return Checkpoint(final, step)

    def committed(self) -> list[Checkpoint]:
        """All that were committed, the newest first, whatever became of their files."""
        found = [
            Checkpoint(path, int(match[1]))
            for path in self.root.iterdir()
            if (match := _NAME.match(path.name))
        ]
        return sorted(found, key=lambda checkpoint: -checkpoint.step)

    def partials(self) -> list[Path]:
        """What saves left that did not come to their end."""
        return sorted(self.root.glob(f"*{PARTIAL}"))

    def latest_good(self) -> Checkpoint | None:
        """The newest that is what its manifest says; None when there is none."""
        return next((found for found in self.committed() if problem(found) is None), None)

    def prune(self, keep: int) -> None:
        """Remove all but the newest `keep`, and what earlier saves left half done."""
        for old in self.committed()[keep:]:
            shutil.rmtree(old.folder)
        self.remove_partials()

    def remove_partials(self) -> None:
        """Remove what saves left half done. None may be going on."""
        for path in self.partials():
            shutil.rmtree(path)


def read_manifest(checkpoint: Checkpoint) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        OSError: it can't be read.
        ValueError: it is no manifest.
    """
    content = json.loads((checkpoint.folder / MANIFEST).read_text())
    try:
        return Manifest(int(content["step"]), str(content["state_sha256"]), dict(content["files"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{checkpoint.folder / MANIFEST} is no manifest: {error!r}") from error


def problem(checkpoint: Checkpoint) -> str | None:
    """In what a checkpoint is not what its manifest says; None when it is."""
    try:
        manifest = read_manifest(checkpoint)
    except (OSError, ValueError) as error:
        return f"no manifest can be read: {error}"
    for name, wanted in manifest.files.items():
        try:
            if file_sha256(checkpoint.folder / name) != wanted:
                return f"{name} has another SHA-256"
        except FileNotFoundError:
            return f"{name} is missing"
    return None


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
