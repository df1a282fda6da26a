"""The platform as a library: measure, look at the result as frames, judge an upgrade.

What belongs here: what a program calls, in the words of the command line (docs/python.md). What
does not: any work, which is that of `launchers`, `warehouse` and `upgrades`.

Every name here is also one of `resilience_pipelines`, imported when it is first used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import polars as pl

from resilience_pipelines.collectives.bandwidth import DEFAULT_SIZES
from resilience_pipelines.errors import InputError
from resilience_pipelines.home import open_home
from resilience_pipelines.job_spec import JobSpec, SnapshotEngineName, parse_spec
from resilience_pipelines.launchers.choice import choose
from resilience_pipelines.lineage.jobs import job_lineage
from resilience_pipelines.records import (
    Arm,
    CollectiveMeasurement,
    CollectiveOperation,
    CompatibilityTrial,
    FanoutRestore,
    FaultRun,
    Outcome,
    PageCache,
    RunKind,
    RunRecord,
    SnapshotMeasurement,
    StartupMeasurement,
    Verdict,
)
from resilience_pipelines.startup.benchmark import PageCachePolicy, Progress
from resilience_pipelines.startup.fanout import DEFAULT_WIDTHS
from resilience_pipelines.upgrades import MAX_SLOWDOWN, Upgrade, judge
from resilience_pipelines.warehouse.landing import LandedRun, read_landing
from resilience_pipelines.warehouse.record_frames import record_frames
from resilience_pipelines.warehouse.stack_figures import find_stack

__all__ = [
    "Benchmark", "Collectives", "Compatibility", "Experiment", "Fanout", "Result", "Snapshot",
    "compare", "run",
]  # fmt: skip

ALL_ARMS: Final = tuple(arm.value for arm in Arm)

Measurement = (
    StartupMeasurement
    | SnapshotMeasurement
    | FaultRun
    | CompatibilityTrial
    | CollectiveMeasurement
    | FanoutRestore
)

_FAILED_VERDICTS: Final = (Verdict.FAIL, Verdict.ROLLBACK_FAILED)


def _nothing(*_: object) -> None:
    """Progress and notices that nobody asked for."""


def has_failed(item: Measurement) -> bool:
    """Whether a measurement speaks against the worker, which is no word on those without data.

    A restore that the compatibility gate had predicted to fail is none: it was right.
    """
    if isinstance(item, FaultRun):
        return item.verdict in _FAILED_VERDICTS
    predicted = not isinstance(item, CompatibilityTrial) or item.predicted_compatible
    return predicted and item.outcome is Outcome.FAILED


@dataclass(frozen=True)
class Result:
    """A finished job: its record, the folder that it landed in, and its measurements as frames.

    Frames have the columns of the warehouse's raw tables, seconds and bytes as units, and their
    columns also where they have no row.

    Attributes:
        landed: the landing folder, every byte of which was checked.
        notices: what the launcher could not do as asked, or found on its way.
    """

    landed: LandedRun
    notices: tuple[str, ...] = ()

    @property
    def record(self) -> RunRecord:
        """Everything that the job found, as `run.json` holds it."""
        return self.landed.record

    @property
    def run_id(self) -> str:
        """The name of the run, under which the warehouse knows it too."""
        return self.record.run_id

    @property
    def folder(self) -> Path:
        """The landing folder."""
        return self.landed.folder

    @property
    def unsupported(self) -> Mapping[str, str]:
        """Parts of what was asked that the machine can't do -> why."""
        return self.record.unsupported

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All measurements of the record, of whichever kind."""
        record = self.record
        return (
            *record.startups, *record.snapshots, *record.faults, *record.compatibility,
            *record.collectives, *record.fanout,
        )  # fmt: skip

    @property
    def failed(self) -> tuple[Measurement, ...]:
        """The measurements that failed; see `has_failed`."""
        return tuple(item for item in self.measurements if has_failed(item))

    @property
    def startups(self) -> pl.DataFrame:
        """One row for each start of a worker."""
        return self._frames["startups"]

    @property
    def phases(self) -> pl.DataFrame:
        """One row for each phase of a start."""
        return self._frames["startup_phases"]

    @property
    def snapshots(self) -> pl.DataFrame:
        """One row for each attempt to take a snapshot."""
        return self._frames["snapshots"]

    @property
    def faults(self) -> pl.DataFrame:
        """One row for each experiment, control arms included."""
        return self._frames["faults"]

    @property
    def detections(self) -> pl.DataFrame:
        """One row for each detector and experiment."""
        return self._frames["fault_detections"]

    @property
    def compatibility(self) -> pl.DataFrame:
        """One row for each restore of a stored snapshot."""
        return self._frames["compatibility"]

    @property
    def collectives(self) -> pl.DataFrame:
        """One row for each collective at one size, in one life of the ranks."""
        return self._frames["collectives"]

    @property
    def fanout(self) -> pl.DataFrame:
        """One row for each of several restores that began together."""
        return self._frames["fanout"]

    @cached_property
    def _frames(self) -> dict[str, pl.DataFrame]:
        return record_frames(self.landed)

    def as_dict(self) -> dict[str, Any]:
        """What happened in short, ready for JSON, as `resilience run --json` prints it."""
        shown: Mapping[str, tuple[Sequence[Measurement], set[str]]] = {
            "startups": (self.record.startups, {"arm", "repeat", "outcome", "total_s"}),
            "faults": (self.record.faults, {"fault", "control", "recovery", "verdict"}),
            "snapshots": (self.record.snapshots, {"snapshot_id", "outcome", "image_bytes"}),
            "compatibility": (
                self.record.compatibility,
                {
                    "snapshot_id",
                    "source_stack_key",
                    "predicted_compatible",
                    "predictions",
                    "outcome",
                    "reason_code",
                    "elapsed_s",
                },
            ),
            "collectives": (
                self.record.collectives,
                {
                    "operation",
                    "arm",
                    "backend",
                    "transports",
                    "ranks",
                    "bytes",
                    "repeat",
                    "outcome",
                    "reason_code",
                    "busbw_bytes_per_s",
                },
            ),
            "fanout": (
                self.record.fanout,
                {
                    "width",
                    "page_cache_found",
                    "repeat",
                    "outcome",
                    "reason_code",
                    "total_s",
                    "wave_s",
                    "image_bytes",
                    "disk_bytes_per_s",
                },
            ),
        }
        return {
            "run_id": self.run_id,
            "folder": str(self.folder),
            "stack_key": self.record.stack_key,
            "unsupported": dict(self.unsupported),
            "notices": list(self.notices),
            **{
                name: [item.model_dump(mode="json", include=columns) for item in items]
                for name, (items, columns) in shown.items()
            },
        }


def run(
    spec: JobSpec,
    *,
    home: Path | str | None = None,
    launcher: str | None = None,
    progress: Progress = _nothing,
    tell: Callable[[str], None] = _nothing,
) -> Result:
    """Run a job to its end.

    A job that is interrupted ends, with every worker that it started, before this returns.

    Args:
        home: the data home; RESILIENCE_HOME, else `.resilience`, when None.
        launcher: `local` or `kubernetes`; RESILIENCE_LAUNCHER, else `local`, when None.
        progress: called with what is being done, and how many steps of how many are done.
        tell: called with what a person should know while the job runs.

    Raises:
        ResilienceError: nothing could be measured; `JobError` carries the job's own reason, and
            `exit_code` is that of the command line.
    """
    data_home = open_home(home)
    launch = choose(data_home, launcher, tell=tell)
    with job_lineage(spec, data_home) as landed:
        done = launch(spec, data_home, progress)
        return Result(landed(read_landing(done.folder)), done.notices)


@dataclass(frozen=True)
class _Job:
    """What all jobs have: fields that make a specification, checked when the object is made."""

    kind: ClassVar[RunKind]

    def __post_init__(self) -> None:
        _ = self.spec

    @cached_property
    def spec(self) -> JobSpec:
        """The specification of the job."""
        return parse_spec(json.dumps({"kind": self.kind, **asdict(self)}))

    def run(
        self,
        *,
        home: Path | str | None = None,
        launcher: str | None = None,
        progress: Progress = _nothing,
        tell: Callable[[str], None] = _nothing,
    ) -> Result:
        """Run it to its end; see the function `run` for the arguments and what is raised."""
        return run(self.spec, home=home, launcher=launcher, progress=progress, tell=tell)


@dataclass(frozen=True)
class Benchmark(_Job):
    """The start-up benchmark: how fast a worker comes back, by each arm.

    Args:
        worker: the worker to measure, e.g. `reference` or `vllm`.
        arms: `cold`, `warm_cache`, `sleep_wake`, `restore`.
        repeats: starts of each arm.
        cold_repeats: starts of the arm `cold`, where it shall differ.
        page_cache: before each start: `auto`, `cold`, `warm`, `as_found`.
        sleep_levels: levels of the arm `sleep_wake`; the worker's default when empty.
        port: of the worker on loopback; a free one when None.
        snapshot: id of a stored snapshot to restore; one that this run takes when None.
        snapshot_engine: whose snapshots are restored: `own`, or `dynamo_snapshot` of a cluster.

    Raises:
        InputError: naming the field that is wrong.
    """

    kind = RunKind.STARTUP

    worker: str = "reference"
    arms: Sequence[str] = ALL_ARMS
    repeats: int = 5
    cold_repeats: int | None = None
    page_cache: str = PageCachePolicy.AUTO.value
    sleep_levels: Sequence[int] = ()
    port: int | None = None
    snapshot: str | None = None
    snapshot_engine: str = SnapshotEngineName.OWN.value


@dataclass(frozen=True)
class Experiment(_Job):
    """Fault experiments: who notices, after how long, and how service comes back.

    Args:
        fault: the name of a fault, or of several; all of the catalogue when empty.
        worker: the worker to harm.
        recoveries: ways to recover; all that a fault allows when empty.
        repeats: experiments of each fault and recovery.
        controls: whether each fault's control arm, without the injection, is run too.
        backend: of training jobs: `gloo` or `nccl`; NCCL where there are two GPUs when None.
        port: of the worker on loopback; a free one when None.

    Raises:
        InputError: naming the field that is wrong.
    """

    kind = RunKind.FAULT

    fault: str | Sequence[str] = ()
    worker: str = "reference"
    recoveries: Sequence[str] = ()
    repeats: int = 1
    controls: bool = True
    backend: str | None = None
    port: int | None = None

    @cached_property
    def spec(self) -> JobSpec:
        """The specification of the job."""
        fields = asdict(self)
        fault = fields.pop("fault")
        faults = [fault] if isinstance(fault, str) else fault
        return parse_spec(json.dumps({"kind": self.kind, "faults": faults, **fields}))


@dataclass(frozen=True)
class Snapshot(_Job):
    """Start a worker, take its snapshot and keep it in the store.

    Args:
        sleep_level: how deep the worker sleeps meanwhile; as suits it best when None.
    """

    kind = RunKind.SNAPSHOT

    worker: str = "reference"
    sleep_level: int | None = None


@dataclass(frozen=True)
class Compatibility(_Job):
    """Restore stored snapshots on this machine's stack, whatever the gate predicts.

    Args:
        snapshots: their ids; all of the worker that the store has when empty.
        repeats: restores of each.
        edits: what to change in copies of each, which are restored beside it (`ImageEdit`).
    """

    kind = RunKind.COMPATIBILITY

    worker: str = "reference"
    snapshots: Sequence[str] = ()
    repeats: int = 1
    edits: Sequence[str] = ()


@dataclass(frozen=True)
class Fanout(_Job):
    """Restore one snapshot many times at once.

    Args:
        snapshot: its id; a new one when None.
        widths: how many at once.
        page_caches: `cold`, `warm` or both.
        repeats: waves of each width and page cache.
    """

    kind = RunKind.FANOUT

    worker: str = "reference"
    snapshot: str | None = None
    widths: Sequence[int] = DEFAULT_WIDTHS
    page_caches: Sequence[str] = (PageCache.COLD.value, PageCache.WARM.value)
    repeats: int = 3


@dataclass(frozen=True)
class Collectives(_Job):
    """Bandwidth of collectives over NCCL or gloo, healthy and degraded.

    Args:
        arms: all that this machine's backend has when empty.
        operations: `all_reduce`, `all_gather`, `send_recv`.
        sizes: bytes, as nccl-tests counts them.
        ranks: processes; one for each GPU, or two on the CPU, when None.
        repeats: lives of the ranks for each arm.
    """

    kind = RunKind.COLLECTIVES

    arms: Sequence[str] = ()
    operations: Sequence[str] = tuple(item.value for item in CollectiveOperation)
    sizes: Sequence[int] = DEFAULT_SIZES
    ranks: int | None = None
    repeats: int = 5


def compare(
    before: str,
    after: str,
    *,
    max_slowdown: float = MAX_SLOWDOWN,
    home: Path | str | None = None,
) -> Upgrade:
    """Judge the upgrade from one published stack to another.

    Args:
        before, after: a stack's key, the beginning of one, or `latest`.
        max_slowdown: relevant slowdowns up to this fraction are notes.
        home: the data home; RESILIENCE_HOME, else `.resilience`, when None.

    Raises:
        InputError: nothing was published yet, or no stack, or several, are named so, or
            `max_slowdown` is no fraction.
    """
    if not 0 <= max_slowdown < math.inf:
        raise InputError(
            "max_slowdown", max_slowdown, "it has to be a fraction of 0 or more",
            mend="0.2 stands for a fifth.",
        )  # fmt: skip
    data_home = open_home(home)
    return judge(
        data_home,
        find_stack(data_home, "before", before),
        find_stack(data_home, "after", after),
        max_slowdown=max_slowdown,
    )
