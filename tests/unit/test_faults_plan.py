"""The plan of a fault run: what is asked is what is made, and what can't be made is refused."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.errors import InputError
from resilience_pipelines.faults.catalogue import CATALOGUE, choose
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.run import FaultPlan


def test_every_fault_has_what_a_user_has_to_know() -> None:
    assert len(CATALOGUE) >= 8
    for name, fault in CATALOGUE.items():
        assert fault.name == name
        assert fault.description
        assert "\n" not in fault.description
        assert fault.strategy
        assert fault.expected
        assert all(limit > 0 for limit in fault.expected.values())
        assert {Recovery(recovery) for recovery in fault.recoveries}


def test_naming_none_means_all() -> None:
    assert choose(()) == tuple(CATALOGUE.values())


def test_the_beginning_of_a_name_means_all_that_begin_so() -> None:
    family = [fault.name for fault in choose(["snapshot_image_corrupted"])]
    assert len(family) == 4
    assert all(name.startswith("snapshot_image_corrupted_") for name in family)


def test_a_fault_named_twice_is_chosen_once() -> None:
    assert len(choose(["worker_killed", "worker_killed"])) == 1


@pytest.mark.parametrize("name", ["", "worker", "worker_kill", "WORKER_KILLED", "worker_killed_x"])
def test_an_unknown_fault_is_refused_and_the_known_ones_named(name: str) -> None:
    if name == "worker":  # the beginning of two
        assert len(choose([name])) == 2
        return
    with pytest.raises(InputError, match="worker_killed"):
        FaultPlan(faults=(name,))


def test_an_unknown_recovery_is_refused() -> None:
    with pytest.raises(InputError, match="warm_cache"):
        FaultPlan(recoveries=("reboot",))


def test_a_recovery_that_the_named_fault_does_not_allow_is_refused() -> None:
    with pytest.raises(InputError, match="worker_killed allows none"):
        FaultPlan(faults=("worker_killed",), recoveries=("resume",))


def test_faults_that_were_not_named_are_left_out_when_they_do_not_allow_the_recovery() -> None:
    plan = FaultPlan(recoveries=("resume",), controls=False)
    planned = {fault.name for _, fault, _ in plan.schedule()}
    assert {"worker_hung", "snapshot_store_out_of_bytes"} <= planned
    assert planned.isdisjoint({"worker_killed", "memory_exhausted"})
    assert planned == {name for name, f in CATALOGUE.items() if Recovery.RESUME in f.recoveries}
    assert {recovery for _, _, recovery in plan.schedule()} == {Recovery.RESUME}


@pytest.mark.parametrize("repeats", [0, -1])
def test_no_repeat_is_refused(repeats: int) -> None:
    with pytest.raises(InputError, match="repeats"):
        FaultPlan(repeats=repeats)


@given(
    faults=st.lists(st.sampled_from(sorted(CATALOGUE)), min_size=1, unique=True),
    repeats=st.integers(1, 4),
    controls=st.booleans(),
)
def test_each_experiment_is_made_as_often_as_asked(
    faults: list[str], repeats: int, controls: bool
) -> None:
    plan = FaultPlan(faults=tuple(faults), repeats=repeats, controls=controls)
    made = Counter((fault.name, recovery) for _, fault, recovery in plan.schedule())
    wanted = {
        (name, Recovery(recovery)): repeats
        for name in faults
        for recovery in CATALOGUE[name].recoveries
    } | ({(name, None): repeats for name in faults} if controls else {})
    assert made == wanted
    ids = [(repeat, fault.name, recovery) for repeat, fault, recovery in plan.schedule()]
    assert len(set(ids)) == len(ids)


def test_repeats_begin_with_different_recoveries() -> None:
    plan = FaultPlan(faults=("worker_killed",), repeats=3, controls=False)
    order = [recovery for _, _, recovery in plan.schedule()]
    assert len({order[0], order[3], order[6]}) == 3
