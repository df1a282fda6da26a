"""Provisioning from the machine's package archives, and dumps and restores with what it got."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.snapshots.criu_binary import (
    MANIFEST_NAME,
    CriuInstallation,
    current_architecture,
    describe_prefix,
)
from resilience_pipelines.snapshots.criu_probe import probe, probe_dump_restore, probe_pycriu
from resilience_pipelines.snapshots.criu_provision import (
    Provisioned,
    provision,
    running_release,
)
from resilience_pipelines.snapshots.debian_archive import (
    ArchiveError,
    PrivateApt,
    read_archives,
    release_archives,
)

SYSTEM_STATE = (Path("/var/lib/dpkg/status"), Path("/var/lib/apt/lists"), Path("/etc/apt"))
MODULE = "resilience_pipelines.snapshots.criu_provision"


def fingerprint() -> list[tuple[str, int, int]]:
    """Names, sizes and times of change of all that belongs to the machine's packages."""
    found = []
    for place in SYSTEM_STATE:
        for path in sorted([place, *place.rglob("*")]):
            status = path.lstat()
            found.append((str(path), status.st_size, status.st_mtime_ns))
    return found


@pytest.fixture(scope="module")
def _packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What provisioning needs, or a skip that says what is missing."""
    if os.geteuid() != 0:
        pytest.skip("dumping a process needs root")
    if shutil.which("apt-get") is None:
        pytest.skip("no apt-get on this machine")
    try:
        own = release_archives(read_archives(), running_release())
        if not own:
            pytest.skip("no archive of the running release among the apt sources")
        PrivateApt(own[0], tmp_path_factory.mktemp("reach"), 60).update()
    except ArchiveError as error:
        pytest.skip(f"the machine's package archive can't be reached: {error}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, _packages: None) -> Provisioned:
    """A private CRIU, made from packages whatever else this machine has."""
    prefix = tmp_path_factory.mktemp("provisioned") / "criu"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.which", lambda *_, **__: None)
        before = fingerprint()
        outcome = provision(prefix)
        after = fingerprint()
    if outcome.installation is None:
        reasons = "; ".join(f"{each.way}: {each.reason}" for each in outcome.attempts)
        if "RESILIENCE_DEBIAN_MIRROR" in reasons or "may not dump" in reasons:
            pytest.skip(reasons)
        pytest.fail(reasons)
    assert before == after, "provisioning changed the machine's packages or lists"
    return outcome


@pytest.fixture
def installation(made: Provisioned) -> CriuInstallation:
    assert made.installation is not None
    return made.installation


@pytest.fixture
def prefix(installation: CriuInstallation) -> Path:
    return Path(installation.argv[-1]).parents[2]


def test_what_was_made_dumps_restores_and_talks(
    installation: CriuInstallation, tmp_path: Path
) -> None:
    result = probe(installation, tmp_path)
    assert result.ok, result.reason


def test_nothing_but_the_prefix_and_its_lock_stays(prefix: Path) -> None:
    assert {path.name for path in prefix.parent.iterdir()} == {"criu", "criu.lock"}


def test_all_libraries_come_from_the_prefix(installation: CriuInstallation, prefix: Path) -> None:
    loader, *options, program = installation.argv
    listed = subprocess.run(
        [loader, *options, "--list", program],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    ).stdout
    found = [line.split()[2] for line in listed.splitlines() if "=>" in line]
    assert found
    assert all(path.startswith(str(prefix)) for path in found)


def test_a_second_run_downloads_nothing(prefix: Path) -> None:
    outcome = provision(prefix, apt_folder=Path("/nowhere"), environment={})
    assert outcome.installation is not None
    assert [attempt.reason for attempt in outcome.attempts] == [""]


def test_it_works_where_it_is_moved_to(prefix: Path, tmp_path: Path) -> None:
    moved = tmp_path / "else where"
    shutil.copytree(prefix, moved, symlinks=True)
    result = probe(describe_prefix(moved, current_architecture()), tmp_path)
    assert result.ok, result.reason


def test_two_at_once_make_one(prefix: Path, tmp_path: Path) -> None:
    # Both find a prefix that does not work and have to repair it; the second must not undo the
    # first one's work.
    shared = tmp_path / "criu"
    shutil.copytree(prefix, shared, symlinks=True)
    shutil.rmtree(shared / "usr" / "lib" / "python3")
    environment = {**os.environ, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, "--prefix", str(shared)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    said = [run.communicate(timeout=240)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert sum("downloading" in each for each in said) == 1, said
    result = probe(describe_prefix(shared, current_architecture()), tmp_path)
    assert result.ok, result.reason


def test_a_broken_prefix_made_by_hand_is_reported_and_kept(prefix: Path, tmp_path: Path) -> None:
    mine = tmp_path / "criu"
    shutil.copytree(prefix, mine, symlinks=True)
    shutil.rmtree(mine / "usr" / "lib" / "python3")
    (mine / MANIFEST_NAME).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.which", lambda *_, **__: None)
        with pytest.raises(ResilienceError, match="not made by provisioning"):
            provision(mine)
    assert (mine / "usr" / "sbin" / "criu").is_file()


@pytest.mark.usefixtures("_packages")
def test_without_the_capability_nothing_is_downloaded(tmp_path: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv on this machine")
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace",
         sys.executable, "-m", MODULE, "--prefix", str(tmp_path / "criu")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "CAP_SYS_PTRACE" in done.stdout
    assert "downloading" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_probe_leaves_no_process_and_no_file(
    installation: CriuInstallation, tmp_path: Path
) -> None:
    before = set(psutil.Process().children(recursive=True))
    assert probe_dump_restore(installation, tmp_path).ok
    assert set(psutil.Process().children(recursive=True)) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("exit 1", "exit status 1"),
        ("exit 0", "dump"),
        ("sleep 60", "longer than"),
        ("echo 'Error (criu/x.c:1): no luck' >&2; exit 3", "no luck"),
    ],
)
def test_a_criu_that_does_not_dump_is_found_out(tmp_path: Path, program: str, reason: str) -> None:
    script = tmp_path / "criu"
    script.write_text(f"#!/bin/sh\nexec 2>&1\n{program}\n")
    script.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    before = set(psutil.Process().children(recursive=True))
    fake = CriuInstallation((str(script),), "4.2.1", "system", None)
    result = probe_dump_restore(fake, work, timeout_s=2)
    assert not result.ok
    assert reason in result.reason
    assert set(psutil.Process().children(recursive=True)) == before
    assert list(work.iterdir()) == []


def test_a_criu_that_forgets_is_found_out(installation: CriuInstallation, tmp_path: Path) -> None:
    # It restores nothing but says that it did: no answer comes.
    script = tmp_path / "criu"
    real = " ".join(f"'{part}'" for part in installation.argv)
    script.write_text(f'#!/bin/sh\n[ "$1" = restore ] && exit 0\nexec {real} "$@"\n')
    script.chmod(0o755)
    result = probe_dump_restore(replace(installation, argv=(str(script),)), tmp_path, timeout_s=10)
    assert not result.ok
    assert "after the restore" in result.reason


def test_bindings_without_a_criu_that_talks_are_found_out(
    installation: CriuInstallation, tmp_path: Path
) -> None:
    silent = replace(installation, argv=("/bin/true",))
    result = probe_pycriu(silent, tmp_path, timeout_s=10)
    assert not result.ok
    assert "CRIUException" in result.reason
