"""Rows of the raw tables, made from a record, and stacks made from rows.

What belongs here: how the parts of a record spread over tables; nothing is computed or left out.
What does not: the tables' definition (`schema`), and writing rows (`load`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl
from pydantic_core import to_json

from resilience_pipelines.records import (
    CollectiveMeasurement,
    CompatibilityTrial,
    CriuStatistics,
    FanoutRestore,
    FaultRun,
    Oracle,
    Phase,
    Proof,
    RunRecord,
    SnapshotMeasurement,
    StartupMeasurement,
)
from resilience_pipelines.stack import Stack

Row = dict[str, Any]


def stack_row(stack: Stack) -> Row:
    """The row of `raw.stacks`."""
    return {
        "stack_key": stack.key,
        "hardware_key": stack.hardware_key,
        "software_key": stack.software_key,
        "hardware_label": stack.hardware_label,
        "software_label": stack.software_label,
        **stack.model_dump(),
    }


def stacks_in(rows: pl.DataFrame) -> list[Stack]:
    """The stacks in rows that have a column for each dimension, in their order."""
    return [
        Stack.model_validate({name: row[name] for name in Stack.model_fields})
        for row in rows.iter_rows(named=True)
    ]


def stack_rows(record: RunRecord) -> list[Row]:
    """The rows of `raw.stacks`: the run's own stack, and those that its snapshots came from."""
    stacks = {record.stack_key: record.stack}
    stacks |= {trial.source_stack_key: trial.source_stack for trial in record.compatibility}
    return [stack_row(stack) for stack in stacks.values()]


def record_rows(
    record: RunRecord, *, folder: str, run_file_sha256: str, loaded_at: datetime
) -> dict[str, list[Row]]:
    """The rows of every table of `schema.RECORD_TABLES`."""
    run = record.run_id
    return {
        "runs": [
            {
                **record.model_dump(
                    include={
                        "run_id", "schema_version", "kind", "started_at", "finished_at", "worker",
                        "basis", "stack_key", "launcher", "platform_version", "platform_commit",
                    }
                ),
                "parameters": _json(record.parameters),
                "unsupported": _json(record.unsupported),
                "folder": folder,
                "run_file_sha256": run_file_sha256,
                "loaded_at": loaded_at,
            }
        ],
        "startups": [_startup(run, item) for item in record.startups],
        "startup_phases": [row for item in record.startups for row in _phases(run, item)],
        "snapshots": [_snapshot(run, item) for item in record.snapshots],
        "snapshot_phases": [row for item in record.snapshots for row in _phases(run, item)],
        "faults": [_fault(run, item) for item in record.faults],
        "fault_detections": [
            {"run_id": run, "measurement_id": item.measurement_id, "ordinal": ordinal}
            | detection.model_dump()
            for item in record.faults
            for ordinal, detection in enumerate(item.detections)
        ],
        "fault_events": [
            {"run_id": run, "measurement_id": item.measurement_id, "ordinal": ordinal}
            | event.model_dump()
            for item in record.faults
            for ordinal, event in enumerate(item.events)
        ],
        "compatibility": [_compatibility(run, item) for item in record.compatibility],
        "collectives": [_collective(run, item) for item in record.collectives],
        "fanout": [_fanout(run, item) for item in record.fanout],
        "evidence": [{"run_id": run} | file.model_dump() for file in record.evidence],
    }  # fmt: skip


def _startup(run_id: str, item: StartupMeasurement) -> Row:
    return {
        "run_id": run_id,
        **item.model_dump(exclude={"phases", "oracle", "criu"}),
        **_oracle(item.oracle),
        **_criu(item.criu),
    }


def _snapshot(run_id: str, item: SnapshotMeasurement) -> Row:
    return {
        "run_id": run_id,
        **item.model_dump(exclude={"phases", "criu"}),
        **_criu(item.criu),
    }


def _fault(run_id: str, item: FaultRun) -> Row:
    inner = {"parameters", "effect", "rollback", "oracle", "detections", "events"}
    return {
        "run_id": run_id,
        **item.model_dump(exclude=inner),
        "parameters": _json(item.parameters),
        **_proof("effect", item.effect),
        **_proof("rollback", item.rollback),
        **_oracle(item.oracle),
    }


def _compatibility(run_id: str, item: CompatibilityTrial) -> Row:
    return {
        "run_id": run_id,
        **item.model_dump(exclude={"source_stack", "predictions", "oracle"}),
        "predictions": list(item.predictions),
        **_oracle(item.oracle),
    }


def _collective(run_id: str, item: CollectiveMeasurement) -> Row:
    return {
        "run_id": run_id,
        **item.model_dump(exclude={"transports", "environment"}),
        "transports": list(item.transports),
        "environment": _json(item.environment),
    }


def _fanout(run_id: str, item: FanoutRestore) -> Row:
    return {"run_id": run_id, **item.model_dump(exclude={"oracle"}), **_oracle(item.oracle)}


def _phases(run_id: str, item: StartupMeasurement | SnapshotMeasurement) -> list[Row]:
    phases: Sequence[Phase] = item.phases
    return [
        {"run_id": run_id, "measurement_id": item.measurement_id, "ordinal": ordinal}
        | phase.model_dump()
        for ordinal, phase in enumerate(phases)
    ]


def _oracle(oracle: Oracle) -> Row:
    return {f"oracle_{name}": value for name, value in oracle.model_dump().items()}


def _criu(statistics: CriuStatistics | None) -> Row:
    values = (statistics or CriuStatistics()).model_dump()
    return {f"criu_{name}": value for name, value in values.items()}


def _proof(what: str, proof: Proof | None) -> Row:
    return {
        f"{what}_{name}": getattr(proof, name) if proof else None for name in Proof.model_fields
    }


def _json(value: Mapping[str, Any]) -> str:
    return to_json(value, inf_nan_mode="null").decode()
