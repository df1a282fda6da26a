"""`resilience snapshot` on stores and repositories: what it prints, and exit codes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.cli import main
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.snapshots.settings import open_store
from tests.support.snapshots import put


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


@pytest.fixture
def shared(tmp_path: Path) -> str:
    return str(tmp_path / "repository")


class Command:
    def __init__(self, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
        self._home = home
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RESILIENCE_HOME", str(self._home.root))
            patch.setattr("sys.argv", ["resilience", "snapshot", *arguments])
            with pytest.raises(SystemExit) as end:
                main()
        shown = self._capsys.readouterr()
        return int(end.value.code or 0), shown.out, " ".join(shown.err.split())

    def json(self, *arguments: str, code: int = 0) -> Any:
        ended, text, complaint = self.run(*arguments, "--json")
        assert ended == code, complaint
        return json.loads(text)


@pytest.fixture
def command(home: Home, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(home, capsys)


def test_a_snapshot_goes_to_a_repository_and_comes_back(
    home: Home, command: Command, shared: str
) -> None:
    store = open_store(home)
    snapshot = put(store)
    name = snapshot.manifest.snapshot_id
    pushed = command.json("push", name, "--repository", shared)
    assert (pushed["snapshot_id"], pushed["reused_chunks"]) == (name, 0)
    assert command.json("push", name, "--repository", shared)["reused_chunks"] == pushed["chunks"]
    code, _, complaint = command.run("pull", name, "--repository", shared)
    assert (code, "has it already" in complaint) == (2, True)
    assert command.run("remove", name)[0] == 0
    assert command.json("list") == []
    assert command.json("pull", name, "--repository", shared)["snapshot"] == name
    (listed,) = command.json("list")
    assert listed == command.json("list", "--repository", shared)[0]
    assert store.get(name) == snapshot


def test_damage_is_exit_code_6(home: Home, command: Command, shared: str) -> None:
    name = put(open_store(home)).manifest.snapshot_id
    command.json("push", name, "--repository", shared)
    assert command.json("verify", "--repository", shared)[0]["intact"] is True
    for path in (Path(shared) / "blobs").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    (row,) = command.json("verify", "--repository", shared, code=6)
    assert row["problem"]
    command.json("push", name, "--repository", shared, "--rewrite")
    assert command.json("verify", name, "--repository", shared)[0]["intact"] is True


@pytest.mark.parametrize("where", ["local", "repository"])
def test_pins_and_limits_decide_what_goes(
    home: Home, command: Command, shared: str, where: str
) -> None:
    store = open_store(home)
    old = put(store, created_at=datetime(2026, 1, 1, tzinfo=UTC)).manifest.snapshot_id
    new = put(store).manifest.snapshot_id
    there = [] if where == "local" else ["--repository", shared]
    if there:
        for name in (old, new):
            command.json("push", name, *there)
    assert command.json("prune", *there) == []
    command.run("pin", old, *there)
    assert [row["pinned"] for row in command.json("list", *there)] == [True, False]
    assert command.json("prune", "--max-age-days", "1", *there) == []
    assert command.run("remove", old, *there)[0] == 2
    command.run("unpin", old, *there)
    (would,) = command.json("prune", "--max-age-days", "1", "--dry-run", *there)
    (did,) = command.json("prune", "--max-age-days", "1", *there)
    assert (would["snapshot"], would["why"], would["removed"]) == (old, "age", False)
    assert did == would | {"removed": True}
    assert [row["snapshot"] for row in command.json("list", *there)] == [new]


def test_limits_that_are_not_given_are_those_of_the_settings(home: Home, command: Command) -> None:
    store = open_store(home)
    put(store, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    put(store)
    (home.root / "snapshots.toml").write_text("[retention]\nkeep = 1\n")
    (gone,) = command.json("prune")
    assert gone["why"] == "count"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("push", "snap-20260101T000000Z-00000000"), "no such snapshot"),
        (("pull", "snap-20260101T000000Z-00000000"), "no repository"),
        (("list", "--repository", "configured"), "no repository"),
        (("pin", "snap-1"), "no snapshot id"),
        (("prune", "--max-age-days", "-1"), "max-age-days"),
        (("list", "--repository", "nosuch://bucket"), "nosuch"),
    ],
)
def test_bad_input_is_exit_code_2(
    command: Command, arguments: tuple[str, ...], complaint: str
) -> None:
    code, _, said = command.run(*arguments)
    assert code == 2
    assert complaint in said


def test_tuning_says_what_it_chose_and_why(home: Home, command: Command, shared: str) -> None:
    assert command.run("tune", "--repository", shared)[0] == 2, "there is no snapshot"
    name = put(open_store(home), pages=bytes(1 << 20)).manifest.snapshot_id
    tuned = command.json("tune", "--repository", shared, "--compressions", "none,lz4")
    assert tuned["snapshot_id"] == name
    assert tuned["chosen"] in ("none", "lz4")
    assert Path(tuned["kept_in"]).is_file()
    code, text, _ = command.run("tune", "--repository", shared, "--compressions", "lz4")
    assert code == 0
    assert "nothing else was tried" in " ".join(text.split())


def test_who_needs_a_new_snapshot_is_told_without_taking_one(home: Home, command: Command) -> None:
    assert command.json("regenerate", "--dry-run") == []
    assert command.run("regenerate", "--worker", "reference")[0] == 2
    put(open_store(home), "0.0.1")
    assert command.json("regenerate", "--dry-run") == [{"worker": "reference"}]
    assert len(command.json("list")) == 1


def test_keys_are_made_once(command: Command, tmp_path: Path) -> None:
    made = command.json("keygen", str(tmp_path / "keys"))
    assert [row["key"] for row in made] == ["encryption.key", "signing.key", "trusted.pub"]
    assert command.run("keygen", str(tmp_path / "keys"))[0] == 2


def test_a_secret_in_an_image_is_told_by_its_place_and_never_shown(
    home: Home, command: Command
) -> None:
    store = open_store(home)
    secret = "AKIA" + "ABCDEFGH" * 2
    clean, dirty = put(store), put(store, pages=f"\0{secret}\0".encode())
    assert command.json("scan", clean.manifest.snapshot_id) == []
    assert command.json("scan", code=1) == [
        {
            "snapshot": dirty.manifest.snapshot_id,
            "kind": "aws_access_key",
            "file": "images/pages-1.img",
            "places": 1,
            "first_offset": 1,
        }
    ]
    _, shown, complaint = command.run("scan")
    assert "aws_access_key" in shown
    assert secret not in shown + complaint
