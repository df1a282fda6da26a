"""Spaces: where a worker's processes live, and who ends them.

A `Capsule` is a set of namespaces (PID, mount, IPC, network) held by an init process: process ids,
ports and /dev/shm inside are its own, so that one snapshot can be restored many times at once, and
nothing inside can reach a network. A `HostSpace` is the same interface with no isolation, for
machines where namespaces can't be made. Both end everything inside when they are closed and also
when the process that opened them dies, by whatever signal: each holds one end of a pipe.

What does not belong here: what is started, and CRIU.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil

from resilience_pipelines.errors import DeadlineError, ResilienceError, UnsupportedError

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1

FIRST_WORKER_PID = 1000
"""Process ids of workers start here inside a capsule, above all that CRIU uses to restore them."""

_INIT_DEADLINE_S = 10.0

# Ignoring SIGCHLD makes the kernel reap whatever is re-parented to this init (by `env`: a POSIX
# shell need not honour `trap "" CHLD`, and dash does not). `cat` ends when the opener closes its
# end of the pipe or dies, and the kernel then kills all that lives inside.
_INIT = """
mount -t proc proc /proc &&
mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm &&
echo "$1" > /proc/sys/kernel/ns_last_pid &&
echo ready && exec env --ignore-signal=CHLD cat > /dev/null
"""

# The shell's own standard output carries the process id back; its error stream is the worker's.
# The program waits for a line until it is adopted: one that ends at once would be reaped before.
_SPAWN = """
exec 3<&0
setsid sh -c 'read go <&3; exec 3<&-; exec "$@"' sh "$@" >&2 &
echo $!
"""

_GUARD = """
setsid "$@" >&2 < /dev/null &
child=$!; echo $child; exec > /dev/null 2>&1
cat; kill -s KILL -- -$child
"""


class SpaceError(ResilienceError):
    """A space could not be made, or a process not started in it."""


class Process:
    """A process that is not necessarily a child of this one, held by a pidfd.

    Args:
        pid: its id as this process sees it.
        inner_pid: its id inside its space.
    """

    def __init__(self, pid: int, inner_pid: int) -> None:
        self.pid = pid
        self.inner_pid = inner_pid
        self._pidfd = os.pidfd_open(pid)

    def alive(self) -> bool:
        """Whether it has not ended (a zombie has)."""
        return not self.wait_gone(0)

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until it has ended; False if it has not within the time."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def send(self, number: signal.Signals) -> None:
        """Send a signal. One that has ended is left alone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def tree(self) -> list[psutil.Process]:
        """It and its descendants, the root first; empty when it has ended."""
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def signal_tree(self, number: signal.Signals) -> None:
        """Send a signal to it and its descendants."""
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def resident_bytes(self) -> int:
        """Resident memory of the tree, shared pages counted once for each process."""
        total = 0
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def close(self) -> None:
        """Release the pidfd. The process is not touched."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class Space(ABC):
    """A place for the processes of one worker."""

    isolated: bool
    root: Path
    """The file system as processes inside see it."""
    on_this_machine: ClassVar[bool] = True
    """Whether its processes are this kernel's; else nothing of them but the worker is seen."""

    @abstractmethod
    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], output: int) -> Process:
        """Start a program as leader of a session of its own.

        Args:
            argv: program and arguments.
            env: its whole environment.
            output: file descriptor for its standard output and error. Input is /dev/null.

        Raises:
            SpaceError: it could not be started.
        """

    @abstractmethod
    def enter(self) -> list[str]:
        """What to put before a command line so that it runs inside."""

    @abstractmethod
    def socket(self) -> socket.socket:
        """A new TCP socket that reaches the loopback addresses inside."""

    @abstractmethod
    def adopt(self, inner_pid: int) -> Process:
        """Hold a process that came to life inside by other means, such as a restore."""

    @abstractmethod
    def close(self, deadline_s: float = 10.0) -> None:
        """End everything inside and wait for it.

        Raises:
            DeadlineError: something inside did not end in time.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Capsule(Space):
    """Namespaces of their own for PIDs, mounts, IPC and the network, which has loopback only.

    Args:
        first_pid: the first id given to a process inside, after those of the init.

    Raises:
        UnsupportedError: this machine does not let this user make such namespaces.
    """

    isolated = True

    def __init__(self, first_pid: int = 2) -> None:
        self._unshare = subprocess.Popen(
            [
                "unshare", "--pid", "--mount", "--ipc", "--net", "--fork",
                "--propagation", "private", "sh", "-c", _INIT, "sh", str(first_pid - 1),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._network: ThreadPoolExecutor | None = None
        try:
            self._await_init()
            self._init = _only_child(self._unshare.pid)
            self.root = Path(f"/proc/{self._init}/root")
            # Sockets belong to the namespace of the thread that makes them: one thread lives there.
            self._network = ThreadPoolExecutor(1, "capsule-net", initializer=self._enter_network)
            self._network.submit(_bring_loopback_up).result(_INIT_DEADLINE_S)
        except BaseException:
            self.close()
            raise

    @property
    def init_pid(self) -> int:
        """The process that holds the namespaces, by its id as this process sees it."""
        return self._init

    def _await_init(self) -> None:
        out = self._unshare.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], _INIT_DEADLINE_S)
        if ready and out.readline() == b"ready\n":
            return
        self._unshare.kill()
        _, stderr = self._unshare.communicate(timeout=_INIT_DEADLINE_S)
        raise UnsupportedError(
            f"Namespaces could not be made: {stderr.decode(errors='replace').strip()}.",
            mend="Run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN.",
        )

    def _enter_network(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        handle = os.open(f"/proc/{self._init}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(handle, CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), "setns")
        finally:
            os.close(handle)

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], output: int) -> Process:
        """See `Space.spawn`. The program becomes a child of the capsule's init."""
        with subprocess.Popen(
            [*self.enter(), "sh", "-c", _SPAWN, "sh", *argv],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=dict(env), cwd="/",
        ) as shell:  # fmt: skip
            assert shell.stdin is not None
            assert shell.stdout is not None
            answer = shell.stdout.readline()
            if not answer:
                raise SpaceError(f"{argv[0]} could not be started inside the capsule.")
            process = self.adopt(int(answer))
            shell.stdin.write(b"go\n")
        return process

    def enter(self) -> list[str]:
        """See `Space.enter`."""
        return ["nsenter", "-t", str(self._init), "-p", "-m", "-n", "-i", "--"]

    def socket(self) -> socket.socket:
        """See `Space.socket`."""
        assert self._network is not None
        try:
            made = self._network.submit(socket.socket, socket.AF_INET, socket.SOCK_STREAM)
        except RuntimeError as error:
            raise SpaceError("The capsule is closed.") from error
        return made.result(5)

    def adopt(self, inner_pid: int) -> Process:
        """See `Space.adopt`.

        Raises:
            SpaceError: no such process is inside.
        """
        namespace = Path(f"/proc/{self._init}/ns/pid").readlink()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if (entry / "ns/pid").readlink() == namespace and _inner_pid(entry) == inner_pid:
                    return Process(int(entry.name), inner_pid)
            except (OSError, ValueError):
                continue  # it ended while we looked
        raise SpaceError(f"Process {inner_pid} does not live inside the capsule.")

    def close(self, deadline_s: float = 10.0) -> None:
        """See `Space.close`."""
        if self._network is not None:
            self._network.shutdown(wait=False)
        _end_by_pipe(self._unshare, deadline_s)


class HostSpace(Space):
    """No isolation: ids, ports and /dev/shm are the machine's."""

    isolated = False
    root = Path("/")

    def __init__(self) -> None:
        self._guards: list[subprocess.Popen[bytes]] = []

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], output: int) -> Process:
        """See `Space.spawn`. A guard ends the program's group when this space or process ends."""
        guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", *argv],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=dict(env),
            start_new_session=True, cwd="/",
        )  # fmt: skip
        self._guards.append(guard)
        assert guard.stdout is not None
        answer = guard.stdout.readline()
        if not answer:
            raise SpaceError(f"{argv[0]} could not be started.")
        return self.adopt(int(answer))

    def enter(self) -> list[str]:
        """See `Space.enter`."""
        return []

    def socket(self) -> socket.socket:
        """See `Space.socket`."""
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def adopt(self, inner_pid: int) -> Process:
        """See `Space.adopt`."""
        try:
            return Process(inner_pid, inner_pid)
        except ProcessLookupError as error:
            raise SpaceError(f"Process {inner_pid} has ended.") from error

    def close(self, deadline_s: float = 10.0) -> None:
        """See `Space.close`."""
        for guard in self._guards:
            _end_by_pipe(guard, deadline_s)
        self._guards.clear()


@dataclass(frozen=True)
class SpaceSupport:
    """Whether capsules can be made here, and why not."""

    capsule: bool
    reason: str = ""


def probe_spaces() -> SpaceSupport:
    """Try whether this user can make a capsule on this machine."""
    for program in ("unshare", "nsenter", "setsid"):
        if shutil.which(program) is None:
            return SpaceSupport(False, f"the program {program} (package util-linux) is missing")
    try:
        with Capsule() as capsule:
            _require_entry(capsule)
    except (ResilienceError, OSError) as error:
        return SpaceSupport(False, str(error))
    return SpaceSupport(True)


def _require_entry(capsule: Capsule) -> None:
    """Check that programs can be started inside: making namespaces needs fewer rights than that.

    Raises:
        UnsupportedError: they can't.
    """
    try:
        tried = subprocess.run(
            [*capsule.enter(), "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_INIT_DEADLINE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(
            f"Namespaces could not be entered within {error.timeout:g} s."
        ) from error
    if tried.returncode:
        raise UnsupportedError(
            f"Namespaces could not be entered: {tried.stderr.strip()}.",
            mend="Run as root, or with CAP_SYS_ADMIN and CAP_SYS_CHROOT.",
        )


def open_space(support: SpaceSupport, *, for_restore: bool = False) -> Space:
    """A capsule where they can be made, else the host.

    Args:
        support: what `probe_spaces` found.
        for_restore: leave the low process ids to CRIU and the high ones to the image.
    """
    if not support.capsule:
        return HostSpace()
    return Capsule(2 if for_restore else FIRST_WORKER_PID)


def free_port() -> int:
    """A TCP port of this machine's 127.0.0.1 that nobody uses at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str, step_s: float) -> None:
    """Poll a condition.

    Raises:
        DeadlineError: it did not hold within `deadline_s` seconds.
    """
    if not holds_within(condition, deadline_s, step_s):
        raise DeadlineError(f"{what} within {deadline_s:g} s: it did not happen.")


def holds_within(condition: Callable[[], bool], deadline_s: float, step_s: float) -> bool:
    """Poll a condition until it holds; False if it has not within `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(step_s)
    return True


def _end_by_pipe(holder: subprocess.Popen[bytes], deadline_s: float) -> None:
    for pipe in (holder.stdin, holder.stdout, holder.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    try:
        holder.wait(deadline_s)
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(
            f"Processes below {holder.pid} did not end within {deadline_s:g} s.",
            mend="One of them hangs in the kernel; see its stack in /proc.",
        ) from error


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _inner_pid(proc_entry: Path) -> int:
    for line in (proc_entry / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise ValueError("no NSpid")


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
