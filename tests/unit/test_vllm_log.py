"""A phase lies between two lines that are both there; what the log does not tell is no phase."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from resilience_pipelines.workers.base import OutputLine
from resilience_pipelines.workers.vllm_log import FORMATS, boundaries_of, phases_of

LOG = Path(__file__).parent / "data" / "vllm-0.23.0-warm-start.log"
"""A start on an H200 with the compile cache filled: seconds since the launch, then the line."""


def _log() -> list[OutputLine]:
    lines = []
    for line in LOG.read_text().splitlines():
        moment, _, text = line.partition(" ")
        lines.append(OutputLine(round(float(moment) * 1e9), text))
    return lines


def test_all_phases_of_a_whole_log_are_found_in_order() -> None:
    names = [mark.name for mark in phases_of(_log(), "0.23.0")]
    assert names == [
        "import", "engine_start", "device_init", "weights", "compile", "kv_profile",
        "graph_capture", "warm_up", "server_start", "server_up",
    ]  # fmt: skip


def test_phases_of_a_whole_log_touch_and_never_overlap() -> None:
    marks = phases_of(_log(), "0.23.0")
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(marks))
    assert all(mark.start_ns < mark.end_ns for mark in marks)


def test_durations_are_those_between_the_lines() -> None:
    seconds = {m.name: round((m.end_ns - m.start_ns) / 1e9, 3) for m in phases_of(_log(), "0.23.0")}
    assert seconds["import"] == 11.946
    assert seconds["compile"] == 4.249
    assert sum(seconds.values()) == pytest.approx(35.775 - 0.056)


def test_the_start_of_the_program_is_the_time_that_its_line_tells() -> None:
    assert phases_of(_log(), "0.23.0")[0].start_ns == 56_000_000


@pytest.mark.parametrize("missing", range(len(_log())))
def test_a_missing_line_gives_its_time_to_nobody(missing: int) -> None:
    output = _log()
    whole = {mark.name: (mark.start_ns, mark.end_ns) for mark in phases_of(output, "0.23.0")}
    partial = phases_of(output[:missing] + output[missing + 1 :], "0.23.0")
    for mark in partial:
        assert (mark.start_ns, mark.end_ns) == whole[mark.name]
    assert len(whole) - len(partial) in (0, 1, 2)


def test_a_line_of_an_earlier_phase_that_comes_again_changes_nothing() -> None:
    again = next(line.text for line in _log() if "Model loading took" in line.text)
    output = [*_log(), OutputLine(10**11, again)]
    assert phases_of(output, "0.23.0") == phases_of(output[:-1], "0.23.0")


def test_a_log_of_something_else_has_no_phases() -> None:
    assert phases_of([OutputLine(1, text) for text in ("hello", "{", "Traceback")], "0.23.0") == []


@pytest.mark.parametrize("version", ["0.20.0", "0.24.0", "0.24.1.dev5+gabc", "1.0.0"])
def test_versions_from_the_first_known_one_on_have_boundaries(version: str) -> None:
    assert boundaries_of(version)


@pytest.mark.parametrize("version", ["0.19.1", "0.9.2", "", "unknown"])
def test_an_older_version_has_no_phases_rather_than_wrong_ones(version: str) -> None:
    assert boundaries_of(version) == ()


def test_formats_are_sorted_by_version() -> None:
    assert [since for since, _ in FORMATS] == sorted(since for since, _ in FORMATS)
