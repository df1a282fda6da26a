"""Running one target over bad input, with a limit of time for each.

What belongs here: the loop, its limits, and what counts as a problem. What does not: what the
input is of (`targets`).
"""

from __future__ import annotations

import contextlib
import hashlib
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from benchmarks.fuzz.mutation import Form, mutate
from resilience_pipelines.errors import ResilienceError

TIME_LIMIT_S: Final = 5.0
MEMORY_LIMIT_BYTES: Final = 1 << 30
"""How much a target may let the process grow, over all of its inputs."""


class WrongAcceptanceError(Exception):
    """An input was accepted, and what came of it is not what the input says."""


class HangError(BaseException):
    """An input took too long. No `Exception`, so that nobody on the way swallows it."""


@dataclass(frozen=True)
class Target:
    """One reader of something from outside.

    Attributes:
        seeds: good inputs.
        check: reads one input. Raises a `ResilienceError` to refuse it; returns whether it was
            taken, after having looked that it means what it says.
        cost: how many inputs of an ordinary target one of this costs in time.
    """

    name: str
    seeds: tuple[bytes, ...]
    check: Callable[[bytes], bool]
    form: Form
    cost: int = 1


@dataclass(frozen=True)
class Problem:
    """An input that was neither taken for what it is nor refused.

    Attributes:
        index: with the seed, it makes the input again.
    """

    target: str
    index: int
    kind: str
    detail: str


@dataclass(frozen=True)
class Round:
    """What came of a target's inputs. `digest` is over all of them: equal seeds give equal ones."""

    target: str
    inputs: int
    accepted: int
    refused: int
    problems: tuple[Problem, ...]
    slowest_s: float
    grown_bytes: int
    digest: str

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def make_input(target: Target, seed: int, index: int) -> bytes:
    """The input of a seed and a number; the first ones are the good inputs themselves."""
    if index < len(target.seeds):
        return target.seeds[index]
    return mutate(Random(f"{seed}:{target.name}:{index}"), target.seeds, target.form)


def run_round(
    target: Target, inputs: int, seed: int, *, started: Callable[[int], None] = lambda _: None
) -> Round:
    """Give a target so many inputs.

    Args:
        started: is told the number of each input before it is read.
    """
    counts: Counter[str] = Counter()
    problems: list[Problem] = []
    slowest_s = 0.0
    digest = hashlib.sha256()
    before = _peak_bytes()
    for index in range(inputs):
        content = make_input(target, seed, index)
        digest.update(content)
        started(index)
        begin = time.monotonic()
        try:
            with _time_limit(TIME_LIMIT_S):
                taken = target.check(content)
            counts["accepted" if taken else "refused"] += 1
            if index < len(target.seeds) and not taken:
                problems.append(Problem(target.name, index, "refusal", "a good input was refused"))
        except ResilienceError as error:
            counts["refused"] += 1
            if index < len(target.seeds):
                problems.append(Problem(target.name, index, "refusal", str(error)[:500]))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic of a library is no `Exception`
            problems.append(Problem(target.name, index, type(error).__name__, _where(error)))
        slowest_s = max(slowest_s, time.monotonic() - begin)
    grown = _peak_bytes() - before
    if grown > MEMORY_LIMIT_BYTES:
        problems.append(Problem(target.name, -1, "memory", f"grew by {grown >> 20} MiB"))
    return Round(
        target.name, inputs, counts["accepted"], counts["refused"], tuple(problems),
        round(slowest_s, 4), grown, digest.hexdigest()[:16],
    )  # fmt: skip


def _where(error: BaseException) -> str:
    """The error and the last places of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "resilience_pipelines" in frame.filename][-2:]
    places = ", ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in ours)
    return f"{str(error)[:300]} at {places or 'the target'}"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def _time_limit(limit_s: float) -> Iterator[None]:
    """End what takes longer. A timer that runs already (of a test, say) goes on afterwards."""

    def end(*_: object) -> None:
        raise HangError(f"more than {limit_s:g} s")

    begin = time.monotonic()
    handler = signal.signal(signal.SIGALRM, end)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left_s - time.monotonic() + begin))
