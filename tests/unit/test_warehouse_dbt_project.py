"""The dbt project speaks the words of the records, and documents every column it makes."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml

from resilience_pipelines.launchers.kubernetes.failures import FailureKind
from resilience_pipelines.records import (
    Arm,
    Basis,
    CriuStatistics,
    Layer,
    OracleVerdict,
    Outcome,
    PageCache,
    RunKind,
    Verdict,
)
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.transform import dbt_project_dir

PROJECT = dbt_project_dir()
MARTS = sorted(path.stem for path in (PROJECT / "models" / "marts").glob("*.sql"))


OF_NO_RESULTS = ("stacks", "releases", "baselines")


def models() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in (PROJECT / "models").rglob("*.yml"):
        for model in yaml.safe_load(path.read_text()).get("models", []):
            assert model["name"] not in found, f"{model['name']} is described twice"
            found[model["name"]] = model
    return found


MODELS = models()


def columns(mart: str) -> dict[str, dict[str, Any]]:
    return {column["name"]: column for column in MODELS[mart]["columns"]}


def accepted(mart: str, column: str) -> list[str]:
    [values] = [
        test["accepted_values"]["arguments"]["values"]
        for test in columns(mart)[column]["data_tests"]
        if "accepted_values" in test
    ]
    return list(values)


@pytest.mark.parametrize(
    ("mart", "column", "enum"),
    [
        ("runs", "kind", RunKind),
        ("runs", "basis", Basis),
        ("startup_measurements", "arm", Arm),
        ("startup_measurements", "outcome", Outcome),
        ("startup_measurements", "oracle_verdict", OracleVerdict),
        ("startup_measurements", "page_cache_requested", PageCache),
        ("startup_measurements", "page_cache_found", PageCache),
        ("snapshots", "outcome", Outcome),
        ("fault_runs", "layer", Layer),
        ("fault_runs", "verdict", Verdict),
        ("fault_runs", "oracle_verdict", OracleVerdict),
        ("launches", "failure", FailureKind),
    ],
)
def test_accepted_values_are_those_of_the_records(
    mart: str, column: str, enum: type[StrEnum]
) -> None:
    assert sorted(accepted(mart, column)) == sorted(member.value for member in enum)


def names_in_macro(name: str) -> list[str]:
    text = (PROJECT / "macros" / "columns.sql").read_text()
    match = re.search(rf"macro {name}\(.*?endmacro", text, re.DOTALL)
    assert match
    return re.findall(r"'(\w+)'", match[0])


def test_every_dimension_of_a_stack_is_in_the_marts() -> None:
    assert sorted(names_in_macro("stack_dimensions")) == sorted(Stack.model_fields)
    assert set(Stack.model_fields) <= columns("stacks").keys()


def test_every_statistic_of_criu_is_in_the_marts() -> None:
    assert sorted(names_in_macro("criu_columns")) == sorted(CriuStatistics.model_fields)
    for mart in ("startup_measurements", "snapshots"):
        assert {f"criu_{name}" for name in CriuStatistics.model_fields} <= columns(mart).keys()


def test_fault_summary_counts_every_verdict() -> None:
    text = (PROJECT / "models" / "marts" / "fault_summary.sql").read_text()
    listed = re.search(r"for verdict in \[(.*?)\]", text, re.DOTALL)
    assert listed
    assert re.findall(r"'(\w+)'", listed[1]) == [verdict.value for verdict in Verdict]


def test_starts_are_compared_with_every_other_arm() -> None:
    assert set(accepted("restore_speedup", "versus")) == {
        arm.value for arm in Arm if arm is not Arm.RESTORE
    } | {"best_other_start"}


@pytest.mark.parametrize("mart", MARTS)
def test_every_mart_is_described_column_by_column(mart: str) -> None:
    assert MODELS[mart]["description"].strip()
    for name, column in columns(mart).items():
        assert column["description"].strip(), f"{mart}.{name} has no description"
        assert column["data_type"], f"{mart}.{name} has no type"


@pytest.mark.parametrize("mart", [mart for mart in MARTS if mart != "samples"])
def test_every_mart_names_and_tests_its_grain(mart: str) -> None:
    [grain] = [
        test["unique_combination"]["arguments"]["columns"]
        for test in MODELS[mart]["data_tests"]
        if "unique_combination" in test
    ]
    assert set(grain) <= columns(mart).keys()


@pytest.mark.parametrize("mart", [mart for mart in MARTS if mart not in OF_NO_RESULTS])
def test_every_mart_of_results_says_what_its_figures_stand_for(mart: str) -> None:
    assert {"worker", "basis", "stack_key"} <= columns(mart).keys()


def test_every_description_that_is_shared_is_used() -> None:
    shared = set()
    used = set()
    for path in (PROJECT / "models").rglob("*"):
        if path.suffix == ".md":
            shared |= set(re.findall(r"{% docs (\w+) %}", path.read_text()))
        elif path.suffix == ".yml":
            used |= set(re.findall(r"doc\('(\w+)'\)", path.read_text()))
    assert shared == used


def test_dbt_tells_nobody_anything() -> None:
    project = yaml.safe_load((PROJECT / "dbt_project.yml").read_text())
    assert project["flags"]["send_anonymous_usage_stats"] is False
    assert not (PROJECT / "packages.yml").exists(), "a package would be downloaded"


def test_the_packaged_project_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from resilience_pipelines.warehouse import transform

    monkeypatch.setattr(transform, "_PACKAGE", tmp_path / "package")
    assert transform.dbt_project_dir() == tmp_path / "dbt"
    packaged = tmp_path / "package" / "_dbt"
    packaged.mkdir(parents=True)
    (packaged / "dbt_project.yml").write_text("name: x")
    assert transform.dbt_project_dir() == packaged
