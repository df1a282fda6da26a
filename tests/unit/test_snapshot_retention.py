"""Retention: limits are kept, and neither the last good snapshot nor a pinned one ever goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.errors import InputError
from resilience_pipelines.snapshots.manifest import ImageFile, Manifest
from resilience_pipelines.snapshots.retention import Policy, choose_doomed
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.oracle import RecordedAnswer

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def manifest(days_old: int, number: int = 0, size: int = 10, engine: str = "1") -> Manifest:
    moment = NOW - timedelta(days=days_old)
    return Manifest(
        snapshot_id=f"snap-{moment:%Y%m%dT%H%M%SZ}-{number:08x}", created_at=moment, engine="criu",
        criu_version="4", worker="reference", stack=Stack(engine="e", engine_version=engine),
        cpu_features=(), port=8000, root_pid=1, output_pipe="pipe:[1]",
        answer=RecordedAnswer(prompt="p", token_ids=(1,), logprobs=(-1.0,)),
        files=(ImageFile(path="images/p", bytes=size, sha256=("0" * 64,)),), mapped_files=(),
    )  # fmt: skip


def doomed(manifests: list[Manifest], policy: Policy, **facts: object) -> dict[int, str]:
    """Which of them go, by place, and why."""
    found = choose_doomed(
        manifests, policy, now=NOW,
        **({"pinned": frozenset(), "is_good": lambda _: True} | facts),  # type: ignore[arg-type]
    )  # fmt: skip
    places = {item.snapshot_id: place for place, item in enumerate(manifests)}
    return {places[item.snapshot_id]: item.why for item in found}


OLD_TO_NEW = [manifest(days) for days in (40, 30, 20, 10)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), {}),
        (Policy(keep=2), {0: "count", 1: "count"}),
        (Policy(max_age_days=25), {0: "age", 1: "age"}),
        (Policy(max_age_days=5), {0: "age", 1: "age", 2: "age"}),
        (Policy(max_bytes=30), {0: "size"}),
        (Policy(max_bytes=0), {0: "size", 1: "size", 2: "size"}),
        (Policy(keep=3, max_age_days=25), {0: "count", 1: "age"}),
    ],
)
def test_each_limit_counts_and_the_newest_stays(policy: Policy, expected: dict[int, str]) -> None:
    assert doomed(OLD_TO_NEW, policy) == expected


def test_stacks_are_judged_apart() -> None:
    both = [manifest(2, 1), manifest(1, 2), manifest(3, 3, engine="2")]
    assert doomed(both, Policy(keep=1)) == {0: "count"}


def test_nothing_is_read_where_nothing_would_go() -> None:
    def never(_: str) -> bool:
        raise AssertionError("it read an image")

    assert doomed(OLD_TO_NEW, Policy(keep=4), is_good=never) == {}


@given(
    ages=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    keep=st.one_of(st.none(), st.integers(1, 4)),
    max_age=st.one_of(st.none(), st.integers(0, 50)),
    max_bytes=st.one_of(st.none(), st.integers(0, 60)),
    good=st.sets(st.integers(0, 7)),
    pinned=st.sets(st.integers(0, 7)),
)
def test_no_policy_takes_the_last_good_one_nor_a_pinned_one(
    ages: list[int], keep: int | None, max_age: int | None, max_bytes: int | None,
    good: set[int], pinned: set[int],
) -> None:  # fmt: skip
    every = [manifest(age, number) for number, age in enumerate(ages)]
    ids = [item.snapshot_id for item in every]
    good_ids = {ids[place] for place in good if place < len(ids)}
    pinned_ids = frozenset(ids[place] for place in pinned if place < len(ids))
    gone = {
        item.snapshot_id
        for item in choose_doomed(
            every, Policy(keep, max_age, max_bytes), now=NOW, pinned=pinned_ids,
            is_good=good_ids.__contains__,
        )
    }  # fmt: skip
    assert not gone & pinned_ids
    assert not good_ids or good_ids - gone
    assert set(ids) - gone


@pytest.mark.parametrize(
    "limits", [{"keep": 0}, {"keep": -1}, {"max_age_days": -1}, {"max_age_days": float("nan")},
               {"max_bytes": -1}],
)  # fmt: skip
def test_a_limit_that_would_leave_nothing_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Policy(**limits)  # type: ignore[arg-type]
