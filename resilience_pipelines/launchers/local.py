"""The local launcher: a job in a process of its own on this machine.

What belongs here: starting `job.py`, passing its events on, ending it. What does not: what the job
does, and how events are shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from resilience_pipelines import job_environment
from resilience_pipelines.errors import DeadlineError
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import JobSpec
from resilience_pipelines.launchers.launcher import (
    JobError,
    JobResult,
    parse_event,
    tell_progress,
    texts,
)
from resilience_pipelines.startup.benchmark import Progress

_END_DEADLINE_S = 60.0
"""After SIGTERM: an experiment undoes its fault and what was found is landed."""
_STDERR_LINES_KEPT = 50


def run_local(
    spec: JobSpec,
    home: Home,
    progress: Progress,
    *,
    deadline_s: float = 6 * 3600.0,
    told: Mapping[str, str] | None = None,
) -> JobResult:
    """Run a job to its end.

    Args:
        told: variables of `job_environment`, beside or in the place of those of a local job.

    Raises:
        JobError: with the job's own reason and exit code.
        DeadlineError: it took longer than `deadline_s` and was ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "resilience_pipelines.job", "--home", str(home.root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {job_environment.LAUNCHED_BY: "local"} | dict(told or {}),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stderr is not None
    errors: deque[str] = deque(maxlen=_STDERR_LINES_KEPT)
    reader = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    reader.start()
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _end(process)

    timer = threading.Timer(deadline_s, expire)
    timer.daemon = True
    timer.start()
    try:
        process.stdin.write(spec.model_dump_json())
        process.stdin.close()
        last = _follow(process, progress)
        process.wait(_END_DEADLINE_S)
    finally:
        timer.cancel()
        _end(process)
        reader.join(1.0)
    if expired.is_set():
        kept = f" What it had measured is in {last['folder']}." if "folder" in last else ""
        raise DeadlineError(f"The job did not end within {deadline_s:g} s and was ended.{kept}")
    return _result(last, process.returncode, "".join(errors))


def _follow(process: subprocess.Popen[str], progress: Progress) -> dict[str, object]:
    assert process.stdout is not None
    last: dict[str, object] = {}
    for line in process.stdout:
        event = parse_event(line)
        if event is not None and not tell_progress(event, progress):
            last = event
    return last


def _result(last: dict[str, object], code: int, errors: str) -> JobResult:
    if last.get("event") == "landed":
        return JobResult(str(last["run_id"]), Path(str(last["folder"])), texts(last, "unsupported"))
    if last.get("event") == "error":
        raise JobError(str(last["reason"]), mend=str(last["mend"]), exit_code=code)
    raise JobError(f"The job ended with exit code {code} and no result.\n{errors}".rstrip())


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM, which lets the job end its workers, then SIGKILL, which ends them all the same."""
    steps: tuple[Callable[[], None], ...] = (process.terminate, process.kill)
    for step in steps:
        if process.poll() is not None:
            return
        step()
        try:
            process.wait(_END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            continue
