"""Tables on a terminal, in a pipe or in a file, in which no name and no figure is ever cut.

What belongs here: how rows are laid out as text. What does not: which rows (`cli`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

PROSE_CHARACTERS: Final = 24
"""A column with longer values that have spaces is prose: it wraps, down to this width."""

_GAP: Final = 3
"""Characters between two columns."""

MISSING: Final = "[dim]-[/]"


def print_rows(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print rows as a table, or one below the other where the terminal is too narrow for one.

    Where output goes to no terminal, the table is as wide as it has to be.

    Args:
        rows: at least one; all with the keys of the first.
    """
    names = list(rows[0])
    cells = [[_text(row[name]) for name in names] for row in rows]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, [name, *column])) for name, column in zip(names, columns, strict=True)]
    prose = [any(" " in cell and len(cell) > PROSE_CHARACTERS for cell in c) for c in columns]
    least = sum(
        min(width, PROSE_CHARACTERS) if wraps else width
        for width, wraps in zip(widths, prose, strict=True)
    ) + _GAP * len(names)
    whole = sum(widths) + _GAP * len(names)
    if console.is_terminal and least > console.width:
        _print_below(names, cells, console)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, wraps in zip(names, prose, strict=True):
        table.add_column(name, no_wrap=not wraps, min_width=PROSE_CHARACTERS if wraps else None)
    for row in cells:
        table.add_row(*map(_shown, row))
    _at_least(console, whole).print(table)


def print_record(values: Mapping[str, str], console: Console) -> None:
    """Print names and values, one below the other.

    Args:
        values: in rich's markup.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(name, value)
    widest = max(len(Text.from_markup(value)) for value in values.values())
    _at_least(console, max(map(len, values)) + 2 + widest).print(table)


def _at_least(console: Console, width: int) -> Console:
    """The console itself; for a pipe or a file, which have no edge, one that is wide enough."""
    if console.is_terminal:
        return console
    return Console(file=console.file, width=max(width, 1), color_system=None)


def _print_below(names: Sequence[str], cells: Sequence[Sequence[str]], console: Console) -> None:
    for index, row in enumerate(cells):
        if index:
            console.print()
        print_record(dict(zip(names, map(_shown, row), strict=True)), console)


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _shown(cell: str) -> str:
    return escape(cell) if cell else MISSING
