"""The timings that Dynamo Snapshot's node agent logs, as phases.

What belongs here: reading its lines. What does not: getting the log (`cluster`), and where the
phases lie within a start (`engine`).

A line is a preamble as people read it (time, level, logger, caller, message) and one JSON object:

    2026-09-08T12:46:55Z INFO controller executor/restore.go:249 Restore timing summary {"pod":
    "default/a", "snapshot": "b", "restore": {"duration": "3.506021s", "phases": {...}}}

The agent's phases follow each other and do not overlap: it gives what they do not explain as
`unaccounted`. It tells durations and no offsets. A name that is not known here is kept as
`agent_<name>` and told, and so is a line of timings that can't be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from resilience_pipelines import strict_json
from resilience_pipelines.go_duration import go_duration_s
from resilience_pipelines.kubernetes_api import object_of, text_of

MARK: Final = "timing summary"
MAX_LINE: Final = 20_000


class Act(StrEnum):
    """What the agent timed; the value is the key of its object, and begins its message."""

    CHECKPOINT = "checkpoint"
    RESTORE = "restore"


PHASES: Final[Mapping[Act, Mapping[str, str]]] = {
    Act.RESTORE: {
        "pagebroker_stage": "agent_pagebroker_stage",
        "pagebroker_mount": "agent_pagebroker_mount",
        "pagebroker_commit": "agent_pagebroker_commit",
        "gpu_device_map": "agent_gpu_device_map",
        "overlay_capture": "agent_overlay",
        "criu_prepare": "agent_criu_prepare",
        "criu_restore": "criu_restore",
        "cuda_restore": "cuda_restore",
    },
    Act.CHECKPOINT: {
        "gpu_device_map": "agent_gpu_device_map",
        "cuda_checkpoint": "cuda_checkpoint",
        "criu_dump": "criu_dump",
        "overlay_capture": "agent_overlay",
        "remove_old_version_and_switch": "agent_switch",
    },
}
"""The agent's names in the order that its code has, and ours. What our own engine does too has the
same name there."""

_UNACCOUNTED: Final = "unaccounted"
UNACCOUNTED: Final = "agent_unaccounted"


@dataclass(frozen=True)
class AgentTiming:
    """One line.

    Attributes:
        subject: what it is about: `pod` (namespace/name), `snapshot`, `content`, `content_uid`,
            as far as it says.
        phases: name and seconds, in order; `agent_unaccounted` last, if told.
        unknown: names of the agent that are not known here.
        line: all of it, as it was logged.
    """

    act: Act
    subject: Mapping[str, str]
    duration_s: float
    phases: tuple[tuple[str, float], ...]
    unknown: tuple[str, ...]
    line: str


@dataclass(frozen=True)
class ParsedLog:
    """What a log has of timings.

    Attributes:
        unread: lines of timings that could not be read, as they are.
    """

    timings: tuple[AgentTiming, ...]
    unread: tuple[str, ...]

    def find(self, act: Act, **subject: str) -> AgentTiming | None:
        """The last line about something; one that does not say what it is about is nobody's."""
        for timing in reversed(self.timings):
            if timing.act is act and subject.items() <= timing.subject.items():
                return timing
        return None


def parse_log(text: str) -> ParsedLog:
    """Read a log, or any part of one."""
    timings: list[AgentTiming] = []
    unread: list[str] = []
    for line in text.splitlines():
        if MARK not in line:
            continue
        timing = _parse_line(line)
        if timing is None:
            unread.append(line[:MAX_LINE])
        else:
            timings.append(timing)
    return ParsedLog(tuple(timings), tuple(unread))


def _parse_line(line: str) -> AgentTiming | None:
    preamble, brace, rest = line.partition("{")
    act = next((act for act in Act if f"{act.value.capitalize()} {MARK}" in preamble), None)
    if act is None or not brace or len(line) > MAX_LINE:
        return None
    try:
        found = object_of(strict_json.loads(brace + rest))
    except ValueError:
        return None
    body = object_of(found.get(act.value))
    duration_s = go_duration_s(body.get("duration"))
    phases = _phases(act, object_of(body.get("phases")))
    if duration_s is None or phases is None:
        return None
    subject = {
        name: text_of(found.get(name))
        for name in ("pod", "snapshot", "content", "content_uid")
        if text_of(found.get(name))
    }
    known = PHASES[act].keys() | {_UNACCOUNTED}
    unknown = tuple(sorted(object_of(body.get("phases")).keys() - known))
    return AgentTiming(act, subject, duration_s, phases, unknown, line)


def _phases(act: Act, told: Mapping[str, Any]) -> tuple[tuple[str, float], ...] | None:
    """The phases in order; None where one of them is no duration."""
    names = PHASES[act]
    order = [name for name in names if name in told]
    order += sorted(told.keys() - names.keys() - {_UNACCOUNTED})
    order += [_UNACCOUNTED] if _UNACCOUNTED in told else []
    found: list[tuple[str, float]] = []
    for name in order:
        seconds = go_duration_s(told[name])
        if seconds is None:
            return None
        ours = UNACCOUNTED if name == _UNACCOUNTED else names.get(name, f"agent_{name}"[:200])
        found.append((ours, seconds))
    return tuple(found)
