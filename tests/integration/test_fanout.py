"""Several restores from one image at once, with real CRIU."""

from __future__ import annotations

from pathlib import Path

from resilience_pipelines.records import Outcome, PageCache
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.startup.benchmark import prepare_source
from resilience_pipelines.startup.fanout import FanoutPlan, run_fanout
from resilience_pipelines.workers.space import SpaceSupport
from tests.integration.test_startup_benchmark import context_of


def test_restores_of_a_wave_all_answer_as_before_and_one_damaged_image_fails_all(
    engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path
) -> None:
    context = context_of(tmp_path, support, engine)
    snapshot = prepare_source(context, snapshot=True).snapshot
    assert snapshot is not None
    plan = FanoutPlan(widths=(1, 3), repeats=1)
    result = run_fanout(plan, snapshot, context, lambda *_: None)
    assert not result.unsupported
    assert [item.width for item in result.restores] == [1, 1, 3, 3, 3, 3, 3, 3]
    for item in result.restores:
        assert item.outcome is Outcome.OK, item
        assert item.total_s is not None
        assert item.wave_s is not None
        assert item.wave_s >= item.total_s
        assert item.image_bytes == snapshot.manifest.image_bytes
    warm = [i for i in result.restores if i.page_cache_requested is PageCache.WARM]
    assert {item.page_cache_found for item in warm} == {PageCache.WARM}

    pages = next(snapshot.images.glob("pages-*.img"))
    data = bytearray(pages.read_bytes())
    data[len(data) // 2] ^= 1
    pages.write_bytes(data)
    damaged = run_fanout(FanoutPlan((2,), (PageCache.WARM,), 1), snapshot, context, lambda *_: None)
    assert [item.reason_code for item in damaged.restores] == [SnapshotReason.IMAGE_CORRUPT] * 2
    assert all(item.wave_s is None for item in damaged.restores)
