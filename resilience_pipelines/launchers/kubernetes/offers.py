"""Offers: the releases that a cluster can measure, by a node that has them or by a named image.

What belongs here: the inventory of a cluster's nodes, its file in the data home, and what settings
and inventory offer. What does not: what follows for the states of releases and which suite
measures an offer (`release_survey`), and asking the API server (`client`).
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from resilience_pipelines.durability import replace_text
from resilience_pipelines.errors import CorruptError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.launchers.kubernetes.nodes import NodeState
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings


class Inventory(BaseModel):
    """The nodes of a cluster that may take jobs, as they were last seen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read_at: AwareDatetime | None = None
    """None: nobody has looked yet."""
    nodes: tuple[NodeState, ...] = ()


@dataclass(frozen=True)
class Offer:
    """A release that a cluster can measure. Exactly one of image and GPU says how.

    Attributes:
        feed: the feed whose product it is; `driver` for what a node offers.
        image: the image that has it.
        gpu_sku, gpu_count: what a job gets on the nodes that have it.
    """

    feed: str
    version: str
    image: str | None = None
    gpu_sku: str | None = None
    gpu_count: int | None = None

    @property
    def key(self) -> str:
        """The same for the same release by the same means, and for no other."""
        means = self.image or f"{self.gpu_count}x {self.gpu_sku}"
        return f"{self.feed}-{self.version}-{hashlib.sha256(means.encode()).hexdigest()[:12]}"


def offers(settings: KubernetesSettings, inventory: Inventory) -> list[Offer]:
    """What settings and nodes offer: each named image, and each driver that a job's GPUs have.

    A node counts while it is ready, not cordoned and has the GPUs that a job asks for.
    """
    named = [
        Offer(feed, version, image=image)
        for feed, versions in settings.images.items()
        for version, image in versions.items()
    ]
    wanted = settings.gpu.count
    found = {
        Offer("driver", node.driver_version, gpu_sku=node.gpu_product, gpu_count=wanted)
        for node in inventory.nodes
        if node.driver_version and node.schedulable and 0 < wanted <= node.gpus
    }
    return [*named, *sorted(found, key=lambda offer: offer.key)]


def read_inventory(home: Home) -> Inventory:
    """The cluster as it was last seen; empty where nobody has looked.

    Raises:
        CorruptError: its file can't be read.
    """
    path = _path(home)
    try:
        return Inventory.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Inventory()
    except (OSError, ValidationError) as error:
        raise CorruptError(
            f"{path} can't be read ({error}).", mend="Remove it: the next look makes a new one."
        ) from error


def look_at_nodes(home: Home, settings: KubernetesSettings) -> Inventory:
    """Ask the cluster for the nodes that may take a job, of whichever driver, and remember them.

    Raises:
        ClusterError: the API server refuses, or is lost; what was known before is kept.
        StorageError: it can't be remembered.
    """
    # Loading the client of the API takes a second that reading an inventory need not wait for.
    from resilience_pipelines.launchers.kubernetes.client import connect

    any_driver = settings.gpu.model_copy(update={"driver_version": None})
    with closing(connect(settings.model_copy(update={"gpu": any_driver}))) as cluster:
        found = Inventory(read_at=datetime.now(UTC), nodes=tuple(cluster.nodes()))
    path = _path(home)
    try:
        replace_text(path, found.model_dump_json(indent=1))
    except OSError as error:
        raise StorageError(
            f"{path} can't be written ({error.strerror}).", mend="What was known before is kept."
        ) from error
    return found


def _path(home: Home) -> Path:
    return home.root / "cluster" / "nodes.json"
