"""What the code location defines: a snapshot that a change has to be meant for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.job_spec import FaultSpec, SnapshotSpec, StartupSpec, parse_spec
from tests.factories import make_stack
from tests.support.dagster_home import load_definitions

ROOT = Path(__file__).parents[2]
MEASURED = ("fault_runs", "snapshot_images", "startup_measurements")


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return load_definitions()


@pytest.fixture(scope="module")
def specs(defs: dg.Definitions) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}


def _deps(spec: dg.AssetSpec) -> list[str]:
    return sorted(dep.asset_key.to_user_string() for dep in spec.deps)


def test_assets_that_are_not_of_dbt_are_these(specs: dict[str, dg.AssetSpec]) -> None:
    found = {
        name: {
            "group": spec.group_name,
            "owners": list(spec.owners),
            "kinds": sorted(spec.kinds),
            "deps": _deps(spec),
            "partitioned": spec.partitions_def is not None,
        }
        for name, spec in specs.items()
        if spec.group_name not in ("raw", "staging", "marts") and name != "published_database"
    }
    measured: dict[str, Any] = {
        "group": "measurements",
        "owners": ["team:gpu-operations"],
        "kinds": ["gpu", "python"],
        "deps": ["stacks"],
        "partitioned": True,
    }
    of_the_machine: dict[str, Any] = {
        "group": "machine",
        "owners": ["team:gpu-operations"],
        "kinds": ["python"],
        "deps": [],
        "partitioned": False,
    }
    assert found == {
        "stacks": of_the_machine,
        "releases": of_the_machine,
        **dict.fromkeys(MEASURED, measured),
        "dashboard": {
            "group": "published",
            "owners": ["team:resilience-analytics"],
            "kinds": ["html", "python"],
            "deps": ["published_database"],
            "partitioned": False,
        },
    }


def test_every_raw_table_comes_from_every_measurement(specs: dict[str, dg.AssetSpec]) -> None:
    raw = {name: spec for name, spec in specs.items() if name.startswith("raw/")}
    assert {"raw/runs", "raw/stacks", "raw/startups", "raw/faults", "raw/rejected"} <= raw.keys()
    assert all(_deps(spec) == sorted(MEASURED) for spec in raw.values())


def test_lineage_leads_from_each_mart_to_raw_tables_and_to_the_published_file(
    specs: dict[str, dg.AssetSpec],
) -> None:
    def upstream(name: str) -> Iterator[str]:
        for dep in _deps(specs[name]):
            yield dep
            yield from upstream(dep)

    marts = {name for name in specs if name.startswith("marts/")}
    assert {"marts/startup_summary", "marts/fault_runs", "marts/restore_speedup"} <= marts
    for mart in marts - {"marts/failure_mix"}:  # others' figures, which come with the project
        assert any(name.startswith("raw/") for name in upstream(mart)), mart
    assert set(_deps(specs["published_database"])) == marts


def test_staging_models_read_raw_tables_alone(specs: dict[str, dg.AssetSpec]) -> None:
    staging = [spec for name, spec in specs.items() if name.startswith("staging/")]
    assert staging
    for spec in staging:
        assert all(dep.startswith("raw/") for dep in _deps(spec)), spec.key


def test_every_asset_explains_itself(specs: dict[str, dg.AssetSpec]) -> None:
    for name, spec in specs.items():
        assert len(spec.description or "") > 10, name
        assert spec.owners, name
        assert spec.kinds, name
        assert spec.group_name != "default", name


def test_every_mart_names_type_and_meaning_of_each_column(
    specs: dict[str, dg.AssetSpec],
) -> None:
    for name, spec in specs.items():
        if name.startswith("marts/"):
            schema = spec.metadata["dagster/column_schema"]
            assert schema.columns, name
            for column in schema.columns:
                assert column.description, f"{name}.{column.name}"
                assert column.type not in ("", "?"), f"{name}.{column.name}"


def test_what_measures_holds_the_gpu_and_what_writes_the_warehouse_holds_it(
    defs: dg.Definitions,
) -> None:
    pools = {
        node.op.name: sorted(node.op.pools)
        for node in (defs.resolve_assets_def(key) for key in _some_key_of_each(defs))
    }
    assert pools == {
        "stacks": [],
        "snapshot_images": ["gpu_slot"],
        "startup_measurements": ["gpu_slot"],
        "fault_runs": ["gpu_slot"],
        "raw_tables": ["duckdb_writer"],
        "marts": ["duckdb_writer"],
        "published_database": ["duckdb_writer"],
        "dashboard": [],
    }


def _some_key_of_each(defs: dg.Definitions) -> list[dg.AssetKey]:
    names = ("stacks", *MEASURED, "published_database", "dashboard")
    return [
        *(dg.AssetKey(name) for name in names),
        dg.AssetKey(["raw", "runs"]),
        dg.AssetKey(["marts", "runs"]),
    ]


def test_partitions_are_hardware_by_software_and_grow(specs: dict[str, dg.AssetSpec]) -> None:
    for name in MEASURED:
        partitions = specs[name].partitions_def
        assert isinstance(partitions, dg.MultiPartitionsDefinition)
        assert {item.name for item in partitions.partitions_defs} == {"hardware", "software"}
        assert all(
            isinstance(item.partitions_def, dg.DynamicPartitionsDefinition)
            for item in partitions.partitions_defs
        )


def test_checks_of_what_was_measured_are_these(defs: dg.Definitions) -> None:
    found = {
        f"{key.asset_key.to_user_string()}: {key.name}"
        for key in defs.resolve_asset_graph().asset_check_keys
        if key.asset_key.path[0] not in ("raw", "staging", "marts")
    }
    assert found == {
        "snapshot_images: snapshot_taken",
        "snapshot_images: image_intact",
        "startup_measurements: every_arm_measured",
        "startup_measurements: answers_equal",
        "startup_measurements: time_adds_up",
        "fault_runs: every_fault_decided",
        "fault_runs: controls_clean",
        "fault_runs: answers_survive",
        "fault_runs: rollback_proved",
        "fault_runs: worker_withstood",
        "published_database: upgrades_safe",
    }


def test_tests_of_dbt_are_checks_too(defs: dg.Definitions) -> None:
    checked = {
        key.asset_key.to_user_string() for key in defs.resolve_asset_graph().asset_check_keys
    }
    assert {"marts/startup_measurements", "marts/fault_runs"} <= checked


def test_jobs_select_these_assets(defs: dg.Definitions, specs: dict[str, dg.AssetSpec]) -> None:
    warehouse = {name for name in specs if name.partition("/")[0] in ("raw", "staging", "marts")}
    refreshed = warehouse | {"published_database", "dashboard"}
    expected = {
        # Feeds are on other machines, and a measurement must not wait for them.
        "main_job": set(specs) - {"releases"},
        "read_releases": {"releases"},
        "take_snapshot": {"snapshot_images"},
        "measure_startup": {"startup_measurements"},
        "inject_faults": {"fault_runs"},
        "refresh_warehouse": refreshed,
        "refresh_dashboard": {"dashboard"},
    }
    for name, assets in expected.items():
        job = defs.resolve_job_def(name)
        found = {key.to_user_string() for key in job.asset_layer.selected_asset_keys}
        assert found == assets, name


def test_nothing_measures_until_an_operator_says_so(defs: dg.Definitions) -> None:
    schedule = defs.resolve_schedule_def("weekly_main")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    assert schedule.job_name == "main_job"
    for name in (
        "this_machine", "new_releases", "cluster_nodes", "new_landing_folders", "upgrade_verdicts",
    ):  # fmt: skip
        sensor = defs.resolve_sensor_def(name)
        assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
        assert not sensor.has_jobs or sensor.job_name == "refresh_warehouse"
    for name in ("unmeasured_stacks", "offered_releases"):
        measuring = defs.resolve_sensor_def(name)
        assert measuring.default_status is dg.DefaultSensorStatus.STOPPED
        assert measuring.job_name == "main_job"


def test_configuration_left_alone_asks_for_what_the_command_line_asks_for() -> None:
    load_definitions()
    from assets.faults import FaultConfig
    from assets.snapshots import SnapshotConfig
    from assets.startup import StartupConfig

    assert parse_spec(StartupConfig().spec("reference")) == StartupSpec()
    assert parse_spec(FaultConfig().spec("reference")) == FaultSpec()
    assert parse_spec(SnapshotConfig().spec("reference")) == SnapshotSpec()


def test_configuration_refuses_what_the_command_line_refuses() -> None:
    load_definitions()
    from assets.faults import FaultConfig
    from assets.startup import StartupConfig

    for config, field in (
        (StartupConfig(repeats=-1), "repeats"),
        (StartupConfig(arms=["lukewarm"]), "arms"),
        (StartupConfig(arms=[]), "arms"),
        (StartupConfig(page_cache="boiling"), "page_cache"),
        (StartupConfig(port=70_000), "port"),
        (FaultConfig(repeats=0), "repeats"),
    ):
        with pytest.raises(InputError, match=field):
            parse_spec(config.spec("reference"))


def test_a_partition_of_another_machine_is_refused_with_what_differs() -> None:
    load_definitions()
    from assets.partitions import worker_of
    from resilience_pipelines.dagster_io.stack_partitions import partition_of

    here = make_stack()
    other = make_stack(gpu_sku="NVIDIA H200", gpu_count=1, criu_version=None)
    assert worker_of(str(partition_of(here)), {"reference": here}) == "reference"
    with pytest.raises(UnsupportedError) as caught:
        worker_of(str(partition_of(other)), {"reference": here})
    assert "hardware is 'cpu-2x-test-cpu-2.0-ghz' here and '1x-nvidia-h200'" in caught.value.reason
    assert "software is 'reference-1-criu-4.2.1' here and 'reference-1' in" in caught.value.reason
    assert str(partition_of(here)) in caught.value.mend


def test_a_partition_stands_for_the_worker_whose_stack_it_is() -> None:
    load_definitions()
    from assets.partitions import worker_of
    from resilience_pipelines.dagster_io.stack_partitions import partition_of

    stacks = {"reference": make_stack(), "vllm": make_stack(engine="vllm", engine_version="0.23")}
    for name, stack in stacks.items():
        assert worker_of(str(partition_of(stack)), stacks) == name
    with pytest.raises(UnsupportedError, match="with worker 'reference', software is"):
        worker_of(str(partition_of(stacks["vllm"])), stacks, "reference")
    with pytest.raises(InputError, match="tensorrt"):
        worker_of(str(partition_of(stacks["vllm"])), stacks, "tensorrt")


def test_the_library_knows_no_dagster() -> None:
    package = ROOT / "resilience_pipelines"
    for path in package.rglob("*.py"):
        relative = path.relative_to(package)
        imported = _imports(path)
        if relative.parts[0] != "dagster_io" and relative.name != "definitions.py":
            assert not imported & {"dagster", "dagster_dbt", "dagster_graphql"}, relative
        if relative.name != "definitions.py":
            assert "assets" not in imported, relative


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_both_ways_to_find_the_code_location_name_the_same_one() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"][0]
    module = workspace["python_module"]
    assert module["module_name"] == project["code_location_target_module"]
    assert module["location_name"] == project["code_location_name"]
