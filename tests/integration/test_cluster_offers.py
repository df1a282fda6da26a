"""Releases that a cluster offers, by an image or by its nodes (here the fake of its API).

What is measured is made up, and its records say so; the sensors, the job's tags, the launcher and
the manifests are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance

from resilience_pipelines.dagster_io.instance import open_instance
from resilience_pipelines.dagster_io.launcher import (
    DRIVER_TAG,
    IMAGE_TAG,
    OFFER_TAG,
    ChosenLauncher,
)
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.home import Home
from resilience_pipelines.launchers.choice import SETTINGS_FILE
from resilience_pipelines.launchers.kubernetes.offers import read_inventory
from resilience_pipelines.release_survey import statuses
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.releases.ledger import refresh
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.landing import find_landings, read_landing
from tests.factories import make_stack
from tests.integration.test_kubernetes_setting import toml
from tests.support.dagster_home import load_definitions
from tests.support.fake_kubernetes.cluster import FakeCluster, fake_cluster

IMAGE = "registry.test/resilience@sha256:" + "a" * 64
REBUILT = "registry.test/resilience@sha256:" + "b" * 64
H200 = {"gpu_sku": "NVIDIA-H200", "gpu_count": 1}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    load_definitions()
    for name in FEEDS:
        monkeypatch.setenv(f"RESILIENCE_FEED_{name.upper()}", (tmp_path / "none").as_uri())
    (tmp_path / "criu.atom").write_text(
        '<feed xmlns="http://www.w3.org/2005/Atom"><title>criu</title><entry>'
        "<id>tag:github.com,2008:Repository/1/v4.3</id>"
        "<title>v4.3</title><updated>2026-11-01T00:00:00Z</updated>"
        '<link href="https://example.org/releases/tag/v4.3"/></entry></feed>'
    )
    monkeypatch.setenv("RESILIENCE_FEED_CRIU", (tmp_path / "criu.atom").as_uri())
    drivers = Path(__file__).parents[1] / "unit" / "data" / "feeds" / "drivers.json"
    monkeypatch.setenv("RESILIENCE_FEED_DRIVER", drivers.as_uri())
    with fake_cluster(tmp_path) as found:
        monkeypatch.setenv("RESILIENCE_HOME", str(found.home.root))
        monkeypatch.setenv("RESILIENCE_LAUNCHER", "kubernetes")
        for name in ("criu", "driver"):
            refresh(found.home, FEEDS[name])
        yield found


def machine_is(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimpleNamespace(stack=stack, engine=None, no_engine_why="it is simulated")
    for module in ("assets.measuring", "assets.stacks", "resilience_pipelines.release_survey"):
        monkeypatch.setattr(f"{module}.read_machines", lambda _: {"reference": machine})


def settings_are(cluster: FakeCluster, **changes: Any) -> None:
    images = changes.pop("images", {})
    plain = cluster.settings(**changes).model_dump(mode="json", exclude={"images"})
    text = toml(plain)
    for feed, versions in images.items():
        text += f"[images.{feed}]\n"
        text += "".join(f"{json.dumps(v)} = {json.dumps(i)}\n" for v, i in versions.items())
    (cluster.home.root / SETTINGS_FILE).write_text(text)


def tick(instance: DagsterInstance, name: str) -> Any:
    defs = load_definitions()
    resources: dict[str, Any] = {"home": HomeResource()}
    if name == "offered_releases":
        resources["launcher"] = ChosenLauncher()
    with (
        dg.build_sensor_context(
            instance=instance, repository_def=defs.get_repository_def(), resources=resources
        ) as context,
        dg.partition_loading_context(dynamic_partitions_store=instance),
    ):
        return defs.resolve_sensor_def(name).evaluate_tick(context)


def run(instance: DagsterInstance, request: Any) -> Any:
    """The part of a requested run that starts jobs."""
    job = load_definitions().resolve_job_def("main_job")
    return job.execute_in_process(
        instance=instance, partition_key=request.partition_key, tags=request.tags,
        asset_selection=[dg.AssetKey("startup_measurements")], raise_on_error=False,
    )  # fmt: skip


def state_of(home: Home, feed: str, version: str) -> str:
    found = {item.release.version: item.state.value for item in statuses(home, [feed])}
    return found[version]


def test_a_release_that_nobody_has_becomes_available_by_naming_an_image_and_runs_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = cluster.home
    machine_is(make_stack(), monkeypatch)
    settings_are(cluster)
    pods: list[str] = []
    cluster.kubelet.images.add(IMAGE)
    cluster.stand_in("--stack", json.dumps({"criu_version": "4.3"}))
    program = cluster.kubelet.program

    def noticed(pod: Any) -> Any:
        pods.append(pod["spec"]["containers"][0]["image"])
        return program(pod)

    cluster.kubelet.program = noticed
    with open_instance(home) as instance:
        assert state_of(home, "criu", "4.3") == "known"
        assert tick(instance, "offered_releases").run_requests == []

        settings_are(cluster, images={"criu": {"4.3": IMAGE}})
        assert state_of(home, "criu", "4.3") == "available"
        (request,) = tick(instance, "offered_releases").run_requests
        assert request.tags[IMAGE_TAG] == IMAGE
        assert request.tags["resilience/releases"] == "criu 4.3"
        assert request.partition_key.endswith(make_stack(criu_version="4.3").software_label)
        assert run(instance, request).success
        assert pods == [IMAGE]
        (folder,) = find_landings(home.landing)
        assert read_landing(folder).record.stack.criu_version == "4.3"
        assert tick(instance, "offered_releases").run_requests == []

        # Another image for the same release is another request, and the first is not made again.
        settings_are(cluster, images={"criu": {"4.3": REBUILT}})
        (other,) = tick(instance, "offered_releases").run_requests
        assert other.tags[IMAGE_TAG] == REBUILT
        assert other.run_key != request.run_key
        settings_are(cluster, images={"criu": {"4.3": IMAGE}})
        assert tick(instance, "offered_releases").run_requests == []


def test_an_image_that_the_settings_no_longer_name_is_not_run(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_is(make_stack(), monkeypatch)
    settings_are(cluster, images={"criu": {"4.3": IMAGE}})
    with open_instance(cluster.home) as instance:
        (request,) = tick(instance, "offered_releases").run_requests
        settings_are(cluster)
        result = run(instance, request)
        assert not result.success
        assert "name it for no release" in str([e.event_specific_data for e in result.all_events])
    assert cluster.left() == []


def test_a_launcher_of_this_machine_is_asked_for_no_image(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A partition does not name torch, so that this machine's own is the one of the image too.
    machine_is(make_stack(torch_version="2.11.0"), monkeypatch)
    settings_are(cluster, images={"torch": {"2.12.0": IMAGE}})
    with open_instance(cluster.home) as instance:
        (request,) = tick(instance, "offered_releases").run_requests
        monkeypatch.setenv("RESILIENCE_LAUNCHER", "local")
        found = tick(instance, "offered_releases")
        assert found.run_requests == []
        assert "measures this machine" in found.skip_message
        result = run(instance, request)
        assert not result.success
        assert "measures this machine as it is" in str(
            [e.event_specific_data for e in result.all_events]
        )


def test_a_driver_that_a_node_offers_is_available_registered_and_requested_on_such_nodes(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = cluster.home
    newest = statuses(home, ["driver"])[0].release.version
    machine_is(make_stack(driver_version="535.1", **H200), monkeypatch)
    settings_are(cluster, gpu={"count": 1, "driver_version": "535.1"})
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "nvidia.com/cuda.driver-version.full": newest,
        **dict(
            zip(
                (f"nvidia.com/cuda.driver-version.{p}" for p in ("major", "minor", "revision")),
                newest.split("."), strict=False,
            )
        ),
    }  # fmt: skip
    wanted = make_stack(driver_version=newest, **H200)
    cluster.stand_in("--stack", json.dumps({"driver_version": newest, **H200}))
    with open_instance(home) as instance:
        assert state_of(home, "driver", newest) == "known"
        cluster.add_node("down", gpus=8, ready=False, labels=labels)
        tick(instance, "cluster_nodes")
        assert state_of(home, "driver", newest) == "known"

        cluster.add_node("new", gpus=8, labels=labels)
        added = tick(instance, "cluster_nodes").dynamic_partitions_requests
        assert [list(item.partition_keys) for item in added] == [
            [wanted.hardware_label], [wanted.software_label],
        ]  # fmt: skip
        assert {node.name for node in read_inventory(home).nodes} == {"node-1", "down", "new"}
        assert state_of(home, "driver", newest) == "available"
        (request,) = tick(instance, "offered_releases").run_requests
        assert request.tags[DRIVER_TAG] == newest
        assert not tick(instance, "cluster_nodes").dynamic_partitions_requests

        # The settings' own driver is another one: the run's tag sends the job to the new node.
        assert run(instance, request).success
        assert tick(instance, "offered_releases").run_requests == []
        assert [item.tags[OFFER_TAG] for item in instance.get_runs()] == [request.tags[OFFER_TAG]]


def test_a_cluster_that_nobody_named_is_not_asked_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_is(make_stack(), monkeypatch)
    with open_instance(cluster.home) as instance:
        found = tick(instance, "cluster_nodes")
        assert "no settings of a cluster" in found.skip_message
        assert read_inventory(cluster.home).read_at is None
