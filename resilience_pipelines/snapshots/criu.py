"""CRIU, driven through pycriu: dump and restore of a process tree, with deadlines of our own.

What belongs here: one dump or restore, its options, its log and its statistics. What does not: the
protocol around it (`engine`), where CRIU comes from (`criu_binary`), and GPU state.

CRIU runs inside the worker's space, so that it sees the worker's process ids, mounts and sockets as
the worker does. It is started as `criu swrk` by us rather than by pycriu, which would wait for an
answer without limit and could not enter a space.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import psutil

from resilience_pipelines.errors import CorruptError
from resilience_pipelines.records import MAX_COUNT, CriuStatistics
from resilience_pipelines.snapshots.criu_binary import CriuInstallation, import_pycriu
from resilience_pipelines.snapshots.image_edits import ImageFolder
from resilience_pipelines.snapshots.image_files import load_image
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.snapshots.zero_pages import drop_zero_pages
from resilience_pipelines.workers.space import Space

_GHOST_LIMIT_BYTES = 2**30
_EXIT_DEADLINE_S = 10.0
# CRIU cannot raise its file limit without CAP_SYS_RESOURCE and goes on without.
_HARMLESS = "Can't setup RLIMIT_NOFILE"


@dataclass(frozen=True)
class InheritedPipe:
    """The worker's output pipe: the one it had at the dump, and the one it gets now."""

    key: str
    fd: int


class Criu:
    """Dumps and restores process trees.

    Args:
        installation: the CRIU to run.
        log_level: CRIU's verbosity, 0 to 4. Errors come at 1, each step at 4.
    """

    def __init__(self, installation: CriuInstallation, log_level: int = 2) -> None:
        self.installation = installation
        self._pycriu = import_pycriu(installation)
        self._log_level = log_level

    @property
    def version(self) -> str:
        """CRIU's version, e.g. `4.2.1`."""
        return self.installation.version

    def dump(self, space: Space, pid: int, images: Path, log: Path, *, deadline_s: float) -> None:
        """Write the tree below `pid` to a folder and leave it stopped (SIGSTOP).

        A failed dump leaves the tree running, as CRIU does.

        Args:
            pid: the tree's root as its space numbers it.
            images: an empty folder.
            log: where CRIU's own log goes.

        Raises:
            SnapshotError: `dump_failed` with CRIU's own words, `dump_timeout` or `store_full`.
        """
        with self._session(space, images, log, deadline_s) as client:
            client.opts.pid = pid
            client.opts.leave_stopped = True
            self._call(client.dump, "dump", log, deadline_s)

    def compact(self, images: Path) -> int:
        """Leave pages of zeros out of a finished dump; returns the bytes that it lost.

        Raises:
            OSError: it can't be read or written; then it is as it was.
        """
        return drop_zero_pages(images, self._pycriu)

    def open_images(self, images: Path, root_pid: int) -> ImageFolder:
        """The files of a copy of a dump, to be edited."""
        return ImageFolder(images, root_pid, self._pycriu)

    def restore(
        self,
        space: Space,
        images: Path,
        work: Path,
        log: Path,
        *,
        output: InheritedPipe,
        deadline_s: float,
    ) -> int:
        """Bring a tree back inside `space`, stopped (SIGSTOP); returns its root's process id there.

        Args:
            images: the folder of the dump. It is not written to.
            work: an empty folder for what CRIU writes while restoring, its statistics included.

        Raises:
            SnapshotError: `restore_failed` or `restore_timeout`.
        """
        # CRIU writes beside the images that it reads. Links keep the snapshot itself untouched,
        # so that restores from one image don't meet each other's files.
        for image in images.iterdir():
            (work / image.name).symlink_to(image)
        with self._session(space, work, log, deadline_s, pass_fds=[output.fd]) as client:
            client.opts.leave_stopped = True
            inherited = client.opts.inherit_fd.add()
            inherited.key = output.key
            inherited.fd = output.fd
            answer = self._call(client.restore, "restore", log, deadline_s)
        return int(answer.pid)

    def statistics(self, folder: Path, kind: Literal["dump", "restore"]) -> CriuStatistics:
        """What CRIU counted and timed, from `stats-dump` or `stats-restore` in a folder.

        CRIU gives microseconds. See `read_statistics`.
        """
        return read_statistics(folder, kind, self._pycriu)

    @contextlib.contextmanager
    def _session(
        self,
        space: Space,
        images: Path,
        log: Path,
        deadline_s: float,
        pass_fds: Sequence[int] = (),
    ) -> Iterator[Any]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        enter = space.enter()
        with ours, log.open("wb") as log_file:
            with theirs:
                process = subprocess.Popen(
                    [
                        *enter,
                        *self.installation.argv,
                        "swrk",
                        str(theirs.fileno()),
                    ],
                    stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file,
                    pass_fds=[theirs.fileno(), *pass_fds],
                    start_new_session=True, umask=0o077, cwd="/",
                )  # fmt: skip
            try:
                whole, part = divmod(deadline_s, 1)
                ours.setsockopt(
                    socket.SOL_SOCKET,
                    socket.SO_RCVTIMEO,
                    struct.pack("ll", int(whole), int(part * 1e6)),
                )
                client = self._pycriu.criu()
                client.use_fd(ours.fileno())
                self._set_options(client.opts, images, deadline_s)
                yield client
                process.wait(_EXIT_DEADLINE_S)
            finally:
                _end_session(process, entered=bool(enter))

    def _set_options(self, opts: Any, images: Path, deadline_s: float) -> None:
        # By path: a descriptor is looked up through the caller's process id, which does not exist
        # inside the space.
        opts.images_dir = str(images)
        opts.log_level = self._log_level
        opts.log_to_stderr = True
        opts.tcp_established = True
        # A client that is just connecting must not make the dump fail; it belongs to the source.
        opts.tcp_skip_in_flight = True
        # All connections are on loopback and both their ends are in the image: nothing to lock out.
        opts.network_lock = self._pycriu.rpc.SKIP
        opts.file_locks = True
        opts.link_remap = True
        opts.ext_unix_sk = True
        opts.ghost_limit = _GHOST_LIMIT_BYTES
        opts.manage_cgroups_mode = self._pycriu.rpc.IGNORE
        # CRIU's own limit on freezing, below ours, so that it can undo what it began.
        opts.timeout = max(1, int(deadline_s) - 1)

    def _call(
        self, request: Any, phase: Literal["dump", "restore"], log: Path, limit: float
    ) -> Any:
        failed, late = (
            (SnapshotReason.DUMP_FAILED, SnapshotReason.DUMP_TIMEOUT)
            if phase == "dump"
            else (SnapshotReason.RESTORE_FAILED, SnapshotReason.RESTORE_TIMEOUT)
        )
        try:
            return request()
        except self._pycriu.CRIUExceptionExternal as error:
            words = error_lines(log) or str(error)
            # A log beside the images can't tell that there is no room: it has none either.
            full = "No space left" in words or (phase == "dump" and not _has_room(log.parent))
            code = SnapshotReason.STORE_FULL if full else failed
            raise SnapshotError(code, phase, f"CRIU could not {phase}: {words}") from error
        except self._pycriu.CRIUException as error:
            words = error_lines(log) or str(error)
            timed_out = "temporarily unavailable" in str(error)
            raise SnapshotError(
                late if timed_out else failed,
                phase,
                f"CRIU gave no answer to {phase} within {limit:g} s: {words}"
                if timed_out
                else f"CRIU ended during {phase}: {words}",
            ) from error


def _end_session(process: subprocess.Popen[bytes], *, entered: bool) -> None:
    """End a CRIU that goes on.

    Args:
        entered: whether the process is an nsenter that waits outside for the CRIU that it forked
            inside. That one has to end first, so that nsenter takes notice of it: left to whoever
            adopts orphans, which in a container is a job that expects none, it would stay a zombie
            and hold the space open.
    """
    if entered and process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for inside in psutil.Process(process.pid).children():
                inside.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_DEADLINE_S)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_EXIT_DEADLINE_S)


def read_statistics(
    folder: Path, kind: Literal["dump", "restore"], pycriu: ModuleType
) -> CriuStatistics:
    """The figures of `stats-dump` or `stats-restore`; all None where the file can't be read.

    They are beside the point of a dump or restore that went well, and must not make it fail.
    """
    try:
        found = load_image(folder / f"stats-{kind}", pycriu)["entries"]
    except (OSError, CorruptError):
        return CriuStatistics()
    entries = found[0].get(kind) if found and isinstance(found[0], dict) else None
    if not isinstance(entries, dict):
        return CriuStatistics()

    def count(name: str) -> int | None:
        value = entries.get(name)
        return value if type(value) is int and 0 <= value <= MAX_COUNT else None

    def seconds(name: str) -> float | None:
        value = count(name)
        return None if value is None else value / 1e6

    if kind == "dump":
        return CriuStatistics(
            freezing_s=seconds("freezing_time"),
            frozen_s=seconds("frozen_time"),
            memdump_s=seconds("memdump_time"),
            memwrite_s=seconds("memwrite_time"),
            pages_scanned=count("pages_scanned"),
            pages_skipped_parent=count("pages_skipped_parent"),
            pages_written=count("pages_written"),
        )
    return CriuStatistics(
        forking_s=seconds("forking_time"),
        restore_s=seconds("restore_time"),
        pages_compared=count("pages_compared"),
        pages_skipped_cow=count("pages_skipped_cow"),
        pages_restored=count("pages_restored"),
    )


def _has_room(folder: Path) -> bool:
    found = os.statvfs(folder)
    return found.f_bavail > 0 and (not found.f_files or found.f_favail > 0)


def error_lines(log: Path, count: int = 5) -> str:
    """The last errors of a CRIU log, joined, without those known to be harmless."""
    if not log.exists():
        return ""
    errors = [
        re.sub(r"^\(\s*[0-9.]+\)\s*(?:\d+: )?Error \([^)]*\): ", "", line)
        for line in log.read_text(errors="replace").splitlines()
        if "Error" in line and _HARMLESS not in line
    ]
    return "; ".join(errors[-count:])


def copy_private(source: Path, target: Path) -> None:
    """Copy the regular files below one folder to another, readable by the owner alone.

    Sockets, devices and links are left out: they are no state of a process.
    """
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copyfile(path, copy)
            shutil.copystat(path, copy)
