"""Replacing a small file as a whole."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from resilience_pipelines.durability import remove_unfinished, replace_file, replace_text


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_has_its_rights_before_anybody_can_open_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    seen: list[int] = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append(self.stat().st_mode & 0o777)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    umask = os.umask(0o077)
    try:
        replace_text(tmp_path / "file.json", "{}", mode=mode)
    finally:
        os.umask(umask)
    assert seen == [mode]
    assert (tmp_path / "file.json").read_text() == "{}"


KILLED = """
import os, signal, sys
from pathlib import Path
from resilience_pipelines.durability import replace_text
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
replace_text(Path(sys.argv[1]), "half")
"""


def test_what_killed_writers_leave_is_taken_over_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    replace_text(path, "before")
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2, "they left one file between them"
    assert path.read_text() == "before"
    replace_text(path, "after")
    assert {item.name: item.read_text() for item in tmp_path.iterdir()} == {"file.json": "after"}


def test_what_killed_writers_leave_is_removed_and_work_in_progress_is_not(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    left = tmp_path / "one" / ".file.json.resilience-new"
    subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "one/file.json")], timeout=60, check=False
    )
    assert left.exists()
    with left.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert remove_unfinished(tmp_path, "*/") == []
    assert remove_unfinished(tmp_path) == []
    assert remove_unfinished(tmp_path, "*/") == [left]
    assert list((tmp_path / "one").iterdir()) == []


def test_writers_of_one_file_do_not_meet_in_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * 50_000 for number in range(8)]
    threads = [
        threading.Thread(target=lambda c=content: [replace_file(path, c) for _ in range(5)])
        for content in contents
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        replace_text(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == []
