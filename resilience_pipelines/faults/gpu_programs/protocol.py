"""The protocol of the programs of this folder, from the program's side.

What belongs here: reporting and waiting. What does not: the other side (`faults.gpu_program`).
"""

from __future__ import annotations

import json
import signal
import sys

GO = signal.SIGUSR1


def hold_signal() -> None:
    """Keep SIGUSR1 for `wait_for_go`. To be called before anything starts a thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {GO})


def report(event: str, **fields: object) -> None:
    """Report one thing."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def wait_for_go() -> None:
    """Say that all is ready, and wait until it shall begin."""
    report("ready")
    signal.sigwait({GO})
