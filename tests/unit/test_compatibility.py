"""The gate predicts: each difference has its code, and only dangerous ones block."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from resilience_pipelines.launchers.kubernetes.settings import SNAPSHOT_CAPABILITIES
from resilience_pipelines.snapshots.build_id import read_build_id
from resilience_pipelines.snapshots.compatibility import (
    CAPABILITY_NAMES,
    Host,
    IncompatibilityCode,
    check,
)
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


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"root_pid": 1}, IncompatibilityCode.PROCESS_ID),
        ({"root_pid": 999}, IncompatibilityCode.PROCESS_ID),
        ({"open_paths": ("/none/such",)}, IncompatibilityCode.OPEN_PATH),
        ({"capabilities": 0b11}, IncompatibilityCode.CAPABILITIES),
    ],
)
def test_what_a_restore_would_not_find_here_blocks(
    wanted: dict[str, object], code: IncompatibilityCode
) -> None:
    here = replace(host(), capabilities=0b01)
    assert codes(manifest(**wanted), here) == {code: True}


def test_missing_capabilities_are_named_as_a_pod_s_settings_name_them() -> None:
    needs = 1 << 8 | 1 << 21 | 1 << 62
    [found] = check(manifest(capabilities=needs), replace(host(), capabilities=1 << 21))
    assert found.wanted == "capabilities SETPCAP 62", "one that is not known keeps its number"
    assert {name: CAPABILITY_NAMES.index(name) for name in SNAPSHOT_CAPABILITIES} == {
        "NET_ADMIN": 12, "SETPCAP": 8, "SYS_ADMIN": 21, "SYS_CHROOT": 18, "SYS_PTRACE": 19,
        "SYS_TIME": 25,
    }  # fmt: skip


def test_what_a_manifest_or_a_machine_does_not_tell_blocks_nothing() -> None:
    assert check(manifest(capabilities=0b11), host()) == []
    assert check(manifest(), replace(host(), capabilities=0)) == []
    assert check(manifest(open_paths=("/",), capabilities=0), replace(host(), capabilities=1)) == []


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


def build(path: Path, version: int, build_id: str = "sha1") -> MappedFile:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc on this machine: builds of a library can't be made")
    program = path.with_suffix(".c")
    program.write_text(f"int version(void) {{ return {version}; }}\n")
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-Wl,--build-id={build_id}", "-o", path, program],
        check=True, timeout=60,
    )  # fmt: skip
    facts = path.stat()
    return MappedFile(
        path=str(path), bytes=facts.st_size, mtime_ns=facts.st_mtime_ns,
        build_id=read_build_id(path),
    )  # fmt: skip


def test_another_build_of_the_same_size_blocks(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    first = build(library, 1)
    made = manifest(mapped_files=(first,))
    assert first.build_id is not None
    assert check(made, host()) == []
    second = build(library, 2)
    assert second.bytes == first.bytes
    (found,) = check(made, host())
    assert (found.code, found.blocking) == (IncompatibilityCode.MAPPED_FILE, True)
    assert first.build_id in found.wanted
    assert found.found == f"build {second.build_id}"


def test_a_build_that_lost_its_id_blocks_and_one_that_never_had_one_is_not_compared(
    tmp_path: Path,
) -> None:
    library = tmp_path / "lib.so"
    made = build(library, 1)
    library.write_bytes(bytes(made.bytes))
    os.utime(library, ns=(made.mtime_ns, made.mtime_ns))
    assert codes(manifest(mapped_files=(made,)), host()) == {IncompatibilityCode.MAPPED_FILE: True}
    bare = build(library, 1, "none")
    assert bare.build_id is None
    build(library, 2, "none")
    assert codes(manifest(mapped_files=(bare,)), host()) == {
        IncompatibilityCode.MAPPED_FILE_TIME: False
    }


def test_a_manifest_of_before_build_ids_were_read_says_what_it_said(tmp_path: Path) -> None:
    made = build(tmp_path / "lib.so", 1)
    old = json.loads(manifest(mapped_files=(made,)).model_dump_json())
    assert old["mapped_files"][0].pop("build_id") == made.build_id
    read = Manifest.model_validate_json(json.dumps(old))
    assert read.mapped_files[0].build_id is None
    assert check(read, host()) == []


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf on this machine")
def test_a_build_id_is_the_one_that_readelf_reads(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    for path in (library, Path(sys.executable).resolve(), Path("/bin/ls").resolve()):
        if path == library:
            build(library, 1)
        shown = subprocess.run(
            ["readelf", "--notes", path],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        found = re.search(r"Build ID: ([0-9a-f]+)", shown)
        assert read_build_id(path) == (found[1] if found else None)


def test_what_is_no_whole_elf_file_has_no_build_id(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    build(library, 1)
    whole = library.read_bytes()
    for length in (0, 3, 63, 64, 100):
        library.write_bytes(whole[:length])
        assert read_build_id(library) is None


def test_blocking_differences_come_first() -> None:
    found = check(manifest(), host(kernel_version="6.19", gpu_sku=None, engine_version="9"))
    assert [item.blocking for item in found] == sorted(
        (item.blocking for item in found), reverse=True
    )
