"""Jobs that measure pods run where the launcher is: a real job process, on the fake of the API."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience_pipelines.errors import DeadlineError, InputError
from resilience_pipelines.job_spec import FanoutSpec, SnapshotEngineName, StartupSpec
from resilience_pipelines.launchers.choice import (
    SETTINGS_FILE,
    choose,
    measures_pods,
    run_beside_pods,
)
from resilience_pipelines.launchers.launcher import JobError
from resilience_pipelines.launchers.local import run_local
from resilience_pipelines.records import Arm, Basis, Outcome
from resilience_pipelines.warehouse.landing import read_landing
from tests.support import contract_server
from tests.support.fake_dynamo import Fails, FakeDynamo
from tests.support.fake_kubernetes.cluster import FakeCluster, fake_cluster

SPEC = StartupSpec(
    arms=(Arm.COLD, Arm.RESTORE), repeats=1, snapshot_engine=SnapshotEngineName.DYNAMO_SNAPSHOT
)
SETTINGS = """
image = "registry.test/resilience:1"
kubeconfig = "{kubeconfig}"
[landing]
claim = "landing"
[deadlines]
pending_s = 5
cleanup_s = 5
run_s = 100
[dynamo_snapshot]
agent_namespace = "snapshot"
"""


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeCluster]:
    contract_server.STATE["asleep"] = False
    with fake_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def dynamo(fake: FakeCluster) -> FakeDynamo:
    return FakeDynamo(fake)


def nothing(*_: object) -> None:
    """A progress that nobody reads."""


def test_only_what_has_pods_for_its_subject_runs_beside_them() -> None:
    assert measures_pods(SPEC)
    assert not measures_pods(StartupSpec(arms=(Arm.RESTORE,)))
    assert not measures_pods(FanoutSpec())


def test_the_chosen_launcher_measures_pods_from_here_and_leaves_none(
    fake: FakeCluster, dynamo: FakeDynamo
) -> None:
    (fake.home.root / SETTINGS_FILE).write_text(SETTINGS.format(kubeconfig=fake.kubeconfig))
    told: list[str] = []
    launch = choose(fake.home, "kubernetes")
    result = launch(SPEC, fake.home, lambda what, *_: told.append(what))
    record = read_landing(result.folder).record
    assert {item.arm: item.outcome for item in record.startups} == {
        Arm.COLD: Outcome.OK, Arm.RESTORE: Outcome.OK,
    }  # fmt: skip
    assert record.launcher == "kubernetes"
    assert record.basis is Basis.SIMULATED
    assert record.stack.snapshot_engine == "dynamo-snapshot"
    assert told, "its progress is told"
    assert dynamo.left() == []


def test_a_run_that_takes_too_long_is_ended_and_leaves_no_pod(
    fake: FakeCluster, dynamo: FakeDynamo
) -> None:
    dynamo.fails = Fails.SILENTLY
    settings = fake.settings(
        deadlines={"pending_s": 5.0, "cleanup_s": 5.0, "run_s": 15.0},
        dynamo_snapshot={"capture_s": 300.0, "ready_s": 300.0},
    )  # fmt: skip
    seen: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            seen.extend(dynamo.left())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begun = time.monotonic()
    with pytest.raises(DeadlineError, match="within 15 s"):
        run_beside_pods(SPEC, fake.home, nothing, settings)
    stop.set()
    watcher.join(5)
    assert time.monotonic() - begun < 60
    assert any(name.startswith("pods/") for name in seen), "it had begun"
    assert dynamo.left() == []


def test_a_stored_snapshot_is_refused_before_anything_is_made(
    fake: FakeCluster, dynamo: FakeDynamo
) -> None:
    spec = StartupSpec(
        arms=(Arm.RESTORE,), snapshot="snap-20260101T000000Z-deadbeef",
        snapshot_engine=SnapshotEngineName.DYNAMO_SNAPSHOT,
    )  # fmt: skip
    with pytest.raises(JobError, match="snapshot = ") as caught:
        run_beside_pods(spec, fake.home, nothing, fake.settings())
    assert caught.value.exit_code == InputError.exit_code
    assert not any(resource == "jobs" and verb == "create"
                   for _, resource, verb in fake.server.used)  # fmt: skip
    assert dynamo.left() == []


def test_a_local_launcher_has_no_pods_to_measure(tmp_path: Path, fake: FakeCluster) -> None:
    with pytest.raises(JobError, match="no cluster was named") as caught:
        run_local(SPEC, fake.home, nothing)
    assert caught.value.exit_code == InputError.exit_code
    assert "--launcher kubernetes" in caught.value.mend
