"""Loading landing folders into the raw tables, each exactly once.

What belongs here: finding new folders, inserting them in transactions, and keeping a list of those
that can't be loaded. What does not: verifying one folder (`landing`), and the tables (`schema`).

A run's rows and its row in `raw.runs` are committed together, so a loader that is killed leaves
either all of a run or nothing. A folder that is corrupt goes to `raw.rejected` with the reason and
is looked at again once it has changed; it never keeps another one from being loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl

from resilience_pipelines import __version__
from resilience_pipelines.errors import CorruptError, InputError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.warehouse.connection import (
    LOCK_WAIT_S,
    is_full,
    open_warehouse,
    storage_error,
)
from resilience_pipelines.warehouse.landing import (
    LandedRun,
    clean_incoming,
    find_landings,
    read_landing,
    run_file_sha256,
)
from resilience_pipelines.warehouse.rows import record_rows, stack_rows
from resilience_pipelines.warehouse.schema import RECORD_TABLES, frame_schemas, migrate

BATCH_RUNS: Final = 1024
BATCH_BYTES: Final = 16 * 2**20
"""Of `run.json`: bounds what the loader holds in memory, whatever there is to load."""
SAMPLE_FILES: Final = 256
"""Read by one statement, which has them all open."""


@dataclass(frozen=True)
class LoadReport:
    """What became of every landing folder below the sources.

    Attributes:
        rejected: folders that can't be loaded, each with the reason; those that were rejected
            before and have not changed are among them.
    """

    loaded: tuple[Path, ...]
    already: tuple[Path, ...]
    rejected: tuple[tuple[Path, str], ...]


def published_results() -> list[Path]:
    """The measured data sets in `results/` of the checkout this package runs from, if it does."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        return []
    return sorted(folder for folder in root.glob("results/*") if folder.is_dir())


def load(
    home: Home, sources: Sequence[Path] | None = None, *, lock_wait_s: float = LOCK_WAIT_S
) -> LoadReport:
    """Load every landing folder that is not in the warehouse yet.

    Args:
        sources: landing zones, trees of them, or single landing folders; by default the home's
            landing zone. `published_results()` are such trees.
        lock_wait_s: how long to wait for a warehouse that another process has open.

    Raises:
        InputError: a source is no folder.
        BusyError: another process has the warehouse open.
        StorageError: the warehouse can't be written; what was loaded before stays.
        CorruptError: the warehouse itself can't be read.
    """
    if sources is None:
        home.landing.mkdir(parents=True, exist_ok=True)
        sources = [home.landing]
    for source in sources:
        if not source.is_dir():
            raise InputError(
                "sources", str(source), "it is no folder",
                mend="Give a landing zone or a folder of published results.",
            )  # fmt: skip
    clean_incoming(home.landing)
    with open_warehouse(home.warehouse, lock_wait_s=lock_wait_s) as connection:
        try:
            migrate(connection)
            # Publishing puts rows in order; keeping that of the files here costs a third more.
            connection.execute("set preserve_insertion_order = false")
            loader = _Loader(connection)
            for source in sources:
                for folder in find_landings(source.absolute()):
                    loader.offer(folder)
            loader.flush()
        except duckdb.Error as error:
            raise storage_error(home.warehouse, error) from error
    return LoadReport(tuple(loader.loaded), tuple(loader.already), tuple(loader.rejected))


@dataclass(frozen=True)
class _Seen:
    """A run that is in the warehouse or in the batch."""

    folder: str
    run_file_sha256: str


@dataclass(frozen=True)
class _Rejected:
    folder: Path
    fingerprint: str | None
    reason: str


@dataclass(frozen=True)
class _Taken:
    """What goes into the warehouse of a landing folder that was verified: its rows by table.

    Without the record: thousands of its parts would be looked through by every garbage collection.
    """

    folder: Path
    samples: Path | None
    rows: dict[str, list[dict[str, Any]]]

    @classmethod
    def of(cls, landed: LandedRun) -> _Taken:
        rows = record_rows(
            landed.record,
            folder=str(landed.folder),
            run_file_sha256=landed.run_file_sha256,
            loaded_at=datetime.now(UTC),
        )
        return cls(landed.folder, landed.samples, rows | {"stacks": stack_rows(landed.record)})


class _Loader:
    """One pass over landing folders."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.loaded: list[Path] = []
        self.already: list[Path] = []
        self.rejected: list[tuple[Path, str]] = []
        self._connection = connection
        self._batch: list[_Taken] = []
        self._batch_bytes = 0
        self._new_rejected: list[_Rejected] = []
        self._schemas = frame_schemas(connection, (*RECORD_TABLES, "stacks"))
        self._seen = {
            run_id: _Seen(folder, digest)
            for run_id, folder, digest in connection.execute(
                "select run_id, folder, run_file_sha256 from raw.runs"
            ).fetchall()
        }
        self._rejected_before: dict[str, tuple[str | None, str]] = {
            folder: (fingerprint, reason)
            for folder, fingerprint, reason in connection.execute(
                "select folder, fingerprint, reason from raw.rejected"
            ).fetchall()
        }
        self._forget([folder for folder in self._rejected_before if not os.path.lexists(folder)])

    def offer(self, folder: Path) -> None:
        """Take a folder into the batch unless it is known, and write the batch when it is full."""
        seen = self._seen.get(folder.name)
        if seen is not None and seen.folder == str(folder):
            self.already.append(folder)
            return
        fingerprint = _fingerprint(folder)
        before, reason = self._rejected_before.get(str(folder), (None, ""))
        if before is not None and before == fingerprint:
            self.rejected.append((folder, reason))
            return
        try:
            if seen is not None:
                self._take_copy(folder, seen)
                return
            landed = read_landing(folder)
            taken = _Taken.of(landed)
        except CorruptError as error:
            self._reject(folder, fingerprint, str(error))
        except StorageError as error:
            # Whether it can be read may change with nothing about the folder changing.
            self._reject(folder, None, str(error))
        else:
            self._seen[folder.name] = _Seen(str(folder), landed.run_file_sha256)
            self._batch.append(taken)
            self._batch_bytes += landed.run_file_bytes
            if len(self._batch) >= BATCH_RUNS or self._batch_bytes >= BATCH_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write what was taken: one transaction, or one for each run where that one fails."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        try:
            self._insert(batch)
        except (duckdb.Error, _UnfitError) as error:
            if _ends_all(error):
                raise
            for item in batch:
                self._insert_alone(item)
        self._write_rejected()

    def _insert_alone(self, item: _Taken) -> None:
        folder = item.folder
        try:
            self._insert([item])
        except (duckdb.Error, _UnfitError) as error:
            if _ends_all(error):
                raise
            del self._seen[folder.name]
            reason = f"{folder}: it can't be inserted: {str(error).splitlines()[0]}"
            self._reject(folder, _fingerprint(folder), reason)

    def _insert(self, batch: Sequence[_Taken]) -> None:
        if not batch:
            return
        # One frame for each table and one read of all Parquet files: a thousand runs with a few
        # rows each, or some with millions of samples, cost what their rows cost.
        frames = {
            table: _frame(table, [row for item in batch for row in item.rows[table]], schema)
            for table, schema in self._schemas.items()
        }
        samples = [str(item.samples) for item in batch if item.samples is not None]
        connection = self._connection
        connection.execute("begin")
        try:
            for table in RECORD_TABLES:
                if len(frames[table]):
                    self._append(f"raw.{table}", frames[table])
            stacks = frames["stacks"].unique("stack_key")
            self._append("raw.stacks", stacks, on_conflict="on conflict do nothing")
            for begin in range(0, len(samples), SAMPLE_FILES):
                self._append_samples(samples[begin : begin + SAMPLE_FILES])
            folders = [str(item.folder) for item in batch]
            known = [folder for folder in folders if folder in self._rejected_before]
            self._forget(known)
            connection.execute("commit")
        except BaseException:
            _roll_back(connection)
            raise
        self.loaded += [item.folder for item in batch]

    def _append_samples(self, paths: Sequence[str]) -> None:
        self._connection.execute(
            # A landing folder has the name of its run: `read_landing` refuses others.
            "insert into raw.samples by name "
            "select * exclude (filename), string_split(filename, '/')[-2] as run_id "
            "from read_parquet(?, hive_partitioning = false, filename = true)",
            # The function takes patterns; these paths are to be taken as they are.
            [[escape(path) for path in paths]],
        )

    def _append(self, table: str, frame: pl.DataFrame, on_conflict: str = "") -> None:
        self._connection.register("new_rows", frame)
        try:
            self._connection.execute(
                f"insert into {table} by name select * from new_rows {on_conflict}"  # noqa: S608
            )
        finally:
            self._connection.unregister("new_rows")

    def _take_copy(self, folder: Path, seen: _Seen) -> None:
        """A second folder of a run: fine when it is a copy."""
        if run_file_sha256(folder) != seen.run_file_sha256:
            raise CorruptError(
                f"{folder}: {folder.name} was loaded from {seen.folder} with another content.",
                mend="Keep the folder that its job wrote and remove the other one.",
            )
        self.already.append(folder)

    def _reject(self, folder: Path, fingerprint: str | None, reason: str) -> None:
        self.rejected.append((folder, reason))
        self._new_rejected.append(_Rejected(folder, fingerprint, reason))

    def _write_rejected(self) -> None:
        for item in self._new_rejected:
            self._connection.execute(
                "insert or replace into raw.rejected values (?, ?, ?, now())",
                [str(item.folder), item.fingerprint, item.reason],
            )
        self._new_rejected = []

    def _forget(self, folders: Sequence[str]) -> None:
        if folders:
            self._connection.execute(
                "delete from raw.rejected where list_contains(?, folder)", [list(folders)]
            )


class _UnfitError(Exception):
    """Rows have a value that no column of their table can hold."""


def _frame(table: str, rows: Sequence[dict[str, Any]], schema: pl.Schema) -> pl.DataFrame:
    try:
        return pl.DataFrame(rows, schema=schema, orient="row", strict=True)
    except (pl.exceptions.PolarsError, OverflowError, TypeError) as error:
        raise _UnfitError(
            f"a value is outside what column types of raw.{table} hold ({error})"
        ) from error


def _fingerprint(folder: Path) -> str:
    """What changes when a file of the folder is replaced, added, removed or given other rights."""
    facts: list[tuple[str, int, int, int]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for path in (folder, *map(Path, entries)):
            with contextlib.suppress(OSError):
                status = path.lstat()
                facts.append((path.name, status.st_ino, status.st_size, status.st_ctime_ns))
    # Another release may read what this one can't.
    text = json.dumps([__version__, sorted(facts)])
    return hashlib.sha256(text.encode()).hexdigest()


def _ends_all(error: Exception) -> bool:
    """Whether an error is about the warehouse and not about the rows."""
    return isinstance(error, duckdb.FatalException | duckdb.InternalException) or is_full(
        str(error)
    )


def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.execute("rollback")
    except duckdb.Error:
        # The error that ended the transaction is the one to tell; a broken transaction that can't
        # be rolled back ends with the connection.
        return
