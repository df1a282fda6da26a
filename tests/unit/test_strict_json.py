"""JSON that is ambiguous, no JSON or without end is refused, and all other JSON is read as ever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.strict_json import MAX_DEPTH, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(VALUES, st.booleans())
def test_json_is_read_as_the_standard_reader_reads_it(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert loads(text) == loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}', '[{"a": {"b": 1, "b": 1}}]', "NaN", "[-Infinity]", "1e400", "[-1e999]",
        b"\xff", r'"\ud800"', r'{"\udfff": 1}', '"\ud800"', "9" * 5000, "{", "", "\x00",
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 100_000, '{"a":' * 100_000,
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    ],
)  # fmt: skip
def test_what_is_ambiguous_or_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_what_is_as_deep_as_allowed_and_a_whole_character_are_read() -> None:
    assert loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert loads(r'"\ud83d\ude00"') == "\U0001f600"
