"""How far a release has come, in the library and in Dagster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.releases import releases
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.releases.candidates import candidates, release_of
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.releases.ledger import remembered
from resilience_pipelines.releases.release import Release
from resilience_pipelines.releases.states import ReleaseState, SeenStacks, states_of
from resilience_pipelines.stack import Stack
from tests.factories import make_stack

DATA = Path(__file__).parent / "data" / "feeds"


def states(feed: str, *versions: str, **seen: list[Stack]) -> list[ReleaseState]:
    listed = [Release(version=version) for version in versions]
    stacks = SeenStacks(**{name: tuple(found) for name, found in seen.items()})
    return [item.state for item in states_of(FEEDS[feed], listed, stacks)]


def test_a_release_is_known_then_available_then_measured() -> None:
    old, new = make_stack(driver_version="570.1"), make_stack(driver_version="580.1")
    assert states("driver", "590.1", "580.1", "570.1", here=[new], measured=[old]) == [
        ReleaseState.KNOWN, ReleaseState.AVAILABLE, ReleaseState.MEASURED,
    ]  # fmt: skip
    assert states("driver", "580.1", here=[new], measured=[old, new]) == [ReleaseState.MEASURED]


def test_a_release_runs_until_there_are_results_with_it() -> None:
    new = make_stack(driver_version="580.1")
    assert states("driver", "580.1", here=[new], running=[new]) == [ReleaseState.RUNNING]
    found = states("driver", "580.1", here=[new], running=[new], measured=[new])
    assert found == [ReleaseState.MEASURED]


def test_a_release_is_incompatible_where_every_stack_with_it_fails() -> None:
    one = make_stack(driver_version="580.1")
    other = make_stack(driver_version="580.1", kernel_version="6.2.0")
    assert states("driver", "580.1", measured=[one, other], failing=[one]) == [
        ReleaseState.MEASURED
    ]
    assert states("driver", "580.1", measured=[one, other], failing=[one, other]) == [
        ReleaseState.INCOMPATIBLE
    ]


def test_a_release_that_a_cluster_offers_is_available_until_it_is_measured() -> None:
    listed = [Release(version="4.3")]
    new = make_stack(criu_version="4.3")

    def state(feed: str, **seen: tuple[Stack, ...]) -> ReleaseState:
        found = SeenStacks(**seen, offered=frozenset({("criu", "4.3")}))
        return states_of(FEEDS[feed], listed, found)[0].state

    assert state("criu") is ReleaseState.AVAILABLE
    assert state("criu", running=(new,)) is ReleaseState.RUNNING
    assert state("criu", measured=(new,)) is ReleaseState.MEASURED
    assert state("kubernetes") is ReleaseState.KNOWN


def test_an_upgrade_is_what_a_stack_has_with_one_newer_version() -> None:
    base = make_stack(criu_version="4.2.1")
    listed = [
        Release(version="4.10"),
        Release(version="4.3", withdrawn=True),
        Release(version="4.4rc1", prerelease=True),
        Release(version="4.2.1"),
        Release(version="4.2"),
    ]
    (found,) = candidates(FEEDS["criu"], listed, [base, make_stack(criu_version=None)])
    assert found.stack == make_stack(criu_version="4.10")
    assert candidates(FEEDS["vllm"], listed, [base]) == []
    assert candidates(FEEDS["dynamo"], listed, [base]) == []


def test_the_release_that_a_stack_has_is_found_among_those_of_its_feed() -> None:
    listed = [Release(version="2.11.0"), Release(version="2.10.0")]
    assert release_of(FEEDS["torch"], listed, make_stack(torch_version="2.11.0+cu130")) == listed[0]
    assert release_of(FEEDS["torch"], listed, make_stack(torch_version="2.9")) is None
    assert release_of(FEEDS["dynamo"], listed, make_stack()) is None


def test_a_version_of_another_engine_is_not_one_of_vllm() -> None:
    other = make_stack(engine="reference", engine_version="0.24.0")
    vllm = make_stack(engine="vllm", engine_version="0.24.0")
    assert states("vllm", "0.24.0", here=[other], measured=[other]) == [ReleaseState.KNOWN]
    assert states("vllm", "0.24.0", here=[vllm], measured=[]) == [ReleaseState.AVAILABLE]


def test_a_build_of_a_release_is_that_release() -> None:
    build = make_stack(torch_version="2.11.0+cu130")
    assert states("torch", "2.11.0", here=[build], measured=[]) == [ReleaseState.AVAILABLE]


def test_a_product_that_stacks_do_not_name_stays_known() -> None:
    assert states("dynamo", "1.0", here=[make_stack()], measured=[make_stack()]) == [
        ReleaseState.KNOWN
    ]


# The asset, with feeds from files.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in FEEDS:
        monkeypatch.setenv(f"RESILIENCE_FEED_{name.upper()}", (tmp_path / "none").as_uri())
    monkeypatch.setenv("RESILIENCE_FEED_DRIVER", (DATA / "drivers.json").as_uri())
    monkeypatch.setenv("RESILIENCE_FEED_VLLM", (DATA / "vllm.atom").as_uri())
    monkeypatch.setattr("resilience_pipelines.release_survey.read_machines", lambda home: {})
    return open_home(tmp_path / "home")


def materialize(home: Home, **config: Any) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [releases],
        resources={"home": HomeResource(path=str(home.root))},
        run_config={"ops": {"releases": {"config": config}}},
        raise_on_error=False,
    )


def test_new_releases_are_shown_once_and_a_feed_that_fails_keeps_none_from_being_read(
    home: Home,
) -> None:
    first = materialize(home)
    assert first.success
    (event,) = first.asset_materializations_for_node("releases")
    assert event.metadata["new"].value == 6
    failed = event.metadata["failed_feeds"].value
    assert isinstance(failed, dict)
    assert sorted(failed) == ["criu", "cuda", "dynamo", "kubernetes", "torch"]
    shown = event.metadata["releases_of_vllm"]
    assert isinstance(shown, dg.TableMetadataValue)
    assert [row.data["version"] for row in shown.records] == ["0.24.0", "0.9.2"]
    (again,) = materialize(home, feeds=["driver"]).asset_materializations_for_node("releases")
    assert again.metadata["new"].value == 0
    assert len(remembered(home, "vllm").releases) == 3


def test_a_feed_that_does_not_exist_fails_with_its_name(home: Home) -> None:
    result = materialize(home, feeds=["nope"])
    assert not result.success
    (failure,) = [e for e in result.all_events if e.is_step_failure]
    assert "feeds = 'nope': no such feed" in str(failure.event_specific_data)
