"""How far a release has come, in the library and in Dagster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.releases import releases
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.releases.ledger import remembered
from resilience_pipelines.releases.release import Release
from resilience_pipelines.releases.states import ReleaseState, states_of
from tests.factories import make_stack

DATA = Path(__file__).parent / "data" / "feeds"


def stack(**dimensions: Any) -> dict[str, Any]:
    return make_stack(**dimensions).model_dump()


def states(feed: str, *versions: str, here: list[Any], measured: list[Any]) -> list[ReleaseState]:
    listed = [Release(version=version) for version in versions]
    return [item.state for item in states_of(FEEDS[feed], listed, here, measured)]


def test_a_release_is_known_then_available_then_measured() -> None:
    old, new = stack(driver_version="570.1"), stack(driver_version="580.1")
    assert states("driver", "590.1", "580.1", "570.1", here=[new], measured=[old]) == [
        ReleaseState.KNOWN, ReleaseState.AVAILABLE, ReleaseState.MEASURED,
    ]  # fmt: skip
    assert states("driver", "580.1", here=[new], measured=[old, new]) == [ReleaseState.MEASURED]


def test_a_version_of_another_engine_is_not_one_of_vllm() -> None:
    other = stack(engine="reference", engine_version="0.24.0")
    vllm = stack(engine="vllm", engine_version="0.24.0")
    assert states("vllm", "0.24.0", here=[other], measured=[other]) == [ReleaseState.KNOWN]
    assert states("vllm", "0.24.0", here=[vllm], measured=[]) == [ReleaseState.AVAILABLE]


def test_a_build_of_a_release_is_that_release() -> None:
    build = stack(torch_version="2.11.0+cu130")
    assert states("torch", "2.11.0", here=[build], measured=[]) == [ReleaseState.AVAILABLE]


def test_a_product_that_stacks_do_not_name_stays_known() -> None:
    assert states("dynamo", "1.0", here=[stack()], measured=[stack()]) == [ReleaseState.KNOWN]


# The asset, with feeds from files.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in FEEDS:
        monkeypatch.setenv(f"RESILIENCE_FEED_{name.upper()}", (tmp_path / "none").as_uri())
    monkeypatch.setenv("RESILIENCE_FEED_DRIVER", (DATA / "drivers.json").as_uri())
    monkeypatch.setenv("RESILIENCE_FEED_VLLM", (DATA / "vllm.atom").as_uri())
    monkeypatch.setattr("assets.releases.read_machines", lambda home: {})
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
    assert sorted(failed) == ["criu", "dynamo", "kubernetes", "torch"]
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
    assert "no feed 'nope'" in str(failure.event_specific_data)
