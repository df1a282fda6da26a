"""Published files for the dashboard's tests: the marts' tables with made-up, seeded rows.

What belongs here: the tables and columns that the page reads, and builders of rows. Nothing here
was measured: rows of the builders carry the basis `simulated` unless a test asks for another one.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import polars

from resilience_pipelines.records import CriuStatistics
from resilience_pipelines.stack import Stack

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)

CRIU = ", ".join(
    f"criu_{name} {'double' if name.endswith('_s') else 'bigint'}"
    for name in CriuStatistics.model_fields
)
SCOPE = "worker text, basis text, stack_key text"
MEASURED = (
    f"run_id text, measurement_id text, started_at timestamptz, {SCOPE}, launcher text, "
    "hardware_key text, software_key text, hardware_label text, software_label text, engine text, "
    "engine_version text"
)
INTERVAL = "n bigint, median_s double, ci_low_s double, ci_high_s double"
DIMENSIONS = ", ".join(
    f"{name} {'bigint' if name.endswith(('_count', '_mib')) else 'text'}"
    for name in Stack.model_fields
)
TABLES = {
    "stacks": f"stack_key text, hardware_key text, software_key text, hardware_label text, "
    f"software_label text, first_measured_at timestamptz, last_measured_at timestamptz, "
    f"runs bigint, {DIMENSIONS}",
    "runs": f"run_id text, kind text, started_at timestamptz, finished_at timestamptz, {SCOPE}, "
    "launcher text, platform_version text, platform_commit text, parameters text, "
    "unsupported text",
    "startup_measurements": f"{MEASURED}, arm text, variant text, repeat integer, "
    "position integer, result text, outcome text, reason_code text, detail text, total_s double, "
    "unaccounted_s double, oracle_verdict text, oracle_tokens integer, "
    "max_logprob_difference double, page_cache_requested text, page_cache_found text, "
    "page_cache_fraction double, snapshot_id text, throughput_tokens_per_s double, "
    f"throughput_before_tokens_per_s double, {CRIU}",
    "startup_variants": f"{SCOPE}, arm text, variant text, {INTERVAL}, n_failed bigint, "
    "n_wrong_answer bigint, n_not_checked bigint, n_unsupported bigint, min_s double, "
    "max_s double, mean_unaccounted_fraction double",
    "startup_phase_summary": f"{SCOPE}, arm text, phase text, {INTERVAL}, order_in_start bigint",
    "restore_speedup": f"{SCOPE}, versus text, other_arm text, n_restore bigint, n_other bigint, "
    "speedup double, ci_low double, ci_high double",
    "startup_trend": f"{SCOPE}, hardware_key text, hardware_label text, model text, arm text, "
    f"software_label text, first_started_at timestamptz, {INTERVAL}, previous_stack_key text, "
    "previous_median_s double, "
    "change_fraction double, changed_dimensions text",
    "change_points": f"change_id text, {SCOPE}, hardware_key text, hardware_label text, "
    "model text, arm text, variant text, changed_at timestamptz, previous_stack_key text, "
    "n_before bigint, n_after bigint, before_median_s double, after_median_s double, "
    "change_fraction double, change_low double, change_high double, noise_threshold double, "
    "significant boolean, relevant boolean, attribution text, candidate_dimensions text[], "
    "decision text, decision_note text, decided_by text, decided_at timestamptz",
    "compatibility_matrix": f"{SCOPE}, source_stack_key text, source_hardware_label text, "
    "source_software_label text, hardware_label text, software_label text, "
    "image_edit text, differing_dimensions text[], n bigint, n_ok bigint, n_failed bigint, "
    "predicted_compatible boolean, reason_code text, gate text, median_elapsed_s double, "
    "wasted_gpu_s double, last_at timestamptz",
    "restore_fanout": f"{SCOPE}, width bigint, page_cache text, n_waves bigint, n bigint, "
    "n_failed bigint, p50_s double, p50_ci_low_s double, p50_ci_high_s double, p99_s double, "
    "p50_over_alone double, wave_median_s double, image_median_bytes double, "
    "restored_median_bytes_per_s double, disk_median_bytes_per_s double, image_from_disk_s double",
    "snapshot_economics": f"{SCOPE}, versus text, gpu_count bigint, n_snapshots bigint, "
    "n_snapshots_failed bigint, take_median_s double, image_median_bytes double, "
    "n_restores bigint, n_other bigint, restore_median_s double, other_median_s double, "
    "saved_median_s double, saved_ci_low_s double, saved_ci_high_s double, "
    "restores_to_break_even bigint, net_saved_s double, net_saved_gpu_s double",
    "snapshots": f"{MEASURED}, snapshot_engine text, snapshot_id text, outcome text, "
    "reason_code text, detail text, "
    "total_s double, unaccounted_s double, image_bytes bigint, image_files bigint, "
    f"sleep_level integer, source_serving_after boolean, {CRIU}",
    "snapshot_phases": "run_id text, measurement_id text, stack_key text, phase text, "
    "start_s double, duration_s double, clock text, resolution_s double, basis text",
    "fault_runs": f"{MEASURED}, fault text, planned_fault text, strategy text, layer text, "
    "control boolean, recovery text, repeat integer, verdict text, reason_code text, detail text, "
    "effect_proved boolean, effect_source text, effect_detail text, rollback_proved boolean, "
    "rollback_source text, "
    "rollback_detail text, time_to_detect_s double, time_to_recover_s double, recovery_s double, "
    "oracle_verdict text, parameters text",
    "fault_detections": "run_id text, measurement_id text, fault text, planned_fault text, "
    "control boolean, layer text, detector text, expected boolean, detected boolean, "
    "detected_after_s double, deadline_s double, within_deadline boolean, clock text, "
    "resolution_s double, detail text, basis text, stack_key text",
    "fault_events": "run_id text, measurement_id text, planned_fault text, event text, "
    "at_s double, detail text",
    "fault_summary": f"{SCOPE}, planned_fault text, layer text, recovery text, n bigint, "
    "n_pass bigint, n_fail bigint, n_inconclusive bigint, n_not_injected bigint, "
    "n_not_applicable bigint, n_aborted bigint, n_rollback_failed bigint, "
    "detect_median_s double, detect_ci_low_s double, detect_ci_high_s double, "
    "recover_median_s double, recover_ci_low_s double, recover_ci_high_s double",
    "fault_scores": f"{SCOPE}, planned_fault text, layer text, recovery text, n bigint, "
    "n_pass bigint, n_detected bigint, mttd_s double, mttd_ci_low_s double, mttd_ci_high_s double, "
    "n_recovered bigint, mttr_s double, mttr_ci_low_s double, mttr_ci_high_s double, "
    "daily_availability_fraction double, daily_availability_fraction_ci_low double, "
    "daily_availability_fraction_ci_high double, fleet_availability_fraction double, "
    "fleet_availability_fraction_ci_low double, fleet_availability_fraction_ci_high double, "
    "fleet_failures_per_gpu_year double",
    "detector_coverage": f"{SCOPE}, planned_fault text, layer text, detector text, {INTERVAL}, "
    "n_expected bigint, n_detected bigint, n_missed bigint, n_control bigint, "
    "n_false_alarms bigint",
    "data_quality": f"{SCOPE}, kind text, subject text, asked bigint, ok bigint, failed bigint, "
    "unsupported bigint, reasons text",
}

Row = dict[str, Any]


@dataclass
class Marts:
    """Rows by table, and where they go."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def add(self, table: str, **values: Any) -> None:
        self.rows[table].append(values)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with duckdb.connect(str(path)) as connection:
            for table, columns in TABLES.items():
                connection.execute(f"create table {table} ({columns})")
                if self.rows[table]:
                    frame = polars.from_dicts(self.rows[table], infer_schema_length=None)
                    connection.register("rows", frame)
                    connection.execute(f"insert into {table} by name select * from rows")
                    connection.unregister("rows")
        return path


def rich() -> Marts:
    """Two machines: a reference worker with faults, and an engine over five stacks."""
    return Marts(copy.deepcopy(_rich().rows))


@functools.cache
def _rich() -> Marts:
    marts = Marts()
    laptop = Stack(
        cpu_model="AMD EPYC 9V45 96-Core Processor", cpu_count=2, memory_mib=24576,
        storage_kind="ext4/virtio", architecture="x86_64", kernel_version="6.18.5",
        criu_version="4.2.1", snapshot_engine="criu", engine="reference", engine_version="0.1.0",
        python_version="3.11.7", model="tiny-decoder-seed-7", model_precision="float32",
    )  # fmt: skip
    _stack_results(
        marts, laptop, START + timedelta(days=40), worker="reference", basis="reference", seed=1,
        medians={"cold": 2.11, "warm_cache": 0.94, "sleep_wake": 0.031, "restore": 0.226},
        phases=REFERENCE_PHASES, image_bytes=188_000_000,
    )  # fmt: skip
    add_faults(marts, laptop, START + timedelta(days=40, hours=2), basis="reference", seed=2)
    steps: list[tuple[dict[str, Any], dict[str, float]]] = [
        ({}, {"cold": 118.0, "warm_cache": 66.0, "sleep_wake": 0.41, "restore": 9.8}),
        ({"engine_version": "0.21.0"},
         {"cold": 112.0, "warm_cache": 61.0, "sleep_wake": 0.38, "restore": 9.6}),
        ({"driver_version": "580.95.05", "cuda_version": "13.0"},
         {"cold": 110.0, "warm_cache": 60.0, "sleep_wake": 0.37, "restore": 6.1}),
        ({"criu_version": "4.2.1"},
         {"cold": 111.0, "warm_cache": 60.5, "sleep_wake": 0.37, "restore": 5.2}),
        ({"engine_version": "0.23.0", "torch_version": "2.11.0", "driver_version": "580.159.04"},
         {"cold": 101.0, "warm_cache": 57.0, "sleep_wake": 0.29, "restore": 4.9}),
    ]  # fmt: skip
    dimensions: dict[str, Any] = {
        "gpu_sku": "NVIDIA H200", "gpu_count": 1, "gpu_memory_mib": 143771,
        "cpu_model": "Intel Xeon Platinum 8592", "cpu_count": 16, "memory_mib": 131072,
        "storage_kind": "ext4/nvme", "architecture": "x86_64", "driver_version": "575.57.08",
        "cuda_version": "12.9", "kernel_version": "6.8.0-60", "criu_version": "4.1.1",
        "snapshot_engine": "criu+cuda", "engine": "vllm", "engine_version": "0.20.2",
        "torch_version": "2.10.0", "python_version": "3.12.3", "model": "Qwen3-0.6B",
        "model_precision": "bfloat16",
    }  # fmt: skip
    before: Stack | None = None
    known: list[Stack] = []
    previous: dict[str, float] = {}
    for place, (change, medians) in enumerate(steps):
        dimensions |= change
        stack = Stack(**dimensions)
        _stack_results(
            marts, stack, START + timedelta(days=8 * place), worker="vllm", basis="simulated",
            seed=10 + place, medians=medians, phases=VLLM_PHASES, image_bytes=5_900_000_000,
            before=before, previous=previous,
        )  # fmt: skip
        before, previous = stack, medians
        known.append(stack)
    assert before is not None
    _change_points(marts, known)
    _compatibility(marts, known)
    add_faults(marts, before, START + timedelta(days=33), basis="simulated", worker="vllm", seed=3)
    return marts


def troubled() -> Marts:
    """The first machine of `rich` alone, with everything gone wrong that can go wrong."""
    marts = rich()
    first = marts.rows["startup_measurements"][0]["stack_key"]
    for rows in marts.rows.values():
        rows[:] = [row for row in rows if row.get("stack_key", first) == first]
    starts = marts.rows["startup_measurements"]
    restores = [row for row in starts if row["arm"] == "restore"]
    for row in restores[:2]:
        row |= {
            "result": "wrong_answer", "outcome": "failed", "reason_code": "wrong_answer",
            "oracle_verdict": "different",
        }  # fmt: skip
    restores[2] |= {"result": "not_checked", "oracle_verdict": "not_checked"}
    cold = next(row for row in starts if row["arm"] == "cold")
    cold |= {
        "result": "failed", "outcome": "failed", "reason_code": "worker_exited", "total_s": None,
        "unaccounted_s": None, "oracle_verdict": "not_checked", "detail": "exit code 1",
    }  # fmt: skip
    for row in marts.rows["startup_variants"]:
        if row["arm"] == "restore":
            row |= {"n": 4, "n_wrong_answer": 2, "n_not_checked": 1}
        if row["arm"] == "cold":
            row |= {"n": 6, "n_failed": 1}
    snapshot = marts.rows["snapshots"][0]
    snapshot |= {
        "outcome": "failed", "reason_code": "io_uring_open", "image_bytes": None,
        "image_files": None, "snapshot_id": None, "source_serving_after": False, "total_s": None,
    }  # fmt: skip
    experiments = [row for row in marts.rows["fault_runs"] if row["planned_fault"] == "xid_79_log"]
    for row, verdict in zip(
        experiments, ("inconclusive", "aborted", "rollback_failed", "not_injected"), strict=False
    ):
        row |= {"verdict": verdict, "reason_code": f"why_{verdict}"}
    experiments[-1] |= {"verdict": "fail", "reason_code": "detector_fired"}
    experiments[-2] |= {"oracle_verdict": "different"}
    return marts


def one_row() -> Marts:
    """One restore without anything beside it: no interval, no comparison, no faults."""
    marts = Marts()
    stack = Stack(engine="vllm")
    _stack_results(
        marts, stack, START, worker="vllm", basis="simulated", seed=5,
        medians={"restore": 4.93}, phases={"restore": ["criu_restore"]}, repeats=1,
        image_bytes=None,
    )  # fmt: skip
    return marts


HOSTILE = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">\'"&amp;'
    "</script><!--<script>\u2028{{7*7}}=cmd()\u202e"
)


def hostile(text: str = HOSTILE) -> Marts:
    """Every text column that is free text holds `text`; words with a fixed set stay."""
    marts = rich()
    fixed = {
        "arm", "basis", "stack_key", "run_id", "measurement_id", "outcome", "verdict", "kind",
        "oracle_verdict", "versus", "changed_dimensions", "unsupported", "parameters", "phase",
        "previous_stack_key", "result", "hardware_key", "software_key", "recovery", "layer",
        "detector", "event", "planned_fault", "source_stack_key", "attribution", "decision", "gate",
    }  # fmt: skip
    for table, columns in TABLES.items():
        texts = {c.split()[0] for c in columns.split(", ") if c.split()[1] == "text"} - fixed
        for row in marts.rows[table]:
            row.update({name: text for name in texts if name in row or table == "stacks"})
            for name in {"phase", "detector", "event", "planned_fault", "layer", "subject"}:
                if row.get(name) and name in {c.split()[0] for c in columns.split(", ")}:
                    row[name] = f"{row[name]} {text}"
            for name in ("unsupported", "parameters"):
                if isinstance(row.get(name), str):
                    row[name] = json.dumps({text: text})
    return marts


REFERENCE_PHASES = {
    "cold": ["process_start", "import", "weight_load", "compile", "warm_up", "first_token"],
    "warm_cache": ["process_start", "import", "weight_load", "compile", "warm_up", "first_token"],
    "sleep_wake": ["wake", "first_token"],
    "restore": ["verify", "criu_restore", "wake", "first_token"],
}
VLLM_PHASES = {
    "cold": [
        "process_start", "import", "engine_init", "weight_load", "compile", "graph_capture",
        "first_token",
    ],
    "warm_cache": [
        "process_start", "import", "engine_init", "weight_load", "compile", "graph_capture",
        "first_token",
    ],
    "sleep_wake": ["wake", "first_token"],
    "restore": ["verify", "criu_restore", "cuda_restore", "wake", "first_token"],
}  # fmt: skip


PLAIN = {
    "\N{NO-BREAK SPACE}": " ", "\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-",
    "\N{EM DASH}": "--", "\N{MINUS SIGN}": "-", "\N{WORD JOINER}": "",
}  # fmt: skip


def plain(text: str) -> str:
    """Text with its typography in ASCII, as tests spell it."""
    for sign, spelled in PLAIN.items():
        text = text.replace(sign, spelled)
    return text


def interval(values: list[float]) -> tuple[float | None, float | None, float | None]:
    """Median and a seeded bootstrap interval, as a mart would hold them."""
    if not values:
        return None, None, None
    if len(values) < 2:
        return values[0], None, None
    source = random.Random(7)
    medians = sorted(median(source.choices(values, k=len(values))) for _ in range(200))
    return median(values), medians[4], medians[194]


def _scope(stack: Stack, worker: str, basis: str) -> Row:
    return {"worker": worker, "basis": basis, "stack_key": stack.key}


def _measured(stack: Stack, worker: str, basis: str, run: str, name: str, at: datetime) -> Row:
    return _scope(stack, worker, basis) | {
        "run_id": run, "measurement_id": name, "started_at": at, "launcher": "local",
        "hardware_key": stack.hardware_key, "software_key": stack.software_key,
        "hardware_label": stack.hardware_label, "software_label": stack.software_label,
        "engine": stack.engine, "engine_version": stack.engine_version,
    }  # fmt: skip


def add_run(
    marts: Marts, stack: Stack, at: datetime, *, kind: str, worker: str, basis: str,
    unsupported: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    digest = hashlib.sha256(f"{stack.key} {kind} {at}".encode()).hexdigest()[:8]
    run = f"{at:%Y%m%dT%H%M%SZ}-{kind}-{digest}"
    marts.add(
        "runs", run_id=run, kind=kind, started_at=at, finished_at=at + timedelta(minutes=9),
        **_scope(stack, worker, basis), launcher="local", platform_version="0.1.0",
        platform_commit="5f2b7c1e9d3a4b6c8e0f1a2b3c4d5e6f7a8b9c0d", parameters="{}",
        unsupported=json.dumps(dict(unsupported or {})),
    )  # fmt: skip
    known = next((row for row in marts.rows["stacks"] if row["stack_key"] == stack.key), None)
    if known is None:
        marts.add(
            "stacks", stack_key=stack.key, hardware_key=stack.hardware_key,
            software_key=stack.software_key, hardware_label=stack.hardware_label,
            software_label=stack.software_label, first_measured_at=at, last_measured_at=at,
            runs=1, **stack.model_dump(),
        )  # fmt: skip
    else:
        known |= {"last_measured_at": at, "runs": known["runs"] + 1}
    return run


def _stack_results(
    marts: Marts, stack: Stack, at: datetime, *, worker: str, basis: str, seed: int,
    medians: Mapping[str, float], phases: Mapping[str, list[str]], image_bytes: int | None,
    before: Stack | None = None, previous: Mapping[str, float] | None = None, repeats: int = 7,
) -> None:  # fmt: skip
    source = random.Random(seed)
    run = add_run(marts, stack, at, kind="startup", worker=worker, basis=basis)
    scope = _scope(stack, worker, basis)
    totals: dict[str, list[float]] = {}
    position = itertools.count()
    for arm, middle in medians.items():
        totals[arm] = []
        shares = _shares(source, len(phases[arm]))
        durations: dict[str, list[float]] = {name: [] for name in (*phases[arm], "unaccounted")}
        variants = [None, "level_2"] if arm == "sleep_wake" else [None]
        for variant, repeat in itertools.product(variants, range(repeats)):
            factor = 2.6 if variant else 1.0
            total = middle * factor * source.lognormvariate(0, 0.06)
            place = next(position)
            criu = {}
            if arm == "restore":
                criu = {
                    "criu_forking_s": 0.01 * total, "criu_restore_s": 0.6 * total,
                    "criu_pages_compared": 812, "criu_pages_skipped_cow": 14,
                    "criu_pages_restored": 41_873,
                }  # fmt: skip
            marts.add(
                "startup_measurements",
                **_measured(
                    stack, worker, basis, run, f"{arm}-{variant or 'plain'}-{repeat}",
                    at + timedelta(seconds=40 * place),
                ),
                arm=arm, variant=variant, repeat=repeat, position=place, result="right",
                outcome="ok",
                total_s=total, unaccounted_s=0.04 * total, oracle_verdict="equal",
                oracle_tokens=32, page_cache_found="cold" if arm == "cold" else "warm",
                page_cache_fraction=0.0 if arm == "cold" else 1.0,
                throughput_tokens_per_s=96 + source.random(),
                throughput_before_tokens_per_s=97.0 if arm in ("restore", "sleep_wake") else None,
                **criu,
            )  # fmt: skip
            if variant is None:
                totals[arm].append(total)
                for name, share in zip(phases[arm], shares, strict=True):
                    durations[name].append(0.96 * total * share)
                durations["unaccounted"].append(0.04 * total)
        for variant in variants:
            values = [
                row["total_s"]
                for row in marts.rows["startup_measurements"]
                if row["run_id"] == run and (row["arm"], row["variant"]) == (arm, variant)
            ]
            middle_s, low, high = interval(values)
            marts.add(
                "startup_variants", **scope, arm=arm, variant=variant, n=len(values),
                median_s=middle_s, ci_low_s=low, ci_high_s=high, n_failed=0, n_wrong_answer=0,
                n_not_checked=0,
                n_unsupported=0, min_s=min(values), max_s=max(values),
                mean_unaccounted_fraction=0.04,
            )  # fmt: skip
        for order, (name, values) in enumerate(durations.items()):
            middle_s, low, high = interval(values)
            marts.add(
                "startup_phase_summary", **scope, arm=arm, phase=name, n=len(values),
                median_s=middle_s, ci_low_s=low, ci_high_s=high, order_in_start=order,
            )  # fmt: skip
        middle_s, low, high = interval(totals[arm])
        marts.add(
            "startup_trend", **scope, hardware_key=stack.hardware_key,
            hardware_label=stack.hardware_label, model=stack.model, arm=arm,
            software_label=stack.software_label, first_started_at=at, n=repeats,
            median_s=middle_s, ci_low_s=low, ci_high_s=high,
            previous_stack_key=before.key if before else None,
            previous_median_s=(previous or {}).get(arm),
            change_fraction=median(totals[arm]) / previous[arm] - 1 if previous else None,
            changed_dimensions=", ".join(before.differences(stack)) if before else None,
        )  # fmt: skip
        marts.add(
            "data_quality", **scope, kind="startup", subject=arm, asked=len(variants) * repeats,
            ok=len(variants) * repeats, failed=0, unsupported=0, reasons=None,
        )  # fmt: skip
    _speedups(marts, scope, totals)
    if image_bytes is not None:
        _snapshots(marts, stack, at + timedelta(hours=1), worker, basis, source, image_bytes)
        _economics(marts, stack, scope, totals, image_bytes)
        _fanout(marts, scope, image_bytes)


def _speedups(marts: Marts, scope: Row, totals: Mapping[str, list[float]]) -> None:
    if "restore" not in totals:
        return
    restore = median(totals["restore"])
    starts = [arm for arm in ("cold", "warm_cache") if arm in totals]
    best = min(starts, key=lambda arm: median(totals[arm]), default=None)
    pairs = [(arm, arm) for arm in totals if arm != "restore"]
    for versus, arm in [*pairs, *([("best_other_start", best)] if best else [])]:
        ratio = median(totals[arm]) / restore
        marts.add(
            "restore_speedup", **scope, versus=versus, other_arm=arm, n_other=len(totals[arm]),
            n_restore=len(totals["restore"]), speedup=ratio, ci_low=ratio * 0.93,
            ci_high=ratio * 1.08,
        )  # fmt: skip


def add_change_point(
    marts: Marts, before: Stack, after: Stack, at: datetime, arm: str, fraction: float,
    **values: Any,
) -> None:  # fmt: skip
    candidates = sorted(before.differences(after))
    names = ("unexplained", "one_dimension", "candidates")
    marts.add(
        "change_points",
        **{
            "change_id": hashlib.sha256(f"{arm} {at} {values}".encode()).hexdigest()[:12],
            **_scope(after, "vllm", "simulated"), "hardware_key": after.hardware_key,
            "hardware_label": after.hardware_label, "model": after.model, "arm": arm,
            "variant": None, "changed_at": at, "previous_stack_key": before.key, "n_before": 14,
            "n_after": 7, "before_median_s": 10.0, "after_median_s": 10.0 * (1 + fraction),
            "change_fraction": fraction, "change_low": fraction - 0.04,
            "change_high": fraction + 0.03, "noise_threshold": 0.05, "significant": True,
            "relevant": True, "attribution": names[min(len(candidates), 2)],
            "candidate_dimensions": candidates, "decision": None, "decision_note": None,
        }
        | values,
    )  # fmt: skip


def _change_points(marts: Marts, stacks: list[Stack]) -> None:
    """A change of each kind over the engine's stacks: put down to one, to several, to nothing."""
    first, second, third, fourth, fifth = stacks
    at = [START + timedelta(days=8 * place) for place in range(len(stacks))]
    add_change_point(marts, second, third, at[2], "restore", -0.36)
    add_change_point(
        marts, third, fourth, at[3], "restore", -0.15, decision="accepted",
        decision_note="fewer copies",
    )  # fmt: skip
    add_change_point(marts, fourth, fifth, at[4], "cold", -0.09, relevant=False)
    add_change_point(marts, first, first, at[0] + timedelta(hours=3), "cold", 0.07, relevant=None)
    add_change_point(marts, first, second, at[1], "sleep_wake", 0.5, variant="level_2")
    add_change_point(
        marts, first, second, at[1], "warm_cache", 0.77, decision="muted",
        decision_note="a noisy neighbour",
    )  # fmt: skip


def _compatibility(marts: Marts, stacks: list[Stack]) -> None:
    """Snapshots of the last stack but one restored on it and beyond, with each say of the gate."""
    source = stacks[-2]
    for place, (target, n_ok, predicted, gate) in enumerate(
        ((source, 3, True, "right"), (stacks[-1], 1, True, "too_lax"),
         (stacks[-3], 3, False, "too_strict"))
    ):  # fmt: skip
        marts.add(
            "compatibility_matrix", **_scope(target, "vllm", "simulated"),
            source_stack_key=source.key, source_hardware_label=source.hardware_label,
            source_software_label=source.software_label, hardware_label=target.hardware_label,
            software_label=target.software_label,
            image_edit=None, differing_dimensions=sorted(source.differences(target)),
            n=3, n_ok=n_ok,
            n_failed=3 - n_ok, predicted_compatible=predicted,
            reason_code=None if n_ok == 3 else "restore_failed", gate=gate, median_elapsed_s=5.1,
            wasted_gpu_s=4.2 * (3 - n_ok), last_at=START + timedelta(days=40, hours=place),
        )  # fmt: skip


def _snapshots(
    marts: Marts, stack: Stack, at: datetime, worker: str, basis: str, source: random.Random,
    image_bytes: int,
) -> None:  # fmt: skip
    run = add_run(marts, stack, at, kind="snapshot", worker=worker, basis=basis)
    for repeat in range(3):
        name = f"snapshot-{repeat}"
        total = 3.4 * source.lognormvariate(0, 0.08)
        marts.add(
            "snapshots",
            **_measured(stack, worker, basis, run, name, at + timedelta(minutes=repeat)),
            snapshot_engine="criu", snapshot_id=f"{stack.key[:8]}-{repeat}", outcome="ok",
            total_s=total, unaccounted_s=0.1 * total,
            image_bytes=int(image_bytes * (0.9 + 0.1 * repeat)),
            image_files=214 + repeat, sleep_level=1, source_serving_after=True,
            criu_freezing_s=0.011, criu_frozen_s=0.7 * total, criu_memdump_s=0.3 * total,
            criu_memwrite_s=0.25 * total, criu_pages_scanned=90_211, criu_pages_written=41_873,
        )  # fmt: skip
        at_s = 0.0
        for phase, share in (
            ("oracle", 0.08), ("sleep", 0.06), ("lock", 0.02), ("cuda_checkpoint", 0.2),
            ("criu_dump", 0.46), ("manifest", 0.08), ("unaccounted", 0.1),
        ):  # fmt: skip
            marts.add(
                "snapshot_phases", run_id=run, measurement_id=name, stack_key=stack.key,
                phase=phase, start_s=at_s, duration_s=share * total, clock="host_monotonic",
                resolution_s=1e-6, basis=basis,
            )  # fmt: skip
            at_s += share * total
    marts.add(
        "data_quality", **_scope(stack, worker, basis), kind="snapshot", subject="criu", asked=3,
        ok=3, failed=0, unsupported=0, reasons=None,
    )  # fmt: skip


def _economics(
    marts: Marts, stack: Stack, scope: Row, totals: Mapping[str, list[float]], image_bytes: int
) -> None:
    if "restore" not in totals:
        return
    restore = median(totals["restore"])
    for arm in ("cold", "warm_cache"):
        if arm not in totals:
            continue
        saved = median(totals[arm]) - restore
        net = len(totals["restore"]) * saved - 3 * 3.4
        marts.add(
            "snapshot_economics", **scope, versus=arm, gpu_count=stack.gpu_count, n_snapshots=3,
            n_snapshots_failed=0, take_median_s=3.4, image_median_bytes=float(image_bytes),
            n_restores=len(totals["restore"]), n_other=len(totals[arm]), restore_median_s=restore,
            other_median_s=median(totals[arm]), saved_median_s=saved, saved_ci_low_s=saved * 0.95,
            saved_ci_high_s=saved * 1.04, restores_to_break_even=math.ceil(3.4 / saved),
            net_saved_s=net, net_saved_gpu_s=stack.gpu_count and net * stack.gpu_count,
        )  # fmt: skip


def _fanout(marts: Marts, scope: Row, image_bytes: int) -> None:
    disk = 2.0e9
    for cache, factor in (("cold", 1.4), ("warm", 1.0)):
        for width in (1, 4):
            middle = factor * (1 + 0.3 * (width - 1))
            marts.add(
                "restore_fanout", **scope, width=width, page_cache=cache, n_waves=3, n=3 * width,
                n_failed=int(width == 4 and cache == "cold"), p50_s=middle,
                p50_ci_low_s=middle * 0.9, p50_ci_high_s=middle * 1.1, p99_s=middle * 1.3,
                p50_over_alone=middle / factor, wave_median_s=middle * 1.25,
                image_median_bytes=float(image_bytes), disk_median_bytes_per_s=disk,
                restored_median_bytes_per_s=width * image_bytes / (middle * 1.25),
                image_from_disk_s=image_bytes / disk,
            )  # fmt: skip


FAULTS = {
    ("worker_sigkill", "userspace"): (["process_exit", "worker_health"], 0.02, True),
    ("worker_hang", "userspace"): (["worker_health"], 1.6, True),
    ("xid_79_log", "log"): (["kernel_log"], 0.21, True),
    ("ecc_dbe_cache", "cache"): (["dcgm_health"], 4.4, True),
    ("thermal_reason_shim", "shim"): (["nvml_poll"], 0.9, True),
    ("checkpoint_bit_flip", "userspace"): (["manifest_hash"], 0.33, True),
    ("snapshot_image_corrupted_swapped_files", "userspace"): (
        ["manifest_hash", "loader_error"],
        0.12,
        True,
    ),
    ("numa_remote_memory", "userspace"): ([], 0.0, False),
}
DETECTORS = (
    "dcgm_health", "kernel_log", "loader_error", "manifest_hash", "nvml_poll", "process_exit",
    "worker_health",
)  # fmt: skip


def add_faults(
    marts: Marts, stack: Stack, at: datetime, *, basis: str, seed: int, worker: str = "reference",
    repeats: int = 3,
) -> None:  # fmt: skip
    source = random.Random(seed)
    run = add_run(
        marts, stack, at, kind="fault", worker=worker, basis=basis,
        unsupported={"nvlink_degraded": "one GPU: there is no NVLink peer"},
    )  # fmt: skip
    scope = _scope(stack, worker, basis)
    count = itertools.count()
    for (fault, layer), (expected, detect_s, applies) in FAULTS.items():
        for recovery, repeat in itertools.product(("cold", "restore"), range(repeats)):
            name = f"{fault}-{recovery}-{repeat}"
            moment = at + timedelta(seconds=30 * next(count))
            missed = fault == "ecc_dbe_cache" and repeat == 2
            found = detect_s * source.lognormvariate(0, 0.2) if expected and not missed else None
            base = 2.3 if recovery == "cold" else 0.3
            own = base * source.lognormvariate(0, 0.1)
            recovered = found + own if found is not None else None
            verdict, reason = "pass", None
            if not applies:
                verdict, reason = "not_applicable", "one_numa_node"
            elif missed:
                verdict, reason = "fail", "not_detected_in_time"
            marts.add(
                "fault_runs", **_measured(stack, worker, basis, run, name, moment), fault=fault,
                planned_fault=fault, strategy=fault, layer=layer, control=False,
                recovery=recovery, repeat=repeat, verdict=verdict, reason_code=reason,
                detail="" if verdict == "pass" else "the deadline of 15 s went by",
                effect_proved=applies, effect_source="proc_status" if applies else None,
                effect_detail="state Z" if applies else None, rollback_proved=applies,
                rollback_source="completion", rollback_detail="worker serves",
                time_to_detect_s=found,
                time_to_recover_s=recovered, recovery_s=own if recovered else None,
                oracle_verdict="equal" if applies else "not_checked",
                parameters=json.dumps({"signal": 9, "seed": repeat}),
            )  # fmt: skip
            if not applies:
                continue
            _life(marts, run, name, fault, found, recovered)
            for detector in DETECTORS:
                wanted = detector in expected
                _detection(
                    marts, stack, basis, run, name, fault, layer, detector, expected=wanted,
                    after_s=None if not wanted or found is None
                    else found * (1 + 0.2 * expected.index(detector)),
                )  # fmt: skip
        if applies:
            moment = at + timedelta(seconds=30 * next(count))
            name = f"{fault}-control"
            marts.add(
                "fault_runs", **_measured(stack, worker, basis, run, name, moment),
                fault="control", planned_fault=fault, strategy=fault, layer=layer, control=True,
                recovery=None, repeat=0, verdict="pass", rollback_proved=True,
                oracle_verdict="equal", parameters="{}",
            )  # fmt: skip
            _life(marts, run, name, fault, None, None)
    _fault_marts(marts, scope, run)
    marts.add(
        "data_quality", **scope, kind="fault", subject="nvlink_degraded", asked=3, ok=0, failed=0,
        unsupported=3, reasons="one GPU: there is no NVLink peer",
    )  # fmt: skip


def _life(
    marts: Marts, run: str, name: str, fault: str, found: float | None, recovered: float | None
) -> None:
    moments: list[tuple[str, float | None]] = [
        ("steady_state", -2.1), ("guards_passed", -0.4), ("injected", 0.0),
        ("effect_proved", 0.04), ("detected", found),
        ("recovery_started", found + 0.03 if found is not None else None),
        ("first_right_answer", recovered),
        ("rolled_back", (recovered or 3.0) + 0.2), ("rollback_proved", (recovered or 3.0) + 0.35),
    ]  # fmt: skip
    for event, at_s in moments:
        if at_s is not None:
            marts.add(
                "fault_events", run_id=run, measurement_id=name, planned_fault=fault, event=event,
                at_s=at_s, detail="",
            )  # fmt: skip


def _detection(
    marts: Marts, stack: Stack, basis: str, run: str, name: str, fault: str, layer: str,
    detector: str, *, expected: bool, after_s: float | None,
) -> None:  # fmt: skip
    marts.add(
        "fault_detections", run_id=run, measurement_id=name, fault=fault, planned_fault=fault,
        control=False, layer=layer, detector=detector, expected=expected,
        detected=after_s is not None, detected_after_s=after_s, deadline_s=8.0,
        within_deadline=after_s is not None, clock="host_monotonic", resolution_s=0.05, detail="",
        basis=basis, stack_key=stack.key,
    )  # fmt: skip


def _fault_marts(marts: Marts, scope: Row, run: str) -> None:
    """The summaries over one run, as the marts define them."""
    own = [row for row in marts.rows["fault_runs"] if row["run_id"] == run]
    verdicts = (
        "pass", "fail", "inconclusive", "not_injected", "not_applicable", "aborted",
        "rollback_failed",
    )  # fmt: skip
    for (fault, layer), (expected, _, applies) in FAULTS.items():
        for recovery in ("cold", "restore"):
            rows = [r for r in own if (r["planned_fault"], r["recovery"]) == (fault, recovery)]
            detect = interval(_values(rows, "time_to_detect_s"))
            recover = interval(_values(rows, "time_to_recover_s"))
            marts.add(
                "fault_summary", **scope, planned_fault=fault, layer=layer, recovery=recovery,
                n=len(rows),
                **{f"n_{v}": sum(r["verdict"] == v for r in rows) for v in verdicts},
                **dict(zip(("detect_median_s", "detect_ci_low_s", "detect_ci_high_s"), detect,
                           strict=True)),
                **dict(zip(("recover_median_s", "recover_ci_low_s", "recover_ci_high_s"), recover,
                           strict=True)),
            )  # fmt: skip
            _score(marts, scope, fault, layer, recovery, rows)
        seen = [
            row
            for row in marts.rows["fault_detections"]
            if row["run_id"] == run and row["planned_fault"] == fault
        ]
        for detector in DETECTORS if applies else ():
            rows = [row for row in seen if row["detector"] == detector]
            middle, low, high = interval(_values(rows, "detected_after_s"))
            wanted = sum(row["expected"] for row in rows)
            hits = sum(row["detected"] for row in rows)
            marts.add(
                "detector_coverage", **scope, planned_fault=fault, layer=layer, detector=detector,
                n=len(rows), median_s=middle, ci_low_s=low, ci_high_s=high, n_expected=wanted,
                n_detected=hits, n_missed=wanted - hits if wanted else 0, n_control=1,
                n_false_alarms=int(detector == "nvml_poll" and fault == "worker_hang"),
            )  # fmt: skip
        faults = [row for row in own if row["planned_fault"] == fault and not row["control"]]
        ok = sum(row["verdict"] == "pass" for row in faults)
        failed = sum(row["verdict"] == "fail" for row in faults)
        marts.add(
            "data_quality", **scope, kind="fault", subject=fault, asked=len(faults), ok=ok,
            failed=failed, unsupported=0 if expected else len(faults),
            reasons=None if ok == len(faults) else ", ".join(
                sorted({row["reason_code"] for row in faults if row["reason_code"]})
            ),
        )  # fmt: skip


def _score(
    marts: Marts, scope: Row, fault: str, layer: str, recovery: str, rows: list[Row]
) -> None:
    """The mart `fault_scores` of one fault and recovery; its interval is that of a median here."""
    proved = [r for r in rows if r["effect_proved"] and r["verdict"] in ("pass", "fail")]
    if not proved:
        return
    found, back = _values(proved, "time_to_detect_s"), _values(proved, "time_to_recover_s")
    mean_s = sum(back) / len(back) if len(back) == len(proved) else None
    _, low_s, high_s = interval(back)

    def available(down_s: float | None) -> float | None:
        return None if mean_s is None or down_s is None else 86400 / (86400 + down_s)

    marts.add(
        "fault_scores", **scope, planned_fault=fault, layer=layer, recovery=recovery,
        n=len(proved), n_pass=sum(r["verdict"] == "pass" for r in proved),
        n_detected=len(found), n_recovered=len(back),
        mttd_s=sum(found) / len(found) if found else None,
        **dict(zip(("mttd_ci_low_s", "mttd_ci_high_s"), interval(found)[1:], strict=True)),
        mttr_s=sum(back) / len(back) if back else None, mttr_ci_low_s=low_s, mttr_ci_high_s=high_s,
        daily_availability_fraction=available(mean_s),
        daily_availability_fraction_ci_low=available(high_s),
        daily_availability_fraction_ci_high=available(low_s),
    )  # fmt: skip


def _values(rows: Iterable[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


def _shares(source: random.Random, count: int) -> list[float]:
    weights = [0.3 + source.random() for _ in range(count)]
    return [weight / sum(weights) for weight in weights]
