"""Keys and signatures: nothing unsigned or altered is restored, and no key is ever told."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.snapshots.keys import KEY_BYTES, Trust, make_keys, read_key
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.repository import Repository
from resilience_pipelines.snapshots.settings import open_repository, open_store
from resilience_pipelines.snapshots.storage import FolderStorage
from resilience_pipelines.snapshots.store import MANIFEST_NAME, SIGNATURE_NAME, SnapshotStore
from tests.support.snapshots import put

SECRET = base64.b64encode(b"k" * KEY_BYTES).decode()


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return keys_of(tmp_path / "keys")


def keys_of(folder: Path) -> Trust:
    paths = make_keys(folder)
    return Trust(
        read_key("signing.key", f"file:{paths['signing.key']}"),
        (read_key("trusted", f"file:{paths['trusted.pub']}", secret=False),),
    )


def refused(store: SnapshotStore, snapshot_id: str) -> bool:
    with pytest.raises(SnapshotError) as caught:
        store.get(snapshot_id)
    return caught.value.code is SnapshotReason.MANIFEST_UNTRUSTED


def test_a_signed_snapshot_is_accepted_by_those_who_trust_its_key(
    tmp_path: Path, trust: Trust
) -> None:
    snapshot = put(SnapshotStore(tmp_path / "store", trust))
    reader = SnapshotStore(tmp_path / "store", Trust(trusted=trust.trusted))
    assert reader.get(snapshot.manifest.snapshot_id) == snapshot
    stranger = SnapshotStore(tmp_path / "store", keys_of(tmp_path / "others"))
    assert refused(stranger, snapshot.manifest.snapshot_id)


def test_an_unsigned_snapshot_is_refused_where_a_key_is_trusted(
    tmp_path: Path, trust: Trust
) -> None:
    snapshot = put(SnapshotStore(tmp_path / "store"))
    store = SnapshotStore(tmp_path / "store", trust)
    assert refused(store, snapshot.manifest.snapshot_id)
    assert store.all() == []
    assert store.unreadable() == [snapshot.manifest.snapshot_id]


def test_no_altered_manifest_is_accepted(tmp_path: Path, trust: Trust) -> None:
    store = SnapshotStore(tmp_path / "store", trust)
    snapshot = put(store)
    for name in (MANIFEST_NAME, SIGNATURE_NAME):
        path = snapshot.folder / name
        before = path.read_bytes()
        for place in range(len(before)):
            path.write_bytes(
                before[:place] + bytes([before[place] ^ 1 << place % 8]) + before[place + 1 :]
            )
            assert refused(store, snapshot.manifest.snapshot_id)
        path.write_bytes(before)
    assert store.get(snapshot.manifest.snapshot_id) == snapshot


def test_a_signature_goes_through_a_repository(tmp_path: Path, trust: Trust) -> None:
    snapshot = put(SnapshotStore(tmp_path / "here", trust))
    storage = FolderStorage(tmp_path / "repository")
    Repository(storage).put(snapshot)
    reader = Trust(trusted=trust.trusted)
    there = SnapshotStore(tmp_path / "there", reader)
    got = Repository(storage, trust=reader).get(snapshot.manifest.snapshot_id, there)
    assert there.get(snapshot.manifest.snapshot_id) == got
    unsigned = put(SnapshotStore(tmp_path / "unsigned"))
    Repository(storage).put(unsigned)
    with pytest.raises(SnapshotError) as caught:
        Repository(storage, trust=reader).get(unsigned.manifest.snapshot_id, there)
    assert caught.value.code is SnapshotReason.MANIFEST_UNTRUSTED
    assert Repository(storage, trust=reader).all() == [snapshot.manifest]


def test_a_key_comes_from_a_file_the_environment_or_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    monkeypatch.setenv("A_KEY", SECRET)
    for reference in (
        f"file:{path}", "env:A_KEY", f"command:{sys.executable} -c 'print(\"{SECRET}\")'",
    ):  # fmt: skip
        assert read_key("encryption_key", reference) == b"k" * KEY_BYTES


@pytest.mark.parametrize(
    "reference",
    [
        "", "key", "file:/no/such/file", "env:NO_SUCH_VARIABLE", "env:SHORT_KEY",
        "command:/no/such/program", "command:false", "command:'", "http://host/key",
        "command:sh -c 'echo $A_KEY; exit 1'", "command:sh -c 'echo $A_KEY >&2'",
    ],
)  # fmt: skip
def test_what_gives_no_key_is_refused(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT_KEY", SECRET[:20])
    monkeypatch.setenv("A_KEY", SECRET)
    with pytest.raises(InputError, match="encryption_key") as caught:
        read_key("encryption_key", reference)
    assert SECRET[:20] not in f"{caught.value} {caught.value.__cause__}"


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET)
    path.chmod(0o640)
    with pytest.raises(InputError, match="0640"):
        read_key("encryption_key", f"file:{path}")


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    paths = make_keys(tmp_path / "keys")
    before = {name: path.read_text() for name, path in paths.items()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths.values())
    with pytest.raises(InputError):
        make_keys(tmp_path / "keys")
    assert {name: path.read_text() for name, path in paths.items()} == before


def test_keys_are_not_shown_by_what_holds_them(trust: Trust) -> None:
    assert trust.signing_key is not None
    assert repr(trust.signing_key) not in repr(trust)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


def test_settings_open_stores_with_their_keys(home: Home, tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")
    (home.root / "snapshots.toml").write_text(
        f'[repository]\naddress = "{tmp_path / "repository"}"\ncompression = "zstd-1"\n'
        f'encryption_key = "file:{keys["encryption.key"]}"\n'
        f'[signing]\nkey = "file:{keys["signing.key"]}"\n'
        f'trusted = ["file:{keys["trusted.pub"]}"]\n'
    )
    store = open_store(home)
    snapshot = put(store)
    assert (snapshot.folder / SIGNATURE_NAME).exists()
    repository = open_repository(home)
    repository.put(snapshot)
    store.remove(snapshot.manifest.snapshot_id)
    assert repository.get(snapshot.manifest.snapshot_id, store) == snapshot


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[repository]\n", "repository.address"),
        ("[retention]\nkeeps = 3\n", "retention.keeps"),
        ("[signing]\nkey = 5\n", "signing.key"),
        ("[", "snapshot settings"),
    ],
)
def test_wrong_settings_are_named(home: Home, text: str, field: str) -> None:
    (home.root / "snapshots.toml").write_text(text)
    with pytest.raises(InputError, match=field.replace(".", r"\.")):
        open_store(home)


def test_without_a_repository_one_is_asked_for(home: Home) -> None:
    with pytest.raises(InputError, match="no repository"):
        open_repository(home)
