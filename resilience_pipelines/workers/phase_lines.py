"""Phases that a worker writes itself, as JSON lines on its standard output.

What belongs here: reading one line, and leaving out what can't be. What does not: writing them
(`reference.events`), and phases read from an engine's log (`vllm_log`).
"""

from __future__ import annotations

from collections.abc import Iterable

from resilience_pipelines import strict_json
from resilience_pipelines.workers.base import Mark


def phase_mark(line: str, clock: str, resolution_s: float) -> Mark | None:
    """The phase that a line tells; None for any other line, and for one that tells no time."""
    if not line.startswith("{"):
        return None
    try:
        event = strict_json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("event") != "phase":
        return None
    name, start_ns, end_ns = event.get("name"), event.get("start_ns"), event.get("end_ns")
    if not isinstance(name, str) or type(start_ns) is not int or type(end_ns) is not int:
        return None
    return Mark(name, start_ns, end_ns, clock, resolution_s)


def in_order(marks: Iterable[Mark]) -> list[Mark]:
    """Phases as they were written, without those that go back in time or have no end.

    A worker that tells them wrong must not keep its start from being recorded: what is left out
    stays unaccounted.
    """
    found: list[Mark] = []
    latest_ns = 0
    for mark in marks:
        if latest_ns <= mark.start_ns <= mark.end_ns < 2**63:
            found.append(mark)
            latest_ns = mark.end_ns
    return found
