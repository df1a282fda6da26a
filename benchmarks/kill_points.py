"""Killing a step of the platform at a point of its code, without a hook in that code.

What belongs here: the points of a step, and running a step in a process that kills itself (SIGKILL)
at one of them. What does not: which steps there are and what must hold afterwards.

A point is a boundary of a call that the product makes: just before it, or just after it, of the
n-th such call. The interpreter tells them (`sys.setprofile`), so a list of points is what a step
really does and not what somebody thought of. Steps run in forks of a process that has imported the
product and done nothing with it, since a fork of one with threads would hang.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import FrameType
from typing import Any, Final

import resilience_pipelines

PRODUCT: Final = str(Path(resilience_pipelines.__file__).parent) + os.sep
DEADLINE_S: Final = 120.0

Step = Callable[[Path, int], None]
"""What is run: on a data home, with a seed. Defined at the top level of a module."""


@dataclass(frozen=True, order=True)
class Point:
    """A place in the code: `caller` is just about to call `callee`, or has just called it."""

    caller: str
    callee: str
    after: bool

    def __str__(self) -> str:
        return f"{self.caller}: {'after' if self.after else 'before'} {self.callee}"


@dataclass(frozen=True)
class End:
    """How a step ended: by itself, by an error, or killed where it was to be."""

    killed: bool
    error: str | None


class Watch:
    """Sees every point of this thread; kills this process at the n-th visit of one."""

    def __init__(self, victim: Point | None = None, visit: int = 1) -> None:
        self.visits: Counter[Point] = Counter()
        self._victim = victim
        self._left = visit

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take one event of the interpreter."""
        if event.startswith("c_"):
            caller: FrameType | None = frame
            callee = getattr(argument, "__qualname__", None) or repr(argument)
        else:
            caller = frame.f_back
            callee = frame.f_code.co_qualname
        if caller is None or not caller.f_code.co_filename.startswith(PRODUCT):
            return
        module = caller.f_code.co_filename.removeprefix(PRODUCT).removesuffix(".py")
        point = Point(
            f"{module}.{caller.f_code.co_qualname}",
            callee,
            event in ("return", "c_return", "c_exception"),
        )
        self.visits[point] += 1
        if point == self._victim:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Runner:
    """Runs steps in forks, one at a time or several at once.

    Args:
        preload: modules that each fork has imported already.
    """

    def __init__(self, preload: list[str]) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(preload)

    def points(self, step: Step, home: Path, seed: int) -> Counter[Point]:
        """Run a step to its end; how often it visited which point.

        Raises:
            RuntimeError: it failed, or ended too late.
        """
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_record, args=(step, home, seed, sender))
        process.start()
        sender.close()
        try:
            if not receiver.poll(DEADLINE_S):
                raise RuntimeError(f"{step.__name__} took longer than {DEADLINE_S:g} s")
            found: Counter[Point] | str = receiver.recv()
        except EOFError:
            raise RuntimeError(f"{step.__name__} ended without a word") from None
        finally:
            _end(process)
        if isinstance(found, str):
            raise RuntimeError(f"{step.__name__} failed: {found}")
        return found

    def run(
        self,
        step: Step,
        home: Path,
        seed: int,
        victim: Point | None = None,
        visit: int = 1,
        kill_after_s: float | None = None,
    ) -> End:
        """Run a step, and kill it at a point or after a time; how it ended."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_perform, args=(step, home, seed, victim, visit, sender)
        )
        process.start()
        sender.close()
        process.join(DEADLINE_S if kill_after_s is None else kill_after_s)
        late = process.is_alive()
        _end(process)
        if late and kill_after_s is None:
            return End(False, f"it took longer than {DEADLINE_S:g} s")
        if process.exitcode == -signal.SIGKILL:
            return End(True, None)
        try:
            said = receiver.recv() if receiver.poll(0) else "it ended without a word"
        except EOFError:
            said = f"it ended with {process.exitcode}"
        return End(False, said or None)


def _end(process: multiprocessing.process.BaseProcess) -> None:
    if process.is_alive():
        process.join(0.5)
    if process.is_alive():
        process.kill()
    process.join(DEADLINE_S)


def _record(step: Step, home: Path, seed: int, sender: Any) -> None:
    watch = Watch()
    try:
        sys.setprofile(watch)
        try:
            step(home, seed)
        finally:
            sys.setprofile(None)
    except Exception as error:  # noqa: BLE001 - it is told to the other process
        sender.send(f"{type(error).__name__}: {error}")
    else:
        sender.send(watch.visits)


def _perform(
    step: Step, home: Path, seed: int, victim: Point | None, visit: int, sender: Any
) -> None:
    try:
        if victim is not None:
            sys.setprofile(Watch(victim, visit))
        try:
            step(home, seed)
        finally:
            sys.setprofile(None)
    except Exception as error:  # noqa: BLE001 - it is told to the other process
        sender.send(f"{type(error).__name__}: {error}")
    else:
        sender.send("")
