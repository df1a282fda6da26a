"""dbt, ended with whoever started it: `python -m ...warehouse.dbt_process STARTER_PID DBT_ARGS`.

One that outlives a killed starter would hold the warehouse's lock to its own end.

What belongs here: that start. What does not: what dbt is asked to do (`transform`,
`dagster_io.dbt_project`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

MODULE: Final = "resilience_pipelines.warehouse.dbt_process"

EXIT_STARTER_GONE: Final = 1

_PR_SET_PDEATHSIG: Final = 1


def dbt_arguments() -> list[str]:
    """What follows the interpreter in the command of a dbt that ends with this process.

    The kernel looks at the thread that starts it, so that one must live as long as dbt does.
    """
    return ["-m", MODULE, str(os.getpid())]


def main() -> None:
    """Become dbt; ends the process with dbt's exit code."""
    starter = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != starter:  # it ended before the kernel was asked
        sys.exit(EXIT_STARTER_GONE)
    from dbt.cli.main import cli

    cli(prog_name="dbt")


if __name__ == "__main__":
    main()
