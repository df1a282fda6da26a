"""A landing folder is whole or absent, and what was changed in it is found."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience_pipelines.errors import CorruptError, InputError, StorageError
from resilience_pipelines.records import RunKind, RunRecord
from resilience_pipelines.warehouse import landing as module
from resilience_pipelines.warehouse.landing import (
    INCOMING,
    LandingWriter,
    clean_incoming,
    find_landings,
    landing_date,
    read_landing,
)
from tests.factories import RecordFactory, land


@pytest.fixture
def record() -> RunRecord:
    return RecordFactory(7).startup_record(2)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    return tmp_path / "landing"


def visible(landing: Path) -> list[Path]:
    return sorted(path for path in landing.glob("*/*") if not path.match(f"{INCOMING}/*"))


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "run.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_what_was_written_is_read_back(landing: Path, record: RunRecord) -> None:
    samples = RecordFactory(7).samples(record)
    folder = land(landing, record, samples=samples, evidence={"a.log": b"1", "b.bin": b"\0"})
    read = read_landing(folder)
    assert folder == landing / f"date={landing_date(record.run_id)}" / record.run_id
    assert read.record == record.model_copy(update={"evidence": read.record.evidence})
    assert {file.path for file in read.record.evidence} == {"a.log", "b.bin", "samples.parquet"}
    assert read.samples is not None
    assert pl.read_parquet(read.samples.open("rb")).equals(samples)


def test_nothing_is_visible_before_finish(landing: Path, record: RunRecord) -> None:
    with LandingWriter(landing, record.run_id) as writer:
        writer.path("a.log").write_text("1")
        assert visible(landing) == []
        assert list(find_landings(landing)) == []
        writer.finish(record)
        assert len(visible(landing)) == 1


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt(), None])
def test_leaving_without_finish_leaves_nothing(
    landing: Path, record: RunRecord, error: BaseException | None
) -> None:
    def attempt() -> None:
        with LandingWriter(landing, record.run_id) as writer:
            writer.path("a.log").write_text("1")
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            attempt()
    else:
        attempt()
    assert visible(landing) == []
    assert list((landing / INCOMING).iterdir()) == []


def test_no_space_is_a_storage_error_and_leaves_nothing(landing: Path, record: RunRecord) -> None:
    with (
        pytest.raises(StorageError, match=r"No space left.*Free space"),
        LandingWriter(landing, record.run_id),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert visible(landing) == []
    assert list((landing / INCOMING).iterdir()) == []


def test_a_run_is_landed_once(landing: Path, record: RunRecord) -> None:
    first = land(landing, record)
    before = read_landing(first)
    with pytest.raises(StorageError, match=record.run_id):
        land(landing, record, evidence={"other.log": b"2"})
    assert read_landing(first) == before


def test_two_writers_of_one_run_do_not_meet(landing: Path, record: RunRecord) -> None:
    with (
        LandingWriter(landing, record.run_id),
        pytest.raises(StorageError),
        LandingWriter(landing, record.run_id),
    ):
        pass


@pytest.mark.parametrize(
    "name", ["run.json", "samples.parquet", "", ".hidden", "../up", "a/b", "/etc/x", "a\n", "ä"]
)
def test_evidence_has_plain_names(landing: Path, record: RunRecord, name: str) -> None:
    with (
        LandingWriter(landing, record.run_id) as writer,
        pytest.raises(InputError, match="evidence"),
    ):
        writer.path(name)


def test_a_run_id_that_is_none_is_refused(landing: Path) -> None:
    with pytest.raises(InputError, match="run_id"):
        LandingWriter(landing, "../up")


def test_samples_have_their_columns(landing: Path, record: RunRecord) -> None:
    with (
        LandingWriter(landing, record.run_id) as writer,
        pytest.raises(InputError, match="samples"),
    ):
        writer.write_samples(pl.DataFrame({"at": [1.0]}))


def test_the_record_of_another_run_is_refused(landing: Path, record: RunRecord) -> None:
    other = RecordFactory(8).startup_record(1)
    with (
        LandingWriter(landing, record.run_id) as writer,
        pytest.raises(InputError, match=other.run_id),
    ):
        writer.finish(other)


def test_a_measurement_that_is_there_twice_is_refused_both_ways(landing: Path) -> None:
    factory = RecordFactory(1)
    item = factory.startup()
    twice = factory.record(startups=[item, item])
    with pytest.raises(InputError, match="startups"):
        land(landing, twice)
    folder = land(landing, factory.record(startups=[item]))
    edit(folder, lambda content: content["startups"].append(content["startups"][0]))
    with pytest.raises(CorruptError, match=r"startups.*twice"):
        read_landing(folder)


def test_only_plain_files_are_landed(landing: Path, record: RunRecord) -> None:
    with LandingWriter(landing, record.run_id) as writer:
        writer.path("link").symlink_to("/etc/passwd")
        with pytest.raises(InputError, match="link"):
            writer.finish(record)


# What may have happened to a folder, and the field that the error names.


def _flip(folder: Path) -> None:
    path = folder / "worker.log"
    path.write_bytes(b"READY\n")


def _grow(folder: Path) -> None:
    with (folder / "worker.log").open("ab") as file:
        file.write(b"more")


def _link_file(folder: Path) -> None:
    (folder / "worker.log").unlink()
    (folder / "worker.log").symlink_to("/etc/passwd")


def _link_run_file(folder: Path) -> None:
    (folder / "run.json").rename(folder.parent / "elsewhere.json")
    (folder / "run.json").symlink_to(folder.parent / "elsewhere.json")


def _traverse(folder: Path) -> None:
    edit(folder, lambda content: content["evidence"][-1].update(path="../../../etc/passwd"))


def _twice(folder: Path) -> None:
    edit(folder, lambda content: content["evidence"].append(content["evidence"][0]))


def _self_listed(folder: Path) -> None:
    edit(folder, lambda content: content["evidence"][0].update(path="run.json"))


def _newer(folder: Path) -> None:
    edit(folder, lambda content: content.update(schema_version=99))


def _other_id(folder: Path) -> None:
    edit(folder, lambda content: content.update(run_id="20260101T000000Z-startup-00000000"))


def _unknown_field(folder: Path) -> None:
    edit(folder, lambda content: content.update(surprise=1))


def _wrong_stack(folder: Path) -> None:
    edit(folder, lambda content: content["stack"].update(cpu_count=64))


def _sum(folder: Path) -> None:
    edit(folder, lambda content: content["startups"][0].update(total_s=1e6))


def _oversize(folder: Path) -> None:
    os.truncate(folder / "run.json", module.MAX_RUN_FILE_BYTES + 1)


def _fake_samples(folder: Path) -> None:
    content = b"PAR1 is what it is not PAR1"
    (folder / "samples.parquet").write_bytes(content)
    _relist(folder, content)


def _other_samples(folder: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(folder / "samples.parquet")
    _relist(folder, (folder / "samples.parquet").read_bytes())


def _relist(folder: Path, content: bytes) -> None:
    import hashlib

    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(
        folder,
        lambda run: next(f for f in run["evidence"] if f["path"] == "samples.parquet").update(
            facts
        ),
    )


CORRUPTIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "byte_changed": (_flip, "worker.log.*SHA-256"),
    "file_grown": (_grow, "worker.log.*bytes"),
    "file_missing": (lambda folder: (folder / "worker.log").unlink(), "worker.log.*missing"),
    "file_added": (lambda folder: (folder / "x").write_text("1"), "x: it is not listed"),
    "folder_inside": (lambda folder: (folder / "inner").mkdir(), "inner.*not a plain file"),
    "pipe_inside": (lambda folder: os.mkfifo(folder / "pipe"), "pipe.*not a plain file"),
    "file_is_link": (_link_file, "worker.log.*symbolic link"),
    "run_file_is_link": (_link_run_file, "run.json.*symbolic link"),
    "run_file_missing": (lambda folder: (folder / "run.json").unlink(), "run.json.*missing"),
    "run_file_cut": (lambda folder: os.truncate(folder / "run.json", 100), "run.json"),
    "run_file_empty": (lambda folder: os.truncate(folder / "run.json", 0), "run.json"),
    "run_file_no_object": (lambda folder: (folder / "run.json").write_text("[]"), "run.json"),
    "run_file_nested": (
        lambda folder: (folder / "run.json").write_text("[" * 200_000),
        "run.json",
    ),
    "run_file_not_text": (lambda folder: (folder / "run.json").write_bytes(b"\xff\0"), "run.json"),
    "run_file_oversize": (_oversize, "run.json.*more than"),
    "path_traversal": (_traverse, r"evidence\.\d+\.path"),
    "listed_twice": (_twice, "evidence"),
    "lists_itself": (_self_listed, "evidence"),
    "newer_schema": (_newer, "schema_version.*99.*Upgrade"),
    "other_run_id": (_other_id, "run_id"),
    "unknown_field": (_unknown_field, "surprise"),
    "wrong_stack": (_wrong_stack, "stack"),
    "phases_do_not_add_up": (_sum, r"startups\.0"),
    "samples_no_parquet": (_fake_samples, "samples.parquet"),
    "samples_other_columns": (_other_samples, "samples.parquet"),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_folder_that_was_changed_is_refused(landing: Path, record: RunRecord, kind: str) -> None:
    folder = land(landing, record, samples=RecordFactory(7).samples(record))
    spoil, message = CORRUPTIONS[kind]
    spoil(folder)
    with pytest.raises(CorruptError, match=f"(?s){record.run_id}.*{message}") as caught:
        read_landing(folder)
    assert caught.value.mend


def test_a_link_to_a_folder_is_refused(landing: Path, record: RunRecord, tmp_path: Path) -> None:
    folder = land(landing, record)
    moved = folder.rename(tmp_path / record.run_id)
    folder.symlink_to(moved)
    assert list(find_landings(landing)) == [folder]
    with pytest.raises(CorruptError, match="symbolic link"):
        read_landing(folder)


def test_a_renamed_folder_is_refused(landing: Path, record: RunRecord) -> None:
    folder = land(landing, record)
    renamed = folder.rename(folder.with_name(RecordFactory(3).run_id(RunKind.STARTUP)))
    with pytest.raises(CorruptError, match="run_id"):
        read_landing(renamed)


@given(position=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=7))
@settings(max_examples=40, deadline=None)
def test_any_flipped_bit_of_evidence_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    record = RecordFactory(7).startup_record(1)
    folder = land(tmp_path_factory.mktemp("landing"), record, evidence={"e": bytes(range(256))})
    content = bytearray((folder / "e").read_bytes())
    content[position % len(content)] ^= 1 << bit
    (folder / "e").write_bytes(content)
    with pytest.raises(CorruptError, match="e: its SHA-256"):
        read_landing(folder)


def test_landing_folders_are_found_at_any_depth(tmp_path: Path) -> None:
    factory = RecordFactory(2)
    folders = [
        land(tmp_path / "results" / name, factory.startup_record(1))
        for name in ("machine-a-2026-01-01", "machine-b-2026-01-02")
    ]
    (tmp_path / "results" / "README.md").write_text("About these results.")
    assert list(find_landings(tmp_path / "results")) == folders
    assert list(find_landings(folders[0].parent)) == folders[:1]
    assert list(find_landings(folders[0])) == folders[:1]


def test_a_folder_with_a_wrong_name_is_found_and_refused(tmp_path: Path) -> None:
    folder = land(tmp_path, RecordFactory(2).startup_record(1))
    wrong = folder.rename(folder.with_name("not-a-run"))
    assert list(find_landings(tmp_path)) == [wrong]
    with pytest.raises(CorruptError, match="run_id"):
        read_landing(wrong)


def test_leftovers_go_when_they_are_old_and_nobody_owns_them(
    landing: Path, record: RunRecord
) -> None:
    incoming = landing / INCOMING
    for name, age_s in (("old", 2 * 86400), ("young", 60)):
        (incoming / name / "content").mkdir(parents=True)
        (incoming / name / "content" / "x").write_text("1")
        then = time.time() - age_s
        os.utime(incoming / name, (then, then))
    with LandingWriter(landing, record.run_id) as writer:
        owned = incoming / record.run_id
        then = time.time() - 2 * 86400
        os.utime(owned, (then, then))
        assert clean_incoming(landing) == [incoming / "old"]
        assert sorted(path.name for path in incoming.iterdir()) == sorted(["young", owned.name])
        writer.finish(record)


def test_cleaning_a_landing_zone_that_is_not_there_does_nothing(landing: Path) -> None:
    assert clean_incoming(landing) == []


def test_samples_without_end_are_refused(
    landing: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LandingWriter(landing, record.run_id) as writer:
        writer.write_samples(RecordFactory(4).samples(record))
        folder = writer.finish(record)
    assert read_landing(folder).samples is not None
    monkeypatch.setattr("resilience_pipelines.warehouse.landing.MAX_SAMPLES", 1)
    with pytest.raises(CorruptError, match="more than 1"):
        read_landing(folder)
