"""The dbt project as Dagster reads and runs it.

What belongs here: keeping the manifest, from which the definitions of all models come, up to date,
and running dbt so that its results become Dagster's. What does not: the models (`dbt/`), and
running the same project without Dagster (`warehouse.transform`).

The manifest is made by `dbt parse`, which takes seconds, so it is kept in the data home together
with a hash of what it was made from. A fresh clone has none and makes it once; nothing is fetched.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import dagster as dg
from dagster_dbt import DbtCliInvocation, DbtCliResource, DbtProject
from dagster_dbt.errors import DagsterDbtCliRuntimeError
from packaging.version import Version
from sqlglot.errors import SqlglotError

from resilience_pipelines.dagster_io.column_lineage import Relation, column_lineage
from resilience_pipelines.dagster_io.metadata import row_counts, table_columns
from resilience_pipelines.errors import DeadlineError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.lineage.warehouse import build_lineage
from resilience_pipelines.warehouse.connection import open_warehouse
from resilience_pipelines.warehouse.dbt_process import dbt_arguments
from resilience_pipelines.warehouse.schema import migrate
from resilience_pipelines.warehouse.transform import (
    BUILD_DEADLINE_S,
    dbt_environment,
    dbt_project_dir,
)

_DIGEST_NAME: Final = "made_from.sha256"
_NOT_SOURCE: Final = frozenset({"target", "logs", "dbt_packages", ".user.yml"})


def prepare_project(home: Home) -> DbtProject:
    """The dbt project with a manifest of its present content.

    Raises:
        StorageError: the data home's dbt folder can't be written.
        DagsterDbtCliRuntimeError: dbt can't parse the project.
        DeadlineError: dbt took too long.
    """
    folder = _folder(home)
    project = DbtProject(dbt_project_dir(), target_path=folder)
    made_from = folder / _DIGEST_NAME
    with (folder / ".lock").open("w") as lock:
        # Dagster starts several processes at once, and each of them loads the definitions.
        fcntl.flock(lock, fcntl.LOCK_EX)
        digest = _digest(project.project_dir)
        known = made_from.read_text() if made_from.exists() else ""
        if known != digest or not project.manifest_path.is_file():
            with (
                _environment(home),
                _deadline(_cli(project).cli(["parse", "--quiet"], target_path=folder)) as parse,
            ):
                parse.wait()
            made_from.write_text(digest)
    return project


def build_models(
    context: dg.AssetExecutionContext,
    project: DbtProject,
    home: Home,
    assets: Mapping[Relation, dg.AssetKey],
) -> Iterator[Any]:
    """Build the selected models and run their tests.

    Args:
        assets: the asset of each table that a model is or reads.

    Yields:
        What `dbt_assets` yields, outputs with the number of rows of each table and the columns that
        its columns come from.

    Raises:
        BusyError: another process has the warehouse open.
        DagsterDbtCliRuntimeError: a model could not be built or a test failed.
        DeadlineError: dbt took too long.
    """
    with open_warehouse(home.warehouse) as connection:
        migrate(connection)
    events: list[Any] = []
    failure: DagsterDbtCliRuntimeError | None = None
    target = _folder(home) / "build"
    try:
        with build_lineage(home, target):
            _stream(context, project, home, target, events)
    except DagsterDbtCliRuntimeError as error:
        failure = error
    # Only now has dbt let go of the file.
    nodes = json.loads(project.manifest_path.read_text())["nodes"]
    rows, columns = row_counts(home, "main"), table_columns(home)
    for event in events:
        if not isinstance(event, dg.Output):
            yield event
            continue
        node = nodes[event.metadata["unique_id"].value]
        found: dict[str, Any] = {}
        if node["name"] in rows:
            found["dagster/row_count"] = rows[node["name"]]
        relation = (node["schema"], node["name"])
        if node["resource_type"] == "model" and node["name"] in columns.get(node["schema"], {}):
            compiled = target / "compiled" / node["package_name"] / node["original_file_path"]
            try:
                found["dagster/column_lineage"] = column_lineage(
                    compiled, relation, columns, assets
                )
            except SqlglotError as error:
                # It is drawn for people to look at; the table is right without it.
                context.log.warning(f"No column lineage of {node['name']}: {error}")
        yield event.with_metadata({**event.metadata, **found})
    if failure is not None:
        raise failure


def _stream(
    context: dg.AssetExecutionContext,
    project: DbtProject,
    home: Home,
    target: Path,
    events: list[Any],
) -> None:
    """Run dbt and append what it tells; an error is raised once dbt has ended."""
    failure: DagsterDbtCliRuntimeError | None = None
    with (
        _environment(home),
        _deadline(_cli(project).cli(["build"], context=context, target_path=target)) as build,
    ):
        try:
            events.extend(build.stream())
        except DagsterDbtCliRuntimeError as error:
            failure = error
    if failure is not None:
        raise failure


def _folder(home: Home) -> Path:
    folder = home.dbt / "dagster"
    try:
        (folder / "build").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{folder} can't be written ({error.strerror or error}).",
            mend="Check its rights and the free space.",
        ) from error
    return folder


class _Dbt(DbtCliResource):
    """The dbt of this environment, started without two seconds of preparation that we don't need.

    Both methods are private to dagster-dbt, whose version is pinned.
    """

    @cached_property
    def _cli_version(self) -> Version:
        # The original runs `dbt --version`, which asks the package index for newer ones.
        return Version(importlib.metadata.version("dbt-core"))

    def _initialize_dbt_core_adapter(self, args: Sequence[str]) -> Any:  # noqa: ARG002
        # A second connection to the warehouse, for row counts that `row_counts` reads.
        return None


def _cli(project: DbtProject) -> DbtCliResource:
    # A run that is killed can't end its dbt. Also where the environment's folder is not on PATH.
    return _Dbt(
        project_dir=str(project.project_dir),
        dbt_executable=sys.executable,
        global_config_flags=dbt_arguments(),
    )


@contextmanager
def _environment(home: Home) -> Iterator[None]:
    """The variables that dbt reads, which `DbtCliResource` takes from this process alone."""
    before = dict(os.environ)
    # The manifest's folder: dbt takes from there what it needs not parse again.
    os.environ.update(dbt_environment(home), DBT_TARGET_PATH=str(_folder(home)))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _deadline(invocation: DbtCliInvocation) -> Iterator[DbtCliInvocation]:
    """dbt's process, ended when the block ends or `BUILD_DEADLINE_S` have passed."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        invocation.process.kill()

    timer = threading.Timer(BUILD_DEADLINE_S, expire)
    timer.daemon = True
    timer.start()
    try:
        yield invocation
    finally:
        timer.cancel()
        if invocation.process.poll() is None:
            invocation.process.kill()
            invocation.process.wait()
    if expired.is_set():
        raise DeadlineError(f"dbt did not end within {BUILD_DEADLINE_S:g} s and was ended.")


def _digest(project_dir: Path) -> str:
    """A hash over all that the manifest is made from: the project's files, and dbt itself."""
    total = hashlib.sha256()
    for package in ("dbt-core", "dbt-duckdb"):
        total.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    for path in sorted(project_dir.rglob("*")):
        relative = path.relative_to(project_dir)
        if path.is_file() and relative.parts[0] not in _NOT_SOURCE:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{relative} {content}\n".encode())
    return total.hexdigest()
