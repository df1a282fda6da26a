"""dbt builds the marts, and they say what a slow, plain reading of the records says."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import polars as pl
import pytest

from resilience_pipelines.baselines.baseline import Baseline
from resilience_pipelines.baselines.keep import keep
from resilience_pipelines.errors import DeadlineError, InputError
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.home import Home
from resilience_pipelines.records import (
    Arm,
    Basis,
    FaultRun,
    Layer,
    OracleVerdict,
    Outcome,
    PageCache,
    RunKind,
    RunRecord,
    StartupMeasurement,
    Verdict,
)
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.trends.comparison import FaultTally
from resilience_pipelines.trends.decisions import Choice, decide
from resilience_pipelines.trends.statistics import (
    difference_of_medians_ci,
    mean_ci,
    median_ci,
    ratio_of_medians_ci,
)
from resilience_pipelines.warehouse import transform
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.stack_figures import (
    accepted_figures,
    differing_dimensions,
    find_stack,
    read_figures,
    snapshots_carry_over,
)
from resilience_pipelines.warehouse.transform import TransformError, build
from tests.factories import DIFFERENT, NOT_CHECKED, RecordFactory, land, make_home, make_stack

OLD = make_stack()
NEW = make_stack(criu_version="4.3", kernel_version="6.18.0")
OTHER = make_stack(cpu_count=64)
LEVELS = (
    make_stack(cpu_count=128),
    make_stack(cpu_count=128, kernel_version="6.19.0"),
    make_stack(cpu_count=128, kernel_version="6.20.0", criu_version="4.3"),
)


CHANGE = hashlib.md5(
    "|".join(
        ("reference", "simulated", LEVELS[0].hardware_key, "tiny", "cold", "", LEVELS[0].key,
         LEVELS[1].key, "", "1")
    ).encode()
).hexdigest()[:12]  # fmt: skip
OTHERS = [
    Baseline(
        source="somebody", product="X", figure="start-up, cold", arm=arm, value=1.0, unit="s",
        engine=engine, model=model,
    )
    for arm, engine, model in (
        (Arm.COLD, "reference", "tiny"), (Arm.COLD, "vllm", "Tiny"), (None, "vllm", "tiny"),
        (Arm.COLD, "vllm", "large"),
    )
]  # fmt: skip


def damaged(
    factory: RecordFactory,
    repeat: int,
    at_load: str | None,
    *,
    strategy: str = "distributed_checkpoint",
    seen: bool | None = True,
    steps_lost: int | None = None,
    **options: Any,
) -> FaultRun:
    """An experiment with stored state that was damaged; `seen` None: no verifier looked."""
    run = factory.fault(f"{strategy}_bit_flip", repeat, **options)
    first, *others = run.detections
    name = {"weights": "weights_verifier"}.get(strategy, "checkpoint_verifier")
    found = {} if seen else {"detected": False, "detected_after_s": None}
    verifier = first.model_copy(update={"detector": name, **found})
    return run.model_copy(
        update={
            "strategy": strategy,
            "parameters": {"at_load": at_load, "steps_lost": steps_lost},
            "detections": run.detections if seen is None else (verifier, *others),
        }
    )


def make_records() -> list[RunRecord]:
    """Runs that hold one of everything that the marts tell apart."""
    factory = RecordFactory(11)
    records = [factory.startup_record(4, stack=OLD), factory.startup_record(3, stack=OLD)]
    records.append(
        factory.record(
            stack=OLD,
            startups=[
                factory.startup(Arm.RESTORE, 10, oracle=DIFFERENT, total_s=0.1),
                factory.startup(Arm.RESTORE, 11, oracle=NOT_CHECKED, total_s=0.2),
                factory.failed_startup(Arm.RESTORE, 12),
                factory.failed_startup(
                    Arm.COLD, 13, outcome=Outcome.UNSUPPORTED, reason_code="no_criu"
                ),
                factory.startup(Arm.SLEEP_WAKE, 14, variant="level_2", total_s=0.9),
                factory.startup(Arm.SLEEP_WAKE, 15, variant="level_2", total_s=0.8),
            ],
        )
    )
    records += [factory.fault_record(3, stack=OLD), factory.fault_record(2, stack=OLD)]
    records.append(
        factory.record(
            RunKind.FAULT,
            stack=OLD,
            faults=[
                *(factory.fault("xid", index, verdict=verdict, layer=Layer.CACHE)
                  for index, verdict in enumerate(Verdict)),
                factory.fault("xid", 20, layer=Layer.REAL, recovery=None),
                factory.fault("xid", 21, detected=False, layer=Layer.CACHE),
                factory.fault("xid", 22, control=True, detected=True, layer=Layer.CACHE),
            ],
            unsupported={"restore": "no CRIU"},
        )
    )  # fmt: skip
    records.append(
        factory.startup_record(
            1, stack=NEW, arms=[Arm.COLD, Arm.RESTORE],
            totals_s={Arm.COLD: [50.0], Arm.RESTORE: [3.0, 3.5]},
        )
    )  # fmt: skip
    records.append(factory.startup_record(2, stack=OTHER, arms=[Arm.WARM_CACHE]))
    stopped = factory.startup_record(2, stack=OTHER, arms=[Arm.WARM_CACHE])
    asked = {"arms": ["warm_cache", "sleep_wake"], "repeats": 5, "sleep_levels": [1, 2]}
    records.append(
        stopped.model_copy(
            update={"parameters": asked, "unsupported": {"rest of the run": "It was stopped."}}
        )
    )
    records.append(
        factory.record(
            RunKind.FAULT,
            stack=OLD,
            faults=[
                damaged(factory, 0, "wrong_state", steps_lost=10),
                damaged(factory, 1, "wrong_state", steps_lost=14, seen=False),
                damaged(factory, 2, "wrong_state", steps_lost=30, seen=None),
                damaged(factory, 3, "refused"),
                damaged(factory, 4, "same_state"),
                damaged(factory, 5, "no_answer"),
                damaged(factory, 6, None, verdict=Verdict.NOT_INJECTED),
                damaged(factory, 7, None, control=True, seen=False),
                damaged(factory, 8, "wrong_answer", strategy="weights"),
                damaged(factory, 9, None, strategy="weights", layer=Layer.REAL),
            ],
        )
    )
    records.append(
        factory.record(
            RunKind.COLLECTIVES,
            stack=OLD,
            collectives=[
                *(factory.collective("healthy", n, busbw=bw) for n, bw in enumerate((1e9, 3e9))),
                factory.collective("slow_link", 0, busbw=5e8),
                factory.collective("slow_link", 1, busbw=None),
                factory.collective("slow_link", 2, busbw=1e8, size=2**16),
                factory.collective("bridge", 3, busbw=None),
            ],
        )
    )
    records.append(
        factory.record(
            RunKind.FANOUT,
            stack=OLD,
            fanout=[
                *factory.fanout(1, [2.0], repeat=0),
                *factory.fanout(1, [4.0], repeat=1, disk_bytes_per_s=2e9),
                *factory.fanout(2, [5.0, 7.0], repeat=0),
                *factory.fanout(2, [6.0, None], repeat=1),
                *factory.fanout(2, [9.0, 8.0], page_cache=PageCache.COLD, found=PageCache.MIXED),
            ],
            unsupported={"4 restores at once": "no room", "rest of the run": "It was stopped."},
        ).model_copy(
            update={
                "parameters": {"widths": [1, 2, 4], "page_caches": ["cold", "warm"], "repeats": 2}
            }
        )
    )
    # Three stacks of one machine: the first change is of one dimension, the second of two.
    level_s = ((LEVELS[0], 10.0), (LEVELS[1], 15.0), (LEVELS[2], 12.0))
    records += [
        factory.startup_record(
            stack=stack, arms=[Arm.COLD],
            totals_s={Arm.COLD: [level * (1 + 0.002 * n) for n in range(5)]},
        )
        for stack, level in level_s
        for _ in range(2)
    ]  # fmt: skip
    gpu = make_stack(gpu_sku="NVIDIA H200", gpu_count=2, driver_version="580")
    # Snapshots that pay off, on two GPUs, and ones that never do, one of which failed.
    good = factory.snapshot()
    lost = {"outcome": Outcome.FAILED, "reason_code": "dump_failed", "snapshot_id": None}
    records += [
        factory.startup_record(
            3, stack=gpu, arms=[Arm.COLD, Arm.RESTORE],
            totals_s={Arm.COLD: [9.0, 9.5, 8.0], Arm.RESTORE: [8.5, 8.0, 8.25]},
        ).model_copy(update={"snapshots": (good,)}),
        factory.startup_record(
            2, stack=make_stack(cpu_count=512), arms=[Arm.WARM_CACHE, Arm.RESTORE],
            totals_s={Arm.WARM_CACHE: [2.0, 2.1], Arm.RESTORE: [4.0, 4.5]},
        ).model_copy(
            update={"snapshots": (good, factory.snapshot(1).model_copy(update=lost))}
        ),
    ]  # fmt: skip
    records += [
        factory.record(
            RunKind.COMPATIBILITY,
            stack=NEW,
            compatibility=[
                factory.compatibility_trial(0, source=NEW),
                factory.compatibility_trial(1, source=OLD),
                factory.compatibility_trial(2, source=OLD, reason_code="restore_failed"),
                factory.compatibility_trial(3, source=gpu, predicted=False),
                factory.compatibility_trial(4, source=OTHER, reason_code="wrong_answer"),
                factory.compatibility_trial(
                    5, source=OTHER, predicted=False, reason_code="restore_failed"
                ),
                factory.compatibility_trial(6, source=NEW, reason_code="x", edit="tcp_state"),
            ],
        ),
        factory.record(
            RunKind.COMPATIBILITY,
            stack=gpu,
            compatibility=[
                factory.compatibility_trial(
                    0, source=NEW, predicted=False, reason_code="restore_failed"
                ),
            ],
        ),
    ]
    records.append(
        factory.record(
            RunKind.FAULT,
            stack=make_stack(cpu_count=256),
            faults=[
                *(factory.fault("worker_killed", n) for n in range(3)),
                factory.fault("worker_killed", 3, verdict=Verdict.FAIL),
                factory.fault("worker_killed", 4, verdict=Verdict.INCONCLUSIVE),
                factory.fault("worker_killed", control=True),
                *(factory.fault("worker_hung", n) for n in range(3)),
                factory.fault("rank_link_cut"),
                factory.fault("weights_corrupted_tensor_bit_flip", 0, verdict=Verdict.FAIL),
            ],
        )
    )
    measured = RecordFactory(12, worker="vllm", basis=Basis.MEASURED)
    records.append(measured.startup_record(2, stack=OLD))
    return records


RECORDS = make_records()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = make_home(tmp_path_factory.mktemp("marts") / "home")
    factory = RecordFactory(1)
    for record in RECORDS:
        land(home.landing, record, samples=factory.samples(record))
    assert len(load(home).loaded) == len(RECORDS)
    decide(home, CHANGE, Choice.MUTED, "an earlier thought", "ada")
    decide(home, CHANGE, Choice.ACCEPTED, "the new kernel has to flush", "grace")
    keep(home, OTHERS)
    load_side_tables(home)
    report = build(home)
    found = {finding.node for finding in report.warnings}
    assert found == {"controls_raise_no_alarm"}, "the one false alarm among the records"
    assert report.models >= 18
    assert report.tests >= 40
    publish(home)
    return home


def rows(home: Home, sql: str) -> list[dict[str, Any]]:
    return query(home, sql).to_dicts()


Scope = tuple[str, str, str]


def scope(record: RunRecord) -> Scope:
    return (record.worker, record.basis.value, record.stack_key)


def key(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("worker", "basis", "stack_key", *names))


def starts() -> Iterable[tuple[RunRecord, StartupMeasurement]]:
    return ((record, item) for record in RECORDS for item in record.startups)


def is_right(item: StartupMeasurement) -> bool:
    return item.outcome is Outcome.OK and item.oracle.verdict is OracleVerdict.EQUAL


def right_totals_s() -> dict[tuple[Any, ...], list[float]]:
    found: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for record, item in starts():
        if is_right(item) and item.total_s is not None:
            found[(*scope(record), item.arm.value, item.variant)].append(item.total_s)
    return found


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    found = median_ci(values)
    return (found.low, found.high) if found else (None, None)


def test_every_start_is_in_its_mart(home: Home) -> None:
    found = rows(home, "from startup_measurements")
    assert Counter((row["run_id"], row["measurement_id"]) for row in found) == Counter(
        (record.run_id, item.measurement_id) for record, item in starts()
    )
    by_id = {(row["run_id"], row["measurement_id"]): row for row in found}
    for record, item in starts():
        row = by_id[record.run_id, item.measurement_id]
        assert row["total_s"] == item.total_s
        assert row["started_at"] == item.started_at
        assert row["oracle_verdict"] == item.oracle.verdict
        assert row["engine_version"] == record.stack.engine_version
        assert row["hardware_label"] == record.stack.hardware_label
        assert row["criu_restore_s"] == (item.criu.restore_s if item.criu else None)


def test_variants_stand_on_right_answers_alone(home: Home) -> None:
    found = {key(row, "arm", "variant"): row for row in rows(home, "from startup_variants")}
    groups: dict[tuple[Any, ...], list[StartupMeasurement]] = defaultdict(list)
    for record, item in starts():
        groups[(*scope(record), item.arm.value, item.variant)].append(item)
    assert found.keys() == groups.keys()
    totals = right_totals_s()
    for name, items in groups.items():
        row = found[name]
        values = totals.get(name, [])
        assert row["n"] == len(values)
        assert row["median_s"] == (pytest.approx(median(values)) if values else None)
        assert (row["ci_low_s"], row["ci_high_s"]) == interval(values)
        assert row["min_s"] == (min(values) if values else None)
        assert row["max_s"] == (max(values) if values else None)
        assert row["n_wrong_answer"] == sum(
            item.oracle.verdict is OracleVerdict.DIFFERENT for item in items
        )
        assert row["n_failed"] == sum(
            item.outcome is Outcome.FAILED and item.oracle.verdict is not OracleVerdict.DIFFERENT
            for item in items
        )
        assert row["n_unsupported"] == sum(item.outcome is Outcome.UNSUPPORTED for item in items)
        assert row["n_not_checked"] == sum(
            item.outcome is Outcome.OK and item.oracle.verdict is OracleVerdict.NOT_CHECKED
            for item in items
        )
        fractions = [
            item.unaccounted_s / item.total_s
            for item in items
            if is_right(item) and item.total_s and item.unaccounted_s is not None
        ]
        assert row["mean_unaccounted_fraction"] == (
            pytest.approx(sum(fractions) / len(fractions)) if fractions else None
        )
        assert row["first_started_at"] == min(item.started_at for item in items)


def test_the_analysts_query_over_arms(home: Home) -> None:
    frame = query(
        home, "select arm, n, median_s, ci_low_s, ci_high_s from startup_summary order by arm"
    )
    assert frame.columns == ["arm", "n", "median_s", "ci_low_s", "ci_high_s"]
    assert frame["arm"].to_list() == sorted(frame["arm"].to_list())
    assert sorted(frame["n"].to_list()) == sorted(
        len(values) for name, values in right_totals_s().items() if name[-1] is None
    )


def test_a_fast_wrong_answer_does_not_speed_up_restore(home: Home) -> None:
    [row] = rows(
        home,
        f"from startup_summary where arm = 'restore' and stack_key = '{OLD.key}' "
        "and worker = 'reference'",
    )
    assert (row["n"], row["n_wrong_answer"], row["n_not_checked"], row["n_failed"]) == (7, 1, 1, 1)
    assert row["min_s"] > 1


def test_the_analysts_query_over_faults(home: Home) -> None:
    found = query(home, "select fault, verdict, count(*) n from fault_runs group by all").rows()
    expected = Counter(
        ("control" if item.control else item.fault, item.verdict.value)
        for record in RECORDS
        for item in record.faults
    )
    assert {(fault, verdict): n for fault, verdict, n in found} == expected


def test_phases_and_unaccounted_are_the_total(home: Home) -> None:
    found = rows(home, "from startup_phases order by run_id, measurement_id, position_in_start")
    groups = {
        name: list(group)
        for name, group in itertools.groupby(
            found, lambda row: (row["run_id"], row["measurement_id"])
        )
    }
    timed = [(record, item) for record, item in starts() if item.total_s is not None]
    assert len(groups) == len(timed)
    for record, item in timed:
        group = groups[record.run_id, item.measurement_id]
        assert [row["phase"] for row in group] == [
            *(phase.name for phase in sorted(item.phases, key=lambda phase: phase.start_s)),
            "unaccounted",
        ]
        assert sum(row["duration_s"] for row in group) == pytest.approx(item.total_s)
        assert [row["position_in_start"] for row in group] == list(range(1, len(group) + 1))


def test_phase_summary_is_over_right_usual_starts(home: Home) -> None:
    durations: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for record, item in starts():
        if is_right(item) and item.variant is None:
            for phase in item.phases:
                durations[(*scope(record), item.arm.value, phase.name)].append(phase.duration_s)
            assert item.unaccounted_s is not None
            durations[(*scope(record), item.arm.value, "unaccounted")].append(item.unaccounted_s)
    found = {key(row, "arm", "phase"): row for row in rows(home, "from startup_phase_summary")}
    assert found.keys() == durations.keys()
    for name, values in durations.items():
        assert found[name]["n"] == len(values)
        assert found[name]["median_s"] == pytest.approx(median(values))
        assert (found[name]["ci_low_s"], found[name]["ci_high_s"]) == interval(values)


def test_speedup_is_against_each_arm_and_the_best_start_from_nothing(home: Home) -> None:
    totals = {name[:-1]: values for name, values in right_totals_s().items() if name[-1] is None}
    expected: dict[tuple[Any, ...], tuple[str, list[float], list[float]]] = {}
    for (*where, arm), values in totals.items():
        restore = totals.get((*where, "restore"))
        if arm == "restore" or restore is None:
            continue
        expected[(*where, arm)] = (arm, values, restore)
        best = min(
            (name for name in ("cold", "warm_cache") if (*where, name) in totals),
            key=lambda name: median(totals[(*where, name)]),
        )
        expected[(*where, "best_other_start")] = (best, totals[(*where, best)], restore)
    found = {key(row, "versus"): row for row in rows(home, "from restore_speedup")}
    assert found.keys() == expected.keys()
    for name, (arm, other, restore) in expected.items():
        row = found[name]
        assert (row["other_arm"], row["n_other"], row["n_restore"]) == (
            arm,
            len(other),
            len(restore),
        )
        assert row["speedup"] == pytest.approx(median(other) / median(restore))
        ratio = ratio_of_medians_ci(other, restore)
        assert (row["ci_low"], row["ci_high"]) == (
            (ratio.low, ratio.high) if ratio else (None, None)
        )
    assert any(row["ci_low"] is None for row in found.values()), "one start has no interval"


def test_restores_at_once_are_told_apart_by_their_number_and_the_page_cache_found(
    home: Home,
) -> None:
    found = {(row["width"], row["page_cache"]): row for row in rows(home, "from restore_fanout")}
    assert set(found) == {(1, "warm"), (2, "warm"), (2, "mixed")}
    alone, two, mixed = found[1, "warm"], found[2, "warm"], found[2, "mixed"]
    assert (alone["n_waves"], alone["n"], alone["p50_s"], alone["p99_s"]) == (2, 2, 3.0, 4.0)
    assert alone["disk_median_bytes_per_s"] == 1.5e9
    assert (two["n_waves"], two["n"], two["n_failed"]) == (2, 3, 1)
    assert (two["p50_s"], two["p99_s"], two["wave_median_s"]) == (6.0, 7.0, 7.0)
    assert two["p50_over_alone"] == 2.0
    assert two["restored_median_bytes_per_s"] == pytest.approx(2 * 2e8 / 7.0)
    assert two["image_from_disk_s"] == pytest.approx(0.2)
    assert mixed["p50_over_alone"] is None


def test_a_snapshot_pays_off_with_the_restore_that_gave_its_time_back(home: Home) -> None:
    totals = {
        name[:-1]: values
        for name, values in right_totals_s().items()
        if name[-1] is None and name[-2] in ("cold", "warm_cache", "restore")
    }
    taken = defaultdict(list)
    for record in RECORDS:
        for item in record.snapshots:
            taken[scope(record)].append(item)
    expected = {
        (*where, arm): (values, totals[*where, "restore"])
        for (*where, arm), values in totals.items()
        if arm != "restore" and (*where, "restore") in totals and tuple(where) in taken
    }
    found = {key(row, "versus"): row for row in rows(home, "from snapshot_economics")}
    assert found.keys() == expected.keys()
    for name, (other, restore) in expected.items():
        row = found[name]
        items = taken[name[:3]]
        good = [item.total_s for item in items if item.outcome is Outcome.OK and item.total_s]
        spent = sum(item.total_s or 0 for item in items)
        saved = median(other) - median(restore)
        assert row["n_snapshots"] == len(good)
        assert row["n_snapshots_failed"] == len(items) - len(good)
        assert row["saved_median_s"] == pytest.approx(saved)
        bounds = difference_of_medians_ci(other, restore)
        assert (row["saved_ci_low_s"], row["saved_ci_high_s"]) == (
            (bounds.low, bounds.high) if bounds else (None, None)
        )
        pays_off = math.ceil(median(good) / saved) if saved > 0 else None
        assert row["restores_to_break_even"] == pays_off
        net = len(restore) * median(other) - sum(restore) - spent
        assert row["net_saved_s"] == pytest.approx(net)
        gpus = row["gpu_count"]
        assert row["net_saved_gpu_s"] == (None if gpus is None else pytest.approx(net * gpus))
    assert {row["restores_to_break_even"] is None for row in found.values()} == {True, False}
    assert {row["gpu_count"] for row in found.values()} > {None}
    assert any(row["n_snapshots_failed"] for row in found.values())


def test_a_trend_names_the_dimensions_that_changed(home: Home) -> None:
    found = rows(home, "from startup_trend where worker = 'reference' and arm = 'restore'")
    machine = [row for row in found if row["hardware_key"] == OLD.hardware_key]
    series = sorted(machine, key=lambda row: row["first_started_at"])
    assert [row["stack_key"] for row in series] == [OLD.key, NEW.key]
    first, second = series
    assert (first["previous_median_s"], first["change_fraction"]) == (None, None)
    assert first["changed_dimensions"] is None
    assert second["previous_median_s"] == first["median_s"]
    assert second["change_fraction"] == pytest.approx(3.25 / first["median_s"] - 1)
    assert set(second["changed_dimensions"].split(", ")) == set(NEW.differences(OLD))


def test_all_arms_of_a_trend_have_their_stacks_in_one_order(tmp_path: Path) -> None:
    data_home, factory = make_home(tmp_path / "home"), RecordFactory(11)
    first, second = make_stack(), make_stack(criu_version="4.3")
    land(data_home.landing, factory.startup_record(1, stack=first, arms=[Arm.WARM_CACHE]))
    land(data_home.landing, factory.startup_record(1, stack=second))
    land(data_home.landing, factory.startup_record(1, stack=first, arms=[Arm.COLD]))
    assert load(data_home).rejected == ()
    build(data_home)
    publish(data_home)
    found = rows(data_home, "from startup_trend where previous_stack_key is not null")
    assert {(row["arm"], row["previous_stack_key"], row["stack_key"]) for row in found} == {
        (arm, first.key, second.key) for arm in (Arm.COLD, Arm.WARM_CACHE)
    }


def test_trends_of_two_machines_or_workers_do_not_mix(home: Home) -> None:
    found = rows(home, "from startup_trend where arm = 'warm_cache'")
    assert len({(row["worker"], row["hardware_key"]) for row in found}) == len(found) == 4
    assert all(row["previous_stack_key"] is None for row in found)


def test_fault_summary_keeps_layers_apart_and_leaves_controls_out(home: Home) -> None:
    found = {
        key(row, "planned_fault", "layer", "recovery"): row
        for row in rows(home, "from fault_summary")
    }
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for record in RECORDS:
        for item in record.faults:
            if not item.control:
                name = (*scope(record), item.fault, item.layer.value, item.recovery)
                groups[name].append(item)
    assert found.keys() == groups.keys()
    for name, items in groups.items():
        row = found[name]
        assert row["n"] == len(items)
        verdicts = Counter(item.verdict for item in items)
        assert {verdict: row[f"n_{verdict}"] for verdict in Verdict} == {
            verdict: verdicts[verdict] for verdict in Verdict
        }
        proved = [item for item in items if item.effect and item.effect.proved]
        for column, field in (("detect", "time_to_detect_s"), ("recover", "time_to_recover_s")):
            values = [value for item in proved if (value := getattr(item, field)) is not None]
            assert row[f"{column}_median_s"] == (pytest.approx(median(values)) if values else None)
            assert (row[f"{column}_ci_low_s"], row[f"{column}_ci_high_s"]) == interval(values)


def test_a_detector_is_judged_by_faults_that_were_there(home: Home) -> None:
    found = {
        key(row, "planned_fault", "layer", "detector"): row
        for row in rows(home, "from detector_coverage")
    }
    groups: dict[tuple[Any, ...], list[tuple[Any, Any]]] = defaultdict(list)
    for record in RECORDS:
        for item in record.faults:
            for detection in item.detections:
                name = (*scope(record), item.fault, item.layer.value, detection.detector)
                groups[name].append((item, detection))
    assert found.keys() == groups.keys()
    for name, pairs in groups.items():
        row = found[name]
        there = [pair for pair in pairs if pair[0].effect and pair[0].effect.proved]
        controls = [pair for pair in pairs if pair[0].control]
        assert row["n"] == len(there)
        assert row["n_expected"] == sum(seen.expected for _, seen in there)
        assert row["n_detected"] == sum(seen.detected for _, seen in there)
        assert row["n_missed"] == sum(seen.expected and not seen.detected for _, seen in there)
        assert row["n_control"] == len(controls)
        assert row["n_false_alarms"] == sum(seen.detected for _, seen in controls)
        values = [seen.detected_after_s for _, seen in there if seen.detected]
        assert row["median_s"] == (pytest.approx(median(values)) if values else None)
    assert sum(row["n_false_alarms"] for row in found.values()) == 1
    assert any(row["n_missed"] for row in found.values())


def test_a_change_of_level_is_put_down_to_what_changed_there(home: Home) -> None:
    found = rows(
        home, f"from change_points where hardware_key = '{LEVELS[0].hardware_key}' order by all"
    )
    assert [(row["previous_stack_key"], row["stack_key"], row["attribution"]) for row in found] == [
        (LEVELS[0].key, LEVELS[1].key, "one_dimension"),
        (LEVELS[1].key, LEVELS[2].key, "candidates"),
    ]
    assert [row["candidate_dimensions"] for row in found] == [
        ["kernel_version"], ["kernel_version", "criu_version"],
    ]  # fmt: skip
    assert [(row["n_before"], row["n_after"]) for row in found] == [(10, 10), (10, 10)]
    assert found[0]["change_fraction"] == pytest.approx(0.5)
    assert found[1]["change_fraction"] == pytest.approx(-0.2)
    assert all(row["significant"] for row in found)
    assert [row["relevant"] for row in found] == [None, None], "two runs a level are no history"


def test_a_fleets_figures_are_weighted_by_its_failures_and_say_what_they_cover(home: Home) -> None:
    mix = rows(home, "from failure_mix")
    whole = sum(row["failures"] for row in mix)
    share = {row["fault"]: row["failures"] / whole for row in mix if row["fault"]}
    assert whole == 419
    assert set(share) <= set(CATALOGUE)
    groups: dict[tuple[Any, ...], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for record in RECORDS:
        for item in record.faults:
            if item.fault in share and not item.control and item.verdict in ("pass", "fail"):
                groups[scope(record)][item.fault].append(item)
    found = {key(row): row for row in rows(home, "from fleet_resilience")}
    assert found.keys() == groups.keys()
    assert found
    for name, faults in groups.items():
        row, covered = found[name], sum(share[fault] for fault in faults)
        assert row["n"] == sum(len(items) for items in faults.values())
        assert row["covered_fraction"] == pytest.approx(covered)
        passed = {
            fault: sum(item.verdict is Verdict.PASS for item in items) / len(items)
            for fault, items in faults.items()
        }
        assert row["pass_fraction"] == pytest.approx(
            sum(share[fault] * passed[fault] for fault in faults) / covered
        )
        timed = {
            fault: [item.time_to_recover_s for item in items if item.time_to_recover_s is not None]
            for fault, items in faults.items()
        }
        weight = sum(share[fault] for fault, values in timed.items() if values)
        expected = (
            sum(share[fault] * median(values) for fault, values in timed.items() if values) / weight
            if weight
            else None
        )
        assert row["recover_s"] == (pytest.approx(expected) if weight else None)


def test_a_fault_is_scored_by_the_time_that_it_takes_from_service(home: Home) -> None:
    groups: dict[tuple[Any, ...], list[FaultRun]] = defaultdict(list)
    for record in RECORDS:
        for item in record.faults:
            if item.effect and item.effect.proved and item.verdict in ("pass", "fail"):
                if item.control:
                    continue
                name = (item.fault, item.layer, item.recovery)
                groups[(*scope(record), *name)].append(item)
    found = {
        (*key(row), row["planned_fault"], row["layer"], row["recovery"]): row
        for row in rows(home, "from fault_scores")
    }
    assert found.keys() == groups.keys()
    mix = {row["fault"]: row for row in rows(home, "from failure_mix where fault is not null")}
    scored = set()
    for name, items in groups.items():
        row = found[name]
        detect = [i.time_to_detect_s for i in items if i.time_to_detect_s is not None]
        recover = [i.time_to_recover_s for i in items if i.time_to_recover_s is not None]
        assert (row["n"], row["n_detected"], row["n_recovered"]) == (
            len(items), len(detect), len(recover),
        )  # fmt: skip
        assert row["n_pass"] == sum(item.verdict is Verdict.PASS for item in items)
        for column, values in (("mttd", detect), ("mttr", recover)):
            mean = math.fsum(values) / len(values) if values else None
            assert row[f"{column}_s"] == (pytest.approx(mean) if values else None)
            bounds = mean_ci(values)
            assert row[f"{column}_ci_low_s"] == (pytest.approx(bounds.low) if bounds else None)
            assert row[f"{column}_ci_high_s"] == (pytest.approx(bounds.high) if bounds else None)
        source = mix.get(name[3])
        for column, between_s in (
            ("daily", 86_400),
            ("fleet", source and 86_400 * 54 * 16_384 / source["failures"]),
        ):
            figures = [
                row[f"{column}_availability_fraction{end}"] for end in ("", "_ci_low", "_ci_high")
            ]
            if len(recover) < len(items) or not between_s:
                assert figures == [None] * 3
                continue
            bounds = mean_ci(recover)
            times_s = [row["mttr_s"], *((bounds.high, bounds.low) if bounds else (None, None))]
            assert figures == [
                None
                if time_s is None
                else pytest.approx(between_s / (between_s + time_s), rel=1e-12)
                for time_s in times_s
            ]
            scored.add(column)
    assert scored == {"daily", "fleet"}


def test_silent_corruption_is_counted_apart_from_what_hashes_see(home: Home) -> None:
    found = {
        (row["planned_fault"], row["layer"]): row for row in rows(home, "from silent_corruption")
    }
    assert len(found) == 3
    names = (
        "n", "n_loads", "n_refused", "n_silent", "n_unchanged", "n_verified", "n_hash_mismatch",
        "n_undetected", "silent_fraction", "undetected_fraction", "steps_lost_median",
    )  # fmt: skip
    checkpoint = found["distributed_checkpoint_bit_flip", "userspace"]
    assert [checkpoint[name] for name in names] == [6, 5, 1, 3, 1, 5, 4, 2, 0.6, 0.4, 14.0]
    weights = found["weights_bit_flip", "userspace"]
    assert [weights[name] for name in names] == [1, 1, 0, 1, 0, 1, 1, 0, 1.0, 0.0, None]
    unloaded = found["weights_bit_flip", "real"]
    assert (unloaded["n"], unloaded["n_loads"], unloaded["silent_fraction"]) == (1, 0, None)


def test_a_degraded_collective_is_compared_with_the_healthy_one_at_its_size(home: Home) -> None:
    found = {(row["arm"], row["bytes"]): row for row in rows(home, "from collective_bandwidth")}
    names = ("n", "n_failed", "busbw_median_bytes_per_s", "fraction_of_healthy", "transports")
    assert {key: tuple(row[name] for name in names) for key, row in found.items()} == {
        ("healthy", 2**20): (2, 0, 2e9, 1.0, ["TCP"]),
        ("slow_link", 2**20): (1, 1, 5e8, 0.25, ["TCP"]),
        ("slow_link", 2**16): (1, 0, 1e8, None, ["TCP"]),
        ("bridge", 2**20): (0, 1, None, None, []),
    }
    assert found["healthy", 2**20]["busbw_ci_low_bytes_per_s"] is not None
    assert found["slow_link", 2**20]["busbw_ci_low_bytes_per_s"] is None


def test_the_newest_decision_on_a_change_stands_beside_it(home: Home) -> None:
    decided = {
        row["change_id"]: (row["decision"], row["decision_note"], row["decided_by"])
        for row in rows(home, "from change_points")
        if row["decision"] is not None
    }
    assert decided == {CHANGE: ("accepted", "the new kernel has to flush", "grace")}
    assert accepted_figures(home, LEVELS[0].key, LEVELS[1].key) == {"start-up, cold, simulated"}
    assert accepted_figures(home, LEVELS[1].key, LEVELS[2].key) == set()


def test_ones_own_figure_stands_beside_others_only_where_it_was_measured(home: Home) -> None:
    found = {
        (row["engine"], row["model"], row["arm"]): row["own_median_s"]
        for row in rows(home, "from baselines where source = 'somebody'")
    }
    measured = [
        item.total_s
        for record, item in starts()
        if record.basis.value == "measured" and item.arm is Arm.COLD and item.total_s
    ]
    assert len(found) == len(OTHERS)
    assert found["vllm", "Tiny", "cold"] is None, "those records are of the engine reference"
    assert found["reference", "tiny", "cold"] == pytest.approx(median(measured))
    assert found["vllm", "tiny", None] is found["vllm", "large", "cold"] is None


def test_the_figures_of_a_stack_keep_bases_apart(home: Home) -> None:
    figures = read_figures(home, OLD.key)
    assert {"start-up, cold", "start-up, cold, simulated"} <= figures.times.keys()
    expected = [
        item.total_s
        for record, item in starts()
        if scope(record) == ("vllm", "measured", OLD.key) and item.arm is Arm.COLD
    ]
    assert figures.times["start-up, cold"].values == tuple(expected)
    assert figures.failures["start-up, restore, simulated"] == {
        "wrong_answer": 1, "not_checked": 1, "worker_failed": 1,
    }  # fmt: skip
    assert figures.faults["worker_kill (userspace), simulated"] == FaultTally(passed=5)
    assert figures.faults["checkpoint_bit_flip (userspace), simulated"] == FaultTally(failed=5)


def test_a_stack_is_found_by_the_beginning_of_its_key(home: Home) -> None:
    assert find_stack(home, "--from", NEW.key[:6].upper()) == NEW.key
    newest = max(RECORDS, key=lambda record: record.started_at).stack_key
    assert find_stack(home, "--from", "latest") == newest
    for text in ("zz", "", "' or true --"):
        with pytest.raises(InputError, match=f"--from.*{NEW.key}"):
            find_stack(home, "--from", text)


def test_what_differs_between_two_stacks_is_named(home: Home) -> None:
    assert differing_dimensions(home, OLD.key, NEW.key) == {
        "criu_version": (OLD.criu_version, "4.3"),
        "kernel_version": (OLD.kernel_version, "6.18.0"),
    }
    assert snapshots_carry_over(home, OLD.key, NEW.key) is False
    assert snapshots_carry_over(home, NEW.key, NEW.key) is True
    assert snapshots_carry_over(home, NEW.key, OLD.key) is None


def figure(row: dict[str, Any], *parts: str | None) -> tuple[str, ...]:
    return ", ".join(filter(None, parts)), row["worker"], row["basis"]


def test_two_stacks_side_by_side_are_their_marts_rows(home: Home) -> None:
    compared = rows(home, f"from compare_stacks('{OLD.key}', '{NEW.key}')")
    assert len({(row["figure"], row["worker"], row["basis"]) for row in compared}) == len(compared)
    for side, key in (("a", OLD.key), ("b", NEW.key)):
        variants = rows(home, f"from startup_variants where stack_key = '{key}' and n > 0")
        faults = rows(home, f"from fault_runs where stack_key = '{key}' and not control")
        timed = [row for row in faults if row["effect_proved"]]
        expected: Counter[tuple[str, ...]] = Counter()
        medians = {}
        for row in variants:
            place = figure(row, "start-up", row["arm"], row["variant"])
            expected[place] = row["n"]
            medians[place] = row["median_s"]
        for row in timed:
            recovery = f"recovery {row['recovery']}" if row["recovery"] else None
            for what in ("detect", "recover"):
                place = figure(row, f"time to {what}", row["planned_fault"], row["layer"], recovery)
                expected[place] += row[f"time_to_{what}_s"] is not None
        places = {(row["figure"], row["worker"], row["basis"]): row for row in compared}
        assert (
            +Counter({place: row[f"n_{side}"] or 0 for place, row in places.items()}) == +expected
        )
        assert {place: places[place][f"median_{side}_s"] for place in medians} == medians
    both = [row for row in compared if row["n_a"] and row["n_b"]]
    assert len(both) >= 2
    for row in both:
        change = row["median_b_s"] / row["median_a_s"] - 1
        assert row["change_fraction"] == pytest.approx(change)
        assert sorted(row["differing_dimensions"]) == ["criu_version", "kernel_version"]
        bounds = (row["ci_low_a_s"], row["ci_high_b_s"], row["ci_low_b_s"], row["ci_high_a_s"])
        overlap = None if None in bounds else bounds[0] <= bounds[1] and bounds[2] <= bounds[3]
        assert row["intervals_overlap"] == overlap
    assert rows(home, f"from stack_differences('{OLD.key}', '{NEW.key}')") == [
        {"dimension": "kernel_version", "value_a": "6.1.0", "value_b": "6.18.0"},
        {"dimension": "criu_version", "value_a": "4.2.1", "value_b": "4.3"},
    ]
    assert rows(home, "from compare_stacks('none', 'such')") == []


def test_the_latest_stack_of_each_machine_is_the_one_measured_last(home: Home) -> None:
    stacks = rows(home, "from stacks")
    newest: dict[tuple[Any, ...], Any] = {}
    for row in sorted(stacks, key=lambda row: row["last_measured_at"]):
        newest[row["hardware_key"], row["engine"], row["model"]] = row
    assert len(newest) < len(stacks)
    found = rows(home, "from latest_stacks()")
    assert sorted(row["stack_key"] for row in found) == sorted(
        row["stack_key"] for row in newest.values()
    )


def test_the_compatibility_matrix_says_whether_the_gate_knew(home: Home) -> None:
    found = {
        (row["source_stack_key"], row["stack_key"]): row
        for row in rows(home, "select * from compatibility_matrix where image_edit is null")
    }
    (edited,) = rows(home, "select * from compatibility_matrix where image_edit is not null")
    assert (edited["image_edit"], edited["gate"], edited["n"]) == ("tcp_state", "too_lax", 1)
    (copy,) = rows(home, "select * from compatibility_trials where image_edit is not null")
    assert copy["snapshot_id"] == "snapshot-a"
    gpu = make_stack(gpu_sku="NVIDIA H200", gpu_count=2, driver_version="580")
    assert {pair: (row["gate"], row["n"], row["n_ok"]) for pair, row in found.items()} == {
        (NEW.key, NEW.key): ("right", 1, 1),
        (OLD.key, NEW.key): ("too_lax", 2, 1),
        (gpu.key, NEW.key): ("too_strict", 1, 1),
        (OTHER.key, NEW.key): ("too_lax", 2, 0),
        (NEW.key, gpu.key): ("right", 1, 0),
    }
    assert found[OLD.key, NEW.key]["differing_dimensions"] == ["kernel_version", "criu_version"]
    assert found[NEW.key, NEW.key]["differing_dimensions"] == []
    (trial,) = next(
        record.compatibility
        for record in RECORDS
        if record.compatibility and record.stack.key == gpu.key
    )
    assert found[NEW.key, gpu.key]["wasted_gpu_s"] == pytest.approx(2 * trial.elapsed_s)
    assert found[OLD.key, NEW.key]["wasted_gpu_s"] == 0, "that stack has no GPU"
    assert found[OLD.key, NEW.key]["reason_code"] == "restore_failed"


def test_data_quality_accounts_for_everything(home: Home) -> None:
    found = {
        (row["kind"], row["subject"]): row
        for row in rows(
            home, f"from data_quality where worker = 'reference' and stack_key = '{OLD.key}'"
        )
    }
    cold = found["startup", "cold"]
    assert (cold["asked"], cold["ok"], cold["unsupported"]) == (8, 7, 1)
    assert cold["reasons"] == "no_criu (1)"
    restore = found["startup", "restore"]
    assert (restore["asked"], restore["ok"], restore["failed"]) == (10, 7, 3)
    assert restore["reasons"] == "not_checked (1), worker_failed (1), wrong_answer (1)"
    missing = found["fault", "restore"]
    assert (missing["asked"], missing["unsupported"]) == (1, 1)
    xid = found["fault", "xid"]
    assert (xid["asked"], xid["ok"], xid["unsupported"]) == (9, 4, 1)
    assert all(
        row["asked"] == row["ok"] + row["failed"] + row["unsupported"] + row["missing"]
        for row in found.values()
    )


def test_starts_that_a_stopped_run_did_not_make_are_missing(home: Home) -> None:
    found = rows(home, f"from data_quality where stack_key = '{OTHER.key}' and kind = 'startup'")
    assert {
        row["subject"]: (row["asked"], row["ok"], row["missing"], row["reasons"]) for row in found
    } == {
        "warm_cache": (7, 4, 3, "not_made (3)"),
        "sleep_wake": (10, 0, 10, "not_made (10)"),
    }


def test_restores_at_once_are_accounted_for_by_their_number(home: Home) -> None:
    found = rows(home, "from data_quality where kind = 'fanout'")
    assert {
        row["subject"]: (
            row["asked"], row["ok"], row["failed"], row["unsupported"], row["missing"],
            row["reasons"],
        )
        for row in found
    } == {
        "1 restores at once": (4, 2, 0, 0, 2, "not_made (2)"),
        "2 restores at once": (8, 5, 1, 0, 2, "not_made (2), restore_failed (1)"),
        "4 restores at once": (1, 0, 0, 1, 0, "unsupported (1)"),
    }  # fmt: skip


def test_stacks_and_runs_and_samples_are_complete(home: Home) -> None:
    stacks = {row["stack_key"]: row for row in rows(home, "from stacks")}
    assert stacks.keys() == {record.stack_key for record in RECORDS}
    for stack in (OLD, NEW, OTHER):
        row = stacks[stack.key]
        assert {name: row[name] for name in stack.model_dump()} == stack.model_dump()
        runs = [record for record in RECORDS if record.stack_key == stack.key]
        assert row["runs"] == len(runs)
        assert row["first_measured_at"] == min(record.started_at for record in runs)
    assert len(rows(home, "from runs")) == len(RECORDS)
    factory = RecordFactory(1)
    expected = sum(factory.samples(record)["value"].sum() for record in RECORDS)
    assert rows(home, "select sum(value) as total from samples")[0]["total"] == expected


def test_every_mart_and_column_is_described_in_the_published_file(home: Home) -> None:
    missing = query(
        home,
        "select table_name, column_name from duckdb_columns() where database_name = 'resilience' "
        "and comment is null union all select table_name, null from duckdb_tables() "
        "where database_name = 'resilience' and comment is null",
    )
    assert missing.rows() == []


def test_building_again_gives_the_same_figures(home: Home) -> None:
    sql = "from startup_summary order by all"
    before = query(home, sql)
    speedup = query(home, "from restore_speedup order by all")
    build(home)
    publish(home)
    assert query(home, sql).equals(before)
    assert query(home, "from restore_speedup order by all").equals(speedup)


@pytest.fixture
def small_home(tmp_path: Path) -> Home:
    home = make_home(tmp_path / "home")
    factory = RecordFactory(1)
    land(home.landing, factory.startup_record(2))
    land(home.landing, factory.fault_record(1))
    load(home)
    return home


# What a record can't hold, but a mart could; each with the check that has to find it.
BROKEN = {
    "phases_and_unaccounted_add_up": "update startup_phases set duration_s = duration_s * 2",
    "snapshot_phases_add_up": "update snapshot_phases set duration_s = duration_s * 2",
    "every_ok_start_has_a_total": "delete from startup_phases where phase = 'unaccounted'",
    "pass_needs_proof": "update fault_runs set effect_proved = null where verdict = 'pass'",
    "controls_do_not_fail": "update fault_runs set verdict = 'fail' where control",
    "controls_raise_no_alarm": "update fault_detections set detected = true where control",
    "a_detection_has_its_time": "update fault_detections set detected_after_s = null",
    "every_start_is_counted_once": "update startup_variants set n = n + 1",
    "every_experiment_is_counted_once": "update fault_summary set n_pass = n_pass + 1",
    "medians_lie_in_their_intervals": "update startup_variants set median_s = ci_high_s + 1",
    "no_landing_folder_was_rejected": "insert into raw.rejected values ('f', null, 'r', now())",
    "no_row_is_lost_in_a_join": "delete from fault_events",
    "what_was_asked_is_accounted_for": "update data_quality set asked = asked + 1",
    "accepted_values_fault_runs_verdict": "update fault_runs set verdict = 'fine'",
    "unique_combination_startup_measurements": (
        "insert into startup_measurements from startup_measurements"
    ),
    "unique_combination_startup_variants": "insert into startup_variants from startup_variants",
}


@pytest.fixture(scope="module")
def compiled_checks(home: Home) -> dict[str, str]:
    results = json.loads((home.dbt / "target" / "run_results.json").read_text())["results"]
    return {
        node["unique_id"].split(".")[2]: node["compiled_code"]
        for node in results
        if node["unique_id"].startswith("test.")
    }


def findings(connection: duckdb.DuckDBPyConnection, check: str) -> int:
    return len(connection.sql(check).fetchall())


@pytest.mark.parametrize("check", BROKEN)
def test_a_check_finds_what_it_is_for(
    home: Home, tmp_path: Path, compiled_checks: dict[str, str], check: str
) -> None:
    [name] = [name for name in compiled_checks if name.startswith(check)]
    copy = tmp_path / home.warehouse.name
    copy.write_bytes(home.warehouse.read_bytes())
    with duckdb.connect(str(copy)) as connection:
        before = findings(connection, compiled_checks[name])
        connection.execute(BROKEN[check])
        assert before < findings(connection, compiled_checks[name])


def test_every_check_of_the_project_is_shown_to_find_something() -> None:
    checks = {path.stem for path in (transform.dbt_project_dir() / "tests").glob("*.sql")}
    assert checks <= BROKEN.keys()


def test_a_check_that_fails_stops_the_build_and_is_named(small_home: Home) -> None:
    with duckdb.connect(str(small_home.warehouse)) as connection:
        connection.execute("update raw.faults set rollback_proved = false where verdict = 'pass'")
    with pytest.raises(TransformError, match=r"pass_needs_proof.*dbt\.log"):
        build(small_home)


def test_a_control_that_fails_is_a_warning(small_home: Home) -> None:
    with duckdb.connect(str(small_home.warehouse)) as connection:
        connection.execute(
            "update raw.faults set verdict = 'fail', reason_code = 'x' where control"
        )
    report = build(small_home)
    [warning] = report.warnings
    assert warning.node == "controls_do_not_fail"
    assert "2 results" in warning.message


def test_a_home_without_any_result_has_empty_marts(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    assert build(home).warnings == ()
    publish(home)
    frame = query(home, "select arm, n, median_s from startup_summary order by arm")
    assert frame.shape == (0, 3)
    assert frame.schema["median_s"] == pl.Float64


def test_dbt_leaves_its_project_folder_alone(home: Home) -> None:
    project = transform.dbt_project_dir()
    assert {path.name for path in project.iterdir()} <= {
        "dbt_project.yml", "profiles.yml", "macros", "models", "tests", "seeds",
    }  # fmt: skip
    assert (home.dbt / "logs" / "dbt.log").is_file()


def test_dbt_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with pytest.raises(DeadlineError, match="deadline"):
        build(home, deadline_s=1.0)
    # Nothing of it is left that would hold the warehouse.
    load(home, lock_wait_s=0.0)
