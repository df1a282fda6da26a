"""A repository in S3-compatible storage, over HTTP to a server on loopback (moto)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from resilience_pipelines.errors import StorageError
from resilience_pipelines.snapshots.manifest import CHUNK_BYTES
from resilience_pipelines.snapshots.reasons import SnapshotError
from resilience_pipelines.snapshots.repository import BLOBS, Repository
from resilience_pipelines.snapshots.retention import Policy
from resilience_pipelines.snapshots.sealing import Sealing, parse_compression
from resilience_pipelines.snapshots.storage import FsspecStorage, Storage
from resilience_pipelines.snapshots.store import SnapshotStore
from tests.support.snapshots import put

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install '.[s3]'")
moto_server = pytest.importorskip(
    "moto.server", reason="moto is not installed: pip install '.[test]'"
)

BUCKET = "snapshots"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def options(endpoint: str) -> dict[str, object]:
    return {"endpoint_url": endpoint, "key": "a", "secret": "b"}


@pytest.fixture
def storage(endpoint: str, tmp_path: Path) -> Storage:
    import s3fs

    files = s3fs.S3FileSystem(**options(endpoint), use_listings_cache=False)
    if not files.exists(BUCKET):
        files.mkdir(BUCKET)
    return FsspecStorage(f"s3://{BUCKET}/{tmp_path.name}", options(endpoint))


@pytest.fixture
def here(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "here")


def test_objects_are_written_listed_read_and_removed(storage: Storage) -> None:
    assert storage.sizes("a/") == {}
    assert storage.get("a/b") is None
    storage.put("a/b", b"content")
    storage.put("a/c/d", b"")
    assert storage.sizes("a/") == {"a/b": 7, "a/c/d": 0}
    assert (storage.get("a/b"), storage.get("a/c/d")) == (b"content", b"")
    assert storage.exists("a/b")
    storage.delete("a/b")
    storage.delete("a/b")
    assert not storage.exists("a/b")


def test_a_snapshot_goes_there_and_comes_back(
    storage: Storage, here: SnapshotStore, tmp_path: Path
) -> None:
    pages = random.Random(1).randbytes(CHUNK_BYTES + 5)
    snapshot = put(here, pages=pages)
    sealing = Sealing(parse_compression("zstd-1"), bytes(32))
    report = Repository(storage, sealing).put(snapshot)
    assert Repository(storage, sealing).put(snapshot).reused_chunks == report.chunks
    there = SnapshotStore(tmp_path / "there")
    got = Repository(storage, sealing).get(snapshot.manifest.snapshot_id, there)
    there.verify(got)
    assert (got.images / "pages-1.img").read_bytes() == pages


def test_several_put_get_and_prune_at_once(
    storage: Storage, here: SnapshotStore, tmp_path: Path
) -> None:
    snapshots = [
        put(here, pages=random.Random(place % 3).randbytes(50_000),
            created_at=datetime(2026, 1, 1 + place, tzinfo=UTC))
        for place in range(6)
    ]  # fmt: skip

    def use(place: int) -> None:
        repository = Repository(storage)
        repository.put(snapshots[place])
        repository.prune(Policy())
        name = snapshots[place].manifest.snapshot_id
        repository.get(name, SnapshotStore(tmp_path / f"there-{place}"))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(use, range(6)))
    repository = Repository(storage)
    assert [item.snapshot_id for item in repository.all()] == [
        snapshot.manifest.snapshot_id for snapshot in snapshots
    ]
    for snapshot in snapshots:
        repository.verify(snapshot.manifest.snapshot_id)
    assert repository.prune(Policy(keep=1)).swept
    assert len(storage.sizes(BLOBS)) == 2


def test_a_damaged_object_is_refused(storage: Storage, here: SnapshotStore, tmp_path: Path) -> None:
    snapshot = put(here)
    repository = Repository(storage)
    repository.put(snapshot)
    for name in storage.sizes(BLOBS):
        content = storage.get(name)
        assert content is not None
        storage.put(name, content[:-1])
    with pytest.raises(SnapshotError):
        repository.get(snapshot.manifest.snapshot_id, SnapshotStore(tmp_path / "there"))


def test_a_server_that_is_not_there_is_a_storage_failure(tmp_path: Path) -> None:
    dead = options("http://127.0.0.1:9")
    dead["config_kwargs"] = {"connect_timeout": 1, "retries": {"max_attempts": 0}}
    with pytest.raises(StorageError, match=r"s3://snapshots"):
        Repository(FsspecStorage("s3://snapshots/x", dead))
