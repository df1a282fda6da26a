"""Changes of level as a program lists them and decides on them, and the commands for it."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from resilience_pipelines.cli import app
from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.results import changes, decide, load
from resilience_pipelines.trends.decisions import FILE, Choice, decisions
from tests.dashboard_fixtures import rich


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with published changes, one of them muted."""
    home = open_home(tmp_path / "home")
    rich().write(home.published)
    return home


def test_changes_are_listed_newest_first_and_muted_ones_when_asked_for(home: Home) -> None:
    listed, everything = changes(home), changes(home, muted=True)
    assert len(listed) == len(everything) - 1
    assert "muted" not in listed["decision"]
    assert listed["changed_at"].is_sorted(descending=True)


def test_the_command_prints_the_same_as_the_function(home: Home) -> None:
    for options, muted in ((["--muted"], True), ([], False)):
        done = CliRunner().invoke(app, ["trends", *options, "--home", str(home.root), "--json"])
        printed = [row["change_id"] for row in json.loads(done.stdout)]
        assert printed == changes(home, muted=muted)["change_id"].to_list()


def test_a_decision_on_a_published_change_is_kept(home: Home) -> None:
    change = changes(home)["change_id"][0]
    first = decide(home, change, "accepted", note="wanted", by="ada")
    words = ["decide", change, "noted", "--home", str(home.root), "--json"]
    printed = json.loads(CliRunner().invoke(app, words).stdout)
    assert (printed["decision"], printed["decided_by"]) == ("noted", getpass.getuser())
    assert decisions(home)[0] == first
    assert [item.decision for item in decisions(home)] == [Choice.ACCEPTED, Choice.NOTED]


@pytest.mark.parametrize(
    ("choice", "options", "field"),
    [
        ("maybe", {}, "choice"),
        ("noted", {"note": "x" * 2001}, "note"),
        ("noted", {"by": "x" * 201}, "decided_by"),
    ],
)
def test_what_can_not_be_decided_is_refused_and_nothing_kept(
    home: Home, choice: str, options: dict[str, str], field: str
) -> None:
    change = changes(home)["change_id"][0]
    with pytest.raises(InputError) as caught:
        decide(home, change, choice, **options)
    assert caught.value.field == field
    with pytest.raises(InputError, match="no change is named so"):
        decide(home, "0" * 12, "noted", by="ada")
    assert not (home.root / FILE).exists()


def test_a_user_without_a_name_has_to_say_who_decides(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    with pytest.raises(InputError) as caught:
        decide(home, changes(home)["change_id"][0], "noted")
    assert caught.value.field == "by"


def test_a_source_that_is_no_folder_is_refused_before_anything_is_loaded(home: Home) -> None:
    with pytest.raises(InputError, match="it is no folder"):
        load(home, [home.root, home.root / "missing"])
    assert not home.warehouse.exists()
