"""Where a stored snapshot may be restored, by the node that it was taken on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.job_spec import CompatibilitySpec, FanoutSpec, FaultSpec, StartupSpec
from resilience_pipelines.launchers.kubernetes.manifest import ClusterFacts, build_job
from resilience_pipelines.launchers.kubernetes.origin import NodeRule, node_rule
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings
from resilience_pipelines.launches import LaunchRecord, read_launches, write_launch
from resilience_pipelines.records import Basis, RunKind
from tests.factories import RecordFactory, land

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def taken_on(home: Home, factory: RecordFactory, node: str | None) -> str:
    """A landed snapshot that a launch put on a node; returns its id."""
    name = f"snap-20260302T090000Z-{len(read_launches(home)):08x}"
    snapshot = factory.snapshot().model_copy(update={"snapshot_id": name})
    record = factory.record(RunKind.SNAPSHOT, snapshots=[snapshot])
    land(home.landing, record)
    launch = LaunchRecord(
        run_id=record.run_id, launcher="kubernetes", worker="reference", basis=Basis.SIMULATED,
        launched_at=NOW, ended_at=NOW, landed=True, namespace="resilience", job_name="job",
        node=node,
    )  # fmt: skip
    write_launch(home, launch, {})
    return name


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


def restore(*snapshots: str) -> StartupSpec | CompatibilitySpec:
    if len(snapshots) == 1:
        return StartupSpec(snapshot=snapshots[0])
    return CompatibilitySpec(snapshots=snapshots)


def test_a_snapshot_goes_back_to_its_node_or_to_any_but_that_one(home: Home) -> None:
    factory = RecordFactory()
    first, second = taken_on(home, factory, "node-a"), taken_on(home, factory, "node-b")
    assert node_rule(restore(first), home, "same") == NodeRule("In", ("node-a",))
    assert node_rule(restore(second), home, "other") == NodeRule("NotIn", ("node-b",))
    assert node_rule(restore(first, second), home, "other") == NodeRule(
        "NotIn", ("node-a", "node-b")
    )


@pytest.mark.parametrize("kind", [StartupSpec, FanoutSpec])
def test_the_rule_is_one_for_all_that_restore_a_stored_snapshot(
    home: Home, kind: type[StartupSpec | FanoutSpec]
) -> None:
    taken = taken_on(home, RecordFactory(), "node-a")
    assert node_rule(kind(snapshot=taken), home, "same") == NodeRule("In", ("node-a",))
    assert node_rule(kind(), home, "same") is None


def test_what_restores_no_stored_snapshot_has_no_rule(home: Home) -> None:
    for spec in (StartupSpec(), FaultSpec(), CompatibilitySpec()):
        assert node_rule(spec, home, "same") is None
    assert node_rule(restore("snap-20260101T000000Z-00000000"), home, "any") is None


def test_a_snapshot_whose_node_nobody_knows_is_refused_before_anything_is_made(home: Home) -> None:
    unknown = taken_on(home, RecordFactory(), None)
    with pytest.raises(InputError, match="no launch of this data home"):
        node_rule(restore(unknown), home, "other")


def test_snapshots_of_two_nodes_have_no_same_node(home: Home) -> None:
    factory = RecordFactory()
    both = [taken_on(home, factory, node) for node in ("node-a", "node-b")]
    with pytest.raises(InputError, match="node-a, node-b"):
        node_rule(restore(*both), home, "same")


def terms(rule: NodeRule | None, **gpu: Any) -> list[dict[str, Any]]:
    settings = KubernetesSettings.model_validate(
        {"image": "x", "landing": {"claim": "landing"}, "gpu": gpu}
    )
    job = build_job(
        StartupSpec(), "20260302T090000Z-startup-0123abcd", "0" * 16, settings,
        ClusterFacts(None, None), rule=rule,
    )  # fmt: skip
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    found: list[dict[str, Any]] = affinity["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    return found


def test_the_rule_holds_in_every_term_of_the_driver() -> None:
    field = {"key": "metadata.name", "operator": "NotIn", "values": ["node-a"]}
    rule = NodeRule("NotIn", ("node-a",))
    assert terms(rule) == [{"matchFields": [field]}]
    both = terms(rule, count=1, driver_version="580")
    assert len(both) == 2
    assert all(term["matchFields"] == [field] and term["matchExpressions"] for term in both)
