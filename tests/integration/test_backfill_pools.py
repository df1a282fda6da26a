"""Partitions that are measured at once, as a backfill over the matrix does, share the GPU's pool.

What is measured is made up, and its records say so; the job, its steps, Dagster's instance with its
configuration, the pool and its limit are the real ones. Each run has a process, as under Dagster.
"""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import dagster as dg
import pytest

from resilience_pipelines.dagster_io.instance import GPU_POOL, open_instance
from resilience_pipelines.dagster_io.launcher import LocalLauncher
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.dagster_io.stack_partitions import partition_of, register
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import JobSpec
from resilience_pipelines.warehouse.landing import LandedRun, find_landings, read_landing
from tests.factories import RecordFactory, land, make_home, make_stack
from tests.support.dagster_home import load_definitions

STACKS = {
    str(partition_of(stack)): stack
    for stack in (make_stack(criu_version=version) for version in ("4.2.1", "4.3", "4.4"))
}
JOB_S = 4.0
"""Longer than the runs are apart in their start."""
DEADLINE_S = 120.0


class Timed(LocalLauncher):
    """A launcher of a cluster that lands made-up records, and notes when its job was at work."""

    @property
    def measures_this_machine(self) -> bool:
        """A cluster's launcher measures nothing here."""
        return False

    def run(self, context: dg.AssetExecutionContext, spec: JobSpec, home: Home) -> LandedRun:
        """Take a while, and land a record of the partition's stack."""
        place = list(STACKS).index(context.partition_key)
        began = time.monotonic()
        time.sleep(JOB_S)
        (home.root / f"{place}.times").write_text(f"{began} {time.monotonic()}")
        record = RecordFactory(3600 * place).startup_record(stack=STACKS[context.partition_key])
        return read_landing(land(home.landing, record))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    load_definitions()  # before the fork, once for all
    made = make_home(tmp_path / "home")
    monkeypatch.setenv("RESILIENCE_HOME", str(made.root))
    with open_instance(made) as instance:
        for stack in STACKS.values():
            register(instance, stack)
    return made


def measure(partition: str) -> None:
    """One run of the backfill, in a process of its own."""
    job = load_definitions().resolve_job_def("measure_startup")
    resources = {"home": HomeResource(), "launcher": Timed()}
    with open_instance(HomeResource().open()) as instance:
        done = job.execute_in_process(
            partition_key=partition, instance=instance, resources=resources,
            tags={"dagster/backfill": "matrix"}, raise_on_error=False,
        )  # fmt: skip
    if not done.success:
        raise SystemExit(1)


def waiting_and_at_work(instance: dg.DagsterInstance) -> int:
    """How many runs hold a slot of the GPU's pool or wait for one."""
    found = instance.event_log_storage.get_concurrency_info(GPU_POOL)
    return len(found.active_run_ids | found.pending_run_ids)


def most_at_once(home: Home) -> int:
    """Measure every partition at once; returns how many jobs were at work together."""
    # Dagster configures logging for each run, which threads of one process can't do at once.
    fork = multiprocessing.get_context("fork")
    runs = [fork.Process(target=measure, args=(partition,)) for partition in STACKS]
    end = time.monotonic() + DEADLINE_S
    with open_instance(home) as instance:
        for place, run in enumerate(runs, 1):
            run.start()
            # As Dagster's daemon does: one after the other, not within one instant.
            while waiting_and_at_work(instance) < place:
                assert time.monotonic() < end
                time.sleep(0.02)
    for run in runs:
        run.join(max(0.0, end - time.monotonic()))
    stuck = [run for run in runs if run.is_alive()]
    for run in stuck:
        run.kill()
        run.join()
    assert not stuck
    assert [run.exitcode for run in runs] == [0] * len(STACKS)
    assert len(list(find_landings(home.landing))) == len(STACKS)
    with open_instance(home) as instance:
        found = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": "matrix"}))
    assert {run.tags["dagster/partition"] for run in found} == set(STACKS)
    times = [tuple(map(float, path.read_text().split())) for path in home.root.glob("*.times")]
    return max(sum(began <= at < ended for began, ended in times) for at, _ in times)


def test_a_backfill_measures_one_partition_at_a_time(home: Home) -> None:
    assert most_at_once(home) == 1


def test_a_pool_of_two_slots_lets_two_at_once_and_no_third(home: Home) -> None:
    with open_instance(home) as instance:
        instance.event_log_storage.set_concurrency_slots(GPU_POOL, 2)
    assert most_at_once(home) == 2
