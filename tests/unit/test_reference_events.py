"""The reference worker's events: whole lines, and never a wait for a reader."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from resilience_pipelines.workers.reference.events import Events, Phases


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # the test may have closed it
            os.close(end)


def lines(read_end: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in os.read(read_end, 1 << 20).splitlines()]


def test_events_are_lines_of_json(pipe: tuple[int, int]) -> None:
    events = Events(pipe[1])
    assert events.report("one", port=1)
    assert events.report("two", words="ü\n")
    assert lines(pipe[0]) == [{"event": "one", "port": 1}, {"event": "two", "words": "ü\n"}]


def test_a_full_pipe_loses_lines_whole_and_does_not_wait(pipe: tuple[int, int]) -> None:
    events = Events(pipe[1])
    told = [events.report("number", value=value) for value in range(5_000)]
    assert not told[-1]
    read = lines(pipe[0])
    assert [line["value"] for line in read] == [value for value, was in enumerate(told) if was]
    assert events.report("after")
    assert os.get_blocking(pipe[1])


def test_a_reader_that_is_gone_loses_lines_and_no_more(pipe: tuple[int, int]) -> None:
    events = Events(pipe[1])
    os.close(pipe[0])
    assert not events.report("lost")
    os.close(pipe[1])
    assert not events.report("lost")


def test_a_line_too_long_to_be_written_at_once_is_lost(pipe: tuple[int, int]) -> None:
    events = Events(pipe[1])
    assert not events.report("long", words="x" * 5000)
    assert events.report("short")
    assert lines(pipe[0]) == [{"event": "short"}]


def test_phases_follow_each_other_without_a_gap(pipe: tuple[int, int]) -> None:
    start_ns = time.monotonic_ns()
    phases = Phases(Events(pipe[1]), start_ns)
    for name in ("a", "b", "c"):
        phases.end(name)
    told = lines(pipe[0])
    assert [line["name"] for line in told] == ["a", "b", "c"]
    edges = [(line["start_ns"], line["end_ns"]) for line in told]
    assert edges[0][0] == start_ns
    assert all(before[1] == after[0] for before, after in itertools.pairwise(edges))
    assert all(start <= end for start, end in edges)
