"""What became of the machine since a snapshot was taken: the gate's word beside real restores.

Each case changes one thing between a dump and a restore, and tries the restore whatever the gate
says. The cases in which it is too strict or too lax are those that `docs/trends.md` lists.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from resilience_pipelines.records import CompatibilityTrial, Outcome
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.image_edits import ImageEdit
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.startup.benchmark import BenchmarkContext, prepare_source
from resilience_pipelines.startup.compatibility import run_compatibility
from resilience_pipelines.workers.space import SpaceSupport
from tests.integration.test_compatibility_run import with_host
from tests.integration.test_startup_benchmark import context_of
from tests.support.workers import ContractWorker

TakeSource = Callable[[ContractWorker], BenchmarkContext]


@dataclass(frozen=True)
class Found:
    """What was predicted, and what came of the restore."""

    gate: str
    predictions: tuple[str, ...]
    reason: str | None

    @classmethod
    def of(cls, trial: CompatibilityTrial) -> Found:
        worked = trial.outcome is Outcome.OK
        wrong = "too_strict" if worked else "too_lax"
        gate = "right" if worked == trial.predicted_compatible else wrong
        return cls(gate, trial.predictions, trial.reason_code)

    def because(self, *predictions: str) -> Found:
        return replace(self, predictions=predictions)


RIGHT = Found("right", (), None)
TOUCHED = Found("right", ("mapped_file_time",), None)
REFUSED = Found("right", ("mapped_file",), SnapshotReason.RESTORE_FAILED)
UNSEEN = Found("too_lax", (), SnapshotReason.RESTORE_FAILED)
SILENT = Found("too_lax", (), SnapshotReason.WAKE_FAILED)


@pytest.fixture
def source(engine: SnapshotEngine, support: SpaceSupport, tmp_path: Path) -> TakeSource:
    """Takes a snapshot of a worker; the store has no other."""

    def take(worker: ContractWorker) -> BenchmarkContext:
        context = context_of(tmp_path, support, engine)
        context.worker = worker
        assert prepare_source(context, snapshot=True).snapshot is not None
        return context

    return take


def restored(context: BenchmarkContext) -> Found:
    (trial,) = run_compatibility((), 1, context, lambda *_: None).trials
    assert context.engine is not None
    assert context.engine.host.stack.gpu_count is None, "no GPU time can be wasted here"
    return Found.of(trial)


def put(path: Path, content: bytes, mtime_ns: int | None = None, mode: int = 0o755) -> None:
    """Replace a file as a package manager does: by another one of its name.

    Args:
        mode: CRIU compares it too.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.chmod(mode)
    if mtime_ns is not None:
        os.utime(new, ns=(mtime_ns, mtime_ns))
    new.rename(path)


def build_library(path: Path, version: int, build_id: str) -> bytes:
    """A shared library of a package's release; all releases are of one size."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc on this machine: releases of a library can't be built")
    program = path.with_name("library.c")
    program.write_text(f"int version(void) {{ return {version}; }}\n")
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-Wl,--build-id={build_id}", "-o", path, program],
        check=True, timeout=60,
    )  # fmt: skip
    return path.read_bytes()


EDITED = {
    ImageEdit.NOTHING: RIGHT,
    ImageEdit.ARCHITECTURE: REFUSED.because("architecture"),
    ImageEdit.CPU_STATE: Found("too_strict", ("cpu_features",), None),
    ImageEdit.SCHEDULING_POLICY: UNSEEN.because("kernel"),
    ImageEdit.CAPABILITIES: REFUSED.because("capabilities"),
    ImageEdit.CRIU_FORM: REFUSED.because("criu_older"),
    ImageEdit.CRIU_PLUGIN: RIGHT,
    ImageEdit.SECURITY_MODULE: UNSEEN,
    ImageEdit.BOOT_TIME: RIGHT,
    ImageEdit.NETWORK_NAMESPACE: UNSEEN,
    ImageEdit.MOUNT_NAMESPACE: UNSEEN,
    ImageEdit.PROCESS_ID: REFUSED.because("process_id"),
    ImageEdit.MISSING_MOUNT: REFUSED.because("open_path"),
    ImageEdit.FILE_SIZE: REFUSED,
    ImageEdit.FILE_BUILD: REFUSED,
    ImageEdit.FILE_MODE: REFUSED,
    ImageEdit.FILE_GONE: REFUSED,
    ImageEdit.ADDRESS: UNSEEN,
    ImageEdit.TCP_STATE: SILENT,
    ImageEdit.REGISTERS: SILENT,
}


def test_an_image_as_it_would_come_from_elsewhere_or_from_another_hand(
    source: TakeSource, engine: SnapshotEngine
) -> None:
    context = source(ContractWorker())
    (snapshot,) = engine.store.all()
    result = run_compatibility((), 1, context, lambda *_: None, edits=tuple(ImageEdit))
    stored, *edited = result.trials
    assert Found.of(stored) == RIGHT
    name = snapshot.manifest.snapshot_id
    assert [trial.snapshot_id for trial in edited] == [f"{name}+{edit}" for edit in ImageEdit]
    found = dict(zip(ImageEdit, map(Found.of, edited), strict=True))
    assert found == EDITED
    assert not result.unsupported
    engine.store.verify(engine.store.get(name))
    assert list(context.scratch.iterdir()) == [], "no copy stays"


@pytest.mark.parametrize("build_id", ["sha1", "none"])
def test_a_package_that_changed_below_its_snapshot(
    source: TakeSource, tmp_path: Path, build_id: str
) -> None:
    """Gate and CRIU compare sizes and build IDs; only the oracle sees a build that has none."""
    folder = tmp_path / "package"
    folder.mkdir()
    library = folder / "library.so"
    second = build_library(library, 2, build_id)
    first = build_library(library, 1, build_id)
    assert len(first) == len(second)
    written_ns = library.stat().st_mtime_ns
    context = source(ContractWorker((f"library={library}",)))

    put(library, first, written_ns)
    assert restored(context) == RIGHT, "installed again"
    put(library, first)
    assert restored(context) == TOUCHED, "the same bytes at another time"
    put(library, second)
    silent = SnapshotReason.WRONG_ANSWER
    has_id = build_id != "none"
    unseen = Found("too_lax", ("mapped_file_time",), silent)
    assert restored(context) == (REFUSED if has_id else unseen)
    put(library, second, written_ns)
    unseen = Found("too_lax", (), silent)
    assert restored(context) == (REFUSED if has_id else unseen), "an image's fixed times"
    put(library, first + bytes(4096))
    assert restored(context) == REFUSED, "another size"
    library.unlink()
    assert restored(context) == REFUSED, "gone"
    put(library, first, written_ns)
    assert restored(context) == RIGHT, "nothing of the failures stays"


def test_a_locale_that_changed_below_its_snapshot(
    source: TakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locales have no build ID: only the oracle sees another one of the same size."""
    theirs = Path("/usr/lib/locale/C.utf8")
    if not (theirs / "LC_TIME").is_file():
        pytest.skip(f"no {theirs} on this machine: its C library has that locale built in")
    locales = tmp_path / "locales"
    shutil.copytree(theirs, locales / "worker.utf8")
    days = locales / "worker.utf8" / "LC_TIME"
    content, written_ns = days.read_bytes(), days.stat().st_mtime_ns
    mode = days.stat().st_mode & 0o7777
    environment = {"LOCPATH": str(locales), "LC_ALL": "worker.utf8"}
    context = source(ContractWorker(("locale",), env=environment))

    monkeypatch.setenv("LC_ALL", "C")
    assert restored(context) == RIGHT, "the image has its own environment"
    other = content.replace(b"Sunday", b"Sonday")
    assert other != content
    put(days, other, mode=mode)
    assert restored(context) == Found("too_lax", ("mapped_file_time",), SnapshotReason.WRONG_ANSWER)
    put(days, other, written_ns, mode)
    assert restored(context) == Found("too_lax", (), SnapshotReason.WRONG_ANSWER)
    put(days, content + bytes(64), mode=mode)
    assert restored(context) == REFUSED
    shutil.rmtree(locales)
    assert restored(context) == REFUSED


def test_an_interpreter_that_is_gone(source: TakeSource, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python3"
    shutil.copy2(Path(sys.executable).resolve(), python)
    context = source(ContractWorker(python=python, env={"PYTHONHOME": sys.base_prefix}))
    assert restored(context) == RIGHT
    python.unlink()
    assert restored(context) == REFUSED


@pytest.mark.parametrize("masks", ["", "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS"])
def test_a_cpu_feature_that_the_worker_may_never_have_used(source: TakeSource, masks: str) -> None:
    """The host only says that it lacks them: on one that does, code in use of them would end."""
    context = source(ContractWorker(env={"GLIBC_TUNABLES": masks} if masks else {}))
    engine = context.engine
    assert engine is not None
    lacking = next(iter(sorted(engine.host.cpu_features & {"avx2", "asimddp"})), None)
    if lacking is None:
        pytest.skip("this CPU has none of the features that could be masked")
    features = engine.host.cpu_features - {lacking}
    context.engine = with_host(engine, replace(engine.host, cpu_features=features))
    assert restored(context) == Found("too_strict", ("cpu_features",), None)


def test_a_cpu_feature_in_the_image_that_this_machine_lacks(source: TakeSource) -> None:
    """An image of a newer CPU, as its manifest says; no code in its memory needs it."""
    context = source(ContractWorker())
    assert context.engine is not None
    (snapshot,) = context.engine.store.all()
    claimed = (*snapshot.manifest.cpu_features, "of_the_next_cpu")
    edited = snapshot.manifest.model_copy(update={"cpu_features": claimed})
    (snapshot.folder / "manifest.json").write_text(edited.model_dump_json())
    assert restored(context) == Found("too_strict", ("cpu_features",), None)
