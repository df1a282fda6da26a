"""Kills the platform at every point of its code that writes, and looks what is lost or left.

    python benchmarks/platform_crashes.py --rounds 600 [--seed 1] [--steps land load ...]

One data home lives through all rounds. A round takes a step (making a data home, landing a run,
loading, replacing the side tables, publishing, writing the dashboard, deciding, importing figures,
recording a launch, storing a snapshot) and kills it with SIGKILL at one point: before or after one
call that the product makes there (`kill_points`). Every point that a step has is hit before one is
hit again; in every fifth round the kill comes at a random moment instead, which may lie inside
DuckDB. Then the platform starts again, and:

- each run that was said to be landed is there, whole, and loaded exactly once: counts of every raw
  table are those of the landing folders; what was decided, imported, recorded and stored is there;
- the published file is whole, and shows what it showed;
- nothing is left: no process, no temporary file, no folder of a killed writer.

Now and then, and at the end, whoever builds the marts with dbt is killed at three moments; then
they are built in peace, published, and compared with the landing folders too.

Exit code 1: one of these did not hold. Nothing here is measured: records are labelled simulated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kill_points import Point, Runner, Step
from benchmarks.snapshot_crashes import make_snapshot
from resilience_pipelines.baselines.baseline import Baseline
from resilience_pipelines.baselines.keep import keep, read_imported
from resilience_pipelines.dashboards import write_dashboard
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.launches import LaunchRecord, read_launches, write_launch
from resilience_pipelines.records import Basis, RunKind, RunRecord
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.trends.decisions import Choice, decide, decisions
from resilience_pipelines.warehouse.landing import (
    INCOMING,
    clean_incoming,
    find_landings,
    read_landing,
)
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.transform import build
from tests.factories import RecordFactory, land, make_stack

PRELOAD: Final = ["benchmarks.platform_crashes"]
MOMENTS: Final = datetime(2026, 1, 1, tzinfo=UTC)
TIMED_EVERY: Final = 5
TELL_EVERY: Final = 50
BUILD_EVERY: Final = 150
BUILD_KILLS: Final = (0.5, 3.0, 8.0)
"""Seconds after which a build is killed: while it migrates, while dbt reads, while dbt writes."""
NEED_MARTS: Final = frozenset({"publish", "dashboard"})
LOOK_AFTER_THEIR_OWN: Final = frozenset({"publish", "dashboard", "new_home"})
WRITES_PAGE: Final = ("dashboards/pages.write_dashboard", "dashboards/pages._replace", "durability")
PROCESS_END_S: Final = 20.0


# Steps. Each writes a file into `said` once the product has returned, which is its promise.


def step_land(root: Path, seed: int) -> None:
    """A job's last act."""
    record, factory = record_of(seed)
    samples = factory.samples(record) if record.startups else None
    land(Home(root).landing, record, samples=samples, evidence={"a.log": b"a", "b.log": b"b" * 99})
    say(root, "landed", record.run_id)


def step_new_home(root: Path, seed: int) -> None:
    """Make a data home, land and load its first run; whoever does it goes on where it stands."""
    home = open_home(root.parent / "new")
    if not any(find_landings(home.landing)):
        land(home.landing, record_of(seed)[0])
    clean_incoming(home.landing, older_than_s=0.0)
    load(home)
    wanted = expected_counts(home)
    wanted["samples"] = 0
    assert wanted["runs"] == 1
    assert counts_of(home.warehouse, "raw", wanted) == wanted
    assert leftovers(home) == []
    done = root.parent / f"done-{seed}"
    home.root.rename(done)
    shutil.rmtree(done)


def step_load(root: Path, _: int) -> None:
    """Load what is new."""
    load(Home(root))


def step_side_tables(root: Path, _: int) -> None:
    """Replace the side tables."""
    load_side_tables(Home(root))


def step_publish(root: Path, _: int) -> None:
    """Publish the marts, also as Parquet files."""
    publish(Home(root), parquet=True)


def step_dashboard(root: Path, _: int) -> None:
    """Write the page."""
    home = Home(root)
    write_dashboard(home.published, home.dashboard)


def step_decide(root: Path, seed: int) -> None:
    """Keep a decision."""
    change = f"{seed:012x}"
    decide(Home(root), change, Choice.NOTED, "looked at", "somebody")
    say(root, "decided", change)


def step_import(root: Path, seed: int) -> None:
    """Import somebody's figure."""
    figure = Baseline(
        source="somebody", product="engine", figure="startup", value=1 + seed, unit="s",
        statistic="single",
    )  # fmt: skip
    keep(Home(root), [figure])
    say(root, "imported", figure.baseline_id)


def step_launch(root: Path, seed: int) -> None:
    """Record a launch elsewhere."""
    run_id = RecordFactory(seed).run_id(RunKind.STARTUP)
    moment = MOMENTS + timedelta(seconds=seed)
    record = LaunchRecord(
        run_id=run_id, launcher="kubernetes", worker="reference", basis=Basis.SIMULATED,
        launched_at=moment, ended_at=moment, landed=True, namespace="n", job_name="j",
    )  # fmt: skip
    write_launch(Home(root), record, {"pod.log": "ready\n"})
    say(root, "launched", run_id)


def step_store(root: Path, seed: int) -> None:
    """Put a snapshot into the store."""
    chance = random.Random(seed)
    store = SnapshotStore(Home(root).snapshots)
    snapshot = make_snapshot(
        store, MOMENTS + timedelta(seconds=seed), "1", [chance.randbytes(9_000) for _ in range(3)]
    )
    say(root, "stored", snapshot.manifest.snapshot_id)


def step_build(root: Path, _: int) -> None:
    """Build the marts with dbt."""
    build(Home(root))


STEPS: Final[dict[str, Step]] = {
    "new_home": step_new_home,
    "land": step_land,
    "load": step_load,
    "side_tables": step_side_tables,
    "publish": step_publish,
    "dashboard": step_dashboard,
    "decide": step_decide,
    "import": step_import,
    "launch": step_launch,
    "store": step_store,
}


def record_of(seed: int) -> tuple[RunRecord, RecordFactory]:
    """The run of a seed; two of three are start-ups."""
    factory = RecordFactory(seed)
    stack = make_stack(kernel_version=f"6.{seed % 3}.0")
    if seed % 3 == 2:
        return factory.fault_record(1, stack=stack), factory
    return factory.startup_record(1, stack=stack), factory


def say(root: Path, what: str, name: str) -> None:
    """Write down what the product has promised."""
    folder = root.parent / "said" / what
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()


def said(root: Path, what: str) -> set[str]:
    """All promises of a kind."""
    folder = root.parent / "said" / what
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


# Checks. They raise what does not hold.


def check_kept(root: Path, _: int) -> None:
    """What must hold right after a kill, before anything is started again."""
    home = Home(root)
    problems = []
    landed = set()
    for folder in find_landings(home.landing):
        read_landing(folder)
        landed.add(folder.name)
    problems += [f"run {name} is lost" for name in said(root, "landed") - landed]
    kept: dict[str, Counter[str]] = {
        "decided": Counter(item.change_id for item in decisions(home)),
        "imported": Counter(
            figure.baseline_id for item in read_imported(home) for figure in item.baselines
        ),
        "launched": Counter(item.run_id for item in read_launches(home)),
        "stored": Counter(
            item.manifest.snapshot_id for item in SnapshotStore(home.snapshots).all()
        ),
    }
    for what, found in kept.items():
        problems += [f"{name} was {what} and is lost" for name in said(root, what) - found.keys()]
        problems += [f"{name} was {what} {n} times" for name, n in found.items() if n > 1]
    if home.published.exists():
        shown = json.loads((root.parent / "published.json").read_text())
        if (found_now := counts_of(home.published, "main", shown)) != shown:
            problems.append(f"the published file shows {found_now}, not {shown}")
    page = home.dashboard / "index.html"
    if page.exists() and not page.read_text().rstrip().endswith("</html>"):
        problems.append("the dashboard is cut")
    if problems:
        raise AssertionError("; ".join(problems))


def restart(root: Path, _: int) -> None:
    """What the platform does when it goes on, and what must hold afterwards."""
    home = open_home(root)
    clean_incoming(home.landing, older_than_s=0.0)
    store = SnapshotStore(home.snapshots)
    store.clean()
    for snapshot in store.all():
        store.verify(snapshot)
    rejected = load(home).rejected
    load_side_tables(home)
    problems = [f"rejected: {reason}" for _, reason in rejected]
    wanted = expected_counts(home)
    if (found := counts_of(home.warehouse, "raw", wanted)) != wanted:
        problems.append(f"raw tables hold {found}, not {wanted}")
    for path in leftovers(home):
        problems.append(f"{path} is left")
        path.unlink()  # the next round is to find its own
    if problems:
        raise AssertionError("; ".join(problems))


def check_marts(root: Path, _: int) -> None:
    """The published marts count what lies in the landing folders."""
    home = Home(root)
    raw = expected_counts(home)
    wanted = {mart: raw[table] for mart, table in MARTS.items()}
    wanted["startup_phases"] += raw["startups"]  # what no phase explains has a row too
    if (found := counts_of(home.published, "main", wanted)) != wanted:
        raise AssertionError(f"marts hold {found}, not {wanted}")
    (root.parent / "published.json").write_text(json.dumps(wanted))


MARTS: Final = {
    "runs": "runs",
    "startup_measurements": "startups",
    "startup_phases": "startup_phases",
    "snapshots": "snapshots",
    "fault_runs": "faults",
    "fault_detections": "fault_detections",
    "fault_events": "fault_events",
}


def expected_counts(home: Home) -> dict[str, int]:
    """Rows of the raw tables, from the landing folders."""
    wanted: Counter[str] = Counter(dict.fromkeys((*MARTS.values(), "evidence", "samples"), 0))
    for folder in find_landings(home.landing):
        record = json.loads((folder / "run.json").read_text())
        wanted["runs"] += 1
        wanted["evidence"] += len(record["evidence"])
        wanted["startups"] += len(record["startups"])
        wanted["snapshots"] += len(record["snapshots"])
        wanted["faults"] += len(record["faults"])
        wanted["startup_phases"] += sum(len(item["phases"]) for item in record["startups"])
        wanted["fault_detections"] += sum(len(item["detections"]) for item in record["faults"])
        wanted["fault_events"] += sum(len(item["events"]) for item in record["faults"])
        wanted["samples"] += 5 * len(record["startups"])
    return dict(wanted)


def counts_of(path: Path, schema: str, tables: dict[str, int]) -> dict[str, int]:
    """How many rows tables have."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return {
            table: connection.sql(f"select count(*) from {schema}.{table}").fetchall()[0][0]
            for table in tables
        }


def leftovers(home: Home) -> list[Path]:
    """What nobody will ever look at again."""
    kept = {home.landing / INCOMING}
    found = [path for path in home.root.rglob(".*") if path not in kept]
    return [*found, *home.work.iterdir(), *(home.root.rglob("*.tmp"))]


def processes_left(root: Path) -> list[str]:
    """Processes that know the data home, but for this one and its forks; waits for their end."""
    end = time.monotonic() + PROCESS_END_S
    while True:
        left = []
        for process in psutil.process_iter():
            try:
                knows = str(root) in (
                    *process.environ().values(), *process.cmdline(), process.cwd()
                )  # fmt: skip
                ours = process.pid == os.getpid()
                if knows and not ours and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"process {process.pid} ({' '.join(process.cmdline())[:80]})")
            except psutil.Error:
                continue
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)


# Rounds.


class Problems(list[str]):
    """What was found wrong, told as soon as it is found."""

    def add(self, *found: str) -> None:
        """Take in what was found."""
        for text in found:
            print(text, file=sys.stderr, flush=True)
        self += found


@dataclass
class Report:
    """What happened, and what was found wrong."""

    points: Counter[str]
    hit: Counter[str]
    ends: Counter[str]
    problems: Problems
    builds_killed: int = 0


def main() -> int:
    """Make a data home, kill, look, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--no-builds", action="store_true", help="kill no dbt (10 s and more each)")
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="platform-crashes-") as folder:
        report = run_rounds(
            Path(folder), options.rounds, random.Random(options.seed), options.steps,
            builds=not options.no_builds,
        )  # fmt: skip
    text = {
        "basis": "simulated",
        "rounds": options.rounds,
        "points": dict(sorted(report.points.items())),
        "points_hit": dict(sorted(report.hit.items())),
        "ends": dict(sorted(report.ends.items())),
        "builds_killed": report.builds_killed,
        "seconds": round(time.monotonic() - begin, 1),
        "problems": report.problems,
    }
    print(json.dumps(text, indent=1))
    return 1 if report.problems else 0


def run_rounds(
    folder: Path, rounds: int, chance: random.Random, steps: list[str], *, builds: bool
) -> Report:
    """All rounds on one data home."""
    runner = Runner(PRELOAD)
    root = folder / "home"
    open_home(root)
    seeds = iter(range(1, 10**6))

    def must(step: Step) -> None:
        end = runner.run(step, root, next(seeds))
        if end.error:
            raise RuntimeError(f"{getattr(step, '__name__', step)}: {end.error}")

    for step in (*[step_land] * 3, step_load, step_side_tables):
        must(step)
    marts = builds or not NEED_MARTS.isdisjoint(steps)
    if marts:
        for step in (step_build, step_publish, check_marts, step_dashboard):
            must(step)

    report = Report(Counter(), Counter(), Counter(), Problems())
    queue: list[tuple[str, Point, int]] = []
    durations = {}
    for name in steps:
        if name == "load":
            must(step_land)
            must(step_land)
        visits = points_on_a_copy(runner, STEPS[name], root, next(seeds))
        begin = time.monotonic()
        must(STEPS[name])
        durations[name] = time.monotonic() - begin
        if name == "dashboard":  # the rest of it computes, and writes nothing
            visits = Counter(
                {point: n for point, n in visits.items() if point.caller.startswith(WRITES_PAGE)}
            )
        report.points[name] = len(visits)
        queue += [(name, point, visits[point]) for point in sorted(visits)]
    chance.shuffle(queue)

    for number in range(rounds):
        label = f"round {number}"
        timed = number % TIMED_EVERY == TIMED_EVERY - 1
        if timed:
            name = chance.choice(steps)
        else:
            name, point, visits_of_it = queue[(number - number // TIMED_EVERY) % len(queue)]
        if name == "load":
            for _ in range(chance.randint(1, 3)):
                must(step_land)
        seed = next(seeds)
        if timed:
            moment = chance.uniform(0, durations[name])
            end = runner.run(STEPS[name], root, seed, kill_after_s=moment)
            label += f", {name}, killed after {moment:.3f} s"
        else:
            end = runner.run(STEPS[name], root, seed, point, chance.randint(1, visits_of_it))
            if not end.killed and end.error is None:  # fewer visits than on the copy
                end = runner.run(STEPS[name], root, next(seeds), point, 1)
            label += f", {name}, {point}"
            report.hit[name] += end.killed and number - number // TIMED_EVERY < len(queue)
        report.ends[f"{name}: {'killed' if end.killed else 'ended'}"] += 1
        if end.error:
            report.problems.add(f"{label}: {end.error}")
        # Only who writes these looks after what was left of them, and takes longer than the rest.
        again = (STEPS[name],) if name in LOOK_AFTER_THEIR_OWN else ()
        for check in (check_kept, *again, restart):
            if error := runner.run(check, root, next(seeds)).error:
                report.problems.add(f"{label}: {check.__name__}: {error}")
        if number % TELL_EVERY == TELL_EVERY - 1:
            print(f"{number + 1} rounds, {len(report.problems)} problems", file=sys.stderr)
        if builds and number % BUILD_EVERY == BUILD_EVERY - 1:
            report.builds_killed += kill_builds(runner, root, report, chance)
            report.problems.add(*in_peace(runner, root, label))
    if builds:
        report.builds_killed += kill_builds(runner, root, report, chance)
    if marts:
        report.problems.add(*in_peace(runner, root, "at the end"))
    return report


def points_on_a_copy(runner: Runner, step: Step, root: Path, seed: int) -> Counter[Point]:
    """The points of a step, on a data home that is thrown away."""
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="copy-") as other:
        copy = Path(other) / "home"
        shutil.copytree(root, copy)
        return runner.points(step, copy, seed)


def kill_builds(runner: Runner, root: Path, report: Report, chance: random.Random) -> int:
    """Kill whoever builds the marts at some moments; how many were killed."""
    killed = 0
    for moment in BUILD_KILLS:
        at = moment * chance.uniform(0.5, 1.5)
        killed += runner.run(step_build, root, 0, kill_after_s=at).killed
        label = f"build killed after {at:.1f} s"
        report.problems.add(*(f"{label}: {left} is left" for left in processes_left(root)))
        for check in (check_kept, restart_without_marts):
            if error := runner.run(check, root, 0).error:
                report.problems.add(f"{label}: {check.__name__}: {error}")
    return killed


def restart_without_marts(root: Path, _: int) -> None:
    """Load: a build that was killed may have left marts that nobody should publish."""
    home = Home(root)
    load(home)
    load_side_tables(home)


def in_peace(runner: Runner, root: Path, label: str) -> list[str]:
    """Build, publish and compare; what does not hold."""
    steps = (step_build, step_publish, check_marts, check_kept, restart)
    errors = {step.__name__: runner.run(step, root, 0).error for step in steps}
    problems = [f"{label}: {name}: {error}" for name, error in errors.items() if error]
    return problems + [f"{label}: {left} is left" for left in processes_left(root)]


if __name__ == "__main__":
    # Steps are looked up by the name of this module, which a fork has imported already.
    from benchmarks import platform_crashes

    sys.exit(platform_crashes.main())
