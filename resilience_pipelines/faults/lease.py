"""A lease: something outside of a worker's space that is undone also when this process is killed.

What belongs here: a watchdog process that holds one end of a pipe and undoes a thing when the other
end is closed, by whatever event. What does not: what ends with a space anyway.
"""

from __future__ import annotations

import contextlib
import subprocess

from resilience_pipelines.errors import DeadlineError, ResilienceError

# `cat` ends when the owner closes its end of the pipe or dies.
_WAIT = "cat > /dev/null 2>&1\n"


class Lease:
    """Runs a shell script once, when released or when this process ends.

    The watchdog has a session of its own, so that signals to this process's group don't end it.

    Args:
        what: the thing, in words, for an error.
        undo: POSIX shell; exit status 0 says that the thing is undone. Its arguments are `$1` f.
    """

    def __init__(self, what: str, undo: str, *arguments: str) -> None:
        self._what = what
        self._watchdog = subprocess.Popen(
            ["sh", "-c", _WAIT + undo, "lease", *arguments],
            # No pipe to this process: writing to it once this one is dead would end the watchdog.
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/",
        )  # fmt: skip
        self._released = False

    def release(self, deadline_s: float) -> None:
        """Undo the thing now, and wait until it is undone. A second call does nothing.

        Raises:
            DeadlineError: it took longer. The watchdog goes on trying.
            ResilienceError: the script failed.
        """
        if self._released:
            return
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._watchdog.stdin.close()
        try:
            code = self._watchdog.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(
                f"{self._what} was not undone within {deadline_s:g} s.",
                mend=f"Process {self._watchdog.pid} goes on trying.",
            ) from error
        self._released = True
        if code != 0:
            raise ResilienceError(f"{self._what} could not be undone (status {code}).")
