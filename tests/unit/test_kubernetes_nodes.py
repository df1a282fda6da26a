"""Nodes: both forms of GPU feature discovery's labels, and what a node says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from resilience_pipelines.launchers.kubernetes.nodes import driver_version, fits, parse_node
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings

NEWER = {
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/cuda.driver-version.full": "580.159.04",
    "nvidia.com/cuda.driver-version.major": "580",
    "nvidia.com/cuda.driver-version.minor": "159",
    "nvidia.com/cuda.driver-version.revision": "04",
}
OLDER = {
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/cuda.driver.major": "580",
    "nvidia.com/cuda.driver.minor": "159",
    "nvidia.com/cuda.driver.rev": "04",
}
FORMS = pytest.mark.parametrize("labels", [NEWER, OLDER, NEWER | OLDER], ids=["new", "old", "both"])


def settings(**gpu: Any) -> KubernetesSettings:
    return KubernetesSettings.model_validate(
        {"image": "x", "landing": {"claim": "landing"}, "gpu": gpu}
    )


@FORMS
@pytest.mark.parametrize("version", ["580", "580.159", "580.159.04"])
def test_a_node_fits_by_either_form_and_as_many_parts_as_were_asked_for(
    labels: dict[str, str], version: str
) -> None:
    assert fits(labels, settings(driver_version=version))
    assert fits(labels, settings(driver_version=version, product="NVIDIA-H200"))


@FORMS
@pytest.mark.parametrize("version", ["581", "580.160", "580.159.05"])
def test_another_driver_does_not_fit(labels: dict[str, str], version: str) -> None:
    assert not fits(labels, settings(driver_version=version))


def test_a_node_without_labels_fits_only_where_nothing_is_asked() -> None:
    assert fits({}, settings())
    assert not fits({}, settings(driver_version="580"))
    assert not fits({}, settings(product="NVIDIA-H200"))


@FORMS
def test_either_form_tells_the_driver(labels: dict[str, str]) -> None:
    assert driver_version(labels) == "580.159.04"


def test_a_driver_of_two_parts_has_an_empty_last_one() -> None:
    labels = {
        "nvidia.com/cuda.driver.major": "550",
        "nvidia.com/cuda.driver.minor": "120",
        "nvidia.com/cuda.driver.rev": "",
    }
    assert driver_version(labels) == "550.120"


def test_labels_that_tell_no_driver_make_none() -> None:
    assert driver_version({}) is None
    assert driver_version({"nvidia.com/cuda.driver.major": "550"}) is None


def test_a_node_tells_its_gpus_and_what_it_does_not_tell_is_none() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    found = parse_node(
        {
            "metadata": {"name": "a", "labels": NEWER | {"nvidia.com/gpu.memory": "143771"}},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": ready},
        },
        "nvidia.com/gpu",
    )
    assert (found.gpus, found.gpu_product, found.driver_version) == (8, "NVIDIA-H200", "580.159.04")
    assert found.gpu_memory_bytes == 143771 * 2**20
    assert found.schedulable
    assert found.kernel is None
    bare = parse_node({"metadata": {"name": "b"}}, "nvidia.com/gpu")
    assert (bare.gpus, bare.gpu_product, bare.schedulable) == (0, None, False)


def test_a_cordoned_node_takes_nobody() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    found = parse_node(
        {
            "metadata": {"name": "a"},
            "spec": {"unschedulable": True},
            "status": {"conditions": ready},
        },
        "nvidia.com/gpu",
    )
    assert not found.schedulable
