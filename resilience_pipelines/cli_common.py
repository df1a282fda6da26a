"""What the modules of the command share: options, output, progress, and how a signal ends them.

What belongs here: those. What does not: any command (`cli`, `cli_run`, `cli_faults`,
`cli_snapshots`, `cli_results`), and how tables are laid out (`cli_tables`).
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from resilience_pipelines.cli_tables import print_rows
from resilience_pipelines.errors import InputError, Stopped
from resilience_pipelines.home import ENVIRONMENT_VARIABLE

out = Console()
err = Console(stderr=True)

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", envvar=ENVIRONMENT_VARIABLE, help="Data home (default: .resilience)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
WorkerOption = Annotated[str, typer.Option("--worker", help="The worker to measure.")]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        help="Where the job runs: local, or kubernetes (docs/kubernetes.md); RESILIENCE_LAUNCHER, "
        "else local.",
    ),
]


@contextmanager
def options(**names: str) -> Iterator[None]:
    """Tell of wrong arguments of a call in the block by the names that their options have."""
    try:
        yield
    except InputError as error:
        field = names.get(error.field, error.field)
        raise InputError(field, error.value, error.why, mend=error.mend) from error


def split_list(text: str) -> list[str]:
    """What an option lists, separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(option: str, text: str) -> list[int]:
    """The whole numbers that an option lists."""
    try:
        return [int(part) for part in split_list(text)]
    except ValueError as error:
        raise InputError(
            option, text, "it is no list of whole numbers", mend="Separate numbers by commas."
        ) from error


def print_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def show_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as a table or as JSON."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        out.print("[dim]none[/]")
        return
    print_rows(rows, out)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on the error stream, so that standard output stays for results."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report


@contextmanager
def status(what: str, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Say on the error stream what is going on; the block may say something else meanwhile."""
    if quiet:
        yield lambda _: None
        return
    with err.status(what) as shown:
        yield shown.update


def tell(text: str) -> None:
    """Show what a person should know while a job runs."""
    err.print(f"[yellow]{escape(text)}[/]")


def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """End the command as a handler of a signal: owners end what they started, and that once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped(128 + number)
