"""What the worker tells its host: JSON lines on standard output.

What belongs here: writing events and start-up phases. What does not: what is worth an event. The
reader decides nothing about the worker's life: one that is slow or gone loses lines, and no more.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time

STDOUT = 1


class Events:
    """Writes events to a file descriptor and never waits for its reader.

    Its flags stay as they are, because other processes may share it.
    """

    def __init__(self, descriptor: int = STDOUT) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def report(self, event: str, **facts: object) -> bool:
        """Write one line; False if it was lost: reader slow or gone, or the line too long."""
        line = json.dumps({"event": event, **facts}).encode() + b"\n"
        # A pipe that is ready takes this many bytes at once; more could wait for its reader.
        if len(line) > select.PIPE_BUF:
            return False
        with self._lock:
            ready = self._poll.poll(0)
            if not ready or not ready[0][1] & select.POLLOUT:
                return False
            try:
                return os.write(self._descriptor, line) == len(line)
            except OSError:
                return False


class Phases:
    """Reports consecutive phases: each begins where the one before it ended.

    Args:
        start_ns: CLOCK_MONOTONIC where the first one began, in nanoseconds.
    """

    def __init__(self, events: Events, start_ns: int) -> None:
        self._events = events
        self._start_ns = start_ns

    def end(self, name: str) -> None:
        """End the current phase, which is thereby called `name`."""
        now_ns = time.monotonic_ns()
        self._events.report("phase", name=name, start_ns=self._start_ns, end_ns=now_ns)
        self._start_ns = now_ns
