"""The order of starts and the page cache: what makes arms comparable."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.errors import InputError
from resilience_pipelines.job_spec import FaultSpec, SnapshotSpec, StartupSpec, parse_spec
from resilience_pipelines.records import Arm, PageCache
from resilience_pipelines.startup import page_cache
from resilience_pipelines.startup.benchmark import StartupPlan

ARMS = st.lists(st.sampled_from(list(Arm)), min_size=1, unique=True).map(tuple)


@given(ARMS, st.integers(1, 12), st.one_of(st.none(), st.integers(1, 12)))
def test_every_arm_is_started_as_often_as_asked(
    arms: tuple[Arm, ...], repeats: int, cold_repeats: int | None
) -> None:
    plan = StartupPlan(arms=arms, repeats=repeats, cold_repeats=cold_repeats)
    counted = Counter(arm for _, arm in plan.schedule())
    assert set(arms) - set(counted) <= {Arm.SLEEP_WAKE}
    for arm in plan.started_arms():
        wanted = cold_repeats if arm is Arm.COLD and cold_repeats else repeats
        assert counted[arm] == wanted


@given(ARMS, st.integers(1, 12))
def test_arms_are_interleaved(arms: tuple[Arm, ...], repeats: int) -> None:
    plan = StartupPlan(arms=arms, repeats=repeats)
    order, started = plan.schedule(), plan.started_arms()
    for start in range(0, len(order), len(started)):
        assert {arm for _, arm in order[start : start + len(started)]} == set(started)


@given(ARMS, st.integers(4, 12))
def test_no_arm_is_always_first(arms: tuple[Arm, ...], repeats: int) -> None:
    plan = StartupPlan(arms=arms, repeats=repeats)
    order, started = plan.schedule(), plan.started_arms()
    firsts = {order[start][1] for start in range(0, len(order), len(started))}
    assert firsts == set(started)


@pytest.mark.parametrize("changes", [{"repeats": 0}, {"repeats": -1}, {"cold_repeats": 0}])
def test_fewer_than_one_repeat_is_an_error_that_names_the_field(changes: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        StartupPlan(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("arms", [(), (Arm.COLD, Arm.COLD)])
def test_each_arm_is_named_once(arms: tuple[Arm, ...]) -> None:
    with pytest.raises(InputError, match="arms"):
        StartupPlan(arms=arms)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"kind": "startup", "arms": ["tepid"]}', "arms.0"),
        ('{"kind": "startup", "arms": []}', "arms"),
        ('{"kind": "startup", "repeats": -2}', "repeats"),
        ('{"kind": "startup", "repeats": 1e99}', "repeats"),
        ('{"kind": "startup", "port": 70000}', "port"),
        ('{"kind": "startup", "page_cache": "hot"}', "page_cache"),
        ('{"kind": "startup", "surprise": 1}', "surprise"),
        ('{"kind": "dance"}', "specification"),
        ("not json", "specification"),
        ("[]", "specification"),
    ],
)
def test_a_wrong_specification_names_the_field(text: str, field: str) -> None:
    with pytest.raises(InputError, match=field):
        parse_spec(text)


@pytest.mark.parametrize("spec", [StartupSpec(), FaultSpec(), SnapshotSpec()])
def test_a_specification_survives_json(spec: StartupSpec | FaultSpec | SnapshotSpec) -> None:
    assert parse_spec(spec.model_dump_json()) == spec


def test_files_are_brought_into_the_page_cache_and_out_of_it(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(8 << 20))
    page_cache.load([path])
    assert page_cache.classify(page_cache.resident_fraction([path])) is PageCache.WARM
    page_cache.evict([path])
    fraction = page_cache.resident_fraction([path])
    assert fraction is not None
    # A file system in memory has no pages to drop.
    assert page_cache.classify(fraction) in (PageCache.COLD, PageCache.WARM)


def test_no_files_have_no_residency(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert page_cache.resident_fraction([]) is None
    assert page_cache.resident_fraction([empty]) is None
    assert page_cache.classify(None) is PageCache.UNKNOWN


def test_a_snapshot_that_no_arm_restores_is_refused() -> None:
    with pytest.raises(InputError, match="snapshot"):
        StartupPlan((Arm.COLD,), snapshot="snap-20260101T000000Z-00000000")
