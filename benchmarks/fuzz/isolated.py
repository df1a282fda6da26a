"""One target in a process of its own, so that a crash of a library ends nothing else.

What belongs here: that process. What does not: what it does there (`engine`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fuzz.engine import Problem, Round, Target, run_round
from benchmarks.fuzz.targets import all_targets

DEADLINE_S = 1800.0


def _run(name: str, inputs: int, seed: int, at: Any, pipe: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = _named(Path(folder), name)

        def started(index: int) -> None:
            at.value = index

        pipe.send(run_round(target, max(1, inputs // target.cost), seed, started=started))


def _named(folder: Path, name: str) -> Target:
    return next(target for target in all_targets(folder) if target.name == name)


def fuzz(name: str, inputs: int, seed: int) -> Round:
    """One target in a process of its own."""
    context = multiprocessing.get_context("spawn")
    at = context.Value("q", -1)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(name, inputs, seed, at, theirs))
    process.start()
    theirs.close()
    found: Round | None = None
    # A process that ends without an answer closes its end.
    with contextlib.suppress(EOFError):
        if ours.poll(DEADLINE_S):
            found = ours.recv()
    if found is None and process.is_alive():
        process.terminate()
    process.join()
    if found is not None:
        return found
    problem = Problem(name, at.value, "crash", f"the process ended with {process.exitcode}")
    return Round(name, max(0, at.value), 0, 0, (problem,), 0.0, 0, "")
