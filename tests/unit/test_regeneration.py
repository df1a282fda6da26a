"""Snapshots of stacks that are gone are named, and taken again when somebody asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_pipelines.context import read_machines
from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.records import Outcome, RunKind, RunRecord
from resilience_pipelines.regeneration import (
    Regenerated,
    choose_workers,
    regenerate,
    workers_without_snapshot,
)
from resilience_pipelines.snapshots.settings import open_store
from tests.factories import RecordFactory
from tests.support.snapshots import put


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


def test_a_worker_without_any_snapshot_needs_none_again(home: Home) -> None:
    assert workers_without_snapshot(home) == []


def test_a_worker_whose_snapshots_are_all_of_other_stacks_needs_one(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(home)
    stored = put(store, "0.0.1")
    assert workers_without_snapshot(home) == ["reference"]
    machines = read_machines(home)

    class Machine:
        stack = stored.manifest.stack

    monkeypatch.setattr(
        "resilience_pipelines.regeneration.read_machines",
        lambda _: machines | {"reference": Machine()},
    )
    assert workers_without_snapshot(home) == []


def test_the_one_that_was_asked_for_has_to_need_it() -> None:
    assert choose_workers(["a", "b"], None) == ("a", "b")
    assert choose_workers(["a", "b"], "b") == ("b",)
    with pytest.raises(InputError, match="worker"):
        choose_workers(["a"], "b")


def test_one_that_fails_does_not_keep_the_others_from_theirs() -> None:
    factory = RecordFactory(3)
    lost = factory.snapshot().model_copy(
        update={"outcome": Outcome.FAILED, "reason_code": "dump_failed", "snapshot_id": None,
                "detail": "CRIU could not dump"}
    )  # fmt: skip

    def take(worker: str) -> RunRecord:
        if worker == "gone":
            raise UnsupportedError("its engine is not installed")
        if worker == "bare":
            return factory.record(RunKind.SNAPSHOT, unsupported={"restore": "no CRIU"})
        taken = lost if worker == "lost" else factory.snapshot()
        return factory.record(RunKind.SNAPSHOT, snapshots=[taken])

    assert list(regenerate(("gone", "lost", "bare", "good"), take)) == [
        Regenerated("gone", None, "its engine is not installed"),
        Regenerated("lost", None, "CRIU could not dump"),
        Regenerated("bare", None, "no CRIU"),
        Regenerated("good", "snapshot-a", ""),
    ]
