"""A decision is kept, and a line that is none is named."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from resilience_pipelines.errors import CorruptError, StorageError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.trends.decisions import FILE, Choice, decide, decisions

CHANGE = "0123456789ab"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


def test_decisions_are_kept_in_their_order(home: Home) -> None:
    assert decisions(home) == []
    first = decide(home, CHANGE, Choice.MUTED, "known since\nMay", "ada")
    second = decide(home, CHANGE, Choice.ACCEPTED, "", "grace")
    assert decisions(home) == [first, second]


def test_decisions_made_at_once_are_all_kept(home: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: decide(home, CHANGE, Choice.NOTED, str(n), "ada"), range(40)))
    assert {item.note for item in decisions(home)} == {str(n) for n in range(40)}


def test_a_note_that_is_too_long_is_refused_and_nothing_written(home: Home) -> None:
    with pytest.raises(ValidationError):
        decide(home, CHANGE, Choice.NOTED, "x" * 2001, "ada")
    assert not (home.root / FILE).exists()


def test_a_line_that_is_no_decision_is_named(home: Home) -> None:
    decide(home, CHANGE, Choice.NOTED, "", "ada")
    with (home.root / FILE).open("a") as stream:
        stream.write("{}\n")
    with pytest.raises(CorruptError, match="line 2"):
        decisions(home)


def test_half_a_decision_is_taken_back(home: Home) -> None:
    """The kernel writes what fits and refuses the rest, as a full disk does."""
    first = decide(home, CHANGE, Choice.NOTED, "", "ada")
    path = home.root / FILE
    code = (
        "import resource, signal, sys\n"
        "from resilience_pipelines.home import Home\n"
        "from resilience_pipelines.trends.decisions import Choice, decide\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "decide(Home(Path(sys.argv[1])), '0123456789ab', Choice.NOTED, 'b' * 900, 'ada')\n"
    )
    limit = str(path.stat().st_size + 100)
    done = subprocess.run(
        [sys.executable, "-c", code, str(home.root), limit],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "StorageError" in done.stderr
    assert decisions(home) == [first]
    assert decide(home, CHANGE, Choice.NOTED, "", "grace") == decisions(home)[1]


def test_a_disk_that_is_full_loses_no_decision(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    first = decide(home, CHANGE, Choice.NOTED, "", "ada")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            decide(home, CHANGE, Choice.NOTED, "lost", "ada")
    assert decisions(home) == [first]
