"""The gate predicts: each difference has its code, and only dangerous ones block."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from resilience_pipelines.snapshots.compatibility import Host, IncompatibilityCode, check
from resilience_pipelines.snapshots.manifest import Manifest, MappedFile
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.oracle import RecordedAnswer

STACK = Stack(
    engine="vllm", engine_version="0.23.0", architecture="x86_64", kernel_version="6.18",
    criu_version="4.2.1", gpu_sku="NVIDIA H200", driver_version="580.159.04",
)  # fmt: skip


def manifest(**changes: object) -> Manifest:
    facts: dict[str, object] = {
        "snapshot_id": "snap-20260101T000000Z-deadbeef", "created_at": datetime.now(UTC),
        "engine": "criu", "criu_version": "4.2.1", "worker": "vllm", "stack": STACK,
        "cpu_features": ("avx", "avx2"), "port": 8000, "root_pid": 1000, "output_pipe": "pipe:[1]",
        "answer": RecordedAnswer(prompt="p", token_ids=(1,), logprobs=(-1.0,)),
        "files": (), "mapped_files": (),
    }  # fmt: skip
    return Manifest.model_validate(facts | changes)


def host(*, features: tuple[str, ...] = ("avx", "avx2", "sse"), **changes: object) -> Host:
    return Host(STACK.model_copy(update=changes), frozenset(features))


def codes(made: Manifest, here: Host) -> dict[IncompatibilityCode, bool]:
    return {item.code: item.blocking for item in check(made, here)}


def test_the_machine_it_was_made_on_fits() -> None:
    assert check(manifest(), host()) == []


@pytest.mark.parametrize(
    ("change", "code", "blocking"),
    [
        ({"architecture": "aarch64"}, IncompatibilityCode.ARCHITECTURE, True),
        ({"criu_version": "4.2"}, IncompatibilityCode.CRIU_OLDER, True),
        ({"criu_version": "3.17.1"}, IncompatibilityCode.CRIU_OLDER, True),
        ({"gpu_sku": "NVIDIA B200"}, IncompatibilityCode.GPU, True),
        ({"gpu_sku": None}, IncompatibilityCode.GPU, True),
        ({"driver_version": "590.1"}, IncompatibilityCode.DRIVER, True),
        ({"kernel_version": "6.19"}, IncompatibilityCode.KERNEL, False),
        ({"engine_version": "0.24.0"}, IncompatibilityCode.ENGINE, False),
    ],
)
def test_each_difference_has_its_code(
    change: dict[str, object], code: IncompatibilityCode, blocking: bool
) -> None:
    assert codes(manifest(), host(**change)) == {code: blocking}


def test_a_newer_criu_fits() -> None:
    assert check(manifest(), host(criu_version="4.10")) == []


def test_a_cpu_without_a_feature_of_the_image_blocks_and_names_it() -> None:
    (found,) = check(manifest(), host(features=("avx",)))
    assert found.code is IncompatibilityCode.CPU_FEATURES
    assert found.blocking
    assert found.wanted == "avx2"


def test_a_newer_manifest_blocks() -> None:
    assert codes(manifest(schema_version=99), host()) == {IncompatibilityCode.MANIFEST_SCHEMA: True}


def test_mapped_files_are_compared_with_those_on_disk(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"1234")
    facts = library.stat()

    def mapped(size: int, mtime_ns: int, path: Path = library) -> Manifest:
        return manifest(mapped_files=(MappedFile(path=str(path), bytes=size, mtime_ns=mtime_ns),))

    assert check(mapped(4, facts.st_mtime_ns), host()) == []
    assert codes(mapped(4, 1), host()) == {IncompatibilityCode.MAPPED_FILE_TIME: False}
    assert codes(mapped(5, facts.st_mtime_ns), host()) == {IncompatibilityCode.MAPPED_FILE: True}
    missing = mapped(4, 1, tmp_path / "gone.so")
    assert codes(missing, host()) == {IncompatibilityCode.MAPPED_FILE: True}


def test_blocking_differences_come_first() -> None:
    found = check(manifest(), host(kernel_version="6.19", gpu_sku=None, engine_version="9"))
    assert [item.blocking for item in found] == sorted(
        (item.blocking for item in found), reverse=True
    )
