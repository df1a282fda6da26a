"""Nodes: the labels that tell what a node has, in every form that they come in.

What belongs here: the labels of NVIDIA's GPU feature discovery, what a job asks of them, and
reading a node. What does not: asking the API server for nodes (`client`), and the rest of a job
(`manifest`).

A driver's version has two forms of labels: `nvidia.com/cuda.driver-version.*`, and the older
`nvidia.com/cuda.driver.*`, which newer releases write besides until they drop it. A job takes a
node that has either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from resilience_pipelines.kubernetes_api import named, object_of, objects_of, text_of
from resilience_pipelines.launchers.kubernetes.origin import NodeRule
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
COUNT_LABEL: Final = "nvidia.com/gpu.count"
MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""In MiB, of one GPU."""
DRIVER_LABELS: Final = (
    tuple(f"nvidia.com/cuda.driver-version.{part}" for part in ("major", "minor", "revision")),
    tuple(f"nvidia.com/cuda.driver.{part}" for part in ("major", "minor", "rev")),
)
"""The newer form and the older: three parts each, of which the last may be empty."""
DRIVER_FULL_LABEL: Final = "nvidia.com/cuda.driver-version.full"

Labels = Mapping[str, str]


def wanted_labels(settings: KubernetesSettings) -> dict[str, str]:
    """The labels that a node needs for a job, whatever form its driver's labels have."""
    product = settings.gpu.product
    return settings.node_selector | ({PRODUCT_LABEL: product} if product is not None else {})


def driver_terms(settings: KubernetesSettings) -> list[dict[str, str]]:
    """Labels of the driver that a job asks for: a node needs all of any one. Empty: any driver."""
    version = settings.gpu.driver_version
    if version is None:
        return []
    parts = version.split(".")
    return [dict(zip(names, parts, strict=False)) for names in DRIVER_LABELS]


def affinity(settings: KubernetesSettings, rule: NodeRule | None = None) -> dict[str, Any] | None:
    """The node affinity of a job: a node selector can't say "either form", nor a node's name.

    A node has to fit one of the terms, and all that is said in it.
    """
    terms = driver_terms(settings)
    if not terms and rule is None:
        return None
    selectors: list[dict[str, Any]] = [
        {"matchExpressions": [
            {"key": name, "operator": "In", "values": [value]} for name, value in term.items()
        ]}
        for term in terms
    ]  # fmt: skip
    if rule is not None:
        selectors = [term | {"matchFields": [rule.field()]} for term in selectors or [{}]]
    required = {"nodeSelectorTerms": selectors}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def fits(labels: Labels, settings: KubernetesSettings) -> bool:
    """Whether a node with these labels may take a job."""
    terms = driver_terms(settings)
    return _has(labels, wanted_labels(settings)) and (
        not terms or any(_has(labels, term) for term in terms)
    )


def driver_version(labels: Labels) -> str | None:
    """The driver that a node's labels tell, in full; None where they tell none.

    The parts are put together only where the node has no label with all of it.
    """
    if full := labels.get(DRIVER_FULL_LABEL):
        return full
    for names in DRIVER_LABELS:
        parts = [labels[name] for name in names if labels.get(name)]
        if len(parts) > 1:
            return ".".join(parts)
    return None


@dataclass(frozen=True)
class NodeState:
    """What a node says of itself. What it does not say is None.

    Attributes:
        gpus: how many a pod can ask for, by the device plugin.
        gpu_memory_bytes: of one of them.
        schedulable: ready, and not cordoned.
    """

    name: str
    labels: Labels
    gpus: int
    gpu_product: str | None
    gpu_memory_bytes: int | None
    driver_version: str | None
    kernel: str | None
    container_runtime: str | None
    kubelet_version: str | None
    schedulable: bool


def parse_node(found: Mapping[str, Any], gpu_resource: str) -> NodeState:
    """A node from the API's JSON."""
    metadata, status = object_of(found.get("metadata")), object_of(found.get("status"))
    told = object_of(metadata.get("labels"))
    labels: Labels = {name: value for name, value in told.items() if isinstance(value, str)}
    info = object_of(status.get("nodeInfo"))
    memory = labels.get(MEMORY_LABEL, "")
    return NodeState(
        name=named(found),
        labels=labels,
        gpus=_amount(object_of(status.get("allocatable")).get(gpu_resource)),
        gpu_product=labels.get(PRODUCT_LABEL) or None,
        gpu_memory_bytes=int(memory) * 2**20 if memory.isdecimal() and len(memory) < 12 else None,
        driver_version=driver_version(labels),
        kernel=text_of(info.get("kernelVersion")) or None,
        container_runtime=text_of(info.get("containerRuntimeVersion")) or None,
        kubelet_version=text_of(info.get("kubeletVersion")) or None,
        schedulable=_is_ready(objects_of(status.get("conditions")))
        and not object_of(found.get("spec")).get("unschedulable"),
    )


def _is_ready(conditions: Sequence[Mapping[str, Any]]) -> bool:
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _amount(value: object) -> int:
    """A number of devices; 0 where it is none, or more than a node can have."""
    text = str(value or "0")
    return int(text) if text.isdecimal() and len(text) < 5 else 0


def _has(labels: Labels, wanted: Labels) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())
