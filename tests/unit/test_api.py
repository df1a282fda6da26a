"""The library's first page without measuring: what is checked, and what a result says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import resilience_pipelines
from resilience_pipelines import (
    Benchmark,
    Collectives,
    Compatibility,
    Experiment,
    Snapshot,
    compare,
)
from resilience_pipelines.api import Result
from resilience_pipelines.cli import main
from resilience_pipelines.errors import InputError, ResilienceError
from resilience_pipelines.job_spec import (
    CollectiveSpec,
    CompatibilitySpec,
    FaultSpec,
    JobSpec,
    SnapshotSpec,
    StartupSpec,
)
from resilience_pipelines.records import RunKind, Verdict
from resilience_pipelines.trends.comparison import Comparison, Difference, UpgradeVerdict
from resilience_pipelines.upgrades import FIGURES_SCHEMA, Upgrade
from resilience_pipelines.warehouse.landing import read_landing
from tests.factories import RecordFactory, land, make_home


def landed(tmp_path: Path, **changes: object) -> Result:
    factory = RecordFactory(1)
    home = make_home(tmp_path / "home")
    record = factory.startup_record(repeats=2).model_copy(update=changes)
    return Result(read_landing(land(home.landing, record)))


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, resilience_pipelines; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert {"polars", "pydantic", "dagster", "httpx"} & set(done.stdout.split()) == set()


def test_every_name_that_is_promised_is_there() -> None:
    assert [
        name for name in resilience_pipelines.__all__ if not hasattr(resilience_pipelines, name)
    ] == []
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        resilience_pipelines.nonsense  # noqa: B018


def test_defaults_are_those_of_a_specification() -> None:
    assert Benchmark().spec == StartupSpec()
    assert Experiment().spec == FaultSpec()
    assert Snapshot().spec == SnapshotSpec()
    assert Compatibility().spec == CompatibilitySpec()
    assert Collectives().spec == CollectiveSpec()


@pytest.mark.parametrize(
    ("words", "job"),
    [
        ("run startup", Benchmark()),
        ("run fault", Experiment()),
        ("run compatibility", Compatibility()),
        ("run collectives", Collectives()),
        ("snapshot create", Snapshot()),
        (
            "run startup --worker vllm --arms cold,restore --repeats 2 --cold-repeats 1 "
            "--page-cache warm --sleep-levels 1,2 --port 9000",
            Benchmark("vllm", ["cold", "restore"], 2, 1, "warm", [1, 2], 9000),
        ),
        (
            "run fault worker_killed worker_hung --recoveries restore --repeats 2 --no-controls",
            Experiment(
                ["worker_killed", "worker_hung"], recoveries=["restore"], repeats=2, controls=False
            ),
        ),
        ("run compatibility a b --repeats 3", Compatibility(snapshots=["a", "b"], repeats=3)),
        (
            "run collectives --arms healthy --operations all_reduce --sizes 2048 --ranks 2",
            Collectives(["healthy"], ["all_reduce"], [2048], 2),
        ),
        ("snapshot create --sleep-level 2", Snapshot(sleep_level=2)),
    ],
)
def test_a_command_asks_for_what_its_class_asks_for(
    words: str, job: Benchmark, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def run(spec: JobSpec, **_: object) -> Result:
        asked.append(spec)
        raise ResilienceError("enough is known")

    monkeypatch.setattr("resilience_pipelines.api.run", run)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process shall keep its own
    monkeypatch.setattr(sys, "argv", ["resilience", *words.split(), "--home", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert asked == [job.spec]


@pytest.mark.parametrize("fraction", [-0.1, float("nan"), float("inf")])
def test_a_slowdown_that_is_no_fraction_is_refused(fraction: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"max_slowdown = .*fraction of 0 or more"):
        compare("a", "b", max_slowdown=fraction, home=tmp_path)


def test_one_fault_is_a_list_of_one() -> None:
    assert Experiment("worker_killed").spec == Experiment(["worker_killed"]).spec
    assert Experiment("worker_killed", "vllm").spec.worker == "vllm"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Benchmark(arms=["tepid"]), "startup.arms.0"),
        (lambda: Benchmark(repeats=0), "startup.repeats"),
        (lambda: Benchmark(port=0), "startup.port"),
        (lambda: Experiment("worker_killed", repeats=0), "fault.repeats"),
    ],
)
def test_a_wrong_field_is_named_when_the_value_is_made(make: object, field: str) -> None:
    with pytest.raises(InputError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field


def test_frames_have_a_row_for_each_measurement_and_columns_without_any(tmp_path: Path) -> None:
    result = landed(tmp_path)
    record = result.record
    assert result.startups["measurement_id"].to_list() == [
        item.measurement_id for item in record.startups
    ]
    assert len(result.phases) == sum(len(item.phases) for item in record.startups)
    assert len(result.faults) == 0
    assert {"fault", "verdict", "time_to_recover_s"} <= set(result.faults.columns)


def test_failed_holds_failures_and_nothing_without_data(tmp_path: Path) -> None:
    factory = RecordFactory(1)
    faults = tuple(
        factory.fault(repeat=number, verdict=verdict) for number, verdict in enumerate(Verdict)
    )
    result = landed(tmp_path, kind=RunKind.FAULT, startups=(), faults=faults)
    assert [item.verdict for item in result.failed if hasattr(item, "verdict")] == [
        Verdict.FAIL,
        Verdict.ROLLBACK_FAILED,
    ]


def test_a_restore_that_the_gate_predicted_to_fail_is_no_failure(tmp_path: Path) -> None:
    factory = RecordFactory(1)
    trials = tuple(
        factory.compatibility_trial(number, predicted=predicted, reason_code="criu_restore_failed")
        for number, predicted in enumerate((True, False))
    )
    result = landed(tmp_path, kind=RunKind.COMPATIBILITY, startups=(), compatibility=trials)
    assert [item.measurement_id for item in result.failed] == ["restore-0"]


def test_figures_of_an_upgrade_are_a_frame_also_without_any() -> None:
    difference = Difference("start-up, restore", 5, 5, 4.0, 6.0, 0.5, 0.4, 0.6, 0.05, False)
    comparison = Comparison(UpgradeVerdict.NOT_SAFE, ("slower",), (difference,))
    upgrade = Upgrade("a", "b", "h", "old", "new", {}, comparison)
    assert upgrade.figures.row(0, named=True)["relevant"] is True
    empty = replace(upgrade, comparison=replace(comparison, differences=()))
    assert empty.figures.schema == upgrade.figures.schema == FIGURES_SCHEMA
