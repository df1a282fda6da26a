"""The plan of a measurement of collectives, its figures, and what it takes for a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.collectives import support
from resilience_pipelines.collectives.arms import ARMS, choose_arms
from resilience_pipelines.collectives.bandwidth import BandwidthPlan, _judge, bus_factor
from resilience_pipelines.collectives.training import rank_environment
from resilience_pipelines.errors import DeadlineError, InputError, UnsupportedError
from resilience_pipelines.records import CollectiveOperation, Outcome


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce", 1, 0), ("all_reduce", 2, 1), ("all_reduce", 8, 1.75),
        ("all_gather", 1, 0), ("all_gather", 2, 0.5), ("all_gather", 8, 0.875),
        ("send_recv", 1, 0), ("send_recv", 2, 1), ("send_recv", 8, 1),
    ],
)  # fmt: skip
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, ranks: int, factor: float) -> None:
    assert bus_factor(CollectiveOperation(operation), ranks) == factor


@given(st.sampled_from(CollectiveOperation), st.integers(1, 4096))
def test_more_ranks_never_lower_the_factor(operation: CollectiveOperation, ranks: int) -> None:
    assert bus_factor(operation, ranks) <= bus_factor(operation, ranks + 1) <= 2


def test_every_backend_has_one_healthy_arm_without_conditions() -> None:
    for backend in (support.GLOO, support.NCCL):
        arms, _ = choose_arms([], backend)
        (healthy,) = [arm for arm in arms if arm.name == "healthy"]
        assert not healthy.environment
        assert not healthy.bridged
        assert len({arm.name for arm in arms}) == len(arms)


def test_no_arm_turns_multicast_on() -> None:
    assert all("NCCL_NVLS_ENABLE" not in arm.environment for arm in ARMS)
    assert rank_environment("lo")["NCCL_NVLS_ENABLE"] == "0"


def test_an_arm_of_the_other_backend_is_left_out_with_the_reason() -> None:
    arms, left_out = choose_arms(["healthy", "p2p_off"], support.GLOO)
    assert [arm.name for arm in arms] == ["healthy"]
    assert list(left_out) == ["arm p2p_off"]
    assert "gloo" in left_out["arm p2p_off"]
    assert choose_arms([], support.GLOO)[1] == {}  # nobody asked for them


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"arms": ("fast",)}, "arms"),
        ({"sizes": (1023,)}, "sizes"),
        ({"sizes": (2048, 2048)}, "sizes"),
        ({"operations": (CollectiveOperation.ALL_REDUCE,) * 2}, "operations"),
        ({"ranks": 0}, "ranks"),
    ],
)
def test_what_can_not_be_measured_is_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=field):
        BandwidthPlan(backend=support.GLOO, **options)  # type: ignore[arg-type]


def test_nccl_gets_no_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "gpu_count", lambda: 2)
    assert BandwidthPlan(backend=support.NCCL).world == 2
    with pytest.raises(InputError, match="two ranks on one GPU"):
        BandwidthPlan(backend=support.NCCL, ranks=3)


RIGHT, WRONG = {"correct": True}, {"correct": False}


@pytest.mark.parametrize(
    ("told", "problem", "transport", "outcome", "reason"),
    [
        ([RIGHT, RIGHT], None, None, Outcome.OK, None),
        ([RIGHT, WRONG], None, None, Outcome.FAILED, "wrong_result"),
        ([RIGHT, RIGHT], None, "the log shows P2P", Outcome.FAILED, "wrong_transport"),
        ([RIGHT], None, None, Outcome.FAILED, "rank_failed"),
        ([], DeadlineError("too long"), None, Outcome.FAILED, "deadline"),
        ([], UnsupportedError("no bridge"), None, Outcome.UNSUPPORTED, "no_network"),
    ],
)
def test_a_figure_counts_when_every_rank_got_the_right_result_over_the_right_transport(
    told: list[dict[str, bool]],
    problem: DeadlineError | None,
    transport: str | None,
    outcome: Outcome,
    reason: str | None,
) -> None:
    assert _judge(told, 2, problem, transport)[:2] == (outcome, reason)
