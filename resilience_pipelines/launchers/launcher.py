"""A launcher: what runs a job somewhere and says where its record is.

What belongs here: what every launcher takes, gives and raises, and the events of a job. What does
not: one place to run a job (`local`, `kubernetes`), and choosing it (`choice`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from resilience_pipelines import strict_json
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import JobSpec
from resilience_pipelines.startup.benchmark import Progress


class JobError(ResilienceError):
    """The job reported an error, or ended without a result."""

    def __init__(self, reason: str, *, mend: str = "", exit_code: int = 1) -> None:
        super().__init__(reason, mend=mend)
        self.exit_code = exit_code  # type: ignore[misc]


@dataclass(frozen=True)
class JobResult:
    """Where a finished job put its record.

    Attributes:
        unsupported: parts of what was asked that the machine can't do, and why.
        notices: what the launcher could not do as asked, or found on its way.
    """

    run_id: str
    folder: Path
    unsupported: dict[str, str]
    notices: tuple[str, ...] = ()


Launch = Callable[[JobSpec, Home, Progress], JobResult]
"""Runs a job to its end. Raises `JobError` with the job's own reason, and other errors of ours."""


def parse_event(line: str) -> dict[str, object] | None:
    """The event that a line of the job's output is; None for a library's own words."""
    try:
        event = strict_json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def tell_progress(event: dict[str, object], progress: Progress) -> bool:
    """Pass an event on if it is about progress; returns whether it was."""
    what, done, total = event.get("what"), event.get("done"), event.get("total")
    if event["event"] != "progress" or not isinstance(done, int) or not isinstance(total, int):
        return False
    progress(str(what), done, total)
    return True


def texts(event: dict[str, object], name: str) -> dict[str, str]:
    """A field of an event that holds texts by name."""
    found = event.get(name)
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
