"""The root of a worker's processes: `python -m ...workers.supervisor -- PROGRAM ARGS`.

It takes io_uring away (`seccomp`), prints one JSON line with the time, starts the program as its
child and stays, small, until that ends; signals go on to the program, and its exit code comes back.

CRIU restores the memory of processes side by side, but that of the root only after all others. An
engine's server is large, so it must not be the root.

What belongs here: that start. What does not: anything but the standard library, since this runs
before every start that is measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from resilience_pipelines.workers.seccomp import refuse_io_uring

EXEC_EVENT: Final = "exec"
"""The `event` of the line printed just before the program starts; `at_ns` is CLOCK_MONOTONIC."""

EXIT_NO_PROGRAM: Final = 127

_PR_SET_PDEATHSIG: Final = 1
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: Sequence[str]) -> int:
    """Start the program and wait for it; returns its exit code, 128 + N after signal N."""
    if len(arguments) < 2 or arguments[0] != "--":
        raise SystemExit("usage: python -m resilience_pipelines.workers.supervisor -- PROGRAM ARGS")
    refuse_io_uring()
    line = json.dumps({"event": EXEC_EVENT, "at_ns": time.monotonic_ns()})
    os.write(sys.stdout.fileno(), f"{line}\n".encode())
    # A signal between fork and handler must reach the program too: it waits until both are there.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        # Whoever kills the root means the worker, also with a signal that can't be passed on.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        _become(list(arguments[1:]))

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(argv: list[str]) -> None:
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - starting that program is the purpose
    except OSError as error:
        os.write(sys.stderr.fileno(), f"{argv[0]}: {error.strerror}\n".encode())
    os._exit(EXIT_NO_PROGRAM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
