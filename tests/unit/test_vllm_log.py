"""A phase lies between two lines that are both there; what the log does not tell is no phase."""

from __future__ import annotations

import itertools

import pytest

from resilience_pipelines.workers.base import OutputLine
from resilience_pipelines.workers.vllm_log import FORMATS, boundaries_of, phases_of

SECOND = 1_000_000_000

# The wording of 0.23.0 with model runner V2, compile cache filled.
LINES = (
    '{"event": "exec", "at_ns": 500000000}',
    "(APIServer pid=1000) INFO 12-01 05:00:09 [api_utils.py:339] vLLM server version 0.23.0, "
    "serving model /m",
    "(EngineCore pid=1100) INFO 12-01 05:00:20 [core.py:113] Initializing a V1 LLM engine (v0.23.0)"
    " with config: model='/m'",
    "(EngineCore pid=1100) INFO 12-01 05:00:24 [model_runner.py:298] Loading model from scratch...",
    "(EngineCore pid=1100) INFO 12-01 05:00:25 [default_loader.py:398] Loading weights took 0.30 "
    "seconds",
    "(EngineCore pid=1100) INFO 12-01 05:00:25 [model_runner.py:319] Model loading took 1.12 GiB "
    "and 0.81 seconds",
    "(EngineCore pid=1100) INFO 12-01 05:00:30 [decorators.py:312] Directly load AOT compilation "
    "from path /c",
    "(EngineCore pid=1100) INFO 12-01 05:00:31 [monitor.py:48] torch.compile and initial "
    "profiling/warmup run together took 5.20 s in total",
    "(EngineCore pid=1100) INFO 12-01 05:00:35 [gpu_worker.py:481] Available KV cache memory: "
    "120.1 GiB",
    "(EngineCore pid=1100) INFO 12-01 05:00:35 [kv_cache_utils.py:1744] GPU KV cache size: "
    "1,123,456 tokens",
    "(EngineCore pid=1100) INFO 12-01 05:00:40 [model_runner.py:702] Graph capturing finished in 4 "
    "secs, took 0.80 GiB",
    "(EngineCore pid=1100) INFO 12-01 05:00:41 [core.py:314] init engine (profile, create kv "
    "cache, warmup model) took 15.90 s (compilation: 5.20 s)",
    "(APIServer pid=1000) INFO 12-01 05:00:42 [api_server.py:583] Starting vLLM server on "
    "http://127.0.0.1:8000",
    "(APIServer pid=1000) INFO:     Started server process [1000]",
    "(APIServer pid=1000) INFO:     Application startup complete.",
)


def _output(lines: tuple[str, ...]) -> list[OutputLine]:
    return [OutputLine((index + 1) * SECOND, text) for index, text in enumerate(lines)]


def test_all_phases_of_a_whole_log_are_found_in_order() -> None:
    names = [mark.name for mark in phases_of(_output(LINES), "0.23.0")]
    assert names == [
        "import", "engine_start", "device_init", "weights", "compile", "kv_profile",
        "graph_capture", "warm_up", "server_start", "server_up",
    ]  # fmt: skip


def test_phases_of_a_whole_log_touch_and_never_overlap() -> None:
    marks = phases_of(_output(LINES), "0.23.0")
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(marks))
    assert all(mark.start_ns < mark.end_ns for mark in marks)


def test_the_start_of_the_program_is_the_time_that_its_line_tells() -> None:
    assert phases_of(_output(LINES), "0.23.0")[0].start_ns == 500_000_000


@pytest.mark.parametrize("missing", range(len(LINES)))
def test_a_missing_line_gives_its_time_to_nobody(missing: int) -> None:
    output = _output(LINES)
    whole = {mark.name: (mark.start_ns, mark.end_ns) for mark in phases_of(output, "0.23.0")}
    partial = phases_of(output[:missing] + output[missing + 1 :], "0.23.0")
    for mark in partial:
        assert (mark.start_ns, mark.end_ns) == whole[mark.name]
    assert len(whole) - len(partial) in (0, 1, 2)


def test_a_line_of_an_earlier_phase_that_comes_again_changes_nothing() -> None:
    output = [*_output(LINES), OutputLine(100 * SECOND, LINES[5])]
    assert phases_of(output, "0.23.0") == phases_of(output[:-1], "0.23.0")


def test_a_log_of_something_else_has_no_phases() -> None:
    assert phases_of(_output(("hello", "{", "Traceback")), "0.23.0") == []


@pytest.mark.parametrize("version", ["0.20.0", "0.24.0", "0.24.1.dev5+gabc", "1.0.0"])
def test_versions_from_the_first_known_one_on_have_boundaries(version: str) -> None:
    assert boundaries_of(version)


@pytest.mark.parametrize("version", ["0.19.1", "0.9.2", "", "unknown"])
def test_an_older_version_has_no_phases_rather_than_wrong_ones(version: str) -> None:
    assert boundaries_of(version) == ()


def test_formats_are_sorted_by_version() -> None:
    assert [since for since, _ in FORMATS] == sorted(since for since, _ in FORMATS)
