"""The feeds that are followed: each project's own page of releases.

What belongs here: this list, and where a mirror's address comes from. What does not: reading them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from resilience_pipelines.releases.formats import (
    parse_atom,
    parse_cuda_index,
    parse_nvidia_drivers,
)
from resilience_pipelines.releases.release import Release

MIRROR_VARIABLE: Final = "RESILIENCE_FEED_"
"""Followed by a feed's name in capitals: another address for it, also a `file://` one."""


@dataclass(frozen=True)
class Feed:
    """A feed of one product.

    Attributes:
        dimension: the dimension of a stack that its versions are values of; None where stacks do
            not name it.
        engine: the engine whose stacks these are, where the dimension is of several.
        in_image: whether a container image brings the product; else the machine does, or nobody.
    """

    name: str
    product: str
    dimension: str | None
    url: str
    parse: Callable[[bytes], list[Release]]
    engine: str | None = None
    in_image: bool = False

    @property
    def address(self) -> str:
        """Where it is read from: the mirror's address where one is set."""
        return os.environ.get(MIRROR_VARIABLE + self.name.upper(), self.url)


def _of_code_host(
    name: str,
    product: str,
    dimension: str | None,
    repository: str,
    *,
    engine: str | None = None,
    in_image: bool = False,
) -> Feed:
    url = f"https://github.com/{repository}/releases.atom"
    return Feed(name, product, dimension, url, parse_atom, engine, in_image)


FEEDS: Final[Mapping[str, Feed]] = {
    feed.name: feed
    for feed in (
        Feed(
            "driver", "NVIDIA data-centre driver", "driver_version",
            "https://docs.nvidia.com/datacenter/tesla/drivers/releases.json", parse_nvidia_drivers,
        ),
        Feed(
            "cuda", "CUDA", "cuda_version",
            "https://developer.download.nvidia.com/compute/cuda/redist/", parse_cuda_index,
        ),
        _of_code_host(
            "vllm", "vLLM", "engine_version", "vllm-project/vllm", engine="vllm", in_image=True
        ),
        _of_code_host("torch", "PyTorch", "torch_version", "pytorch/pytorch", in_image=True),
        _of_code_host("criu", "CRIU", "criu_version", "checkpoint-restore/criu", in_image=True),
        _of_code_host("kubernetes", "Kubernetes", "kubernetes_version", "kubernetes/kubernetes"),
        _of_code_host("dynamo", "NVIDIA Dynamo", None, "ai-dynamo/dynamo"),
    )
}  # fmt: skip
