"""Offers: what named images and nodes make of the settings of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.errors import CorruptError, InputError
from resilience_pipelines.home import open_home
from resilience_pipelines.launchers.kubernetes.nodes import NodeState
from resilience_pipelines.launchers.kubernetes.offers import Inventory, offers, read_inventory
from resilience_pipelines.launchers.kubernetes.settings import (
    KubernetesSettings,
    image_digest,
    read_settings,
)

NODE = NodeState(
    name="a", labels={}, gpus=8, gpu_product="NVIDIA-H200", gpu_memory_bytes=None,
    driver_version="580.159.04", kernel=None, container_runtime=None, kubelet_version=None,
    schedulable=True,
)  # fmt: skip


def settings(**changes: Any) -> KubernetesSettings:
    fields = {"image": "x:1", "landing": {"claim": "landing"}, "gpu": {"count": 2}}
    return KubernetesSettings.model_validate(fields | changes)


def test_each_release_and_image_has_a_key_of_its_own() -> None:
    def keys(**images: str) -> list[str]:
        return [offer.key for offer in offers(settings(images={"criu": images}), Inventory())]

    assert keys(**{"4.3": "x:2"}) == keys(**{"4.3": "x:2"})
    assert len({*keys(**{"4.3": "x:2"}), *keys(**{"4.3": "x:3"}), *keys(**{"4.4": "x:2"})}) == 3


def test_nodes_of_one_kind_are_one_offer_and_those_that_take_no_job_are_none() -> None:
    nodes = (
        NODE,
        replace(NODE, name="b"),
        replace(NODE, name="c", driver_version="590.1", gpus=1),
        replace(NODE, name="d", driver_version="590.2", schedulable=False),
        replace(NODE, name="e", driver_version=None),
    )
    (found,) = offers(settings(), Inventory(nodes=nodes))
    assert (found.feed, found.version, found.gpu_count) == ("driver", "580.159.04", 2)
    assert offers(settings(gpu={"count": 0}), Inventory(nodes=nodes)) == []


def test_an_image_is_named_for_what_comes_in_images(tmp_path: Path) -> None:
    path = tmp_path / "kubernetes.toml"
    text = 'image = "x:1"\n[landing]\nclaim = "landing"\n[images.{feed}]\n"1.2" = "x:2"\n'
    path.write_text(text.format(feed="vllm"))
    assert read_settings(path).images == {"vllm": {"1.2": "x:2"}}
    path.write_text(text.format(feed="driver"))
    with pytest.raises(InputError, match="choose from criu, torch, vllm"):
        read_settings(path)


def test_a_job_is_directed_to_a_named_image_and_to_nodes_with_a_driver() -> None:
    named = settings(images={"criu": {"4.3": "x:2"}})
    assert named.directed() == named
    directed = named.directed(image="x:2", driver_version="590.1")
    assert (directed.image, directed.gpu.driver_version) == ("x:2", "590.1")
    assert directed.gpu.count == 2
    with pytest.raises(InputError, match="image = 'y:1'"):
        named.directed(image="y:1")
    with pytest.raises(InputError, match="driver = 'newest'"):
        named.directed(driver_version="newest")


def test_only_a_digest_is_a_digest() -> None:
    assert image_digest("x@sha256:" + "a" * 64) == "sha256:" + "a" * 64
    assert image_digest("x:1") is None


def test_an_inventory_that_is_none_is_said(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    assert read_inventory(home) == Inventory()
    (home.root / "cluster").mkdir()
    (home.root / "cluster" / "nodes.json").write_text("{")
    with pytest.raises(CorruptError, match=r"nodes\.json"):
        read_inventory(home)
