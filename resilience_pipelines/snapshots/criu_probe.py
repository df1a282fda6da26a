"""Whether a CRIU really works on this machine: a process is dumped, restored, and has to go on.

What belongs here: proofs that cost about a second and leave nothing behind. What does not: finding
or getting a CRIU (`criu_binary`, `criu_provision`) and taking snapshots of workers (`criu`).

`criu check` looks at kernel features one by one and passes on machines where every dump fails, so
only a dump and a restore count.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from resilience_pipelines.errors import DeadlineError, ResilienceError
from resilience_pipelines.snapshots.criu_binary import CriuInstallation

DEFAULT_TIMEOUT_S: Final = 30.0

OPTIONS: Final = (
    "--shell-job",
    "--tcp-established",
    "--file-locks",
    "--ext-unix-sk",
    "--link-remap",
    "--network-lock",
    "skip",
    "-v4",
)
"""What snapshots of workers ask of CRIU too. An old CRIU that lacks one of these is of no use."""

# Counts connections and knows a secret that only its memory holds. Ends by itself when nobody has
# called for a while, so that it can't outlive a caller that was killed.
_PROGRAM: Final = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
listener.settimeout(float(sys.argv[2]))
secret, served = sys.stdin.read(), 0
os.dup2(os.open("/dev/null", os.O_RDWR), 0)
while True:
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        break
    served += 1
    connection.sendall(f"{secret} {served}".encode())
    connection.close()
"""

# In a process of its own, since pycriu's socket has no time-out and since generated protobuf code
# of two versions can't be loaded into one process.
_RPC_PROGRAM: Final = """
import pathlib, socket, subprocess, sys
from resilience_pipelines.snapshots.criu_binary import CriuInstallation, import_pycriu
rpc, folder, version, *argv = sys.argv[1:]
installation = CriuInstallation(tuple(argv), version, "private", pathlib.Path(folder))
try:
    client = import_pycriu(installation).criu()
    if rpc == "yes":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptor = theirs.fileno()
        with ours, subprocess.Popen([*argv, "swrk", str(descriptor)], pass_fds=[descriptor]):
            theirs.close()
            client.use_fd(ours.fileno())
            client.opts.images_dir = "."
            client.check()
            ours.close()
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found. `reason` is empty where `ok` is true."""

    ok: bool
    reason: str = ""


class _ProbeError(ResilienceError):
    """One step did not do what it should; becomes the reason of a ProbeResult."""


@dataclass(frozen=True)
class _Deadline:
    at_s: float
    """On the monotonic clock."""

    @classmethod
    def after(cls, timeout_s: float) -> _Deadline:
        return cls(time.monotonic() + timeout_s)

    def remaining_s(self, step: str) -> float:
        left = self.at_s - time.monotonic()
        if left <= 0:
            raise DeadlineError(f"the time for the probe ran out before: {step}")
        return left


def probe(
    installation: CriuInstallation,
    workdir: Path,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> ProbeResult:
    """Everything a snapshot needs: kernel features, a dump and restore, and pycriu's RPC.

    Args:
        installation: the CRIU in question.
        workdir: where images lie while the probe runs.
        timeout_s: for all of it, in seconds.
    """
    deadline = _Deadline.after(timeout_s)
    try:
        _run(installation, ("check",), Path(workdir), deadline, "criu check")
        for result in (
            probe_dump_restore(installation, workdir, deadline.remaining_s("dump and restore")),
            probe_pycriu(installation, workdir, deadline.remaining_s("pycriu")),
        ):
            if not result.ok:
                return result
    except (ResilienceError, OSError) as error:
        return ProbeResult(ok=False, reason=str(error))
    return ProbeResult(ok=True)


def probe_dump_restore(
    installation: CriuInstallation,
    workdir: Path,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> ProbeResult:
    """Dump a small process that listens on loopback, restore it, and ask it whether it went on.

    Args:
        installation: the CRIU in question.
        workdir: where images lie while the probe runs; nothing stays.
        timeout_s: for all of it, in seconds.
    """
    deadline = _Deadline.after(timeout_s)
    try:
        with tempfile.TemporaryDirectory(prefix="criu-probe-", dir=workdir) as images:
            _dump_restore(installation, Path(images), deadline, timeout_s)
    except (ResilienceError, OSError) as error:
        return ProbeResult(ok=False, reason=str(error))
    return ProbeResult(ok=True)


def probe_pycriu(
    installation: CriuInstallation,
    workdir: Path,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    *,
    rpc: bool = True,
) -> ProbeResult:
    """Import pycriu in a new process and have it talk to this CRIU.

    Args:
        installation: the CRIU in question.
        workdir: any folder that can be read.
        timeout_s: in seconds.
        rpc: False leaves out the talk, for places where CRIU's check can't pass.
    """
    if installation.pycriu_path is None:
        return ProbeResult(
            ok=False, reason=f"CRIU {installation.version} came without pycriu, its Python bindings"
        )
    package_root = Path(__file__).resolve().parents[2]
    arguments = (
        "yes" if rpc else "no",
        str(installation.pycriu_path),
        installation.version,
        *installation.argv,
    )
    environment = {**os.environ, "PYTHONPATH": str(package_root)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RPC_PROGRAM, *arguments],
            cwd=workdir,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return ProbeResult(ok=False, reason=f"pycriu: {error}")
    if done.returncode != 0:
        return ProbeResult(ok=False, reason=f"pycriu: {_tail(done.stderr) or 'no reason given'}")
    return ProbeResult(ok=True)


def _dump_restore(
    installation: CriuInstallation, images: Path, deadline: _Deadline, timeout_s: float
) -> None:
    secret = secrets.token_hex(16)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = _start(listener, secret, timeout_s)
    try:
        _expect(port, f"{secret} 1", deadline, "an answer before the dump")
        place = ("-D", str(images))
        tree = ("-t", str(process.pid))
        _run(installation, ("dump", *tree, *place, *OPTIONS), images, deadline, "criu dump")
        # CRIU kills what it has dumped. Reaping frees the PID, which the restore needs.
        try:
            process.wait(deadline.remaining_s("the end of the dumped process"))
        except subprocess.TimeoutExpired as error:
            raise _ProbeError("criu dump reported success and left the process running") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    try:
        # As our own child, the restored process can be told from a stranger and be reaped.
        detached = ("--restore-detached", "--restore-sibling")
        _run(
            installation, ("restore", *place, *OPTIONS, *detached), images, deadline, "criu restore"
        )
        _expect(port, f"{secret} 2", deadline, "an answer after the restore")
    finally:
        _end_child(process.pid)


def _start(listener: socket.socket, secret: str, timeout_s: float) -> subprocess.Popen[str]:
    descriptor = listener.fileno()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, str(descriptor), str(timeout_s)],
        cwd="/",
        env={},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        start_new_session=True,
        text=True,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(secret)
        process.stdin.close()
    except OSError:
        process.kill()
        process.wait()
        raise
    return process


def _expect(port: int, expected: str, deadline: _Deadline, step: str) -> None:
    """Connect and compare the answer. The kernel queues a call until the process accepts it."""
    try:
        with socket.create_connection(("127.0.0.1", port), deadline.remaining_s(step)) as client:
            client.settimeout(deadline.remaining_s(step))
            answer = b"".join(iter(lambda: client.recv(256), b"")).decode()
    except OSError as error:
        raise _ProbeError(f"{step} did not come: {error}") from error
    if answer != expected:
        raise _ProbeError(f"{step} was {answer!r} and should have been {expected!r}")


def _run(
    installation: CriuInstallation,
    arguments: tuple[str, ...],
    folder: Path,
    deadline: _Deadline,
    step: str,
) -> None:
    log = folder / f"{arguments[0]}.log" if arguments[0] != "check" else None
    logging = ("-o", str(log)) if log else ()
    try:
        done = subprocess.run(
            [*installation.argv, *arguments, *logging],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline.remaining_s(step),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"{step} took longer than {error.timeout:.0f} s") from error
    if done.returncode == 0:
        return
    logged = log.read_text(encoding="utf-8", errors="replace") if log and log.exists() else ""
    errors = "\n".join(line for line in logged.splitlines() if "Error" in line)
    said = _tail(errors) or _tail(done.stderr) or _tail(done.stdout) or "no reason given"
    raise _ProbeError(f"{step} ended with exit status {done.returncode}: {said}")


def _end_child(pid: int) -> None:
    """Kill and reap `pid` if it is a child of ours; leave it alone if it is not."""
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _tail(text: str, lines: int = 3, characters: int = 600) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-characters:]
