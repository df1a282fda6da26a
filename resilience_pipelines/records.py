"""The result envelope: what one benchmark job found, as it is written to its landing folder.

What belongs here: the data model of `run.json` and the words it may use. What does not: how a
record is written or loaded (`warehouse`), and how any of it is measured.

Every time is in seconds, every size in bytes; durations come from CLOCK_MONOTONIC unless a field
names another clock. A value that was not measured is None.
"""

from __future__ import annotations

import itertools
import secrets
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from resilience_pipelines.stack import Stack

SCHEMA_VERSION = 1

MAX_COUNT = 2**63 - 1
"""What a column of the warehouse holds."""

RUN_ID_PATTERN = r"^[0-9]{8}T[0-9]{6}Z-[a-z]+-[0-9a-f]{8}$"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Detail = Annotated[str, Field(max_length=4000)]


class Basis(StrEnum):
    """What a figure stands for. Results of different bases are never averaged."""

    MEASURED = "measured"
    """The engine and hardware that the stack names."""
    REFERENCE = "reference"
    """A real measurement of the reference worker, which stands for an engine."""
    SIMULATED = "simulated"
    """Part of what was measured was put there by a shim or a generator."""


class RunKind(StrEnum):
    """What a job did."""

    STARTUP = "startup"
    FAULT = "fault"
    SNAPSHOT = "snapshot"
    COMPATIBILITY = "compatibility"
    COLLECTIVES = "collectives"
    FANOUT = "fanout"


class Arm(StrEnum):
    """How a worker is started."""

    COLD = "cold"
    """No caches: compile cache empty, files of the worker evicted from the page cache if asked."""
    WARM_CACHE = "warm_cache"
    """A new process that finds the caches of an earlier one."""
    SLEEP_WAKE = "sleep_wake"
    """A live process woken from sleep."""
    RESTORE = "restore"
    """A process restored from a snapshot."""


class Outcome(StrEnum):
    """How a measurement ended."""

    OK = "ok"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


class OracleVerdict(StrEnum):
    """Whether the answer after a start is the answer from before."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_CHECKED = "not_checked"


class PageCache(StrEnum):
    """Whether the files that a start reads were in memory before it."""

    WARM = "warm"
    COLD = "cold"
    MIXED = "mixed"
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """What an experiment says. No data is never a pass."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_INJECTED = "not_injected"
    NOT_APPLICABLE = "not_applicable"
    ABORTED = "aborted"
    ROLLBACK_FAILED = "rollback_failed"


class Layer(StrEnum):
    """How deep a fault reaches. Results of different layers are never averaged."""

    CACHE = "cache"
    LOG = "log"
    SHIM = "shim"
    USERSPACE = "userspace"
    REAL = "real"


class Record(BaseModel):
    """Base of every part of a record: immutable, finite, with no field that the schema lacks."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Phase(Record):
    """A named part of a start. Phases of one measurement never overlap."""

    name: Name
    start_s: Seconds
    """Offset from the start of the measurement."""
    duration_s: Seconds
    clock: Name
    """Where the boundaries come from, e.g. `host_monotonic`, `worker_monotonic`, `criu_stats`."""
    resolution_s: Annotated[float, Field(gt=0)]
    """The coarsest step of that clock or of the sampling behind it."""


class Oracle(Record):
    """The comparison of an answer with the one recorded before."""

    verdict: OracleVerdict
    tokens: Count | None = None
    """How many tokens were compared."""
    first_difference: Count | None = None
    """Index of the first token that differs."""
    max_logprob_difference: float | None = Field(default=None, ge=0)
    detail: Detail = ""


class CriuStatistics(Record):
    """CRIU's own figures, from its stats-dump and stats-restore images."""

    freezing_s: Seconds | None = None
    frozen_s: Seconds | None = None
    memdump_s: Seconds | None = None
    memwrite_s: Seconds | None = None
    pages_scanned: Count | None = None
    pages_skipped_parent: Count | None = None
    pages_written: Count | None = None
    forking_s: Seconds | None = None
    restore_s: Seconds | None = None
    pages_compared: Count | None = None
    pages_skipped_cow: Count | None = None
    pages_restored: Count | None = None


class StartupMeasurement(Record):
    """One start of a worker, from the decision to start it to its first right token."""

    measurement_id: Name
    arm: Arm
    variant: Name | None = None
    """What sets this start apart within its arm, e.g. `level_1` for a sleep level."""
    repeat: Count
    position: Count
    """Place in the interleaved order of the whole run."""
    started_at: AwareDatetime
    outcome: Outcome
    reason_code: Name | None = None
    """Set when the outcome is not ok."""
    detail: Detail = ""
    total_s: Seconds | None = None
    """Start to first token, set when the outcome is ok."""
    phases: tuple[Phase, ...] = ()
    unaccounted_s: Seconds | None = None
    """What `total_s` holds beyond the phases."""
    oracle: Oracle
    page_cache_requested: PageCache = PageCache.UNKNOWN
    page_cache_found: PageCache = PageCache.UNKNOWN
    page_cache_fraction: float | None = Field(default=None, ge=0, le=1)
    """Share of the pages of weights or image that were resident just before the start."""
    snapshot_id: Name | None = None
    criu: CriuStatistics | None = None
    throughput_tokens_per_s: float | None = Field(default=None, ge=0)
    throughput_before_tokens_per_s: float | None = Field(default=None, ge=0)
    """The same load on the worker that this start replaces (restore and wake only)."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.outcome is not Outcome.OK:
            if not self.reason_code:
                raise ValueError("reason_code must be set when the outcome is not ok")
            return self
        if self.total_s is None or self.unaccounted_s is None:
            raise ValueError("total_s and unaccounted_s must be set when the outcome is ok")
        explained = sum(phase.duration_s for phase in self.phases)
        if abs(explained + self.unaccounted_s - self.total_s) > 1e-6:
            raise ValueError(
                f"phases ({explained} s) and unaccounted ({self.unaccounted_s} s) do not add up to "
                f"total_s ({self.total_s} s)"
            )
        ordered = sorted(self.phases, key=lambda phase: phase.start_s)
        for earlier, later in itertools.pairwise(ordered):
            if later.start_s < earlier.start_s + earlier.duration_s - 1e-6:
                raise ValueError(f"phases {earlier.name} and {later.name} overlap")
        return self


class SnapshotMeasurement(Record):
    """One attempt to take a snapshot of a live worker."""

    measurement_id: Name
    snapshot_id: Name | None = None
    """Set when an image came out of it."""
    started_at: AwareDatetime
    outcome: Outcome
    reason_code: Name | None = None
    detail: Detail = ""
    engine: Name
    total_s: Seconds | None = None
    phases: tuple[Phase, ...] = ()
    unaccounted_s: Seconds | None = None
    image_bytes: Count | None = None
    image_files: Count | None = None
    sleep_level: Count | None = None
    criu: CriuStatistics | None = None
    source_serving_after: bool | None = None
    """Whether the source worker answered right after the attempt, where that was checked."""


class CompatibilityTrial(Record):
    """One restore, on the run's stack, of a snapshot taken on this or another stack.

    It is tried whatever the compatibility gate predicts, so that the gate is measured too.
    """

    measurement_id: Name
    snapshot_id: Name
    """The image that was restored; of an edited copy with `+` and the edit behind it."""
    source_stack: Stack
    """What the snapshot was taken on; of an edited copy, what its manifest says then."""
    source_stack_key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    repeat: Count
    started_at: AwareDatetime
    predicted_compatible: bool
    """What the gate says: false where it would have refused the restore."""
    predictions: tuple[Name, ...] = ()
    """Codes of the differences that the gate sees, blocking ones first."""
    outcome: Outcome
    reason_code: Name | None = None
    failed_phase: Name | None = None
    detail: Detail = ""
    elapsed_s: Seconds
    """From the decision to restore until the first right token, or until it was given up."""
    oracle: Oracle

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.source_stack_key != self.source_stack.key:
            raise ValueError(f"source_stack_key is not the key of {self.source_stack.key}")
        if self.outcome is Outcome.OK:
            if self.oracle.verdict is not OracleVerdict.EQUAL:
                raise ValueError("outcome ok needs an equal oracle")
        elif not self.reason_code:
            raise ValueError("reason_code must be set when the outcome is not ok")
        return self


class Detection(Record):
    """What one detector saw of one experiment."""

    detector: Name
    expected: bool
    """Whether the fault's definition says that this detector should see it."""
    detected: bool
    detected_after_s: Seconds | None = None
    """Since the injection; None where nothing was detected."""
    deadline_s: Seconds | None = None
    """Within which an expected detector has to see it."""
    clock: Name
    resolution_s: Annotated[float, Field(gt=0)]
    detail: Detail = ""

    @model_validator(mode="after")
    def _time_needs_detection(self) -> Self:
        if not self.detected and self.detected_after_s is not None:
            raise ValueError("detected_after_s must be absent when nothing was detected")
        return self


class Proof(Record):
    """Evidence that something took effect, or was undone, read from a source other than the act."""

    proved: bool
    source: Name
    detail: Detail = ""


class Event(Record):
    """A moment of an experiment, for its timeline."""

    name: Name
    at_s: float
    """Offset from the injection; negative before it."""
    detail: Detail = ""


class FaultRun(Record):
    """One experiment: one fault (or a control without one), one way to recover."""

    measurement_id: Name
    fault: Name
    strategy: Name
    layer: Layer
    control: bool = False
    """A control arm goes through the same life without the injection."""
    recovery: Name | None = None
    """How service was brought back, e.g. an `Arm`; None where nothing had to be."""
    repeat: Count
    parameters: dict[str, Any] = Field(default_factory=dict)
    started_at: AwareDatetime
    verdict: Verdict
    reason_code: Name | None = None
    detail: Detail = ""
    effect: Proof | None = None
    detections: tuple[Detection, ...] = ()
    time_to_detect_s: Seconds | None = None
    """Injection to the first detection by an expected detector."""
    time_to_recover_s: Seconds | None = None
    """Injection to the first right answer after it."""
    recovery_s: Seconds | None = None
    """The recovery's own part: decision to recover to first right answer."""
    rollback: Proof | None = None
    oracle: Oracle
    events: tuple[Event, ...] = ()

    @model_validator(mode="after")
    def _pass_needs_proof(self) -> Self:
        if self.verdict is Verdict.PASS:
            if not self.control and not (self.effect and self.effect.proved):
                raise ValueError("verdict pass needs a proved effect")
            if not (self.rollback and self.rollback.proved):
                raise ValueError("verdict pass needs a proved rollback")
            if self.oracle.verdict is not OracleVerdict.EQUAL:
                raise ValueError("verdict pass needs an equal oracle")
        elif not self.reason_code:
            raise ValueError(f"verdict {self.verdict} needs a reason_code")
        return self


class CollectiveOperation(StrEnum):
    """What ranks do together."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    SEND_RECV = "send_recv"


class CollectiveMeasurement(Record):
    """One collective at one size, in one life of the ranks."""

    measurement_id: Name
    operation: CollectiveOperation
    arm: Name
    """`healthy`, or how it was degraded."""
    backend: Name
    """`nccl`, or `gloo` on the CPU."""
    transports: tuple[Name, ...] = ()
    """What carried the connections, as the backend's own log says; empty where it says nothing."""
    ranks: int = Field(ge=1, le=MAX_COUNT)
    bytes: int = Field(ge=1, le=MAX_COUNT)
    """The size as nccl-tests counts it: of the buffer, or of all that an all-gather collects."""
    repeat: Count
    iterations: int = Field(ge=1, le=MAX_COUNT)
    started_at: AwareDatetime
    outcome: Outcome
    reason_code: Name | None = None
    detail: Detail = ""
    time_s: Seconds | None = None
    """Of one collective: the mean over iterations and ranks."""
    algbw_bytes_per_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    busbw_bytes_per_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    environment: dict[str, str] = Field(default_factory=dict)
    """The variables of the arm."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        figures = (self.time_s, self.algbw_bytes_per_s, self.busbw_bytes_per_s)
        if self.outcome is Outcome.OK and None in figures:
            raise ValueError("time_s and bandwidths must be set when the outcome is ok")
        if self.outcome is not Outcome.OK and not self.reason_code:
            raise ValueError("reason_code must be set when the outcome is not ok")
        return self


class FanoutRestore(Record):
    """One of several restores from one image that began together: a wave."""

    measurement_id: Name
    snapshot_id: Name
    width: int = Field(ge=1)
    """How many began together."""
    repeat: int = Field(ge=0)
    """Which wave of this width and page cache it belongs to."""
    page_cache_requested: PageCache
    page_cache_found: PageCache
    page_cache_fraction: float | None = Field(default=None, ge=0, le=1)
    """Share of the pages of image and weights that were resident just before the wave."""
    started_at: AwareDatetime
    """When the wave began."""
    image_bytes: int = Field(ge=0)
    disk_bytes_per_s: float = Field(gt=0, allow_inf_nan=False)
    """At which the image came from the disk, read in parallel by itself, in the same repeat."""
    outcome: Outcome
    reason_code: Name | None = None
    detail: Detail = ""
    total_s: Seconds | None = None
    """From the beginning of this restore to its first token, set when the outcome is ok."""
    wave_s: Seconds | None = None
    """From the beginning of the wave to its last first token; None where one failed."""
    oracle: Oracle

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.outcome is Outcome.OK:
            if self.total_s is None or self.oracle.verdict is not OracleVerdict.EQUAL:
                raise ValueError("outcome ok needs total_s and an equal oracle")
        elif not self.reason_code:
            raise ValueError("reason_code must be set when the outcome is not ok")
        return self


class EvidenceFile(Record):
    """A file beside `run.json`, with its hash."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RunRecord(Record):
    """Everything one job found. The content of `run.json`."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=MAX_COUNT)
    run_id: Annotated[str, Field(pattern=RUN_ID_PATTERN)]
    kind: RunKind
    started_at: AwareDatetime
    finished_at: AwareDatetime
    worker: Name
    basis: Basis
    stack: Stack
    stack_key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    launcher: Name = "local"
    platform_version: Name
    platform_commit: Name | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    """What was asked, as the job got it."""
    startups: tuple[StartupMeasurement, ...] = ()
    snapshots: tuple[SnapshotMeasurement, ...] = ()
    faults: tuple[FaultRun, ...] = ()
    compatibility: tuple[CompatibilityTrial, ...] = ()
    collectives: tuple[CollectiveMeasurement, ...] = ()
    fanout: tuple[FanoutRestore, ...] = ()
    evidence: tuple[EvidenceFile, ...] = ()
    unsupported: dict[str, Detail] = Field(default_factory=dict)
    """Parts of what was asked that this machine can't do: name -> why."""

    @model_validator(mode="after")
    def _names_its_stack(self) -> Self:
        if self.stack_key != self.stack.key:
            raise ValueError(f"stack_key {self.stack_key} is not the key of stack {self.stack.key}")
        if self.finished_at < self.started_at:
            raise ValueError("finished_at is before started_at")
        return self


def new_run_id(kind: RunKind, now: datetime | None = None) -> str:
    """A name that sorts by time and that two jobs on any two machines don't share."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return f"{moment:%Y%m%dT%H%M%SZ}-{kind}-{secrets.token_hex(4)}"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `run.json`, generated from the model."""
    return RunRecord.model_json_schema()
