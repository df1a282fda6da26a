"""docs/python.md names what every command calls, by names and arguments that are there."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import resilience_pipelines
from resilience_pipelines.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
CELLS = [
    [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]
FIRST = [(calls, commands) for calls, _, commands in (row for row in CELLS if len(row) == 3)]
OTHERS = [(calls, commands) for commands, calls in (row for row in CELLS if len(row) == 2)]


def registered(group: typer.Typer, path: str = "") -> Iterator[str]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield path + (command.name or command.callback.__name__)
    for part in group.registered_groups:
        assert part.typer_instance is not None
        yield from registered(part.typer_instance, f"{path}{part.name} " if part.name else path)


def test_every_command_is_on_the_page_once() -> None:
    named = [command.removeprefix("resilience ") for _, row in (*FIRST, *OTHERS) for command in row]
    assert sorted(named) == sorted(registered(app))


@pytest.mark.parametrize("call", [call for calls, _ in (*FIRST, *OTHERS) for call in calls])
def test_what_the_page_calls_takes_what_the_page_gives(call: str) -> None:
    name, _, arguments = call.rstrip(")").partition("(")
    found: object = resilience_pipelines
    for part in name.split("."):
        if inspect.ismodule(found) and not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    assert callable(found)
    given = set(re.split(", ", arguments)) - {"..."}
    # What is got from another value (`home.published`) may have another name.
    assert {word for word in given if "." not in word} <= set(inspect.signature(found).parameters)
