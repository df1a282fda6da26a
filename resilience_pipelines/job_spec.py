"""What a job is asked to do: the specification that the CLI, Dagster and a pod hand to `job.py`.

What belongs here: the data model of a job's specification and its validation. What does not: doing
it (`job`), and where it runs (`launchers`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from resilience_pipelines import strict_json
from resilience_pipelines.collectives.bandwidth import DEFAULT_SIZES
from resilience_pipelines.errors import InputError
from resilience_pipelines.records import MAX_COUNT, Arm, CollectiveOperation, PageCache, RunKind
from resilience_pipelines.snapshots.image_edits import ImageEdit
from resilience_pipelines.startup.benchmark import PageCachePolicy
from resilience_pipelines.startup.fanout import DEFAULT_WIDTHS

Repeats = Annotated[int, Field(ge=1, le=10_000)]
SleepLevel = Annotated[int, Field(ge=1, le=MAX_COUNT)]
"""How deep a worker sleeps; which levels it has is the worker's to say."""


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: str = "reference"
    port: Annotated[int, Field(ge=1, le=65535)] | None = None


class SnapshotEngineName(StrEnum):
    """Whose snapshots the arm `restore` restores."""

    OWN = "own"
    """This platform's, taken and restored on one machine or in one job's pod."""
    DYNAMO_SNAPSHOT = "dynamo_snapshot"
    """NVIDIA Dynamo Snapshot's, taken of a pod and restored into others of a cluster."""


class StartupSpec(_Spec):
    """Measure how fast a worker starts, by each arm."""

    kind: Literal[RunKind.STARTUP] = RunKind.STARTUP
    arms: tuple[Arm, ...] = Field(default=tuple(Arm), min_length=1)
    repeats: Repeats = 5
    cold_repeats: Repeats | None = None
    page_cache: PageCachePolicy = PageCachePolicy.AUTO
    sleep_levels: tuple[SleepLevel, ...] = ()
    snapshot: str | None = None
    """Id of a stored snapshot that the arm `restore` restores, whoever took it; one of the run's
    own source when None."""
    snapshot_engine: SnapshotEngineName = SnapshotEngineName.OWN


class FaultSpec(_Spec):
    """Inject faults into a worker. No faults named: all that the catalogue has."""

    kind: Literal[RunKind.FAULT] = RunKind.FAULT
    faults: tuple[str, ...] = ()
    recoveries: tuple[str, ...] = ()
    repeats: Repeats = 1
    controls: bool = True
    backend: Literal["gloo", "nccl"] | None = None
    """What the ranks of training jobs speak through; NCCL where there are two GPUs when None."""


class SnapshotSpec(_Spec):
    """Start a worker, take its snapshot and keep it."""

    kind: Literal[RunKind.SNAPSHOT] = RunKind.SNAPSHOT
    sleep_level: SleepLevel | None = None


class CompatibilitySpec(_Spec):
    """Restore stored snapshots on this machine's stack, whatever the gate predicts.

    No snapshots named: all of this worker that the store has, of whichever stack.
    """

    kind: Literal[RunKind.COMPATIBILITY] = RunKind.COMPATIBILITY
    snapshots: tuple[str, ...] = ()
    repeats: Repeats = 1
    edits: tuple[ImageEdit, ...] = ()
    """What to change in copies of each, which are restored beside it."""


class FanoutSpec(_Spec):
    """Restore one snapshot many times at once. No snapshot named: a new one."""

    kind: Literal[RunKind.FANOUT] = RunKind.FANOUT
    snapshot: str | None = None
    widths: tuple[Annotated[int, Field(ge=1, le=256)], ...] = Field(
        default=DEFAULT_WIDTHS, min_length=1
    )
    page_caches: tuple[PageCache, ...] = Field(
        default=(PageCache.COLD, PageCache.WARM), min_length=1
    )
    repeats: Repeats = 3


class CollectiveSpec(BaseModel):
    """Measure the bandwidth of collectives. No arms named: all that this machine's backend has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal[RunKind.COLLECTIVES] = RunKind.COLLECTIVES
    worker: Literal["collectives"] = "collectives"
    """The name under which its records go: there is no worker that serves."""
    arms: tuple[str, ...] = ()
    operations: tuple[CollectiveOperation, ...] = Field(
        default=tuple(CollectiveOperation), min_length=1
    )
    sizes: tuple[Annotated[int, Field(ge=1024, le=MAX_COUNT)], ...] = Field(
        default=DEFAULT_SIZES, min_length=1
    )
    ranks: Annotated[int, Field(ge=1, le=64)] | None = None
    repeats: Repeats = 5


WorkerSpec = StartupSpec | FaultSpec | SnapshotSpec | CompatibilitySpec | FanoutSpec

JobSpec = WorkerSpec | CollectiveSpec

_Tagged = Annotated[JobSpec, Field(discriminator="kind")]

_ADAPTER: TypeAdapter[JobSpec] = TypeAdapter(_Tagged)


def parse_spec(text: str | bytes) -> JobSpec:
    """Read a specification from JSON.

    Raises:
        InputError: naming the first field that is wrong.
    """
    try:
        strict_json.loads(text)
        # Strict: a text is no number and a number no truth, even where one could be made of it.
        return _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the specification"
        raise InputError(
            field, first.get("input"), first["msg"].lower(),
            mend="See `resilience run --help`.",
        ) from error  # fmt: skip
    except ValueError as error:
        raise InputError(
            "the specification", str(text)[:200], f"it is no JSON ({error})",
            mend="See `resilience run --help`.",
        ) from error  # fmt: skip
