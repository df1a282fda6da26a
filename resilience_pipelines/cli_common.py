"""What the modules of the command share: options, where output goes, and JSON for scripts.

What belongs here: those. What does not: any command (`cli`, `cli_snapshots`), and how tables are
laid out (`cli_tables`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from resilience_pipelines.cli_tables import print_rows
from resilience_pipelines.errors import InputError
from resilience_pipelines.home import ENVIRONMENT_VARIABLE

out = Console()
err = Console(stderr=True)

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", envvar=ENVIRONMENT_VARIABLE, help="Data home (default: .resilience)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


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
