"""The manifest of a snapshot: what is in the image, what it was made on and how to bring it back.

What belongs here: the data model of `manifest.json`. What does not: deciding whether a machine
fits (`compatibility`) and reading or writing images (`store`, `criu`). A manifest holds no secrets
and no addresses of memory; the image beside it holds all of the process's memory.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from resilience_pipelines.records import MAX_COUNT, Count, Name, Record
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.oracle import RecordedAnswer

SCHEMA_VERSION = 1

SNAPSHOT_ID_PATTERN = r"^snap-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$"


def _stays_inside(path: str) -> str:
    if path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
        raise ValueError("it has to be a relative path without '.', '..' or empty parts")
    return path


IMAGES, SHARED_MEMORY = "images", "shm"
"""The folders of a snapshot that hold its files: CRIU's images, and what was in /dev/shm."""


def _is_of_the_image(path: str) -> str:
    folder, _, name = path.partition("/")
    if folder not in (IMAGES, SHARED_MEMORY) or not name:
        raise ValueError(f"it has to be below {IMAGES}/ or {SHARED_MEMORY}/")
    return _stays_inside(path)


ImagePath = Annotated[str, Field(max_length=4096), AfterValidator(_is_of_the_image)]


CHUNK_BYTES = 16 * 2**20
"""Images are hashed in chunks of this size, so that all cores share in checking a large file."""


class ImageFile(Record):
    """A file of the image, relative to the snapshot's folder."""

    path: ImagePath
    bytes: Count
    sha256: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] = Field(min_length=1)
    """SHA-256 of each chunk of `CHUNK_BYTES`, in order; an empty file has one, of nothing."""

    @model_validator(mode="after")
    def _has_a_hash_for_each_chunk(self) -> Self:
        if len(self.sha256) != max(1, -(-self.bytes // CHUNK_BYTES)):
            raise ValueError(f"{self.bytes} bytes do not have {len(self.sha256)} chunks")
        return self


class MappedFile(Record):
    """A file that processes of the image have mapped. CRIU opens it again on restore."""

    path: Annotated[str, Field(pattern=r"^/", max_length=4096)]
    bytes: Count
    mtime_ns: int = Field(ge=-MAX_COUNT, le=MAX_COUNT)
    build_id: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=512)] | None = None
    """Of an ELF file that has one. Manifests of before it was read have none for any file."""
    mode: int | None = Field(default=None, ge=0, le=0o7777)
    """Permissions, which CRIU compares too; None in manifests of before they were read."""


OpenPath = Annotated[str, Field(pattern=r"^/", max_length=4096)]


class Manifest(Record):
    """What a restore has to know."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=MAX_COUNT)
    snapshot_id: Annotated[str, Field(pattern=SNAPSHOT_ID_PATTERN)]
    created_at: AwareDatetime
    engine: Name
    criu_version: Name
    worker: Name
    stack: Stack
    cpu_features: tuple[str, ...]
    """Flags of the CPU it was made on, sorted: code in memory may use any of them."""
    port: int = Field(ge=1, le=65535)
    root_pid: int = Field(ge=1, le=2**22)
    """Process id of the worker's root inside its space."""
    output_pipe: Annotated[str, Field(pattern=r"^pipe:\[[0-9]+\]$")]
    """The pipe that was the worker's output, in CRIU's words."""
    sleep_level: Count | None = None
    answer: RecordedAnswer
    throughput_tokens_per_s: float | None = Field(default=None, ge=0)
    files: tuple[ImageFile, ...]
    mapped_files: tuple[MappedFile, ...]
    open_paths: tuple[OpenPath, ...] = ()
    """Files and folders that its processes have open or work in, besides those mapped."""
    capabilities: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """What its processes may do, a bit for each capability of Linux; None where it was not read."""

    @model_validator(mode="after")
    def _has_each_file_once(self) -> Self:
        if len({file.path for file in self.files}) != len(self.files):
            raise ValueError("files has a path twice")
        return self

    @property
    def image_bytes(self) -> int:
        """Size of all files of the image."""
        return sum(file.bytes for file in self.files)


def new_snapshot_id(now: datetime | None = None) -> str:
    """A name that sorts by time and that two snapshots don't share."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return f"snap-{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
