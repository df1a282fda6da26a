"""The one entry point of a benchmark job, in a local process and in a pod.

What belongs here: from a specification to a landing folder. What does not: measuring (`startup`,
`faults`, `snapshots`), and starting this program somewhere (`launchers`).

`python -m resilience_pipelines.job --home DIR` reads a specification as JSON from standard input
and writes events as JSON lines to standard output: `progress`, then `landed` or `error`. Under
Dagster Pipes the same events go to Dagster. The exit code is that of the error. What a launcher
tells besides comes in the variables of `job_environment`.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TextIO

from resilience_pipelines import __version__, job_environment
from resilience_pipelines.collectives.bandwidth import BandwidthPlan, run_bandwidth
from resilience_pipelines.collectives.support import NCCL
from resilience_pipelines.context import (
    MachineContext,
    make_worker,
    open_machine,
    platform_commit,
    read_collective_stack,
)
from resilience_pipelines.durability import replace_text
from resilience_pipelines.errors import InputError, ResilienceError, Stopped, StorageError
from resilience_pipelines.faults.run import FaultPlan, run_faults
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.job_spec import (
    CollectiveSpec,
    CompatibilitySpec,
    FanoutSpec,
    FaultSpec,
    JobSpec,
    SnapshotSpec,
    StartupSpec,
    WorkerSpec,
    parse_spec,
)
from resilience_pipelines.launchers.choice import measures_pods
from resilience_pipelines.launchers.fault_cluster import fault_cluster
from resilience_pipelines.owned_folder import owned_folder, remove_orphans
from resilience_pipelines.records import (
    Basis,
    CollectiveMeasurement,
    CompatibilityTrial,
    FanoutRestore,
    FaultRun,
    RunRecord,
    SnapshotMeasurement,
    StartupMeasurement,
    new_run_id,
)
from resilience_pipelines.redaction import redact, redact_bytes, redact_record
from resilience_pipelines.running_jobs import FOLDERS, note_stack
from resilience_pipelines.stack import Stack
from resilience_pipelines.startup.benchmark import (
    BenchmarkContext,
    Progress,
    Source,
    StartupPlan,
    prepare_source,
    require_worker,
    run_startup,
)
from resilience_pipelines.startup.compatibility import run_compatibility
from resilience_pipelines.startup.fanout import FanoutPlan, run_fanout
from resilience_pipelines.telemetry import Telemetry
from resilience_pipelines.telemetry_nvml import gpu_telemetry
from resilience_pipelines.warehouse.landing import LandingWriter
from resilience_pipelines.workers.space import probe_spaces

PIPES_VARIABLE = "DAGSTER_PIPES_CONTEXT"

_ENDING = (signal.SIGTERM, signal.SIGINT)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Landed:
    """A finished job: its record and the folder that holds it."""

    folder: Path
    record: RunRecord


@dataclass(frozen=True)
class _Found:
    startups: tuple[StartupMeasurement, ...] = ()
    snapshots: tuple[SnapshotMeasurement, ...] = ()
    faults: tuple[FaultRun, ...] = ()
    compatibility: tuple[CompatibilityTrial, ...] = ()
    collectives: tuple[CollectiveMeasurement, ...] = ()
    fanout: tuple[FanoutRestore, ...] = ()
    unsupported: dict[str, str] | None = None
    simulated: bool = False
    """Whether part of it was measured on a fake cluster."""


@dataclass(frozen=True)
class _Subject:
    """What a record is about."""

    worker: str
    basis: Basis
    stack: Stack


def run_job(spec: JobSpec, home: Home, progress: Progress) -> Landed:
    """Do what a specification asks and write the landing folder.

    Raises:
        ResilienceError: nothing could be measured; then no landing folder is written.
    """
    run_id = job_environment.told(job_environment.RUN_ID) or new_run_id(spec.kind)
    started_at = datetime.now(UTC)
    remove_orphans(home.work, FOLDERS)
    with ExitStack() as owner:
        work = owner.enter_context(owned_folder(home.work / run_id))
        evidence = work / "evidence"
        evidence.mkdir()
        telemetry = Telemetry(machine=owner.enter_context(gpu_telemetry()))
        if isinstance(spec, CollectiveSpec):
            subject, found = _measure_collectives(spec, home, work, evidence, progress)
        elif isinstance(spec, StartupSpec) and measures_pods(spec):
            subject, found = _measure_pods(spec, home, work.name, evidence, progress)
        else:
            worker = make_worker(spec.worker, home)
            machine = owner.enter_context(open_machine(worker, home))
            subject = _Subject(worker.name, worker.basis, machine.stack)
            note_stack(work, machine.stack)
            if machine.engine is not None:
                machine.engine.store.clean()
            context = _benchmark_context(machine, home, work, evidence, telemetry, spec.port)
            found = _measure(spec, context, home, progress)
        record = RunRecord(
            run_id=run_id,
            kind=spec.kind,
            started_at=started_at,
            finished_at=datetime.now(UTC),
            worker=subject.worker,
            basis=Basis.SIMULATED if _is_simulated() or found.simulated else subject.basis,
            stack=subject.stack,
            stack_key=subject.stack.key,
            launcher=job_environment.told(job_environment.LAUNCHED_BY) or "local",
            platform_version=__version__,
            platform_commit=platform_commit(),
            parameters=spec.model_dump(mode="json"),
            startups=found.startups,
            snapshots=found.snapshots,
            faults=found.faults,
            compatibility=found.compatibility,
            collectives=found.collectives,
            fanout=found.fanout,
            unsupported=(found.unsupported or {}) | _lost_samples(telemetry),
        )
        with LandingWriter(home.landing, run_id) as writer:
            for path in sorted(evidence.iterdir()):
                writer.path(path.name).write_bytes(redact_bytes(path.read_bytes()))
            samples = telemetry.frame()
            if len(samples):
                writer.write_samples(samples)
            folder = writer.finish(redact_record(record))
    return Landed(folder, record)


def _is_simulated() -> bool:
    return job_environment.told(job_environment.SIMULATED) is not None


def _measure_collectives(
    spec: CollectiveSpec, home: Home, work: Path, evidence: Path, progress: Progress
) -> tuple[_Subject, _Found]:
    plan = BandwidthPlan(
        arms=spec.arms,
        operations=spec.operations,
        sizes=spec.sizes,
        ranks=spec.ranks,
        repeats=spec.repeats,
    )
    stack = read_collective_stack(home)
    note_stack(work, stack)
    result = run_bandwidth(plan, probe_spaces(), evidence, progress)
    # gloo on the CPU stands for NCCL over GPUs.
    basis = Basis.MEASURED if plan.backend == NCCL else Basis.REFERENCE
    stack = stack.model_copy(update={"nccl_version": result.nccl_version})
    found = _Found(collectives=result.measurements, unsupported=dict(result.unsupported))
    return _Subject(spec.worker, basis, stack), found


def _measure_pods(
    spec: StartupSpec, home: Home, run_id: str, evidence: Path, progress: Progress
) -> tuple[_Subject, _Found]:
    # The client of the API takes a second to load.
    from resilience_pipelines.launchers.dynamo_snapshot.job import run_startup_in_pods

    worker = make_worker(spec.worker, home)
    result, is_fake = run_startup_in_pods(
        _startup_plan(spec), worker, home, run_id, evidence, progress
    )
    found = _Found(result.startups, result.snapshots, unsupported=result.unsupported,
                   simulated=is_fake)  # fmt: skip
    return _Subject(worker.name, worker.basis, result.stack), found


def _startup_plan(spec: StartupSpec) -> StartupPlan:
    return StartupPlan(
        arms=spec.arms,
        repeats=spec.repeats,
        cold_repeats=spec.cold_repeats,
        page_cache=spec.page_cache,
        sleep_levels=spec.sleep_levels,
        snapshot=spec.snapshot,
    )


def _benchmark_context(
    machine: MachineContext,
    home: Home,
    work: Path,
    evidence: Path,
    telemetry: Telemetry,
    port: int | None,
) -> BenchmarkContext:
    # The filled compile cache belongs to one engine version and model: another's files are of no
    # use, and a start that finds them would pass for one that found its own.
    worker = machine.worker
    warm_cache = home.cache / f"compile-{worker.name}-{worker.engine_version}-{worker.model}"
    warm_cache.mkdir(parents=True, exist_ok=True)
    return BenchmarkContext(
        worker=machine.worker,
        stack=machine.stack,
        support=machine.support,
        device=machine.device,
        engine=machine.engine,
        no_engine_why=machine.no_engine_why,
        warm_cache=warm_cache,
        evidence=evidence,
        scratch=work,
        telemetry=telemetry,
        port=port,
    )


def _measure(spec: WorkerSpec, context: BenchmarkContext, home: Home, progress: Progress) -> _Found:
    match spec:
        case StartupSpec():
            result = run_startup(_startup_plan(spec), context, progress)
            return _Found(result.startups, result.snapshots, unsupported=result.unsupported)
        case FaultSpec():
            return _measure_faults(spec, context, home, progress)
        case SnapshotSpec():
            progress("source worker and snapshot", 0, 1)
            source = prepare_source(context, snapshot=True, sleep_level=spec.sleep_level)
            progress("finished", 1, 1)
            return _Found(snapshots=tuple(source.snapshots), unsupported=_unsupported(context))
        case CompatibilitySpec():
            tried = run_compatibility(
                spec.snapshots, spec.repeats, context, progress, edits=spec.edits
            )
            return _Found(compatibility=tried.trials, unsupported=dict(tried.unsupported))
        case FanoutSpec():
            return _measure_fanout(spec, context, progress)


def _measure_fanout(spec: FanoutSpec, context: BenchmarkContext, progress: Progress) -> _Found:
    plan = FanoutPlan(spec.widths, spec.page_caches, spec.repeats)
    if context.engine is None:
        return _Found(unsupported=_unsupported(context))
    taken: tuple[SnapshotMeasurement, ...] = ()
    if spec.snapshot is None:
        progress("source worker and snapshot", 0, len(plan.schedule()))
        source = prepare_source(context, snapshot=True)
        taken, snapshot = tuple(source.snapshots), source.snapshot
        if snapshot is None:
            return _Found(snapshots=taken)
    else:
        context.worker.prepare()
        snapshot = context.engine.store.get(spec.snapshot)
        require_worker(snapshot, context.worker)
    result = run_fanout(plan, snapshot, context, progress)
    return _Found(snapshots=taken, fanout=result.restores, unsupported=result.unsupported)


def _measure_faults(
    spec: FaultSpec, context: BenchmarkContext, home: Home, progress: Progress
) -> _Found:
    plan = FaultPlan(
        faults=spec.faults,
        recoveries=spec.recoveries,
        repeats=spec.repeats,
        controls=spec.controls,
        backend=spec.backend,
    )
    progress("source worker and snapshot", 0, 1)
    source: Source = prepare_source(context, snapshot=True)
    abort = threading.Event()
    # What was found so far is worth landing: the experiment that is running is undone and ends.
    for number in _ENDING:
        signal.signal(number, lambda *_: abort.set())
    with fault_cluster(home) as (cluster, no_cluster_why):
        faults = run_faults(
            plan, context, source, progress, abort=abort, cluster=cluster,
            no_cluster_why=no_cluster_why,
        )  # fmt: skip
        simulated = cluster is not None and cluster.is_fake
    return _Found(
        snapshots=tuple(source.snapshots), faults=tuple(faults),
        unsupported=_unsupported(context), simulated=simulated,
    )  # fmt: skip


def _lost_samples(telemetry: Telemetry) -> dict[str, str]:
    return {f"samples of {subject}": why for subject, why in telemetry.failures.items()}


def _unsupported(context: BenchmarkContext) -> dict[str, str]:
    return {} if context.engine is not None else {"restore": context.no_engine_why}


Emit = Callable[[dict[str, object]], None]


def main(argv: list[str] | None = None) -> int:
    """Run the job that standard input specifies; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m resilience_pipelines.job", description=__doc__)
    parser.add_argument("--home", help="data home; RESILIENCE_HOME by default")
    parser.add_argument(
        "--spec",
        help=f"file with the specification; {job_environment.SPEC}, else standard input by default",
    )
    options = parser.parse_args(argv)
    for number in _ENDING:
        signal.signal(number, _end_on_signal)
    with _events() as emit:

        def progress(what: str, done: int, total: int) -> None:
            emit({"event": "progress", "what": what, "done": done, "total": total})

        try:
            spec = parse_spec(_read_spec(options.spec, sys.stdin))
            landed = run_job(spec, open_home(options.home), progress)
        except ResilienceError as error:
            return _report(error, emit)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # Any write may be the one that finds the disk full.
            full = StorageError(
                f"{error.filename or 'The data home'} can't be written ({error.strerror}).",
                mend="Free space, or give a data home on another disk.",
            )
            return _report(full, emit)
        emit(
            {
                "event": "landed",
                "run_id": landed.record.run_id,
                "folder": str(landed.folder),
                "stack_key": landed.record.stack_key,
                "unsupported": landed.record.unsupported,
            }
        )
    return 0


def _report(error: ResilienceError, emit: Emit) -> int:
    emit(
        {
            "event": "error",
            "type": type(error).__name__,
            "reason": redact(error.reason),
            "mend": error.mend,
            "exit_code": error.exit_code,
        }
    )
    return error.exit_code


def _read_spec(path: str | None, stdin: TextIO) -> str:
    if path is None:
        return job_environment.told(job_environment.SPEC) or stdin.read()
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InputError(
            "--spec", path, f"it can't be read ({error.strerror})", mend="Give a readable file."
        ) from error


@contextmanager
def _events() -> Iterator[Emit]:
    """Where events go: to Dagster when it started this process, to standard output always.

    The last one also goes to the file that the launcher named.
    """
    outcome = job_environment.told(job_environment.OUTCOME)

    def write_line(event: dict[str, object]) -> None:
        if outcome is not None and event["event"] != "progress":
            # The launcher may be another user.
            replace_text(Path(outcome), json.dumps(event), mode=0o644)
        print(json.dumps(event), flush=True)  # noqa: T201

    if PIPES_VARIABLE not in os.environ:
        yield write_line
        return
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:

        def report(event: dict[str, object]) -> None:
            write_line(event)
            if event["event"] == "progress":
                pipes.log.info(f"{event['done']}/{event['total']} {event['what']}")
            else:
                pipes.report_custom_message(event)

        yield report


def _end_on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    # Once: a second signal must not end the writing of what was measured.
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)
    raise Stopped(128 + number)


if __name__ == "__main__":
    sys.exit(main())
