"""Seeded records for tests: valid, varied, and the same for the same seed.

What belongs here: making records and landing them. Nothing here was measured, so every record
carries the basis `simulated` unless a test asks for another one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from resilience_pipelines.home import Home, open_home
from resilience_pipelines.records import (
    Arm,
    Basis,
    CollectiveMeasurement,
    CollectiveOperation,
    CompatibilityTrial,
    CriuStatistics,
    Detection,
    Event,
    FanoutRestore,
    FaultRun,
    Layer,
    Oracle,
    OracleVerdict,
    Outcome,
    PageCache,
    Phase,
    Proof,
    RunKind,
    RunRecord,
    SnapshotMeasurement,
    StartupMeasurement,
    Verdict,
)
from resilience_pipelines.samples import SAMPLES_SCHEMA
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.landing import LandingWriter

EPOCH = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)

TYPICAL_TOTAL_S: Mapping[Arm, float] = {
    Arm.COLD: 40.0,
    Arm.WARM_CACHE: 20.0,
    Arm.SLEEP_WAKE: 0.5,
    Arm.RESTORE: 4.0,
}
PHASES: Mapping[Arm, tuple[str, ...]] = {
    Arm.COLD: ("import", "load_weights", "compile", "first_token"),
    Arm.WARM_CACHE: ("import", "load_weights", "compile", "first_token"),
    Arm.SLEEP_WAKE: ("wake", "first_token"),
    Arm.RESTORE: ("verify", "criu_restore", "wake", "first_token"),
}
EQUAL = Oracle(verdict=OracleVerdict.EQUAL, tokens=16, max_logprob_difference=0.0)
DIFFERENT = Oracle(verdict=OracleVerdict.DIFFERENT, tokens=16, first_difference=3)
NOT_CHECKED = Oracle(verdict=OracleVerdict.NOT_CHECKED)


def make_stack(**changes: Any) -> Stack:
    """A stack of a small machine; changes are dimensions by name."""
    facts: dict[str, Any] = {
        "cpu_model": "Test CPU @ 2.0 GHz",
        "cpu_count": 2,
        "memory_mib": 8192,
        "storage_kind": "ext4/virtio",
        "architecture": "x86_64",
        "kernel_version": "6.1.0",
        "criu_version": "4.2.1",
        "snapshot_engine": "criu",
        "engine": "reference",
        "engine_version": "1",
        "python_version": "3.11.7",
        "model": "tiny",
        "model_precision": "float32",
    }
    return Stack.model_validate(facts | changes)


class RecordFactory:
    """Makes records one after the other; two factories of one seed make the same ones.

    Args:
        seed: of everything that varies.
        worker: the name of the worker in every record.
    """

    def __init__(
        self, seed: int = 0, *, worker: str = "reference", basis: Basis = Basis.SIMULATED
    ) -> None:
        self._random = random.Random(seed)
        self._worker = worker
        self._basis = basis
        self._clock = EPOCH + timedelta(seconds=seed)

    def run_id(self, kind: RunKind) -> str:
        """A run id at the factory's present time."""
        return f"{self._clock:%Y%m%dT%H%M%SZ}-{kind}-{self._random.getrandbits(32):08x}"

    def startup(
        self,
        arm: Arm = Arm.COLD,
        repeat: int = 0,
        *,
        total_s: float | None = None,
        variant: str | None = None,
        oracle: Oracle = EQUAL,
        position: int = 0,
    ) -> StartupMeasurement:
        """A start that reached its first token, by default at a time typical of the arm."""
        if total_s is None:
            total_s = TYPICAL_TOTAL_S[arm] * self._random.lognormvariate(0, 0.05)
        phases, unaccounted_s = self._phases(PHASES[arm], total_s)
        right = oracle.verdict is not OracleVerdict.DIFFERENT
        suffix = f"-{variant}" if variant else ""
        return StartupMeasurement(
            measurement_id=f"{arm}-{repeat}{suffix}",
            arm=arm,
            variant=variant,
            repeat=repeat,
            position=position,
            started_at=self._tick(total_s),
            outcome=Outcome.OK if right else Outcome.FAILED,
            reason_code=None if right else "wrong_answer",
            total_s=total_s,
            phases=phases,
            unaccounted_s=unaccounted_s,
            oracle=oracle,
            page_cache_requested=PageCache.COLD if arm is Arm.COLD else PageCache.WARM,
            page_cache_found=PageCache.COLD if arm is Arm.COLD else PageCache.WARM,
            page_cache_fraction=0.0 if arm is Arm.COLD else 1.0,
            snapshot_id="snapshot-a" if arm is Arm.RESTORE else None,
            criu=CriuStatistics(forking_s=0.01, restore_s=total_s / 2, pages_restored=4096)
            if arm is Arm.RESTORE
            else None,
            throughput_tokens_per_s=100.0 * self._random.lognormvariate(0, 0.02),
            throughput_before_tokens_per_s=100.0 if arm in (Arm.RESTORE, Arm.SLEEP_WAKE) else None,
        )

    def failed_startup(
        self,
        arm: Arm,
        repeat: int = 0,
        *,
        outcome: Outcome = Outcome.FAILED,
        reason_code: str = "worker_failed",
    ) -> StartupMeasurement:
        """A start that never answered."""
        return StartupMeasurement(
            measurement_id=f"{arm}-{repeat}",
            arm=arm,
            repeat=repeat,
            position=0,
            started_at=self._tick(1.0),
            outcome=outcome,
            reason_code=reason_code,
            detail="It ended before it answered.",
            oracle=NOT_CHECKED,
        )

    def snapshot(self, number: int = 0) -> SnapshotMeasurement:
        """A snapshot that was taken."""
        total_s = self._random.uniform(2, 4)
        phases, unaccounted_s = self._phases(("sleep", "criu_dump", "manifest"), total_s)
        return SnapshotMeasurement(
            measurement_id=f"snapshot-{number}",
            snapshot_id="snapshot-a",
            started_at=self._tick(total_s),
            outcome=Outcome.OK,
            engine="criu",
            total_s=total_s,
            phases=phases,
            unaccounted_s=unaccounted_s,
            image_bytes=200_000_000 + self._random.randrange(1_000_000),
            image_files=40,
            sleep_level=1,
            criu=CriuStatistics(freezing_s=0.01, frozen_s=1.2, pages_written=50_000),
            source_serving_after=True,
        )

    def fault(
        self,
        fault: str = "worker_kill",
        repeat: int = 0,
        *,
        verdict: Verdict = Verdict.PASS,
        control: bool = False,
        layer: Layer = Layer.USERSPACE,
        recovery: str | None = "restore",
        detected: bool | None = None,
        detect_s: float | None = None,
        recover_s: float | None = None,
    ) -> FaultRun:
        """An experiment; by default its fault was injected and seen, and a control's was not."""
        injected = not control and verdict not in (
            Verdict.NOT_INJECTED,
            Verdict.NOT_APPLICABLE,
            Verdict.ABORTED,
        )
        seen = injected if detected is None else detected
        detect_s = detect_s if detect_s is not None else self._random.uniform(0.1, 0.5)
        recover_s = recover_s if recover_s is not None else self._random.uniform(3, 5)
        recovered = injected and verdict is Verdict.PASS
        expected_seen = seen and not control
        suffix = "-control" if control else ""
        return FaultRun(
            measurement_id=f"{fault}-{layer}-{recovery}-{repeat}{suffix}",
            fault=fault,
            strategy="process",
            layer=layer,
            control=control,
            recovery=recovery,
            repeat=repeat,
            parameters={"signal": "SIGKILL"},
            started_at=self._tick(recover_s),
            verdict=verdict,
            reason_code=None if verdict is Verdict.PASS else f"reason_{verdict}",
            effect=Proof(proved=injected, source="/proc") if not control else None,
            detections=tuple(
                Detection(
                    detector=name,
                    expected=expected and not control,
                    detected=seen and expected,
                    detected_after_s=detect_s if seen and expected else None,
                    deadline_s=2.0,
                    clock="host_monotonic",
                    resolution_s=0.05,
                )
                for name, expected in (("worker_exit", True), ("nvml_xid", False))
            ),
            time_to_detect_s=detect_s if expected_seen else None,
            time_to_recover_s=recover_s if recovered else None,
            recovery_s=recover_s - detect_s if recovered else None,
            rollback=Proof(proved=verdict is not Verdict.ROLLBACK_FAILED, source="worker"),
            oracle=EQUAL if verdict is Verdict.PASS else NOT_CHECKED,
            events=(
                Event(name="steady_state", at_s=-1.0),
                Event(name="inject", at_s=0.0),
                Event(name="rolled_back", at_s=recover_s),
            ),
        )

    def compatibility_trial(
        self,
        number: int = 0,
        *,
        source: Stack | None = None,
        predicted: bool = True,
        reason_code: str | None = None,
        edit: str | None = None,
    ) -> CompatibilityTrial:
        """A restore of another stack's snapshot, or of an edited copy; one with a reason failed."""
        elapsed_s = self._random.uniform(0.3, 0.6)
        source = source or make_stack()
        return CompatibilityTrial(
            measurement_id=f"restore-{number}",
            snapshot_id=f"snapshot-a+{edit}" if edit else "snapshot-a",
            source_stack=source,
            source_stack_key=source.key,
            repeat=number,
            started_at=self._tick(elapsed_s),
            predicted_compatible=predicted,
            predictions=() if predicted else ("driver",),
            outcome=Outcome.FAILED if reason_code else Outcome.OK,
            reason_code=reason_code,
            failed_phase="criu_restore" if reason_code else None,
            elapsed_s=elapsed_s,
            oracle=NOT_CHECKED if reason_code else EQUAL,
        )

    def collective(
        self,
        arm: str = "healthy",
        repeat: int = 0,
        *,
        busbw: float | None = 1e9,
        operation: CollectiveOperation = CollectiveOperation.ALL_REDUCE,
        size: int = 2**20,
    ) -> CollectiveMeasurement:
        """A collective of two ranks, where algbw is busbw; without one, it failed."""
        return CollectiveMeasurement(
            measurement_id=f"{arm}-{operation}-{size}-{repeat}",
            operation=operation,
            arm=arm,
            backend="gloo",
            transports=("TCP",),
            ranks=2,
            bytes=size,
            repeat=repeat,
            iterations=10,
            started_at=self._tick(1.0),
            outcome=Outcome.FAILED if busbw is None else Outcome.OK,
            reason_code="rank_failed" if busbw is None else None,
            time_s=None if busbw is None else size / busbw,
            algbw_bytes_per_s=busbw,
            busbw_bytes_per_s=busbw,
            environment={"NCCL_ALGO": "Ring"} if arm != "healthy" else {},
        )

    def fanout(
        self,
        width: int,
        totals_s: Sequence[float | None],
        *,
        repeat: int = 0,
        page_cache: PageCache = PageCache.WARM,
        found: PageCache | None = None,
        disk_bytes_per_s: float = 1e9,
    ) -> list[FanoutRestore]:
        """A wave; a restore without a time failed."""
        whole = [total for total in totals_s if total is not None]
        started_at = self._tick(1.0)
        return [
            FanoutRestore(
                measurement_id=f"fanout-{width}-{page_cache}-{repeat}-{place}",
                snapshot_id="snapshot-a",
                width=width,
                repeat=repeat,
                page_cache_requested=page_cache,
                page_cache_found=found or page_cache,
                page_cache_fraction=1.0,
                started_at=started_at,
                image_bytes=200_000_000,
                disk_bytes_per_s=disk_bytes_per_s,
                outcome=Outcome.FAILED if total is None else Outcome.OK,
                reason_code="restore_failed" if total is None else None,
                total_s=total,
                wave_s=max(whole) if len(whole) == width else None,
                oracle=NOT_CHECKED if total is None else EQUAL,
            )
            for place, total in enumerate(totals_s)
        ]

    def record(
        self,
        kind: RunKind = RunKind.STARTUP,
        *,
        stack: Stack | None = None,
        startups: Iterable[StartupMeasurement] = (),
        snapshots: Iterable[SnapshotMeasurement] = (),
        faults: Iterable[FaultRun] = (),
        compatibility: Iterable[CompatibilityTrial] = (),
        collectives: Iterable[CollectiveMeasurement] = (),
        fanout: Iterable[FanoutRestore] = (),
        unsupported: Mapping[str, str] | None = None,
    ) -> RunRecord:
        """The record of a run that holds these measurements."""
        stack = stack or make_stack()
        startups, snapshots, faults = tuple(startups), tuple(snapshots), tuple(faults)
        compatibility, collectives = tuple(compatibility), tuple(collectives)
        fanout = tuple(fanout)
        started = [item.started_at for item in (*startups, *fanout)]
        started += [item.started_at for item in (*compatibility, *collectives)]
        started += [item.started_at for item in snapshots]
        started += [item.started_at for item in faults]
        started_at = min(started, default=self._clock)
        return RunRecord(
            run_id=self.run_id(kind),
            kind=kind,
            started_at=started_at,
            finished_at=self._tick(1.0),
            worker=self._worker,
            basis=self._basis,
            stack=stack,
            stack_key=stack.key,
            platform_version="0.1.0",
            platform_commit=hashlib.sha1(b"test").hexdigest(),
            parameters={"repeats": 1},
            startups=startups,
            snapshots=snapshots,
            faults=faults,
            compatibility=compatibility,
            collectives=collectives,
            fanout=fanout,
            unsupported=dict(unsupported or {}),
        )

    def startup_record(
        self,
        repeats: int = 5,
        *,
        arms: Iterable[Arm] = tuple(Arm),
        stack: Stack | None = None,
        totals_s: Mapping[Arm, Iterable[float]] | None = None,
    ) -> RunRecord:
        """A start-up run with `repeats` starts of each arm, or with the given totals."""
        startups = [
            self.startup(arm, repeat, total_s=total_s)
            for arm in arms
            for repeat, total_s in enumerate((totals_s or {}).get(arm, [None] * repeats))
        ]
        return self.record(startups=startups, snapshots=[self.snapshot()], stack=stack)

    def fault_record(self, repeats: int = 2, *, stack: Stack | None = None) -> RunRecord:
        """A fault run: one fault that passes, one that fails, and the controls of both."""
        verdicts = {"worker_kill": Verdict.PASS, "checkpoint_bit_flip": Verdict.FAIL}
        faults = [
            self.fault(fault, repeat, verdict=verdict)
            for repeat in range(repeats)
            for fault, verdict in verdicts.items()
        ]
        faults += [self.fault(fault, control=True) for fault in verdicts]
        return self.record(RunKind.FAULT, faults=faults, stack=stack)

    def samples(self, record: RunRecord, per_measurement: int = 5) -> pl.DataFrame:
        """Samples of every start of a run."""
        rows = [
            (item.measurement_id, 0.2 * index, "worker_resident_memory", "bytes",
             float(self._random.randrange(10**6, 10**8)))
            for item in record.startups
            for index in range(per_measurement)
        ]  # fmt: skip
        return pl.DataFrame(rows, schema=SAMPLES_SCHEMA, orient="row")

    def _phases(self, names: tuple[str, ...], total_s: float) -> tuple[tuple[Phase, ...], float]:
        weights = [self._random.uniform(0.5, 1.5) for _ in names]
        explained = total_s * self._random.uniform(0.9, 0.99)
        phases: list[Phase] = []
        at_s = 0.0
        for name, weight in zip(names, weights, strict=True):
            duration_s = explained * weight / sum(weights)
            phases.append(
                Phase(
                    name=name, start_s=at_s, duration_s=duration_s, clock="host_monotonic",
                    resolution_s=1e-6,
                )
            )  # fmt: skip
            at_s += duration_s
        return tuple(phases), total_s - sum(phase.duration_s for phase in phases)

    def _tick(self, seconds: float) -> datetime:
        before = self._clock
        self._clock += timedelta(seconds=seconds)
        return before


def make_home(root: Path) -> Home:
    """An empty data home."""
    return open_home(root)


def land(
    landing: Path,
    record: RunRecord,
    *,
    samples: pl.DataFrame | None = None,
    evidence: Mapping[str, bytes] | None = None,
) -> Path:
    """Write the landing folder of a record, as a job does."""
    with LandingWriter(landing, record.run_id) as writer:
        for name, content in (evidence or {"worker.log": b"ready\n"}).items():
            writer.path(name).write_bytes(content)
        if samples is not None and len(samples):
            writer.write_samples(samples)
        return writer.finish(record)
