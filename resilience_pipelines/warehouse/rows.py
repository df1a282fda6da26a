"""Rows of the raw tables, made from a record, and stacks made from rows.

What belongs here: how the parts of a record spread over tables; nothing is computed or left out.
What does not: the tables' definition (`schema`), and writing rows (`load`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Final

import polars as pl
from pydantic_core import to_json

from resilience_pipelines.records import CriuStatistics, Proof, RunRecord
from resilience_pipelines.stack import Stack

Row = dict[str, Any]

_RUN_COLUMNS: Final = (
    "run_id", "schema_version", "kind", "started_at", "finished_at", "worker", "basis",
    "stack_key", "launcher", "platform_version", "platform_commit",
)  # fmt: skip


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
    # All of it at once: a call for each of a run's many small parts takes longer than they do.
    content = record.model_dump()
    return {
        "runs": [
            {
                **{name: content[name] for name in _RUN_COLUMNS},
                "parameters": _json(content["parameters"]),
                "unsupported": _json(content["unsupported"]),
                "folder": folder,
                "run_file_sha256": run_file_sha256,
                "loaded_at": loaded_at,
            }
        ],
        "startups": [_startup(run, item) for item in content["startups"]],
        "startup_phases": _parts(run, content["startups"], "phases"),
        "snapshots": [_snapshot(run, item) for item in content["snapshots"]],
        "snapshot_phases": _parts(run, content["snapshots"], "phases"),
        "faults": [_fault(run, item) for item in content["faults"]],
        "fault_detections": _parts(run, content["faults"], "detections"),
        "fault_events": _parts(run, content["faults"], "events"),
        "compatibility": [_compatibility(run, item) for item in content["compatibility"]],
        "collectives": [_collective(run, item) for item in content["collectives"]],
        "fanout": [_fanout(run, item) for item in content["fanout"]],
        "evidence": [{"run_id": run} | file for file in content["evidence"]],
    }


def _startup(run_id: str, item: Row) -> Row:
    return {
        "run_id": run_id,
        **_without(item, {"phases", "oracle", "criu"}),
        **_oracle(item["oracle"]),
        **_criu(item["criu"]),
    }


def _snapshot(run_id: str, item: Row) -> Row:
    return {"run_id": run_id, **_without(item, {"phases", "criu"}), **_criu(item["criu"])}


def _fault(run_id: str, item: Row) -> Row:
    inner = {"parameters", "effect", "rollback", "oracle", "detections", "events"}
    return {
        "run_id": run_id,
        **_without(item, inner),
        "parameters": _json(item["parameters"]),
        **_proof("effect", item["effect"]),
        **_proof("rollback", item["rollback"]),
        **_oracle(item["oracle"]),
    }


def _compatibility(run_id: str, item: Row) -> Row:
    return {
        "run_id": run_id,
        **_without(item, {"source_stack", "predictions", "oracle"}),
        "predictions": list(item["predictions"]),
        **_oracle(item["oracle"]),
    }


def _collective(run_id: str, item: Row) -> Row:
    return {
        "run_id": run_id,
        **_without(item, {"transports", "environment"}),
        "transports": list(item["transports"]),
        "environment": _json(item["environment"]),
    }


def _fanout(run_id: str, item: Row) -> Row:
    return {"run_id": run_id, **_without(item, {"oracle"}), **_oracle(item["oracle"])}


def _parts(run_id: str, items: Sequence[Row], name: str) -> list[Row]:
    """The rows of a list that each measurement has, numbered within it."""
    return [
        {"run_id": run_id, "measurement_id": item["measurement_id"], "ordinal": ordinal} | part
        for item in items
        for ordinal, part in enumerate(item[name])
    ]


def _without(item: Row, names: Set[str]) -> Row:
    return {name: value for name, value in item.items() if name not in names}


def _oracle(oracle: Row) -> Row:
    return {f"oracle_{name}": value for name, value in oracle.items()}


def _criu(statistics: Row | None) -> Row:
    names = CriuStatistics.model_fields
    return {f"criu_{name}": statistics[name] if statistics else None for name in names}


def _proof(what: str, proof: Row | None) -> Row:
    names = Proof.model_fields
    return {f"{what}_{name}": proof[name] if proof else None for name in names}


def _json(value: Mapping[str, Any]) -> str:
    return to_json(value, inf_nan_mode="null").decode()
