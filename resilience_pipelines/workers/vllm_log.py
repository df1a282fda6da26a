"""The phases of a vLLM start, read from what it logs; keyed by vLLM's version.

What belongs here: which lines bound which phase, from which version on. What does not: how vLLM is
started (`vllm_host`).

Every phase lies between two lines that have to be there both. Where a version does not write one of
them, the time around it stays unaccounted instead of being given to a neighbour. Boundaries are the
moments at which the host read the lines, on its own monotonic clock: vLLM's own time stamps are
whole seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from resilience_pipelines import strict_json
from resilience_pipelines.workers.base import Mark, OutputLine
from resilience_pipelines.workers.supervisor import EXEC_EVENT

CLOCK = "host_monotonic_at_output_line"
RESOLUTION_S = 0.001
"""A line waits in the pipe until the reading thread runs."""


_LINE_CHARACTERS = 2000
"""Of a line that are looked at: what bounds a phase stands at the beginning of a short one."""


@dataclass(frozen=True)
class Boundary:
    """A line, and the phase that ends with it.

    Attributes:
        phase: what began with the boundary before; None for the first one.
    """

    phase: str | None
    pattern: re.Pattern[str]


def _boundary(phase: str | None, pattern: str) -> Boundary:
    return Boundary(phase, re.compile(pattern))


# From the version on that stands first, newest last. The wording of 0.20 to 0.24 was read in their
# source; that of 0.23 was measured.
FORMATS: tuple[tuple[tuple[int, int], tuple[Boundary, ...]], ...] = (
    (
        (0, 20),
        (
            _boundary(None, rf'^{{"event": "{EXEC_EVENT}"'),
            # Python, torch and vLLM are loaded, the command line is parsed.
            _boundary("import", r"vLLM server version|vLLM API server version"),
            # The model's configuration; the engine's own process has loaded the same libraries.
            _boundary("engine_start", r"Initializing a V1 LLM engine"),
            # CUDA context, NCCL, memory pools. The second wording is that of model runner V2.
            _boundary("device_init", r"Starting to load model|Loading model from scratch"),
            _boundary("weights", r"Model loading took"),
            # Compiling, or loading what is in the cache, with the profiling run where they overlap.
            _boundary("compile", r"torch\.compile .*took .* in total"),
            _boundary("kv_profile", r"GPU KV cache size"),
            _boundary("graph_capture", r"Graph capturing finished"),
            _boundary("warm_up", r"init engine \(profile"),
            _boundary("server_start", r"Starting vLLM (API )?server"),
            _boundary("server_up", r"Application startup complete"),
        ),
    ),
)


def boundaries_of(version: str) -> tuple[Boundary, ...]:
    """The boundaries for a version; none for one older than all that are known."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    fitting = [boundaries for since, boundaries in FORMATS if numbers >= since]
    return fitting[-1] if fitting else ()


def phases_of(lines: Sequence[OutputLine], version: str) -> list[Mark]:
    """The phases between boundaries that were found, in order, not overlapping."""
    boundaries = boundaries_of(version)
    moments = _moments(lines, boundaries)
    marks = []
    for index in range(1, len(boundaries)):
        begin, end, phase = moments[index - 1], moments[index], boundaries[index].phase
        if begin is None or end is None or phase is None:
            continue
        # The first moment is the line's own word: one after the next line is none.
        if 0 <= begin <= end:
            marks.append(Mark(phase, begin, end, CLOCK, RESOLUTION_S))
    return marks


def _moments(lines: Sequence[OutputLine], boundaries: Sequence[Boundary]) -> list[int | None]:
    """When each boundary's line came, searched for after the line of the one before."""
    found: list[int | None] = []
    position = 0
    for boundary in boundaries:
        index = next(
            (
                at
                for at in range(position, len(lines))
                if boundary.pattern.search(lines[at].text[:_LINE_CHARACTERS])
            ),
            None,
        )
        if index is None:
            found.append(None)
            continue
        found.append(_moment(lines[index]))
        position = index + 1
    return found


def _moment(line: OutputLine) -> int:
    """The time that the line itself tells, where it does; else when it was read."""
    try:
        told = strict_json.loads(line.text)["at_ns"] if line.text.startswith("{") else None
    except (ValueError, KeyError, TypeError):
        told = None  # the engine may well write its own log as JSON
    return told if type(told) is int else line.received_ns
