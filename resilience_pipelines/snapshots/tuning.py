"""Tuning: which compression lets this machine get a snapshot out of a repository fastest.

What belongs here: measuring each compression on chunks of a real image, in the storage that the
repository lies in, choosing one, and keeping the choice with its reason. What does not: the
repository itself (`repository`) and how an object is written (`sealing`).

What is timed is what a get does with each chunk: read, decrypt, decompress, compare with its
SHA-256. Writing the image into the local store and restoring from there are the same for every
compression and left out. The page cache of a folder is emptied of the trial's own objects before
each reading; a cache behind a server or a virtual disk is not seen.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from resilience_pipelines.durability import replace_text
from resilience_pipelines.errors import CorruptError, InputError
from resilience_pipelines.home import Home
from resilience_pipelines.kept_records import read_records
from resilience_pipelines.snapshots.leases import Lease, Leases, Purpose
from resilience_pipelines.snapshots.manifest import CHUNK_BYTES
from resilience_pipelines.snapshots.repository import THREADS, TRIALS
from resilience_pipelines.snapshots.sealing import Sealing, parse_compression
from resilience_pipelines.snapshots.storage import Storage
from resilience_pipelines.snapshots.store import StoredSnapshot, chunk_offsets

CANDIDATES: Final = ("none", "lz4", "zstd-1", "zstd-3", "zstd-9")
SAMPLE_CHUNKS: Final = 16
"""At most so many chunks of the image are tried, spread evenly over it."""
EQUAL_FRACTION: Final = 0.05
"""Compressions that are no more than this slower than the fastest count as fast as it is."""

Progress = Callable[[int, int], None]
"""Called with the steps that are done and all of them."""


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Candidate(_Kept):
    """What one compression did."""

    compression: str
    stored_bytes: int = Field(ge=0)
    """What the sample takes in the repository."""
    put_s: float = Field(ge=0)
    """Compressing, encrypting and writing the sample, seconds."""
    get_s: tuple[float, ...] = Field(min_length=1)
    """Reading, decrypting, decompressing and checking the sample, seconds, each time."""

    @property
    def get_median_s(self) -> float:
        """The median of all times."""
        return median(self.get_s)


class Tuning(_Kept):
    """A choice for one repository as this machine reaches it, and what it rests on."""

    address: str
    tuned_at: AwareDatetime
    snapshot_id: str
    sample_bytes: int = Field(ge=1)
    encrypted: bool
    threads: int = Field(ge=1)
    candidates: tuple[Candidate, ...] = Field(min_length=1)
    chosen: str
    why: str


def tune(
    storage: Storage,
    key: bytes | None,
    snapshot: StoredSnapshot,
    *,
    candidates: Sequence[str] = CANDIDATES,
    repeats: int = 3,
    progress: Progress = lambda _done, _total: None,
) -> Tuning:
    """Measure each compression on a sample of a snapshot, and choose.

    The candidates take turns, so that a drift of the storage does not fall on one alone. What the
    trial wrote is removed, whatever happens.

    Args:
        key: with which the repository is encrypted.

    Raises:
        InputError: no candidate, or one that there is not; fewer than one repeat; an empty image.
        StorageError, SnapshotError: the storage failed, or has no space.
        BusyError: a prune is under way for long.
        CorruptError: the storage gave back something else.
    """
    if repeats < 1:
        raise InputError("repeats", repeats, "nothing would be measured", mend="Give 1 or more.")
    if not candidates or len(set(candidates)) != len(candidates):
        raise InputError(
            "candidates", list(candidates), "each compression has to be named once",
            mend=f"Choose from {', '.join(CANDIDATES)}.",
        )  # fmt: skip
    sealings = {name: Sealing(parse_compression(name), key) for name in candidates}
    chunks = _sample(snapshot)
    folder = f"{TRIALS}{secrets.token_hex(8)}/"
    # As a put, so that no prune takes a trial that is at work for a killed one.
    with Leases(storage).hold(Purpose.PUT) as lease:
        try:
            found = _measure(storage, lease, folder, sealings, chunks, repeats, progress)
        finally:
            for name in storage.sizes(folder):
                storage.delete(name)
    sample_bytes = sum(map(len, chunks))
    chosen, why = choose(found, sample_bytes)
    return Tuning(
        address=storage.address,
        tuned_at=datetime.now(UTC),
        snapshot_id=snapshot.manifest.snapshot_id,
        sample_bytes=sample_bytes,
        encrypted=key is not None,
        threads=THREADS,
        candidates=found,
        chosen=chosen,
        why=why,
    )


def _measure(
    storage: Storage,
    lease: Lease,
    folder: str,
    sealings: Mapping[str, Sealing],
    chunks: Sequence[bytes],
    repeats: int,
    progress: Progress,
) -> tuple[Candidate, ...]:
    names = list(sealings)
    places = range(len(chunks))
    digests = [hashlib.sha256(chunk).digest() for chunk in chunks]
    stored: dict[str, int] = {}
    put_s: dict[str, float] = {}
    get_s: dict[str, list[float]] = {name: [] for name in names}
    turns = [names[at % len(names) :] + names[: at % len(names)] for at in range(repeats)]
    steps = [*((True, name) for name in names), *((False, name) for turn in turns for name in turn)]

    def put(name: str, place: int) -> int:
        return _put(storage, sealings[name], f"{folder}{name}/{place}", chunks[place])

    def get(name: str, place: int) -> None:
        _get(storage, sealings[name], f"{folder}{name}/{place}", digests[place])

    with ThreadPoolExecutor(THREADS, "tune") as pool:
        for done, (writes, name) in enumerate(steps):
            progress(done, len(steps))
            lease.check()
            if not writes:
                storage.drop_cached(f"{folder}{name}/")
            begin = time.monotonic()
            if writes:
                stored[name] = sum(pool.map(partial(put, name), places))
                put_s[name] = time.monotonic() - begin
            else:
                list(pool.map(partial(get, name), places))
                get_s[name].append(time.monotonic() - begin)
    progress(len(steps), len(steps))
    return tuple(
        Candidate(
            compression=name, stored_bytes=stored[name], put_s=put_s[name],
            get_s=tuple(get_s[name]),
        )
        for name in names
    )  # fmt: skip


def choose(candidates: Sequence[Candidate], sample_bytes: int) -> tuple[str, str]:
    """The compression to use, and why: the smallest of those that are as fast as the fastest."""
    fastest = min(candidates, key=lambda item: item.get_median_s)
    limit_s = fastest.get_median_s * (1 + EQUAL_FRACTION)
    equal = [item for item in candidates if item.get_median_s <= limit_s]
    chosen = min(equal, key=lambda item: (item.stored_bytes, item.get_median_s))
    said = (
        f"{chosen.compression} gives {sample_bytes / 1e6:.0f} MB of the image back in "
        f"{chosen.get_median_s:.3f} s from {chosen.stored_bytes / 1e6:.0f} MB (median of "
        f"{len(chosen.get_s)})"
    )
    if chosen is fastest:
        others = [item for item in candidates if item is not fastest]
        if not others:
            return chosen.compression, f"{said}; nothing else was tried."
        second = min(others, key=lambda item: item.get_median_s)
        return chosen.compression, (
            f"{said}; the next, {second.compression}, takes {second.get_median_s:.3f} s."
        )
    return chosen.compression, (
        f"{said}: as fast as {fastest.compression} ({fastest.get_median_s:.3f} s) to within "
        f"{EQUAL_FRACTION:.0%}, and smaller."
    )


def keep_tuning(home: Home, tuning: Tuning) -> Path:
    """Keep a choice in the data home, in place of an earlier one for the address; returns where."""
    path = _path(home, tuning.address)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    replace_text(path, tuning.model_dump_json(indent=1))
    return path


def kept_tuning(home: Home, address: str) -> Tuning | None:
    """The choice for a repository's address; None where it was never tuned.

    Raises:
        CorruptError: what was kept can't be read.
    """
    path = _path(home, address)
    if not path.is_file():
        return None
    return read_records([path], Tuning, mend="Remove it, and run `resilience snapshot tune`.")[0]


def _path(home: Home, address: str) -> Path:
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    return home.root / "snapshot-tuning" / f"{name}.json"


def _sample(snapshot: StoredSnapshot) -> list[bytes]:
    places = [
        (snapshot.folder / file.path, offset)
        for file in snapshot.manifest.files
        for offset in chunk_offsets(file.bytes)
    ]
    if not places:
        raise InputError(
            "snapshot", snapshot.manifest.snapshot_id, "its image is empty",
            mend="Take another snapshot.",
        )  # fmt: skip
    count = min(len(places), SAMPLE_CHUNKS)
    return [_read(*places[at * len(places) // count]) for at in range(count)]


def _read(path: Path, offset: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read(CHUNK_BYTES)


def _put(storage: Storage, sealing: Sealing, name: str, chunk: bytes) -> int:
    sealed = sealing.seal(name, chunk)
    storage.put(name, sealed)
    return len(sealed)


def _get(storage: Storage, sealing: Sealing, name: str, digest: bytes) -> None:
    sealed = storage.get(name)
    if sealed is None or hashlib.sha256(sealing.open(name, sealed)).digest() != digest:
        raise CorruptError(
            f"{storage.address} does not give back what was written to {name}.",
            mend="Look for another program that cleans it, or use another repository.",
        )
