"""Launches: what a launcher saw of a job besides the job's own record.

What belongs here: the data model, and the files below `launches/` of a data home. What does not:
what the job measured (`records`), and watching it (`launchers`).

A folder `launches/<run_id>/` holds `launch.json` and the evidence that it names. It is written by
the launcher, also for a job that landed nothing, and never again once it is there.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import AwareDatetime, Field

from resilience_pipelines.durability import replace_text
from resilience_pipelines.errors import StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.kept_records import read_records
from resilience_pipelines.records import RUN_ID_PATTERN, Basis, Detail, Name, Phase, Record

FILE: Final = "launch.json"
_HOME_ID: Final = ".home-id"


class LaunchRecord(Record):
    """One launch of a job that ran elsewhere."""

    run_id: Annotated[str, Field(pattern=RUN_ID_PATTERN)]
    launcher: Name
    worker: Name
    basis: Basis
    """`simulated` where the cluster is none; what the job measured has a basis of its own."""
    launched_at: AwareDatetime
    """When the launcher asked for it, by the launcher's clock."""
    ended_at: AwareDatetime
    landed: bool
    failure: Name | None = None
    """The kind of failure; None where there was none."""
    detail: Detail = ""
    namespace: Name
    job_name: Name
    pod_name: Name | None = None
    node: Name | None = None
    image_id: Annotated[str, Field(max_length=400)] | None = None
    exit_code: int | None = None
    kubernetes_version: Name | None = None
    container_runtime: Name | None = None
    phases: tuple[Phase, ...] = ()
    """From the making of the job on, each with the clock of the part that wrote its end."""
    notices: tuple[Detail, ...] = ()
    """What could not be done as asked, or was found on the way."""
    evidence: tuple[Name, ...] = ()
    """Names of files in the same folder."""


def write_launch(home: Home, record: LaunchRecord, evidence: Mapping[str, str]) -> Path:
    """Write a launch and its evidence; returns its folder. The record comes last.

    Raises:
        StorageError: it can't be written.
    """
    folder = home.launches / record.run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in evidence.items():
            replace_text(folder / name, text)
        whole = record.model_copy(update={"evidence": tuple(sorted(evidence))})
        replace_text(folder / FILE, whole.model_dump_json(indent=1))
    except OSError as error:
        raise StorageError(
            f"{folder} can't be written ({error.strerror}).",
            mend="Check its rights and the free space.",
        ) from error
    return folder


def is_recorded(home: Home, run_id: str) -> bool:
    """Whether a launch has its record."""
    return (home.launches / run_id / FILE).is_file()


def read_launches(home: Home) -> list[LaunchRecord]:
    """All launches of a data home, the oldest first.

    Raises:
        CorruptError: a file can't be read; names it.
    """
    return read_records(
        home.launches.glob(f"*/{FILE}"),
        LaunchRecord,
        mend="Remove its folder; the job's own record is in the landing folder.",
    )


def home_id(home: Home) -> str:
    """A name of this data home that no other has, made once.

    Raises:
        StorageError: it can't be written.
    """
    path = home.launches / _HOME_ID
    try:
        if not path.exists():
            replace_text(path, secrets.token_hex(8))
        return path.read_text().strip()
    except OSError as error:
        raise StorageError(
            f"{path} can't be written or read ({error.strerror}).",
            mend="Check its rights and the free space.",
        ) from error
