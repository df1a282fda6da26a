"""The job that prunes: both stores, by the settings, and says who needs a snapshot."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from assets.retention import prune_snapshots
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.home import open_home
from resilience_pipelines.snapshots.settings import open_repository, open_store
from tests.support.snapshots import put


@pytest.mark.parametrize("dry_run", [True, False])
def test_it_prunes_both_stores_and_names_what_needs_a_new_snapshot(
    tmp_path: Path, dry_run: bool
) -> None:
    home = open_home(tmp_path / "home")
    (home.root / "snapshots.toml").write_text(
        f'[repository]\naddress = "{tmp_path / "shared"}"\n[retention]\nkeep = 1\n'
    )
    store, repository = open_store(home), open_repository(home)
    for moment in (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)):
        repository.put(put(store, created_at=moment))
    result = prune_snapshots.execute_in_process(
        run_config={"ops": {"prune_stores": {"config": {"dry_run": dry_run}}}},
        resources={"home": HomeResource(path=str(home.root))},
    )
    assert result.success
    left = 2 if dry_run else 1
    assert (len(store.all()), len(repository.all())) == (left, left)
    (event,) = result.filter_events(lambda event: event.is_successful_output)
    told = event.step_output_data.metadata
    assert [row.data["store"] for row in told["removed"].records] == ["local", "repository"]
    assert told["need_a_new_snapshot"].value == ["reference"]
