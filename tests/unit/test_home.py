"""The data home: made private where it must be, and an error where it can't be made."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from resilience_pipelines.errors import InputError
from resilience_pipelines.home import ENVIRONMENT_VARIABLE, open_home
from resilience_pipelines.owned_folder import (
    LOCK_NAME,
    UNLOCKED_AGE_S,
    owned_folder,
    remove_orphans,
)


def test_the_snapshot_store_is_private_even_if_it_was_not(tmp_path: Path) -> None:
    (tmp_path / "home/snapshots").mkdir(parents=True, mode=0o755)
    assert open_home(tmp_path / "home").snapshots.stat().st_mode & 0o777 == 0o700


def test_the_option_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "env"))
    assert open_home().root == tmp_path / "env"
    assert open_home(tmp_path / "option").root == tmp_path / "option"


@pytest.mark.parametrize("bad", ["file/home", "/proc/home"])
def test_a_home_that_cannot_be_written_names_itself(tmp_path: Path, bad: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--home"):
        open_home(tmp_path / bad)


def test_an_owned_folder_outlives_its_block_only_under_another_name(tmp_path: Path) -> None:
    with owned_folder(tmp_path / "one"):
        pass
    with owned_folder(tmp_path / "two") as folder:
        folder.rename(tmp_path / "kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


def test_an_owned_folder_is_no_orphan(tmp_path: Path) -> None:
    (tmp_path / "job-left").mkdir()
    (tmp_path / "job-left" / LOCK_NAME).touch()  # as a killed owner leaves it
    (tmp_path / "other").mkdir()
    with owned_folder(tmp_path / "job-now"):
        assert [path.name for path in remove_orphans(tmp_path, "job-*")] == ["job-left"]
        assert (tmp_path / "job-now").is_dir()
    assert (tmp_path / "other").is_dir()


@pytest.mark.parametrize("inside", ["", "home", "a/b"])
def test_a_home_in_shared_memory_is_refused(inside: str) -> None:
    """A capsule has a /dev/shm of its own, in which CRIU would find no image."""
    with pytest.raises(InputError, match=r"--home.*/dev/shm.*tmpfs that is mounted elsewhere"):
        open_home(Path("/dev/shm", inside))


def test_a_link_into_shared_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    with pytest.raises(InputError, match="/dev/shm"):
        open_home(tmp_path / "link" / "home")


def test_a_folder_that_is_not_locked_yet_is_an_orphan_only_when_it_is_old(tmp_path: Path) -> None:
    folder = tmp_path / "job-made"
    folder.mkdir()
    assert remove_orphans(tmp_path, "job-*") == [], "its owner may be about to lock it"
    past = time.time() - UNLOCKED_AGE_S - 1
    os.utime(folder, (past, past))
    assert remove_orphans(tmp_path, "job-*") == [folder]


def test_an_owned_folder_never_has_a_lock_that_nobody_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def look(handle: int, how: int) -> None:
        if not how & fcntl.LOCK_NB:  # the owner's, and not a look's
            assert remove_orphans(tmp_path, "job") == []
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", look)
    with owned_folder(tmp_path / "job"):
        assert remove_orphans(tmp_path, "job") == []
