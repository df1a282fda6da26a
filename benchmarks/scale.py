"""Scale: landing folders from a seed, and what loading, building and showing them takes.

    python benchmarks/scale.py [--runs 400] [--samples 25000] [--stacks 50] [--seed 1]
        [--copies 1] [--keep FOLDER]

Makes `--runs` start-up runs of `--samples` samples each, labelled simulated, on stacks that follow
one another; one run in twenty is of faults and has no samples. Then loads them, builds the marts,
publishes and writes the dashboard with the `resilience` command, each in a process of its own, and
prints one JSON object: seconds and the largest resident memory of any process of each step, and the
size of the page. With `--copies`, each run of the published file is then there as often, under
other names, and the dashboard is written again: more runs than can be made in a reasonable time.
Folders are written without waiting for the disk, as jobs do not, so that making them takes minutes
and not hours.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from resilience_pipelines.home import open_home
from resilience_pipelines.records import EvidenceFile, RunRecord
from resilience_pipelines.samples import SAMPLES_SCHEMA
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.landing import RUN_FILE, SAMPLES_FILE, landing_date
from tests.factories import RecordFactory, make_stack

FAULTS_EVERY = 20
SERIES = (("worker_resident_memory", "bytes", 1e9), ("worker_cpu", "s", 40.0))
DEADLINE_S = 3600.0
COPIED = (
    "runs", "startup_measurements", "snapshots", "snapshot_phases", "fault_runs",
    "fault_detections", "fault_events",
)  # fmt: skip


def stacks(count: int) -> list[Stack]:
    """Stacks of one machine that change in one dimension at a time."""
    return [
        make_stack(kernel_version=f"6.{1 + index // 2}.0", criu_version=f"4.{(index + 1) // 2}")
        for index in range(count)
    ]


def samples_of(record: RunRecord, count: int, random: np.random.Generator) -> pl.DataFrame:
    """`count` samples, spread over the starts of a run and over two series."""
    index = np.arange(count)
    subjects = np.array([item.measurement_id for item in record.startups])
    series = index % len(SERIES)
    return pl.DataFrame(
        {
            "subject": subjects[index * len(subjects) // count],
            "at_s": 0.01 * (index // len(SERIES)),
            "series": np.array([name for name, _, _ in SERIES])[series],
            "unit": np.array([unit for _, unit, _ in SERIES])[series],
            "value": np.array([level for _, _, level in SERIES])[series]
            * random.lognormal(0, 0.05, count),
        },
        schema=SAMPLES_SCHEMA,
    )


def write(landing: Path, record: RunRecord, samples: pl.DataFrame | None) -> None:
    """A landing folder as `LandingWriter` makes one, without its waits for the disk."""
    folder = landing / f"date={landing_date(record.run_id)}" / record.run_id
    folder.mkdir(parents=True)
    evidence: tuple[EvidenceFile, ...] = ()
    if samples is not None:
        path = folder / SAMPLES_FILE
        samples.write_parquet(path, compression="zstd")
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        evidence = (EvidenceFile(path=path.name, bytes=len(content), sha256=digest),)
    text = record.model_copy(update={"evidence": evidence}).model_dump_json(indent=1)
    (folder / RUN_FILE).write_text(text)


def generate(landing: Path, runs: int, samples: int, seed: int, stack_count: int) -> dict[str, int]:
    """Write all landing folders; returns how many of what they hold."""
    factory = RecordFactory(seed)
    random = np.random.default_rng(seed)
    chain = stacks(min(stack_count, runs))
    made = {"runs": 0, "starts": 0, "experiments": 0, "samples": 0}
    for index in range(runs):
        stack = chain[index * len(chain) // runs]
        of_faults = index % FAULTS_EVERY == FAULTS_EVERY - 1
        record = (
            factory.fault_record(1, stack=stack)
            if of_faults
            else factory.startup_record(1, stack=stack)
        )
        frame = samples_of(record, samples, random) if samples and not of_faults else None
        write(landing, record, frame)
        made["runs"] += 1
        made["starts"] += len(record.startups)
        made["experiments"] += len(record.faults)
        made["samples"] += 0 if frame is None else len(frame)
    return made


def measured(home: Path, *arguments: str) -> dict[str, Any]:
    """One `resilience` command: seconds, and the largest resident memory of its processes."""
    command = [sys.executable, "-m", "resilience_pipelines.cli", *arguments, "--home", str(home)]
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                if ended:
                    break
                if time.monotonic() - begin > DEADLINE_S:
                    raise TimeoutError(f"{arguments} took longer than {DEADLINE_S:g} s")
                time.sleep(0.01)
        except BaseException:
            process.kill()
            raise
        elapsed_s = time.monotonic() - begin
        if status:
            output.seek(0)
            raise RuntimeError(f"{arguments} failed: {output.read().decode()}")
    return {"seconds": round(elapsed_s, 2), "peak_mib": usage.ru_maxrss // 1024}


def copy_runs(published: Path, copies: int) -> int:
    """Have each run `copies` times in the tables that the dashboard reads; how many there are."""
    with duckdb.connect(str(published)) as connection:
        connection.execute("set memory_limit = '4GiB'")
        for table in COPIED:
            connection.execute(
                f"insert into {table} select {table}.* replace (run_id || '-' || copy as run_id) "
                f"from {table}, range(1, {copies}) as copies(copy)"
            )
        [(runs,)] = connection.execute("select count(*) from runs").fetchall()
    return int(runs)


def main() -> None:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--samples", type=int, default=25_000, help="of each start-up run")
    parser.add_argument("--stacks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=1, help="of each published run")
    parser.add_argument("--keep", type=Path, help="a folder for the data home, which then stays")
    parser.add_argument("--generate-only", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = open_home(options.keep or temporary)
        begin = time.monotonic()
        made = generate(home.landing, options.runs, options.samples, options.seed, options.stacks)
        report: dict[str, Any] = {
            "basis": "simulated",
            "cpus": os.cpu_count(),
            "stacks": options.stacks,
            **made,
            "generate_s": round(time.monotonic() - begin, 1),
        }
        if not options.generate_only:
            report["load"] = measured(home.root, "load", "--no-build", str(home.landing))
            # Nothing is left to load: this is the build alone, and a look at every folder.
            report["build"] = measured(home.root, "load", str(home.landing))
            report["publish"] = measured(home.root, "publish")
            report["dashboard"] = measured(home.root, "dashboard")
            page = home.dashboard / "index.html"
            report["page_mb"] = round(page.stat().st_size / 1e6, 2)
            report["published_mb"] = round(home.published.stat().st_size / 1e6, 1)
            report["warehouse_mb"] = round(home.warehouse.stat().st_size / 1e6, 1)
            if options.copies > 1:
                report["copied_runs"] = copy_runs(home.published, options.copies)
                report["dashboard_of_copies"] = measured(home.root, "dashboard")
                report["page_of_copies_mb"] = round(page.stat().st_size / 1e6, 2)
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
