"""Following: threads that wait for news of a pod and of its log, and put them into one queue.

What belongs here: the two threads, and going on where a broken stream ended. What does not: what
news mean; whoever reads the queue looks at the job itself (`client.Cluster.look`).
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from resilience_pipelines.launchers.kubernetes.client import ApiLostError, Cluster

_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0


@dataclass(frozen=True)
class Changed:
    """Something about the pods has changed: look."""


@dataclass(frozen=True)
class LogLine:
    """One line of the job's output."""

    text: str


News = Changed | LogLine


class PodWatch:
    """Tells of changes to a run's pods. It only wakes: losing it costs time and no truth."""

    def __init__(self, cluster: Cluster, run_id: str, news: queue.Queue[News]) -> None:
        self._cluster = cluster
        self._run_id = run_id
        self._news = news
        self._stop = threading.Event()
        self._version = threading.Event()
        self._from = ""
        threading.Thread(target=self._run, name="pod watch", daemon=True).start()

    def after(self, version: str) -> None:
        """Whoever looked tells which version it saw; changes since then are told."""
        self._from = version
        self._version.set()

    def stop(self) -> None:
        """Tell nothing more. The thread ends at its next line or time-out."""
        self._stop.set()
        self._version.set()

    def _run(self) -> None:
        pause = _PAUSE_S
        while not self._stop.is_set():
            self._version.wait()
            self._version.clear()
            if self._stop.is_set():
                return
            try:
                poll_s = self._cluster.settings.deadlines.poll_s
                for _ in self._cluster.watch_pods(self._run_id, self._from, poll_s):
                    break  # one is enough: the look sees all, and says from where to go on
                pause = _PAUSE_S
            except ApiLostError as error:
                self._stop.wait(pause if error.pause_s is None else error.pause_s)
                pause = min(_LONGEST_PAUSE_S, 2 * pause)
            self._news.put(Changed())


class LogFollower:
    """Brings each line of a pod's log once, in order, over however many streams it takes."""

    def __init__(self, cluster: Cluster, pod: str, news: queue.Queue[News]) -> None:
        self._cluster = cluster
        self._pod = pod
        self._news = news
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._last: tuple[str, tuple[int, int]] | None = None
        self._seen_at_last = 0
        self._thread = threading.Thread(target=self._run, name="pod log", daemon=True)
        self._thread.start()

    def drain(self, deadline_s: float) -> None:
        """The container has ended: wait until its log has, but not for long."""
        self._ended.set()
        self._thread.join(deadline_s)
        self._stop.set()

    def _run(self) -> None:
        pause = _PAUSE_S
        while not self._stop.is_set():
            ended = self._ended.is_set()
            try:
                if self._read():
                    pause = _PAUSE_S
                if ended:
                    return  # this stream began after the end, and was read to its own
            except ApiLostError:
                if ended:
                    # `drain` says for how long; what is lost then is progress.
                    self._stop.wait(_PAUSE_S)
                    continue
            self._ended.wait(pause)
            pause = min(_LONGEST_PAUSE_S, 2 * pause)

    def _read(self) -> bool:
        """Read one stream to its end; returns whether it brought anything."""
        since = self._last
        to_skip = self._seen_at_last
        found = False
        lines = self._cluster.log(
            self._pod, since[0] if since else None, self._cluster.settings.deadlines.poll_s * 3
        )
        for line in lines:
            if self._stop.is_set():
                return found
            stamp, _, text = line.partition(" ")
            moment = _moment(stamp)
            if moment is None:
                continue
            # The server goes back to the whole second: what was there before is left out.
            if since is not None and moment < since[1]:
                continue
            if since is not None and moment == since[1] and to_skip > 0:
                to_skip -= 1
                continue
            found = True
            if self._last is not None and moment == self._last[1]:
                self._seen_at_last += 1
            else:
                self._last, self._seen_at_last = (stamp, moment), 1
            self._news.put(LogLine(text))
        return found


def _moment(stamp: str) -> tuple[int, int] | None:
    """Seconds and nanoseconds of a log's time stamp; None for a line that was cut."""
    head, _, tail = stamp.partition(".")
    digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
    offset = tail[len(digits) :] if tail else ""
    try:
        second = int(datetime.fromisoformat(head + offset).timestamp())
        return second, int(digits.ljust(9, "0")[:9]) if digits else 0
    except (ValueError, OverflowError):
        return None
