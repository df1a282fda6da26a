"""A week of a fleet in minutes: does the platform keep up, and what does it take.

    python benchmarks/fleet.py [--gpus 1000] [--days 7] [--seconds-per-day 45] [--samples 20]
        [--stacks 20] [--seed 1]

Every GPU of the fleet is measured once a day, so a day brings as many runs as there are GPUs:
start-up runs of one start of each arm, with samples, and one run in twenty of faults. A process of
its own lands them evenly over the accelerated day, labelled simulated. Beside it the platform goes
round, as its sensors would have it: evaluate the sensors, load, build with dbt, publish, write the
dashboard, each command in a process of its own, measured.

One JSON object: for each round the seconds and the largest memory of each step, how many runs were
landed and not published at its end (backlog), and how long the oldest of them had waited when it
was published (latency). Exit code 1: at the end the published runs are not those that were landed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scale import FAULTS_EVERY, measured, samples_of, stacks, write
from resilience_pipelines.home import ENVIRONMENT_VARIABLE, Home, open_home
from resilience_pipelines.warehouse.landing import find_landings
from tests.factories import RecordFactory

DAY_S: Final = 86_400
SENSORS: Final = ("new_landing_folders", "new_releases")
WRITER_DEADLINE_S: Final = 3600.0


@dataclass
class Round:
    """One time round: what was landed before, when it was published, and what it took."""

    landed: int
    published: int = 0
    backlog: int = 0
    latency_s: float = 0.0
    steps: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Replay, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--seconds-per-day", type=float, default=45.0)
    parser.add_argument("--samples", type=int, default=20, help="of each start-up run")
    parser.add_argument("--stacks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-into", type=Path, help="only land, into this landing zone")
    parser.add_argument("--sensors-of", type=Path, help="only evaluate, for each line of input")
    options = parser.parse_args()
    if options.sensors_of:
        evaluate_sensors(Home(options.sensors_of))
        return 0
    if options.write_into:
        land_the_week(options)
        return 0
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        home = open_home(folder)
        os.environ[ENVIRONMENT_VARIABLE] = str(home.root)
        with sensors(home) as evaluate:
            report = replay(home, options, evaluate)
    print(json.dumps(report, indent=1))
    return 0 if report["exact"] else 1


def land_the_week(options: argparse.Namespace) -> None:
    """Land all runs, each at its time; one that comes late is landed at once."""
    chain = stacks(options.stacks)
    random = np.random.default_rng(options.seed)
    runs = options.gpus * options.days
    begin = time.monotonic()
    for index in range(runs):
        # A factory's seed is also its clock: runs are spread over the week.
        factory = RecordFactory(options.seed + index * options.days * DAY_S // runs)
        stack = chain[index % options.gpus * len(chain) // options.gpus]
        if index % FAULTS_EVERY == FAULTS_EVERY - 1:
            record, frame = factory.fault_record(1, stack=stack), None
        else:
            record = factory.startup_record(1, stack=stack)
            frame = samples_of(record, options.samples, random)
        due = begin + index * options.seconds_per_day / options.gpus
        time.sleep(max(0.0, due - time.monotonic()))
        write(options.write_into, record, frame)


def replay(
    home: Home, options: argparse.Namespace, evaluate: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Go round until everything that was landed is published."""
    command = [
        sys.executable, __file__, "--write-into", str(home.landing),
        *(f"--{name}={getattr(options, name.replace('-', '_'))}"
          for name in ("gpus", "days", "seconds-per-day", "samples", "stacks", "seed")),
    ]  # fmt: skip
    rounds: list[Round] = []
    landed_at: dict[str, float] = {}
    published: set[str] = set()
    writer = subprocess.Popen(command)
    begin = time.monotonic()
    try:
        while True:
            ended = writer.poll() is not None
            see(home, landed_at)
            if len(landed_at) == len(published):
                if ended:
                    break
                time.sleep(0.2)
                continue
            if time.monotonic() - begin > WRITER_DEADLINE_S:
                raise TimeoutError(f"the week took longer than {WRITER_DEADLINE_S:g} s")
            this = Round(landed=len(landed_at))
            this.steps["sensors"] = evaluate()
            this.steps["load"] = measured(home.root, "load", str(home.landing), "--no-build")
            this.steps["load and dbt"] = measured(home.root, "load", str(home.landing))
            this.steps["publish"] = measured(home.root, "publish")
            now = time.monotonic()
            new = published_runs(home) - published
            published |= new
            this.steps["dashboard"] = measured(home.root, "dashboard")
            see(home, landed_at)
            # One that was landed and loaded between two looks waited no longer than from the first.
            this.latency_s = round(max(now - landed_at[name] for name in new), 1)
            this.published, this.backlog = len(published), len(landed_at) - len(published)
            rounds.append(this)
            print(json.dumps(this.__dict__), file=sys.stderr)
    finally:
        writer.kill()
        code = writer.wait(60)
    runs = options.gpus * options.days
    found = {folder.name for folder in find_landings(home.landing)}
    return {
        "basis": "simulated",
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "gpus": options.gpus,
        "days": options.days,
        "runs": runs,
        "samples_of_a_run": options.samples,
        "acceleration": round(DAY_S / options.seconds_per_day),
        "seconds": round(time.monotonic() - begin, 1),
        "largest_backlog": max(item.backlog for item in rounds),
        "longest_latency_s": max(item.latency_s for item in rounds),
        "largest_memory_mib": {
            step: max(item.steps[step]["peak_mib"] for item in rounds) for step in rounds[0].steps
        },
        "longest_step_s": {
            step: max(item.steps[step]["seconds"] for item in rounds) for step in rounds[0].steps
        },
        "rounds": [item.__dict__ for item in rounds],
        "exact": code == 0 and published == found and len(found) == runs,
    }


def see(home: Home, landed_at: dict[str, float]) -> None:
    """Note when landing folders were seen first."""
    now = time.monotonic()
    for folder in find_landings(home.landing):
        landed_at.setdefault(folder.name, now)


def published_runs(home: Home) -> set[str]:
    """The runs that analysts see."""
    with duckdb.connect(str(home.published), read_only=True) as connection:
        rows = connection.execute("select run_id from runs").fetchall()
    assert len(rows) == len(set(rows)), "a run is there twice"
    return {name for (name,) in rows}


@contextmanager
def sensors(home: Home) -> Iterator[Callable[[], dict[str, Any]]]:
    """Evaluates the sensors that look at the data home, in a process that has imported them.

    This one stays small: what it starts counts its memory as its own.
    """
    process = subprocess.Popen(
        [sys.executable, __file__, "--sensors-of", str(home.root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def evaluate() -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        print(file=process.stdin, flush=True)
        found: dict[str, Any] = json.loads(process.stdout.readline())
        return found

    try:
        evaluate()  # the first one makes Dagster's tables
        yield evaluate
    finally:
        process.kill()
        process.communicate(timeout=60)


def evaluate_sensors(home: Home) -> None:
    """Answer each line of standard input with what evaluating took."""
    import dagster as dg

    from resilience_pipelines.dagster_io.instance import open_instance
    from resilience_pipelines.dagster_io.resources import HomeResource
    from resilience_pipelines.definitions import defs

    for _ in sys.stdin:
        begin = time.monotonic()
        with open_instance(home) as instance:
            for name in SENSORS:
                with dg.build_sensor_context(
                    instance=instance,
                    repository_def=defs.get_repository_def(),
                    resources={"home": HomeResource()},
                ) as context:
                    defs.resolve_sensor_def(name).evaluate_tick(context)
        took = round(time.monotonic() - begin, 2)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"seconds": took, "peak_mib": peak}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
