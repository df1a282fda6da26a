"""Home: the folder that holds everything the platform stores on this machine.

What belongs here: where things lie, and making the folders with the rights they need. What does
not: what is in them.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from resilience_pipelines.durability import make_folder
from resilience_pipelines.errors import InputError

ENVIRONMENT_VARIABLE = "RESILIENCE_HOME"
DEFAULT = Path(".resilience")


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder that must not be used


@dataclass(frozen=True)
class Home:
    """The places below one data home. `open_home` makes one and checks that it can be written."""

    root: Path

    @property
    def landing(self) -> Path:
        """Immutable result folders, `date=YYYY-MM-DD/<run_id>/`."""
        return self.root / "landing"

    @property
    def warehouse(self) -> Path:
        """The DuckDB file that only the loader and dbt open for writing."""
        return self.root / "warehouse.duckdb"

    @property
    def published(self) -> Path:
        """The DuckDB file that analysts and dashboards read."""
        return self.root / "published" / "resilience.duckdb"

    @property
    def snapshots(self) -> Path:
        """The snapshot store. Images hold a process's memory: only the owner may look inside."""
        return self.root / "snapshots"

    @property
    def cache(self) -> Path:
        """What can be made again: weights from a seed, compile caches."""
        return self.root / "cache"

    @property
    def work(self) -> Path:
        """Folders of jobs that are running; what is left of a killed job lies here too."""
        return self.root / "work"

    @property
    def launches(self) -> Path:
        """What launchers saw of jobs that ran elsewhere, `<run_id>/`."""
        return self.root / "launches"

    @property
    def dagster(self) -> Path:
        """DAGSTER_HOME, where Dagster keeps runs, events and schedules."""
        return self.root / "dagster"

    @property
    def dbt(self) -> Path:
        """dbt's target folder and logs."""
        return self.root / "dbt"

    @property
    def dashboard(self) -> Path:
        """The dashboard page and the data of its charts."""
        return self.root / "dashboard"


def open_home(path: Path | str | None = None) -> Home:
    """Make the data home at `path`, else at RESILIENCE_HOME, else at `.resilience/`.

    Raises:
        InputError: it can't be made or written.
    """
    given = path or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT
    field = "--home" if path else ENVIRONMENT_VARIABLE if os.environ.get(
        ENVIRONMENT_VARIABLE
    ) else "--home"  # fmt: skip
    home = Home(Path(given).expanduser().absolute())
    if _SHARED_MEMORY in home.root.resolve().parents or home.root.resolve() == _SHARED_MEMORY:
        raise InputError(
            field, str(given), f"a restore can't read a snapshot below {_SHARED_MEMORY}, because "
            "every worker has one of its own",
            mend="Give a folder on a disk, or on a tmpfs that is mounted elsewhere.",
        )  # fmt: skip
    try:
        for folder in (home.root, home.landing, home.cache, home.work, home.published.parent):
            make_folder(folder)
        home.snapshots.mkdir(mode=0o700, exist_ok=True)
        home.snapshots.chmod(0o700)
        with tempfile.TemporaryFile(dir=home.root):
            pass
    except OSError as error:
        raise InputError(
            field, str(given), f"the data home can't be written ({error.strerror or error})",
            mend="Give a folder that this user may write and that has free space.",
        ) from error  # fmt: skip
    return home
