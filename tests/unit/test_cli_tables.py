"""Nothing that a command prints as a table is cut, however narrow the terminal."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from resilience_pipelines.cli_tables import print_record, print_rows

WORDS = st.text("abcdefghijklmnop_-0123456789[]", min_size=1, max_size=60)
ROWS = st.integers(1, 7).flatmap(
    lambda columns: st.lists(
        st.lists(WORDS | st.floats(0, 1e6) | st.none(), min_size=columns, max_size=columns),
        min_size=1, max_size=4,
    )
)  # fmt: skip


def printed(rows: list[dict[str, object]], width: int, *, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, color_system=None)
    print_rows(rows, console)
    return stream.getvalue()


@given(ROWS, st.integers(64, 200), st.booleans())
def test_every_name_and_figure_is_there_in_one_piece(
    values: list[list[object]], width: int, terminal: bool
) -> None:
    rows = [{f"column_{n}": value for n, value in enumerate(row)} for row in values]
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(rows, width, terminal=terminal))
    # A value that is wider than the terminal itself goes on in the next line.
    flat = re.sub(r"\s+", "", text)
    for row in rows:
        for name, value in row.items():
            assert name in flat
            if isinstance(value, str):
                assert value in (text if len(value) + len(name) + 2 <= width else flat)
            elif value is not None:
                assert f"{value:.4g}" in text


LONG = {
    "fault": "snapshot_image_corrupted_bit_flip",
    "strategy": "checkpoint_integrity",
    "description": "One bit of the pages of the stored image is turned over before a restore",
}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_prose_wraps_and_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = printed([LONG, LONG], width, terminal=True)
    assert max(map(len, text.splitlines())) <= width
    assert LONG["fault"] in text
    assert " ".join(LONG["description"].split()[:2]) in text
    assert "\u2026" not in text


def test_a_pipe_gets_one_line_for_each_row() -> None:
    text = printed([LONG, LONG], 80, terminal=False)
    assert len(text.splitlines()) == 4, "names, a rule and two rows"
    assert LONG["description"] in text


def test_a_record_is_whole_in_a_pipe() -> None:
    stream = io.StringIO()
    print_record({"a": "x" * 300, "bb": "[dim]-[/]"}, Console(file=stream, width=80))
    assert "x" * 300 in stream.getvalue()
