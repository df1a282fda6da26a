"""An event of lineage: a run began or ended, what it read and what it wrote.

What belongs here: the data model, and how data sets of ours are named. What does not: OpenLineage's
own classes and sending (`send`), and what a certain run reads and writes (`jobs`, `warehouse`).

Names follow OpenLineage's convention: a file or folder is its path in the namespace `file`, a table
is `database.schema.table` in the namespace `duckdb://<path of the file>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path


class State(StrEnum):
    """What became of a run."""

    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"
    """Somebody ended it."""


@dataclass(frozen=True)
class Column:
    """A column of a table, as far as it is documented."""

    name: str
    type: str | None = None
    description: str | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set that a run reads or writes.

    Attributes:
        size_bytes, files: of what was written; None where that is not known.
    """

    namespace: str
    name: str
    columns: tuple[Column, ...] = ()
    size_bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class RunName:
    """A run of a job: the job's name, and a UUID of the run's own."""

    job: str
    run_id: str


@dataclass(frozen=True)
class Event:
    """What is told of a run at one moment.

    Attributes:
        job_type: what kind of job it is, in OpenLineage's words: JOB, MODEL, SEED.
        parent: the run that this one is a part of.
        tags: facts about the run, none of them secret.
        error: why it failed.
    """

    state: State
    at: datetime
    run: RunName
    job_type: str = "JOB"
    parent: RunName | None = None
    inputs: tuple[DataSet, ...] = ()
    outputs: tuple[DataSet, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


def folder_of(path: Path) -> DataSet:
    """A folder as it is now."""
    sizes = [item.stat().st_size for item in path.rglob("*") if item.is_file()]
    return DataSet("file", str(path.absolute()), size_bytes=sum(sizes), files=len(sizes))


def table_of(file: Path, schema: str, name: str, columns: tuple[Column, ...] = ()) -> DataSet:
    """A table of a DuckDB file."""
    return DataSet(f"duckdb://{file.absolute()}", f"{file.stem}.{schema}.{name}", columns)
