"""Origin: the node that a stored snapshot was taken on, and where its restore may go.

What belongs here: finding that node in what earlier launches and their records tell, and the rule
that follows from the settings. What does not: the rest of a pod's placement (`nodes`, `manifest`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import CompatibilitySpec, FanoutSpec, JobSpec, StartupSpec
from resilience_pipelines.launches import read_launches
from resilience_pipelines.warehouse.landing import landing_folder, read_landing


@dataclass(frozen=True)
class NodeRule:
    """On which nodes, by name, a pod has to run or may not run."""

    operator: Literal["In", "NotIn"]
    names: tuple[str, ...]

    def field(self) -> dict[str, Any]:
        """The rule as a field of a node selector term."""
        return {"key": "metadata.name", "operator": self.operator, "values": list(self.names)}


def node_rule(
    spec: JobSpec, home: Home, restore_node: Literal["any", "same", "other"]
) -> NodeRule | None:
    """The rule for a job that restores stored snapshots; None where there is none.

    Raises:
        InputError: no launch of this data home tells where a snapshot was taken, or those that
            shall be restored where they were taken come from several nodes.
        CorruptError: the record of a launch can't be read.
    """
    snapshots = _restored(spec)
    if restore_node == "any" or not snapshots:
        return None
    nodes = tuple(sorted(_nodes_of(snapshots, home)))
    if restore_node == "other":
        return NodeRule("NotIn", nodes)
    if len(nodes) > 1:
        raise InputError(
            "snapshots", ", ".join(snapshots),
            f"they were taken on {', '.join(nodes)}, and restore_node is `same`",
            mend="Restore those of one node at a time.",
        )  # fmt: skip
    return NodeRule("In", nodes)


def _restored(spec: JobSpec) -> tuple[str, ...]:
    match spec:
        case StartupSpec(snapshot=str(name)) | FanoutSpec(snapshot=str(name)):
            return (name,)
        case CompatibilitySpec():
            return spec.snapshots
        case _:
            return ()


def _nodes_of(snapshots: Iterable[str], home: Home) -> set[str]:
    unknown = set(snapshots)
    nodes = set()
    for launch in reversed(read_launches(home)):
        folder = landing_folder(home.landing, launch.run_id)
        if launch.node is None or not folder.is_dir():
            continue
        taken = {item.snapshot_id for item in read_landing(folder).record.snapshots} & unknown
        if taken:
            nodes.add(launch.node)
            unknown -= taken
        if not unknown:
            return nodes
    raise InputError(
        "snapshot", ", ".join(sorted(unknown)),
        "no launch of this data home tells on which node it was taken",
        mend="Set restore_node to `any`, or take the snapshot with this launcher.",
    )  # fmt: skip
