"""Scale: landing folders from a seed, and what loading, building and showing them takes.

    python benchmarks/scale.py [--runs 400] [--samples 25000] [--stacks 50] [--seed 1]
        [--copies 1] [--keep FOLDER]

Makes `--runs` start-up runs of `--samples` samples each, labelled simulated, on stacks that follow
one another; one run in twenty is of faults and has no samples. With `--copies`, each is there as
often, as runs of other names that found the same. Then loads them, builds the marts, publishes and
writes the dashboard with the `resilience` command, each in a process of its own, and prints one
JSON object: for each step seconds, seconds of processors, the largest resident memory of any
process and the load average at its end, and the size of the page. Folders are written without
waiting for the disk, as jobs do not, and copies share their samples' file, so that making them
takes minutes and not hours.
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
DEADLINE_S = 4 * 3600.0


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


def write(landing: Path, record: RunRecord, samples: pl.DataFrame | None) -> Path:
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
    return folder


def copy(folder: Path, number: int) -> None:
    """A run of another name that found the same, at the same time."""
    suffix = hashlib.sha256(f"{folder.name} {number}".encode()).hexdigest()[:8]
    name = folder.name.rpartition("-")[0] + f"-{suffix}"
    made = folder.with_name(name)
    made.mkdir()
    text = (folder / RUN_FILE).read_text()
    (made / RUN_FILE).write_text(text.replace(folder.name, name))
    if (folder / SAMPLES_FILE).exists():
        (made / SAMPLES_FILE).hardlink_to(folder / SAMPLES_FILE)


def generate(
    landing: Path, runs: int, samples: int, seed: int, stack_count: int, copies: int
) -> dict[str, int]:
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
        folder = write(landing, record, frame)
        for number in range(1, copies):
            copy(folder, number)
        made["runs"] += copies
        made["starts"] += copies * len(record.startups)
        made["experiments"] += copies * len(record.faults)
        made["samples"] += 0 if frame is None else copies * len(frame)
    return made


def measured(home: Path, *arguments: str) -> dict[str, Any]:
    """One `resilience` command: its time, and the largest resident memory of its processes."""
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
    report = {
        "seconds": round(elapsed_s, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mib": usage.ru_maxrss // 1024,
        "load_average_5min": round(os.getloadavg()[1], 1),
    }
    print(arguments[0], report, file=sys.stderr, flush=True)
    return report


def main() -> None:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--samples", type=int, default=25_000, help="of each start-up run")
    parser.add_argument("--stacks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=1, help="of each run, itself one")
    parser.add_argument("--keep", type=Path, help="a folder for the data home, which then stays")
    parser.add_argument("--generate-only", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = open_home(options.keep or temporary)
        begin = time.monotonic()
        made = generate(
            home.landing,
            options.runs,
            options.samples,
            options.seed,
            options.stacks,
            options.copies,
        )
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
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
