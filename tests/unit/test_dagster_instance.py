"""The Dagster instance of a data home: pools of one, no telemetry, and runs whose owner died."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from resilience_pipelines.dagster_io.instance import (
    GPU_POOL,
    WAREHOUSE_POOL,
    bury_dead_runs,
    open_instance,
    owned_run,
    prepare_dagster_home,
    require_free_pool,
    runs_in_pool,
)
from resilience_pipelines.errors import BusyError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.lineage.send import LOG


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


@pytest.fixture
def instance(home: Home) -> Iterator[DagsterInstance]:
    with open_instance(home) as found:
        yield found


def test_telemetry_is_off(instance: DagsterInstance) -> None:
    assert instance.telemetry_enabled is False
    assert instance.nux_enabled is False


def test_lineage_that_was_lost_is_told_in_the_log_of_the_run(instance: DagsterInstance) -> None:
    @dg.op
    def lose() -> None:
        LOG.warning("Lineage: 1 of 1 events may not have been sent")

    @dg.job
    def losing() -> None:
        lose()

    done = losing.execute_in_process(instance=instance)
    logged = [entry.message for entry in instance.all_logs(done.run_id)]
    assert any("1 of 1 events may not have been sent" in message for message in logged)


def test_a_configuration_that_somebody_edited_is_kept(home: Home) -> None:
    file = prepare_dagster_home(home) / "dagster.yaml"
    assert yaml.safe_load(file.read_text())["telemetry"] == {"enabled": False}
    file.write_text("telemetry: {enabled: false}\n")
    prepare_dagster_home(home)
    assert file.read_text() == "telemetry: {enabled: false}\n"


@pytest.mark.parametrize("pool", [GPU_POOL, WAREHOUSE_POOL])
def test_a_pool_is_never_held_twice(instance: DagsterInstance, pool: str) -> None:
    storage = instance.event_log_storage
    configuration = storage.get_pool_config()
    assert configuration.default_pool_limit == 1
    assert configuration.pool_granularity is not None
    assert configuration.pool_granularity.value == "op"
    storage.initialize_concurrency_limit_to_default(pool)
    first, second = create_run_for_test(instance), create_run_for_test(instance)
    assert storage.claim_concurrency_slot(pool, first.run_id, "a").is_claimed
    assert not storage.claim_concurrency_slot(pool, second.run_id, "b").is_claimed
    storage.free_concurrency_slots_for_run(first.run_id)
    assert storage.claim_concurrency_slot(pool, second.run_id, "b").is_claimed


def test_a_pool_that_a_run_holds_is_busy_until_the_run_ends(instance: DagsterInstance) -> None:
    run = create_run_for_test(instance, job_name="main_job", status=DagsterRunStatus.STARTED)
    _claim(instance, run.run_id)
    assert [held.run_id for held in runs_in_pool(instance, GPU_POOL)] == [run.run_id]
    with pytest.raises(BusyError, match="main_job"):
        require_free_pool(instance, GPU_POOL)
    instance.report_run_failed(run)
    require_free_pool(instance, GPU_POOL)
    assert not instance.event_log_storage.get_concurrency_info(GPU_POOL).claimed_slots


def test_a_run_that_its_owner_still_runs_is_left_alone(
    home: Home, instance: DagsterInstance
) -> None:
    run = create_run_for_test(instance, status=DagsterRunStatus.STARTED)
    _claim(instance, run.run_id)
    with owned_run(home, instance, run.run_id):
        bury_dead_runs(home, instance)
        assert _status(instance, run.run_id) is DagsterRunStatus.STARTED
        assert runs_in_pool(instance, GPU_POOL)


def _claim(instance: DagsterInstance, run_id: str) -> None:
    storage = instance.event_log_storage
    storage.initialize_concurrency_limit_to_default(GPU_POOL)
    assert storage.claim_concurrency_slot(GPU_POOL, run_id, "step").is_claimed


def _status(instance: DagsterInstance, run_id: str) -> DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert isinstance(run, dg.DagsterRun)
    return run.status
