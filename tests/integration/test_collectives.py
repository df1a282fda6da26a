"""Real ranks, real namespaces: a job comes back bit for bit, and its network leads nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_pipelines.collectives import bandwidth
from resilience_pipelines.collectives.arms import SLOW_LINK_BITS_PER_S, BandwidthArm
from resilience_pipelines.collectives.bandwidth import BandwidthPlan, run_bandwidth
from resilience_pipelines.collectives.network import BridgedNetwork, SharedNetwork
from resilience_pipelines.collectives.training import TrainingJob, TrainingPlan
from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.home import open_home
from resilience_pipelines.job import run_job
from resilience_pipelines.job_spec import CollectiveSpec
from resilience_pipelines.records import Outcome
from resilience_pipelines.workers.process import WorkerFailedError
from resilience_pipelines.workers.space import SpaceSupport, wait_until
from tests.integration.fault_support import NEEDS_TORCH


@NEEDS_TORCH
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_that_resumes_makes_the_same_steps_again(
    support: SpaceSupport, tmp_path: Path, ranks: int
) -> None:
    plan = TrainingPlan(ranks=ranks, pace_s=0.0, checkpoint_every=4, last_step=10)
    with TrainingJob(SharedNetwork(support), plan, tmp_path) as job:
        job.wait_step(10)
        job.wait_end()
        assert [rank.process.alive() for rank in job.ranks] == [False] * ranks
        first = job.hashes()
        good = job.checkpoints.latest_good()
    assert len(set(first.values())) == len(first) == 11  # the beginning, and ten steps
    assert good is not None
    assert good.step == 8
    with TrainingJob(SharedNetwork(support), plan, tmp_path, good) as job:
        job.wait_step(10)
        assert job.hashes() == {step: first[step] for step in (8, 9, 10)}


@NEEDS_TORCH
def test_waiting_for_a_job_ends_with_its_reason(support: SpaceSupport, tmp_path: Path) -> None:
    plan = TrainingPlan(ranks=1, last_step=2)
    with TrainingJob(SharedNetwork(support), plan, tmp_path) as job:
        with pytest.raises(DeadlineError, match="Step 3 within 0 s"):
            job.wait_step(3, 0)
        job.wait_end()
        with pytest.raises(WorkerFailedError, match="Rank 0 ended: Step 3"):
            job.wait_step(3)


def test_namespaces_of_ranks_are_joined_and_lead_nowhere_else(support: SpaceSupport) -> None:
    with BridgedNetwork(3) as network:
        for rank in range(3):
            assert [route["dst"] for route in network.routes(rank)] == ["10.77.0.0/24"]
            assert network.has_carrier(rank)
            wait_until(
                lambda rank=rank: network.reaches(rank, (rank + 1) % 3, 1.0), 5, "Joined", 0.01
            )  # type: ignore[misc]


def test_a_cut_link_cuts_off_one_rank_alone(support: SpaceSupport) -> None:
    with BridgedNetwork(3) as network:
        network.cut(2)
        assert not network.has_carrier(2)
        assert not network.reaches(2, 0, 0.3)
        wait_until(lambda: network.reaches(1, 0, 1.0), 5, "The others are joined", 0.01)
        network.mend(2)
        wait_until(lambda: network.reaches(2, 0, 1.0), 5, "It is joined again", 0.01)


@NEEDS_TORCH
def test_a_collectives_run_lands_correct_figures_and_a_slow_link_shows(tmp_path: Path) -> None:
    spec = CollectiveSpec(arms=("bridge", "slow_link", "one_channel"), sizes=(2**21,), repeats=1)
    landed = run_job(spec, open_home(tmp_path), lambda *step: None)
    record = landed.record
    assert (record.kind, record.worker, record.basis) == ("collectives", "collectives", "reference")
    assert record.stack.torch_version == record.stack.engine_version
    assert list(record.unsupported) == ["arm one_channel"]
    found = {(item.arm, item.operation): item for item in record.collectives}
    assert len(found) == len(record.collectives) == 6
    for item in record.collectives:
        assert item.outcome is Outcome.OK, item.detail
        assert (item.backend, item.transports, item.ranks) == ("gloo", ("TCP",), 2)
        if item.arm == "slow_link":
            # The link's limit holds for what leaves a rank, beyond the burst that it lets pass.
            assert item.busbw_bytes_per_s is not None
            assert item.busbw_bytes_per_s < 2 * SLOW_LINK_BITS_PER_S / 8


@NEEDS_TORCH
def test_one_rank_alone_is_measured_and_has_nobody_to_send_to(
    support: SpaceSupport, tmp_path: Path
) -> None:
    plan = BandwidthPlan(arms=("healthy",), sizes=(65536,), ranks=1, repeats=1, backend="gloo")
    result = run_bandwidth(plan, support, tmp_path, lambda *step: None)
    assert [item.operation for item in result.measurements] == ["all_reduce", "all_gather"]
    assert all(item.outcome is Outcome.OK for item in result.measurements)
    assert {item.busbw_bytes_per_s for item in result.measurements} == {0.0}
    assert list(result.unsupported) == ["send_recv"]


@NEEDS_TORCH
def test_an_arm_whose_ranks_fail_is_a_result_with_their_words(
    support: SpaceSupport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = BandwidthArm("broken", "gloo", "no such interface", {"GLOO_SOCKET_IFNAME": "none0"})
    monkeypatch.setattr(bandwidth, "choose_arms", lambda names, backend: ([broken], {}))
    plan = BandwidthPlan(sizes=(65536,), repeats=1, backend="gloo")
    result = run_bandwidth(plan, support, tmp_path, lambda *step: None)
    assert {(item.outcome, item.reason_code) for item in result.measurements} == {
        (Outcome.FAILED, "rank_failed")
    }
    assert all(item.busbw_bytes_per_s is None for item in result.measurements)
    assert [path.name for path in tmp_path.iterdir()] == ["collectives-broken-0.log"]
