"""Building the marts: dbt over the raw tables, in a process of its own.

What belongs here: where the dbt project lies, running it, and reading what came of it. What does
not: the marts themselves (`dbt/`), and Dagster's way to run the same project (`dagster_io`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from resilience_pipelines.errors import DeadlineError, ResilienceError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.warehouse.connection import (
    LOCK_WAIT_S,
    busy_error,
    is_locked,
    open_warehouse,
)
from resilience_pipelines.warehouse.dbt_process import dbt_arguments
from resilience_pipelines.warehouse.schema import migrate

BUILD_DEADLINE_S: Final = 600.0
WAREHOUSE_VARIABLE: Final = "RESILIENCE_WAREHOUSE"

_PACKAGE = Path(__file__).resolve().parents[1]
_END_WAIT_S = 10.0
_FAILED = frozenset({"error", "fail", "runtime error", "partial success"})


class TransformError(ResilienceError):
    """dbt could not build the marts, or a test of them failed; names the node."""


@dataclass(frozen=True)
class Finding:
    """A node of the dbt project that did not pass, and what dbt says of it."""

    node: str
    message: str


@dataclass(frozen=True)
class BuildReport:
    """What dbt built.

    Attributes:
        warnings: tests that found something and stop nothing.
    """

    models: int
    tests: int
    warnings: tuple[Finding, ...]
    elapsed_s: float


def dbt_project_dir() -> Path:
    """The dbt project: the one inside the installed package, else the checkout's `dbt/`."""
    packaged = _PACKAGE / "_dbt"
    return packaged if (packaged / "dbt_project.yml").is_file() else _PACKAGE.parent / "dbt"


def dbt_environment(home: Home) -> dict[str, str]:
    """The environment that dbt runs in for this home; all of ours and what the project reads."""
    search = [str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        WAREHOUSE_VARIABLE: str(home.warehouse.absolute()),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        "DO_NOT_TRACK": "1",
        # dbt-duckdb imports our functions by name, also from a checkout that is not installed.
        "PYTHONPATH": os.pathsep.join(search),
    }


def build(
    home: Home, *, deadline_s: float = BUILD_DEADLINE_S, lock_wait_s: float = LOCK_WAIT_S
) -> BuildReport:
    """Build every mart and run every test of it.

    Raises:
        TransformError: a model could not be built or a test failed.
        BusyError: another process has the warehouse open.
        DeadlineError: dbt took longer than `deadline_s`; it was ended.
        StorageError: the warehouse or dbt's folder can't be written.
    """
    begin = time.monotonic()
    # Marts read raw tables that a home without any load has not got yet.
    with open_warehouse(home.warehouse, lock_wait_s=lock_wait_s) as connection:
        migrate(connection)
    results = home.dbt / "target" / "run_results.json"
    while True:
        try:
            results.parent.mkdir(parents=True, exist_ok=True)
            results.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"{home.dbt} can't be written ({error.strerror}).",
                mend="Check the path, its rights and its free space.",
            ) from error
        code, output = _run_dbt(home, begin + deadline_s - time.monotonic())
        if not is_locked(output):
            break
        if time.monotonic() - begin > lock_wait_s:
            raise busy_error(home.warehouse, output)
    nodes = _read_results(results)
    failed = [_finding(node) for node in nodes if node["status"] in _FAILED]
    log = home.dbt / "logs" / "dbt.log"
    if failed:
        first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise TransformError(
            f"dbt node {first.node} failed{more}: {first.message}", mend=f"See {log}."
        )
    if code or not nodes:
        raise TransformError(
            f"dbt ended with exit code {code}: {_tail(output)}", mend=f"See {log}."
        )
    return BuildReport(
        models=sum(node["unique_id"].startswith("model.") for node in nodes),
        tests=sum(node["unique_id"].startswith("test.") for node in nodes),
        warnings=tuple(_finding(node) for node in nodes if node["status"] == "warn"),
        elapsed_s=time.monotonic() - begin,
    )


def _run_dbt(home: Home, deadline_s: float) -> tuple[int, str]:
    """dbt's exit code and output."""
    project = str(dbt_project_dir())
    folder = home.dbt.absolute()
    command = [
        sys.executable, *dbt_arguments(), "--no-use-colors", "build",
        "--project-dir", project, "--profiles-dir", project,
        "--target-path", str(folder / "target"), "--log-path", str(folder / "logs"),
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        cwd=home.dbt,
        env=dbt_environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(deadline_s, 0.0))
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(
            "dbt did not end within its deadline.",
            mend=f"See {home.dbt / 'logs' / 'dbt.log'}.",
        ) from error
    finally:
        _end(process)
    return process.returncode, output


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        # dbt interrupts its queries on SIGINT; whatever is left after that is killed.
        for number in (signal.SIGINT, signal.SIGKILL):
            os.killpg(process.pid, number)
            try:
                process.wait(_END_WAIT_S)
                break
            except subprocess.TimeoutExpired:
                continue
    if process.stdout:
        process.stdout.close()


def _read_results(path: Path) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    except FileNotFoundError:
        return []
    return found


def _finding(node: dict[str, Any]) -> Finding:
    # `test.<project>.<name>.<hash>` and `model.<project>.<name>`
    name = node["unique_id"].split(".")[2]
    message = " ".join(str(node["message"] or node["status"]).split())
    return Finding(name, message)


def _tail(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " ".join(lines[-5:]) or "it said nothing"
