"""A checkpoint counts when it was committed whole and is still what its manifest says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from resilience_pipelines.collectives.checkpoints import (
    MANIFEST,
    Checkpoint,
    CheckpointFolder,
    problem,
    read_manifest,
)


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path)


def save(folder: CheckpointFolder, step: int, content: str = "tensors") -> Checkpoint:
    partial = folder.partial(step)
    partial.mkdir()
    (partial / "__0_0.distcp").write_text(content)
    (partial / ".metadata").write_text(f"metadata of {step}")
    return folder.commit(step, "0" * 64)


def test_what_was_committed_is_found_the_newest_first(folder: CheckpointFolder) -> None:
    for step in (10, 9, 100):
        save(folder, step)
    assert [found.step for found in folder.committed()] == [100, 10, 9]
    assert folder.latest_good() == folder.committed()[0]
    assert read_manifest(folder.committed()[0]).step == 100
    assert set(read_manifest(folder.committed()[0]).files) == {".metadata", "__0_0.distcp"}


def test_a_save_that_did_not_end_is_never_chosen(folder: CheckpointFolder) -> None:
    good = save(folder, 10)
    folder.partial(20).mkdir()
    (folder.partial(20) / ".metadata").write_text("whole, but not committed")
    assert folder.committed() == [good]
    assert folder.latest_good() == good
    assert folder.partials() == [folder.partial(20)]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda at: (at / "__0_0.distcp").write_text("tensorS"), "__0_0.distcp has another"),
        (lambda at: (at / "__0_0.distcp").write_text("tens"), "__0_0.distcp has another"),
        (lambda at: (at / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
        (lambda at: (at / ".metadata").write_text("metadata of 10"), ".metadata has another"),
        (lambda at: (at / MANIFEST).unlink(), "no manifest"),
        (lambda at: (at / MANIFEST).write_text("{"), "no manifest"),
        (lambda at: (at / MANIFEST).write_text("{}"), "no manifest"),
    ],
)
def test_damage_is_named_and_the_checkpoint_before_is_chosen(
    folder: CheckpointFolder, damage: Callable[[Path], object], words: str
) -> None:
    good, bad = save(folder, 10), save(folder, 20)
    assert problem(bad) is None
    damage(bad.folder)
    assert words in (problem(bad) or "")
    assert problem(good) is None
    assert folder.latest_good() == good


def test_where_none_is_good_none_is_chosen(folder: CheckpointFolder) -> None:
    assert folder.latest_good() is None
    (save(folder, 10).folder / ".metadata").unlink()
    assert folder.latest_good() is None


def test_a_step_that_is_saved_again_replaces_its_checkpoint(folder: CheckpointFolder) -> None:
    save(folder, 10, "first")
    again = save(folder, 10, "second")
    assert (again.folder / "__0_0.distcp").read_text() == "second"
    assert problem(again) is None


def test_pruning_keeps_the_newest(folder: CheckpointFolder) -> None:
    for step in (10, 20, 30):
        save(folder, step)
    folder.partial(40).mkdir()
    folder.prune(2)
    assert [found.step for found in folder.committed()] == [30, 20]
    assert folder.partials() == []
