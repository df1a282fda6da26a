"""Fuzzing every reader of what comes from outside: no crash, no hang, nothing taken for another.

    python -m benchmarks.fuzz [--inputs 4000] [--seed 1] [--target NAME]... [--json]

Each target runs in a process of its own, so that a crash of a library is told with the input that
made it. Inputs come from the seed alone. Exits with 1 where there was a problem.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.fuzz.engine import Problem, Round, make_input
from benchmarks.fuzz.isolated import fuzz
from benchmarks.fuzz.targets import all_targets


def _show(rounds: list[Round], console: Console) -> None:
    table = Table("target", "inputs", "taken", "refused", "problems", "slowest, s", "grown, MiB")
    for item in rounds:
        table.add_row(
            item.target, f"{item.inputs:,}", f"{item.accepted:,}", f"{item.refused:,}",
            str(len(item.problems)), f"{item.slowest_s:.3f}", str(item.grown_bytes >> 20),
        )  # fmt: skip
    table.add_section()
    table.add_row(
        "all", f"{sum(r.inputs for r in rounds):,}", f"{sum(r.accepted for r in rounds):,}",
        f"{sum(r.refused for r in rounds):,}", str(sum(len(r.problems) for r in rounds)),
        f"{max(r.slowest_s for r in rounds):.3f}", "",
    )  # fmt: skip
    console.print(table)
    for item in rounds:
        kinds: dict[tuple[str, str], Problem] = {}
        for problem in item.problems:
            kinds.setdefault((problem.kind, problem.detail.rpartition(" at ")[2]), problem)
        for problem in list(kinds.values())[:10]:
            console.print(
                f"{problem.target} {problem.index}: {problem.kind}: {problem.detail}",
                markup=False, highlight=False,
            )  # fmt: skip


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=4000, help="of an ordinary target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", help="only these; all by default")
    parser.add_argument("--print", type=int, metavar="INDEX", help="print this input of --target")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        targets = all_targets(Path(folder))
        if options.print is not None:
            (name,) = options.target
            target = next(item for item in targets if item.name == name)
            sys.stdout.buffer.write(make_input(target, options.seed, options.print))
            return 0
        names = [item.name for item in targets if item.name in (options.target or [item.name])]
    rounds = [fuzz(name, options.inputs, options.seed) for name in names]
    if options.json:
        print(json.dumps({"seed": options.seed, "targets": [item.as_json() for item in rounds]}))
    else:
        _show(rounds, Console())
    return int(any(item.problems for item in rounds))


if __name__ == "__main__":
    sys.exit(main())
