"""Small snapshots for tests of stores: whole and valid, but of no process."""

from __future__ import annotations

from datetime import UTC, datetime

from resilience_pipelines.snapshots.manifest import Manifest, new_snapshot_id
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.oracle import RecordedAnswer


def put(
    store: SnapshotStore,
    engine_version: str = "1",
    pages: bytes = b"page",
    created_at: datetime | None = None,
) -> StoredSnapshot:
    """A snapshot of an engine's version that holds these pages."""
    moment = created_at or datetime.now(UTC)
    snapshot_id = new_snapshot_id(moment)
    with store.begin(snapshot_id) as partial:
        (partial.images / "pages-1.img").write_bytes(pages)
        (partial.shared_memory / "psm_1").write_bytes(b"shared")
        manifest = Manifest(
            snapshot_id=snapshot_id, created_at=moment, engine="criu",
            criu_version="4.2.1", worker="reference",
            stack=Stack(engine="reference", engine_version=engine_version), cpu_features=("avx",),
            port=8000, root_pid=1000, output_pipe="pipe:[1]",
            answer=RecordedAnswer(prompt="p", token_ids=(1,), logprobs=(-1.0,)),
            files=partial.describe_files(), mapped_files=(),
        )  # fmt: skip
        return store.commit(partial, manifest)
