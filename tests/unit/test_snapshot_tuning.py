"""The compression of a repository is chosen by measurement, kept, and used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from resilience_pipelines.errors import CorruptError, InputError, StorageError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.snapshots.manifest import CHUNK_BYTES
from resilience_pipelines.snapshots.repository import BLOBS, TRIALS, Repository
from resilience_pipelines.snapshots.retention import Policy
from resilience_pipelines.snapshots.settings import open_repository, open_store
from resilience_pipelines.snapshots.storage import Storage, open_storage
from resilience_pipelines.snapshots.store import StoredSnapshot
from resilience_pipelines.snapshots.tuning import (
    Candidate,
    choose,
    keep_tuning,
    kept_tuning,
    tune,
)
from tests.support.snapshots import put

KEY = bytes(range(32))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


@pytest.fixture
def snapshot(home: Home) -> StoredSnapshot:
    return put(open_store(home), pages=bytes(CHUNK_BYTES + 5))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "repository"))


def candidate(name: str, get_s: float, stored: int) -> Candidate:
    return Candidate(compression=name, stored_bytes=stored, put_s=1.0, get_s=(get_s,))


def test_the_fastest_is_chosen() -> None:
    found = [candidate("none", 2.0, 100), candidate("lz4", 1.0, 60), candidate("zstd-1", 1.5, 40)]
    chosen, why = choose(found, 100_000_000)
    assert chosen == "lz4"
    assert "1.000 s" in why
    assert "zstd-1, takes 1.500 s" in why


def test_of_those_as_fast_as_each_other_the_smallest_is_chosen() -> None:
    found = [candidate("none", 1.0, 100), candidate("lz4", 1.04, 60), candidate("zstd-9", 1.06, 9)]
    chosen, why = choose(found, 100_000_000)
    assert chosen == "lz4"
    assert "as fast as none" in why


@pytest.mark.parametrize("key", [None, KEY])
def test_a_trial_measures_every_candidate_and_leaves_nothing(
    storage: Storage, snapshot: StoredSnapshot, key: bytes | None
) -> None:
    told: list[tuple[int, int]] = []
    tuning = tune(
        storage, key, snapshot, candidates=("none", "lz4", "zstd-1"), repeats=2,
        progress=lambda *step: told.append(step),
    )  # fmt: skip
    assert [item.compression for item in tuning.candidates] == ["none", "lz4", "zstd-1"]
    assert all(len(item.get_s) == 2 for item in tuning.candidates)
    none, lz4, _ = tuning.candidates
    assert tuning.sample_bytes == snapshot.manifest.image_bytes
    assert none.stored_bytes > tuning.sample_bytes > 10 * lz4.stored_bytes, "zeros are compressed"
    assert tuning.encrypted == (key is not None)
    assert tuning.chosen in {"none", "lz4", "zstd-1"}
    assert storage.sizes(TRIALS) == {}
    assert told[0] == (0, 9)
    assert told[-1] == (9, 9)


def test_a_trial_that_fails_leaves_nothing(
    storage: Storage, snapshot: StoredSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> bytes:
        raise StorageError("the line went dead")

    monkeypatch.setattr(storage, "get", broken)
    with pytest.raises(StorageError):
        tune(storage, None, snapshot, candidates=("none",))
    assert storage.sizes(TRIALS) == {}


def test_what_a_killed_trial_left_goes_with_the_next_prune(storage: Storage) -> None:
    storage.put(f"{TRIALS}0/lz4/0", b"left")
    report = Repository(storage).prune(Policy(keep=1))
    assert report.freed_bytes == 4
    assert storage.sizes(TRIALS) == {}


def test_content_that_comes_back_otherwise_is_noticed(
    storage: Storage, snapshot: StoredSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "get", lambda name: None)
    with pytest.raises(CorruptError, match="does not give back"):
        tune(storage, None, snapshot, candidates=("none",))


@pytest.mark.parametrize(
    ("field", "values"),
    [("repeats", {"repeats": 0}), ("candidates", {"candidates": ()}),
     ("candidates", {"candidates": ("lz4", "lz4")}), ("compression", {"candidates": ("rar",)})],
)  # fmt: skip
def test_what_can_not_be_tried_is_refused(
    storage: Storage, snapshot: StoredSnapshot, field: str, values: dict[str, object]
) -> None:
    with pytest.raises(InputError, match=field):
        tune(storage, None, snapshot, **values)  # type: ignore[arg-type]


def test_a_choice_is_used_where_the_settings_leave_it_open(
    home: Home, storage: Storage, snapshot: StoredSnapshot
) -> None:
    tuning = tune(storage, None, snapshot, candidates=("lz4",), repeats=1)
    keep_tuning(home, tuning)
    assert kept_tuning(home, storage.address) == tuning
    assert kept_tuning(home, "elsewhere") is None
    open_repository(home, storage.address).put(snapshot)
    assert sum(storage.sizes(BLOBS).values()) < snapshot.manifest.image_bytes / 10
    settings = {"address": storage.address, "compression": "none"}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    (home.root / "snapshots.toml").write_text(f"[repository]\n{lines}\n")
    open_repository(home).put(snapshot, rewrite=True)
    assert sum(storage.sizes(BLOBS).values()) > snapshot.manifest.image_bytes


def test_a_choice_that_can_not_be_read_is_named(home: Home, storage: Storage) -> None:
    folder = home.root / "snapshot-tuning"
    folder.mkdir()
    address = storage.address
    assert kept_tuning(home, address) is None
    path = folder / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}.json"
    path.write_text("{}")
    with pytest.raises(CorruptError, match=path.name):
        kept_tuning(home, address)
