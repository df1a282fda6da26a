"""apt over a small archive made here: signatures count, and the machine's packages do not."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from resilience_pipelines.snapshots.debian_archive import Archive, ArchiveError, PrivateApt

TOOLS = ("apt-get", "dpkg-deb", "gpg")
PACKAGES: Mapping[str, str] = {
    "criu": "libone, python3, libc-none | libtwo",
    "python3-pycriu": "criu, python3",
    "libone": "libthree (>= 1.0)",
    "libtwo": "",
    "libthree": "libone",
    "python3": "libunrelated",
    "libunrelated": "",
}


def run(*argv: str, **environment: str) -> None:
    subprocess.run(
        argv, env={**os.environ, **environment}, check=True, capture_output=True, timeout=60
    )


@dataclass(frozen=True)
class SmallArchive:
    """A signed archive in a folder, and the key that it is signed with."""

    root: Path
    keyring: Path

    @property
    def archive(self) -> Archive:
        return Archive(f"file:{self.root}", "small", ("main",), str(self.keyring))

    @property
    def suite(self) -> Path:
        return self.root / "dists" / "small"


@pytest.fixture
def small(tmp_path: Path) -> SmallArchive:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    root, gpg_home = tmp_path / "archive", tmp_path / "gpg"
    index = root / "dists" / "small" / "main" / f"binary-{architecture()}"
    index.mkdir(parents=True)
    (root / "pool").mkdir()
    gpg_home.mkdir(mode=0o700)
    entries = [package(root, tmp_path / "build", name, PACKAGES[name]) for name in PACKAGES]
    (index / "Packages").write_text("\n".join(entries))
    content = (index / "Packages").read_bytes()
    release = root / "dists" / "small" / "Release"
    path = (index / "Packages").relative_to(release.parent)
    release.write_text(
        f"Suite: small\nCodename: small\nArchitectures: {architecture()}\nComponents: main\n"
        "Date: Thu, 01 Jan 2026 00:00:00 UTC\n"
        f"SHA256:\n {hashlib.sha256(content).hexdigest()} {len(content)} {path}\n"
    )
    gpg = ("gpg", "--batch", "--quiet", "--homedir", str(gpg_home))
    run(*gpg, "--passphrase", "", "--quick-generate-key", "t@example.test", "ed25519", "sign", "1d")
    keyring = tmp_path / "key.gpg"
    run(*gpg, "--output", str(keyring), "--export")
    run(*gpg, "--output", str(release.with_name("InRelease")), "--clearsign", str(release))
    run("gpgconf", "--homedir", str(gpg_home), "--kill", "all")
    return SmallArchive(root, keyring)


def architecture() -> str:
    done = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def package(root: Path, build: Path, name: str, depends: str) -> str:
    """Build one package into the archive's pool and return its entry of the index."""
    folder = build / name
    (folder / "DEBIAN").mkdir(parents=True)
    (folder / "usr" / "lib").mkdir(parents=True)
    (folder / "usr" / "lib" / f"{name}.txt").write_text(name)
    fields = (
        f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.test>\n"
        + (f"Depends: {depends}\n" if depends else "")
        + "Description: a test\n"
    )
    (folder / "DEBIAN" / "control").write_text(fields)
    file = root / "pool" / f"{name}_1.0_all.deb"
    run("dpkg-deb", "--root-owner-group", "--build", str(folder), str(file))
    content = file.read_bytes()
    return (
        f"{fields}Filename: pool/{file.name}\nSize: {len(content)}\n"
        f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
    )


def private_apt(archive: Archive, folder: Path) -> PrivateApt:
    folder.mkdir()
    return PrivateApt(archive, folder, timeout_s=60)


def test_packages_are_unpacked_with_their_libraries_and_nothing_else(
    small: SmallArchive, tmp_path: Path
) -> None:
    apt = private_apt(small.archive, tmp_path / "scratch")
    apt.update()
    names = apt.closure(["criu", "python3-pycriu", "not-offered"])
    unpacked = apt.unpack(names, tmp_path / "out")
    expected = {"criu", "python3-pycriu", "libone", "libtwo", "libthree"}
    assert {each.name for each in unpacked} == expected
    assert {path.stem for path in (tmp_path / "out").rglob("*.txt")} == expected
    assert {(each.version, each.architecture) for each in unpacked} == {("1.0", "all")}


def test_what_is_installed_here_does_not_count(small: SmallArchive, tmp_path: Path) -> None:
    # dpkg is installed everywhere, and this archive does not offer it.
    apt = private_apt(small.archive, tmp_path / "scratch")
    apt.update()
    with pytest.raises(ArchiveError, match="offers no dpkg"):
        apt.closure(["dpkg"])


def test_an_archive_without_a_signature_is_refused(small: SmallArchive, tmp_path: Path) -> None:
    (small.suite / "InRelease").unlink()
    with pytest.raises(ArchiveError, match="not signed"):
        private_apt(small.archive, tmp_path / "scratch").update()


def test_a_signature_by_another_key_is_refused(small: SmallArchive, tmp_path: Path) -> None:
    (tmp_path / "empty.gpg").touch()
    other = Archive(small.archive.uri, "small", ("main",), str(tmp_path / "empty.gpg"))
    with pytest.raises(ArchiveError, match="update ended with exit status"):
        private_apt(other, tmp_path / "scratch").update()


def test_an_index_that_was_changed_is_refused(small: SmallArchive, tmp_path: Path) -> None:
    (index,) = small.suite.rglob("Packages")
    index.write_text(index.read_text().replace("Version: 1.0", "Version: 6.6"))
    with pytest.raises(ArchiveError, match="update ended with exit status"):
        private_apt(small.archive, tmp_path / "scratch").update()


def test_a_package_that_was_changed_is_not_unpacked(small: SmallArchive, tmp_path: Path) -> None:
    file = small.root / "pool" / "libone_1.0_all.deb"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    apt = private_apt(small.archive, tmp_path / "scratch")
    apt.update()
    with pytest.raises(ArchiveError, match="download"):
        apt.unpack(["libone"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_archive_that_is_not_there_is_a_reason(small: SmallArchive, tmp_path: Path) -> None:
    gone = Archive(f"file:{tmp_path}/gone", "small", ("main",), str(small.keyring))
    with pytest.raises(ArchiveError, match="gone"):
        private_apt(gone, tmp_path / "scratch").update()


def test_time_that_ran_out_is_a_reason(small: SmallArchive, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    with pytest.raises(ArchiveError, match="longer than"):
        PrivateApt(small.archive, tmp_path / "scratch", timeout_s=0).update()
