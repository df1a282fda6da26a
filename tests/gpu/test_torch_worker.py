"""On a real GPU: every arm of the torch worker answers as before, through the platform's job."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_pipelines.context import make_worker
from resilience_pipelines.home import open_home
from resilience_pipelines.job import run_job
from resilience_pipelines.job_spec import StartupSpec
from resilience_pipelines.records import Arm, OracleVerdict, Outcome
from resilience_pipelines.snapshots.cuda_driver import CudaDriver, CudaUnavailableError

pytestmark = pytest.mark.gpu


def test_every_arm_answers_as_before(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    driver = CudaDriver()
    try:
        driver.wait_ready()
    except CudaUnavailableError as error:
        pytest.skip(f"no GPU here: {error}")
    finally:
        driver.close()
    home = open_home(tmp_path / "home")
    make_worker("torch", home).prepare()
    record = run_job(
        StartupSpec(worker="torch", repeats=1, sleep_levels=(1, 2)), home, lambda *_: None
    ).record
    assert record.unsupported == {}
    assert {start.arm for start in record.startups} == set(Arm)
    for start in record.startups:
        assert start.outcome is Outcome.OK, f"{start.arm}: {start.detail}"
        assert start.oracle.verdict is OracleVerdict.EQUAL
        assert start.unaccounted_s is not None
        assert start.total_s is not None
        assert start.unaccounted_s < 0.05 * start.total_s
    (snapshot,) = record.snapshots
    assert snapshot.source_serving_after
    assert {"cuda_lock", "cuda_checkpoint", "cuda_restore", "cuda_unlock"} <= {
        phase.name for phase in snapshot.phases
    }
