"""Get a CRIU that works on this machine: `python -m resilience_pipelines.snapshots.criu_provision`.

What belongs here: which CRIUs are tried, in which order, and how one gets into the private prefix.
What does not: how packages are downloaded (`debian_archive`), what counts as working
(`criu_probe`), and where a CRIU is found afterwards (`criu_binary`).

Tried in turn, until one dumps and restores a process and its pycriu talks to it:

1. what the private prefix holds already,
2. the criu on PATH,
3. the running release's packages, unpacked into the private prefix,
4. Debian testing's packages, unpacked into the private prefix with the libraries they need.

Nothing is installed: neither the machine's packages nor its apt lists change, and removing the
prefix removes everything. A prefix is made under another name and renamed when it has proved to
work, so there is a whole one or none.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from resilience_pipelines.errors import BusyError, ResilienceError, StorageError
from resilience_pipelines.snapshots.criu_binary import (
    MANIFEST_NAME,
    Architecture,
    CriuInstallation,
    CriuUnavailable,
    Origin,
    current_architecture,
    describe_prefix,
    find_system_criu,
    holds_criu,
    private_prefix,
)
from resilience_pipelines.snapshots.criu_probe import ProbeResult, probe, probe_pycriu
from resilience_pipelines.snapshots.debian_archive import (
    APT_FOLDER,
    KEYRING_PACKAGE,
    Archive,
    ArchiveError,
    Package,
    PrivateApt,
    Release,
    debian_testing_archives,
    installed_keyring,
    read_archives,
    release_archives,
    without_credentials,
)

PACKAGES: Final = ("criu", "python3-pycriu")
ARCHIVE_TIMEOUT_S: Final = 180.0
"""For everything that is downloaded from one archive, in seconds."""
LOCK_TIMEOUT_S: Final = 600.0
"""How long to wait for another provisioning of the same prefix, in seconds."""
MINIMUM_UNPROVED: Final = (4, 2)
"""Where nothing may be dumped while provisioning (an image build), only a CRIU from this version
on is taken. 3.17 does not start on Linux 6.18, and 4.1.1 can't dump sockets there."""

# What a dump needs whatever else a process may do: reading another's memory, and either of the
# two that let CRIU choose a PID.
_CAP_SYS_PTRACE: Final = 19
_CAP_SYS_ADMIN: Final = 21
_CAP_CHECKPOINT_RESTORE: Final = 40


@dataclass(frozen=True)
class Attempt:
    """One way to a CRIU that was tried, and why it was not it. `reason` is empty if it was."""

    way: str
    reason: str


@dataclass(frozen=True)
class Provisioned:
    """How provisioning ended."""

    installation: CriuInstallation | None
    attempts: tuple[Attempt, ...]
    duration_s: float

    def to_json(self) -> str:
        """One JSON object, with `installation` null where there is none."""
        return json.dumps(asdict(self), default=str, indent=2)


Say = Callable[[str], None]
Prove = Callable[[CriuInstallation, Path], ProbeResult]


def provision(
    prefix: Path | None = None,
    *,
    dumping: bool = True,
    say: Say = lambda _: None,
    apt_folder: Path = APT_FOLDER,
    environment: Mapping[str, str] = os.environ,
) -> Provisioned:
    """Find a CRIU that works, or make one.

    Args:
        prefix: the private prefix; None means `criu_binary.private_prefix()`.
        dumping: whether a CRIU has to prove itself with a dump and a restore. False is for image
            builds, where neither is allowed: then its version and Python bindings decide.
        say: told what is going on, one line at a time.
        apt_folder: where the machine's apt sources are.
        environment: where RESILIENCE_DEBIAN_MIRROR is looked up.

    Raises:
        BusyError: another provisioning of this prefix did not end in time.
        StorageError: the prefix can't be written, or something else is in its place.
        InputError: RESILIENCE_DEBIAN_MIRROR is not an address.
    """
    started_s = time.monotonic()
    prefix = (prefix or private_prefix()).absolute()
    try:
        architecture = current_architecture()
    except CriuUnavailable as error:
        return Provisioned(None, (Attempt("any", str(error)),), time.monotonic() - started_s)
    search = _Search(prefix, architecture, probe if dumping else starts, say)
    try:
        installation = search.existing()
        if installation is None and (not dumping or search.may_dump()):
            installation = search.packages(apt_folder, environment)
    except OSError as error:
        raise StorageError(
            f"The private prefix {prefix} can't be written: {error}.",
            mend="Make room, or give a folder that this user may write with --prefix.",
        ) from error
    return Provisioned(installation, tuple(search.attempts), time.monotonic() - started_s)


def starts(installation: CriuInstallation, workdir: Path) -> ProbeResult:
    """A weaker proof than `probe`: a version known to work, and Python bindings that fit."""
    version = tuple(int(part) for part in installation.version.split(".")[:2])
    if version < MINIMUM_UNPROVED:
        wanted = ".".join(map(str, MINIMUM_UNPROVED))
        return ProbeResult(ok=False, reason=f"older than {wanted}")
    return probe_pycriu(installation, workdir, rpc=False)


class _Search:
    """The ways to a CRIU, and what came of those that were tried."""

    def __init__(self, prefix: Path, architecture: Architecture, prove: Prove, say: Say) -> None:
        self._prefix = prefix
        self._architecture = architecture
        self._prove = prove
        self._say = say
        self.attempts: list[Attempt] = []

    def existing(self) -> CriuInstallation | None:
        """The CRIU of the prefix, else the one on PATH, if it works."""
        if holds_criu(self._prefix):
            found = self._in_prefix()
            if found is not None:
                return found
        found = self._proved("criu on PATH", find_system_criu)
        if found is not None and holds_criu(self._prefix):
            with _locked(self._prefix):
                _discard(self._prefix)  # or the broken one would be found first
        return found

    def may_dump(self) -> bool:
        """Whether downloading makes sense: no CRIU helps a process that may not dump another."""
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
        if can_dump(int(line.split()[1], 16)):
            return True
        self._note(
            "packages",
            f"this process (user {os.geteuid()}) may not dump others: it needs CAP_SYS_PTRACE, and "
            "CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. Run it as root, in a container with these.",
        )
        return False

    def packages(self, apt_folder: Path, environment: Mapping[str, str]) -> CriuInstallation | None:
        """A new prefix from the first archive whose packages work."""
        with _locked(self._prefix):
            if holds_criu(self._prefix):
                found = self._in_prefix()  # another process may just have made it
                if found is not None:
                    return found
            _require_replaceable(self._prefix)
            ways = self._archives(apt_folder, environment)
            keys = next((way for origin, way in ways if origin == "distribution"), None)
            for origin, archive in ways:
                found = self._from_archive(origin, archive, keys)
                if found is not None:
                    return found
        return None

    def _in_prefix(self) -> CriuInstallation | None:
        return self._proved(
            f"private prefix {self._prefix}",
            lambda: describe_prefix(self._prefix, self._architecture),
        )

    def _from_archive(
        self, origin: Origin, archive: Archive, keys: Archive | None
    ) -> CriuInstallation | None:
        way = f"packages of {archive.suite} from {without_credentials(archive.uri)}"
        self._say(f"{way}: downloading")
        with _partial(self._prefix) as (partial, scratch):
            try:
                unpacked = _unpack(_with_keyring(archive, keys, scratch), partial, scratch)
            except ArchiveError as error:
                self._note(way, str(error))
                return None
            _write_manifest(partial, origin, archive, unpacked)

            if self._proved(way, lambda: describe_prefix(partial, self._architecture)) is None:
                return None
            _discard(self._prefix)
            partial.rename(self._prefix)
        return describe_prefix(self._prefix, self._architecture)

    def _archives(
        self, apt_folder: Path, environment: Mapping[str, str]
    ) -> list[tuple[Origin, Archive]]:
        """Where packages can be had: the running release first, then Debian testing."""
        own: list[Archive] = []
        testing: list[Archive] = []
        try:
            release = running_release()
            archives = read_archives(apt_folder)
            own = release_archives(archives, release)
            testing = debian_testing_archives(archives, release, environment)
        except ArchiveError as error:
            self._note("packages of Debian testing", str(error))
        known = {(archive.uri, archive.suite) for archive in own}
        return [
            *(("distribution", archive) for archive in own),
            *(("private", each) for each in testing if (each.uri, each.suite) not in known),
        ]

    def _proved(
        self, way: str, describe: Callable[[], CriuInstallation]
    ) -> CriuInstallation | None:
        """The installation if it works. What came of it is added to `attempts`."""
        try:
            installation = describe()
        except ResilienceError as error:
            self._note(way, error.reason)
            return None
        with tempfile.TemporaryDirectory(prefix="criu-provision-") as workdir:
            result = self._prove(installation, Path(workdir))
        if result.ok:
            self._note(way, "")
            return installation
        self._note(way, f"CRIU {installation.version}: {result.reason}")
        return None

    def _note(self, way: str, reason: str) -> None:
        self.attempts.append(Attempt(way, reason))
        self._say(f"{way}: {textwrap.shorten(reason, 160, placeholder=' ...') or 'works'}")


def can_dump(capabilities: int) -> bool:
    """Whether this effective set, as in /proc/PID/status, is enough to dump another process."""

    def has(capability: int) -> bool:
        return bool(capabilities >> capability & 1)

    return has(_CAP_SYS_PTRACE) and (has(_CAP_SYS_ADMIN) or has(_CAP_CHECKPOINT_RESTORE))


def running_release() -> Release:
    """The distribution on this machine.

    Raises:
        ArchiveError: os-release is missing.
    """
    try:
        fields = platform.freedesktop_os_release()
    except OSError as error:
        raise ArchiveError(f"This machine does not name its distribution: {error}.") from error
    return Release(fields.get("ID", "linux"), fields.get("VERSION_CODENAME"))


def _unpack(archive: Archive, partial: Path, scratch: Path) -> list[Package]:
    apt = PrivateApt(archive, scratch, ARCHIVE_TIMEOUT_S)
    apt.update()
    return apt.unpack(apt.closure(PACKAGES), partial)


def _with_keyring(archive: Archive, keys: Archive | None, scratch: Path) -> Archive:
    """`archive` with Debian's keys where it names none.

    On a machine without them they come from a package of `keys`, the running release's archive,
    which the machine's own keys vouch for.
    """
    if archive.signed_by or archive.suite != "testing":
        return archive
    keyring = installed_keyring()
    if keyring is None and keys is not None:
        folder = scratch / "keyring"
        (folder / "apt").mkdir(parents=True)
        apt = PrivateApt(keys, folder / "apt", ARCHIVE_TIMEOUT_S)
        apt.update()
        apt.unpack([KEYRING_PACKAGE], folder / "root")
        keyring = installed_keyring(folder / "root")
    if keyring is None:
        raise ArchiveError(
            "The keys that Debian signs its archives with are not on this machine.",
            mend=f"Install the package {KEYRING_PACKAGE}.",
        )
    return replace(archive, signed_by=keyring)


def _write_manifest(
    partial: Path, origin: Origin, archive: Archive, packages: list[Package]
) -> None:
    content = {
        "origin": origin,
        "suite": archive.suite,
        "packages": [asdict(package) for package in packages],
    }
    (partial / MANIFEST_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _require_replaceable(prefix: Path) -> None:
    """Raise unless the prefix is missing, empty, or made by provisioning."""
    if not prefix.exists() or (prefix / MANIFEST_NAME).is_file():
        return
    if not prefix.is_dir() or any(prefix.iterdir()):
        raise StorageError(
            f"{prefix} is in the way and was not made by provisioning.",
            mend="Move it away, or name another folder with --prefix.",
        )


def _discard(prefix: Path) -> None:
    _require_replaceable(prefix)
    if prefix.exists():
        shutil.rmtree(prefix)


@contextmanager
def _partial(prefix: Path) -> Iterator[tuple[Path, Path]]:
    """A folder that becomes the prefix, and one for downloads. Neither outlives the block.

    Their names are fixed: what a killed run left behind is found and removed by the next.
    """
    root = prefix.with_name(f"{prefix.name}.partial")
    shutil.rmtree(root, ignore_errors=True)
    partial, scratch = root / "prefix", root / "scratch"
    partial.mkdir(parents=True)
    scratch.mkdir()
    try:
        yield partial, scratch
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _locked(prefix: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Keep other provisionings of this prefix waiting. The system frees the lock of a dead one."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    path = prefix.with_name(f"{prefix.name}.lock")
    deadline_s = time.monotonic() + timeout_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline_s:
                    raise BusyError(
                        f"Another process has been provisioning {prefix} for {timeout_s:.0f} s.",
                        mend=f"End it (it holds {path}) and try again.",
                    ) from error
                time.sleep(0.1)
        yield


def main(arguments: list[str] | None = None) -> int:
    """The command line. 0: there is a CRIU that works; 3: none, with the reason for each way."""
    parser = argparse.ArgumentParser(
        prog="python -m resilience_pipelines.snapshots.criu_provision",
        description="Find a CRIU that works on this machine, or unpack one into a private prefix.",
    )
    parser.add_argument(
        "--prefix",
        type=Path,
        help="private prefix (default: RESILIENCE_CRIU_PREFIX, else .criu in the checkout)",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument(
        "--no-probe",
        action="store_true",
        help="don't dump and restore a process, for image builds where that is not allowed",
    )
    options = parser.parse_args(arguments)

    def say(line: str) -> None:
        sys.stderr.write(f"criu: {line}\n")

    try:
        outcome = provision(options.prefix, dumping=not options.no_probe, say=say)
    except ResilienceError as error:
        sys.stderr.write(f"criu: {error}\n")
        return error.exit_code
    if options.json:
        sys.stdout.write(outcome.to_json() + "\n")
    elif outcome.installation is not None:
        found = outcome.installation
        sys.stdout.write(f"CRIU {found.version} ({found.origin}): {found.argv[-1]}\n")
    else:
        sys.stdout.write("No CRIU works on this machine; restores will be recorded unsupported.\n")
        for attempt in outcome.attempts:
            sys.stdout.write(f"  {attempt.way}: {attempt.reason}\n")
    return 0 if outcome.installation is not None else CriuUnavailable.exit_code


if __name__ == "__main__":
    sys.exit(main())
