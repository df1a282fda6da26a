"""The whole main job on this machine, and what came out of it, in one call.

What belongs here: starting that job through Dagster in a process of its own, and the two tables
that a first look needs. What does not: the job (`dagster_io.run_main`) and the tables (the marts).
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.home import Home

if TYPE_CHECKING:
    import polars as pl

FAULTS: Final = (
    "worker_killed", "worker_hung", "memory_exhausted", "snapshot_image_corrupted_bit_flip",
)  # fmt: skip
"""One of each kind, so that a first look takes minutes."""

DEADLINE_S: Final = 3600.0


@dataclass(frozen=True)
class Demo:
    """What came out.

    Attributes:
        startup: medians and their intervals in seconds, by worker, stack and arm.
        faults: how often each fault had each verdict.
        dashboard: the page.
        published: the file that analysts read.
        seconds: how long all of it took.
    """

    startup: pl.DataFrame
    faults: pl.DataFrame
    dashboard: Path
    published: Path
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "startup": self.startup.to_dicts(),
            "faults": self.faults.to_dicts(),
            "dashboard": str(self.dashboard),
            "published": str(self.published),
            "seconds": round(self.seconds, 1),
        }


def run_demo(
    home: Home,
    *,
    repeats: int = 3,
    fault_repeats: int = 1,
    faults: str = ",".join(FAULTS),
    quiet: bool = False,
) -> Demo:
    """Measure, load, build, publish and draw, as Dagster's main job does.

    Args:
        repeats: starts of each arm; cold at most 2.
        fault_repeats: experiments of each fault.
        faults: names, separated by commas; all of the catalogue when empty.
        quiet: the job's words go to standard error and leave standard output to the caller.

    Raises:
        JobError: the job failed; its own words say why, and the exit code is its own.
        DeadlineError: it did not end within an hour.
    """
    # Imported here: the command line shows `FAULTS` and must not wait for the rest.
    from resilience_pipelines.launchers.launcher import JobError
    from resilience_pipelines.warehouse.query import query

    begin = time.monotonic()
    command = [
        sys.executable, "-m", "resilience_pipelines.dagster_io.run_main",
        "--home", str(home.root),
        "--repeats", str(repeats), "--fault-repeats", str(fault_repeats), "--faults", faults,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, check=False, stdout=sys.stderr if quiet else None, timeout=DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"The main job did not end within {DEADLINE_S:g} s.") from error
    if done.returncode:
        raise JobError(
            f"The main job ended with exit code {done.returncode}.", exit_code=done.returncode
        )
    return Demo(
        startup=query(
            home,
            "select stack_key, worker, basis, arm, n, median_s, ci_low_s, ci_high_s "
            "from startup_summary order by worker, stack_key, median_s desc",
        ),
        faults=query(
            home, "select fault, verdict, count(*) n from fault_runs group by all order by all"
        ),
        dashboard=home.dashboard / "index.html",
        published=home.published,
        seconds=time.monotonic() - begin,
    )
