"""The main job from a command line: bad input, and that nothing outlives its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from resilience_pipelines.dagster_io.instance import (
    GPU_POOL,
    bury_dead_runs,
    open_instance,
    runs_in_pool,
)
from resilience_pipelines.home import Home, open_home

COMMAND = (sys.executable, "-m", "resilience_pipelines.dagster_io.run_main")
START_DEADLINE_S = 120.0
END_DEADLINE_S = 60.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=200, check=False
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


@contextmanager
def measuring(home: Home) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """A main job whose worker runs, with all processes that it has started."""
    process = subprocess.Popen(
        [*COMMAND, "--home", str(home.root), "--repeats", "1"], stdout=subprocess.DEVNULL
    )
    try:
        main = psutil.Process(process.pid)

        def family() -> list[psutil.Process]:
            return main.children(recursive=True)

        def worker_runs() -> bool:
            return any("resilience_pipelines.workers" in word for word in _words(family()))

        assert _wait(worker_runs, START_DEADLINE_S), _words(family())
        yield process, family()
    finally:
        process.kill()
        process.wait()


def _words(processes: list[psutil.Process]) -> list[str]:
    found: list[str] = []
    for process in processes:
        try:
            found += process.cmdline()
        except psutil.Error:
            continue
    return found


def _wait(condition: Callable[[], bool], deadline_s: float) -> bool:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _all_gone(family: list[psutil.Process]) -> bool:
    return not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family
    )


def _newest_status(instance: DagsterInstance) -> DagsterRunStatus:
    return instance.get_runs(limit=1)[0].status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_ends_all_it_started_and_is_canceled(
    home: Home, number: signal.Signals
) -> None:
    with measuring(home) as (process, family):
        process.send_signal(number)
        assert process.wait(END_DEADLINE_S) == 130
        assert _wait(lambda: _all_gone(family), END_DEADLINE_S)
    assert not list(home.landing.glob("date=*"))
    assert not list(home.work.iterdir())
    with open_instance(home) as instance:
        assert _newest_status(instance) is DagsterRunStatus.CANCELED
        assert not runs_in_pool(instance, GPU_POOL)


def test_a_killed_run_leaves_no_process_and_blocks_no_later_run(home: Home) -> None:
    with measuring(home) as (process, family):
        process.kill()
        process.wait()
        assert _wait(lambda: _all_gone(family), END_DEADLINE_S)
    with open_instance(home) as instance:
        assert _newest_status(instance) is DagsterRunStatus.STARTED
        assert runs_in_pool(instance, GPU_POOL)
        bury_dead_runs(home, instance)
        assert _newest_status(instance) is DagsterRunStatus.FAILURE
        assert not runs_in_pool(instance, GPU_POOL)
        storage = instance.event_log_storage
        assert not storage.get_concurrency_info(GPU_POOL).claimed_slots


STARTS_DBT = """
import sys, time
from pathlib import Path
from resilience_pipelines.dagster_io import dbt_project
from resilience_pipelines.home import open_home
start = dbt_project.DbtCliInvocation.run
def tell(*arguments, **options):
    found = start(*arguments, **options)
    print(found.process.pid, flush=True)
    return found
dbt_project.DbtCliInvocation.run = tell
dbt_project.prepare_project(open_home(sys.argv[1]))
"""


def test_dbt_ends_with_the_killed_process_that_started_it(home: Home) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_DBT, str(home.root)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        dbt = psutil.Process(int(process.stdout.readline()))
        process.kill()
    assert _wait(lambda: _all_gone([dbt]), END_DEADLINE_S)
    # One that went on would have written it.
    assert not (home.dbt / "dagster" / "manifest.json").exists()


def test_a_run_that_would_measure_beside_another_one_is_refused(home: Home) -> None:
    with open_instance(home) as instance:
        other = create_run_for_test(
            instance, job_name="measure_startup", status=DagsterRunStatus.STARTED
        )
        storage = instance.event_log_storage
        storage.initialize_concurrency_limit_to_default(GPU_POOL)
        assert storage.claim_concurrency_slot(GPU_POOL, other.run_id, "step").is_claimed
        done = run("--home", str(home.root))
    assert done.returncode == 4
    assert f"Run {other.run_id} (measure_startup) holds the pool gpu_slot." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--repeats", "-1"), "repeats = -1"),
        (("--fault-repeats", "0"), "repeats = 0"),
        (("--worker", "tensorrt"), "worker = 'tensorrt'"),
    ],
)
def test_bad_input_is_told_with_field_value_and_exit_code(
    home: Home, arguments: tuple[str, ...], words: str
) -> None:
    done = run("--home", str(home.root), *arguments)
    assert done.returncode == 2
    assert words in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_home_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = run("--home", str(file / "home"), "--json")
    assert done.returncode == 2
    assert "the data home can't be written" in done.stderr
    assert done.stdout == ""
