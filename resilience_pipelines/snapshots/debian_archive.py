"""Packages from a Debian archive, unpacked into a folder without installing them.

What belongs here: reading the machine's apt sources, and downloading and unpacking a package with
the libraries it needs. What does not: which package is wanted and why (`criu_provision`).

The machine stays as it is: apt works with lists, cache and sources of its own in a scratch folder,
and the package database is not touched. Signatures are checked. No archive's address is known
here; they come from the machine's apt sources or from RESILIENCE_DEBIAN_MIRROR.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from resilience_pipelines.errors import InputError, ResilienceError

MIRROR_VARIABLE: Final = "RESILIENCE_DEBIAN_MIRROR"
APT_FOLDER: Final = Path("/etc/apt")
KEYRING_PACKAGE: Final = "debian-archive-keyring"
KEYRING_PATHS: Final = (
    Path("usr/share/keyrings/debian-archive-keyring.pgp"),
    Path("usr/share/keyrings/debian-archive-keyring.gpg"),
)
NETWORK_TIMEOUT_S: Final = 30
"""For one request of apt's, in seconds."""


class ArchiveError(ResilienceError):
    """An archive can't be used or does not have what was asked for."""


@dataclass(frozen=True)
class Archive:
    """One suite of one package archive."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str | None = None
    """The value of apt's Signed-By: key files, fingerprints, or a key in full. None leaves the
    choice of keys to apt's own trusted ones."""


@dataclass(frozen=True)
class Release:
    """The distribution that runs on this machine, from os-release."""

    distribution: str
    """`debian`, `ubuntu`, ..."""
    codename: str | None


@dataclass(frozen=True)
class Package:
    """A package that was unpacked."""

    name: str
    version: str
    architecture: str


def parse_one_line(text: str) -> list[Archive]:
    """The binary archives in a one-line-style file (`deb [options] uri suite component...`)."""
    archives = []
    for line in text.splitlines():
        entry = line.partition("#")[0].strip()
        match = re.fullmatch(r"deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)((?:\s+\S+)*)", entry)
        if match is None or match[2].startswith("cdrom:"):
            continue
        signed_by = _option_value(match[1] or "", "signed-by")
        archives.append(Archive(match[2], match[3], tuple(match[4].split()), signed_by))
    return archives


def parse_deb822(text: str) -> list[Archive]:
    """The binary archives in a deb822-style file (`Types:`, `URIs:`, `Suites:`, ...)."""
    archives = []
    for stanza in _stanzas(text):
        if "deb" not in stanza.get("types", "").split():
            continue
        if stanza.get("enabled", "yes").strip().lower() in {"no", "false", "off", "0"}:
            continue
        components = tuple(stanza.get("components", "").split())
        archives += [
            Archive(uri, suite, components, stanza.get("signed-by") or None)
            for uri in stanza.get("uris", "").split()
            for suite in stanza.get("suites", "").split()
            if not uri.startswith("cdrom:")
        ]
    return archives


def read_archives(folder: Path = APT_FOLDER) -> list[Archive]:
    """Every binary archive that the machine's apt uses, in the order in which apt reads them.

    Raises:
        ArchiveError: a file with sources can't be read.
    """
    parts = folder / "sources.list.d"
    files = sorted(path for path in parts.glob("*") if path.suffix in {".list", ".sources"})
    archives = []
    for file in (folder / "sources.list", *files):
        if not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ArchiveError(f"{file} can't be read: {error.strerror or error}.") from error
        archives += parse_deb822(text) if file.suffix == ".sources" else parse_one_line(text)
    return archives


def release_archives(archives: Iterable[Archive], release: Release) -> list[Archive]:
    """Those of `archives` that carry the running release itself, likeliest first.

    Archives of third parties use the release's name for a suite as well. They come last: nothing
    tells them apart for certain, and a wrong guess costs one fruitless download of an index.
    """
    suites = {release.codename}
    if release.distribution == "debian":
        suites |= {"oldstable", "stable", "testing", "unstable", "sid"}
    found = [
        archive for archive in archives if archive.suite in suites and "main" in archive.components
    ]

    def unlikeliness(archive: Archive) -> int:
        signed_by_distribution = f"{release.distribution}-archive-" in (archive.signed_by or "")
        named_so = archive.uri.rstrip("/").endswith(f"/{release.distribution}")
        return 0 if signed_by_distribution else 1 if named_so else 2

    return list(dict.fromkeys(sorted(found, key=unlikeliness)))


def debian_testing_archives(
    archives: Iterable[Archive],
    release: Release,
    environment: Mapping[str, str] = os.environ,
) -> list[Archive]:
    """Where Debian testing can be had: RESILIENCE_DEBIAN_MIRROR, else the machine's own mirror.

    Raises:
        InputError: RESILIENCE_DEBIAN_MIRROR is not an address that apt takes.
        ArchiveError: the machine's mirrors don't carry Debian.
    """
    given = environment.get(MIRROR_VARIABLE, "").strip()
    if given:
        if not re.fullmatch(r"(?:https?://|file:/|mirror\+(?:file:/|https?://))\S+", given):
            raise InputError(
                MIRROR_VARIABLE,
                without_credentials(given),
                "this is not the address of a Debian archive",
                mend="Give one that starts with http://, https:// or file:/ and ends in /debian.",
            )
        return [Archive(given, "testing", ("main",))]
    if release.distribution != "debian":
        raise ArchiveError(
            f"The package mirrors of this machine ({release.distribution}) don't carry Debian "
            "testing.",
            mend=f"Set {MIRROR_VARIABLE} to the address of a Debian mirror.",
        )
    own = [
        replace(archive, suite="testing", components=("main",))
        for archive in release_archives(archives, release)
    ]
    if not own:
        raise ArchiveError(
            f"None of the apt sources in {APT_FOLDER} is a Debian archive.",
            mend=f"Set {MIRROR_VARIABLE} to the address of a Debian mirror.",
        )
    return list(dict.fromkeys(own))


def without_credentials(text: str) -> str:
    """`text` with the user and password taken out of every address in it."""
    return re.sub(r"://[^/@\s]+@", "://", text)


def installed_keyring(root: Path = Path("/")) -> str | None:
    """The key file of Debian's archives below `root`, if it is there."""
    return next((str(root / path) for path in KEYRING_PATHS if (root / path).is_file()), None)


class PrivateApt:
    """apt over one archive, with everything that it stores in a scratch folder.

    Args:
        archive: where packages come from.
        scratch: a folder of the caller's, who removes it.
        timeout_s: for everything that is asked of this object together, in seconds.
    """

    def __init__(self, archive: Archive, scratch: Path, timeout_s: float) -> None:
        self._archive = archive
        self._scratch = scratch
        self._deadline_s = time.monotonic() + timeout_s
        self._configuration = scratch / "apt.conf"

    def update(self) -> None:
        """Download and verify the archive's index.

        Raises:
            ArchiveError: it can't be had, or its signature is not good.
        """
        for name in ("state/lists/partial", "cache/archives/partial", "debs"):
            (self._scratch / name).mkdir(parents=True, exist_ok=True)
        (self._scratch / "status").touch()
        (self._scratch / "archive.sources").write_text(
            sources_stanza(self._archive), encoding="utf-8"
        )
        self._configuration.write_text(_apt_configuration(self._scratch), encoding="utf-8")
        self._run("apt-get", "-q", "update")

    def closure(self, packages: Sequence[str]) -> list[str]:
        """`packages`, as far as the archive has them, and every library that they need.

        Raises:
            ArchiveError: the archive has none of `packages`.
        """
        offered = set(self._run("apt-cache", "pkgnames").split())
        wanted = [name for name in packages if name in offered]
        if not wanted:
            raise ArchiveError(
                f"{without_credentials(self._archive.uri)} {self._archive.suite} offers no "
                f"{' or '.join(packages)}."
            )
        leave_out = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        options = [f"--no-{relation}" for relation in leave_out]
        listing = self._run("apt-cache", "depends", "--recurse", *options, *wanted)
        return library_closure(listing, wanted)

    def unpack(self, packages: Sequence[str], folder: Path) -> list[Package]:
        """Download `packages`, verified against the index, and unpack them into `folder`.

        Raises:
            ArchiveError: one can't be downloaded or unpacked.
        """
        downloads = self._scratch / "debs"
        self._run("apt-get", "-q", "download", *packages, folder=downloads)
        folder.mkdir(parents=True, exist_ok=True)
        unpacked = []
        for file in sorted(downloads.glob("*.deb")):
            shown = ("--show", "--showformat", "${Package} ${Version} ${Architecture}")
            unpacked.append(Package(*self._run("dpkg-deb", *shown, str(file)).split()))
            self._run("dpkg-deb", "--extract", str(file), str(folder))
        return unpacked

    def _run(self, program: str, *arguments: str, folder: Path | None = None) -> str:
        configured = ("-c", str(self._configuration)) if program.startswith("apt-") else ()
        command = [program, *configured, *arguments]
        step = f"{program} {arguments[0] if arguments[0] != '-q' else arguments[1]}"
        try:
            done = subprocess.run(
                command,
                cwd=folder or self._scratch,
                env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=max(self._deadline_s - time.monotonic(), 0.001),
                check=False,
            )
        except FileNotFoundError as error:
            raise ArchiveError(
                f"There is no {program} on this machine.",
                mend="Provisioning works on Debian and its derivatives; elsewhere install CRIU "
                "4.2 or newer with its Python bindings by hand.",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise ArchiveError(f"{step} took longer than {error.timeout:.0f} s.") from error
        if done.returncode != 0:
            complaints = [line for line in done.stderr.splitlines() if line[:2] in {"E:", "W:"}]
            said = " | ".join(complaints[-4:]) or done.stderr.strip()[-400:] or "nothing"
            raise ArchiveError(
                f"{step} ended with exit status {done.returncode} and said: "
                f"{without_credentials(said)}"
            )
        return done.stdout


def sources_stanza(archive: Archive) -> str:
    """The deb822 stanza that has apt use this archive for its packages' index alone."""
    fields = {
        "Types": "deb",
        "URIs": archive.uri,
        "Suites": archive.suite,
        "Components": " ".join(archive.components),
        "Targets": "Packages",
    }
    if archive.signed_by:
        fields["Signed-By"] = archive.signed_by
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def library_closure(listing: str, wanted: Sequence[str]) -> list[str]:
    """`wanted` and the `lib*` packages that they need, in turn, to start.

    Args:
        listing: what `apt-cache depends --recurse` printed for `wanted`.
        wanted: the packages to begin with. Only what a library or one of these depends on counts:
            an interpreter and what belongs to it are the machine's own.
    """
    needs: dict[str, list[str]] = {}
    current: list[str] = []
    for line in listing.splitlines():
        relation = re.match(r"\s+\|?(?:Pre)?Depends: ([^<>\s:]+)", line)
        if relation:
            current.append(relation[1])
        elif line and not line[0].isspace():
            current = needs.setdefault(line.strip(), [])
    found = dict.fromkeys(wanted)
    queue = list(wanted)
    while queue:
        for name in needs.get(queue.pop(), ()):
            if name.startswith("lib") and name in needs and name not in found:
                found[name] = None
                queue.append(name)
    return list(found)


def _apt_configuration(scratch: Path) -> str:
    """apt's settings: own folders, no hooks, and the machine's proxies and credentials kept."""
    settings = {
        "Dir::Etc::sourcelist": scratch / "archive.sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": scratch / "state",
        "Dir::State::lists": scratch / "state" / "lists",
        # With an empty one, nothing that is installed here takes part in choosing versions.
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch / "cache",
        "Acquire::Retries": 2,
        "Acquire::http::Timeout": NETWORK_TIMEOUT_S,
        "Acquire::https::Timeout": NETWORK_TIMEOUT_S,
        # Without it, an index that could not be fetched is only a warning.
        "APT::Update::Error-Mode": "any",
        # apt's user may not enter the scratch folder. What is checked stays the same.
        "APT::Sandbox::User": "root",
    }
    hooks = ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")
    lines = [f"#clear APT::Update::{hook};" for hook in hooks]
    lines += [f'{name} "{value}";' for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _stanzas(text: str) -> list[dict[str, str]]:
    """The stanzas of a deb822 file. Keys are in lower case; continuation lines are kept whole."""
    stanzas: list[dict[str, str]] = [{}]
    field = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
            field = ""
        elif line[0].isspace():
            if field:
                stanzas[-1][field] += "\n" + line.rstrip()
        else:
            name, _, value = line.partition(":")
            field = name.strip().lower()
            stanzas[-1][field] = value.strip()
    return [stanza for stanza in stanzas if stanza]


def _option_value(options: str, name: str) -> str | None:
    for option in options.split():
        key, _, value = option.partition("=")
        if key.lower() == name and value:
            return value.replace(",", " ")
    return None
