"""The main job in this process, on real workers: what it makes, checks, shows and refuses."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dagster as dg
import psutil
import pytest
from dagster import DagsterInstance, ExecuteInProcessResult
from dagster._core.test_utils import create_run_for_test

from resilience_pipelines.context import make_worker, read_machine
from resilience_pipelines.dagster_io.instance import GPU_POOL, open_instance
from resilience_pipelines.dagster_io.launcher import LocalLauncher
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.dagster_io.stack_partitions import register
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.records import Arm, RunKind
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.warehouse.landing import find_landings, read_landing
from resilience_pipelines.warehouse.query import query
from tests.factories import RecordFactory, land
from tests.support.dagster_home import load_definitions

LINEAGE = "lineage.jsonl"
MEASURED = ("snapshot_images", "startup_measurements", "fault_runs")


@dataclass(frozen=True)
class MainJob:
    """A main job that has run, with one repeat of everything and one fault."""

    home: Home
    instance: DagsterInstance
    partition: str
    snapshots_work: bool
    result: ExecuteInProcessResult

    def run(
        self, job: str, partition: str | None = None, **config: dict[str, Any]
    ) -> ExecuteInProcessResult:
        ops = {name: {"config": fields} for name, fields in config.items()}
        return load_definitions().resolve_job_def(job).execute_in_process(
            instance=self.instance,
            partition_key=partition,
            run_config={"ops": ops} if ops else None,
            raise_on_error=False,
        )  # fmt: skip

    def metadata(self, *key: str) -> dict[str, Any]:
        event = self.instance.get_latest_materialization_event(dg.AssetKey(key))
        assert event is not None
        assert event.asset_materialization is not None
        found = event.asset_materialization.metadata
        return {name: value.value for name, value in found.items()}

    def check(self, name: str) -> dg.AssetCheckEvaluation:
        """The result of one check that is run alone."""
        from assets import checks

        [definition] = [item for item in checks.CHECKS if next(iter(item.check_keys)).name == name]
        assets: Sequence[Any] = load_definitions().assets or ()
        result = dg.materialize(
            [*assets, definition],
            selection=dg.AssetSelection.checks(definition),
            instance=self.instance,
            resources={"home": HomeResource(), "launcher": LocalLauncher()},
        )
        [evaluation] = result.get_asset_check_evaluations()
        return evaluation


@pytest.fixture(scope="module")
def main_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MainJob]:
    defs = load_definitions()
    home = open_home(tmp_path_factory.mktemp("main-job"))
    with pytest.MonkeyPatch.context() as patch, open_instance(home) as instance:
        patch.setenv("RESILIENCE_HOME", str(home.root))
        if importlib.util.find_spec("openlineage") is not None:
            patch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
            patch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(home.root / LINEAGE))
            patch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
        machine = read_machine(make_worker("reference", home), home)
        partition = str(register(instance, machine.stack))
        recovery = "restore" if machine.engine else "warm_cache"
        result = defs.resolve_job_def("main_job").execute_in_process(
            instance=instance,
            partition_key=partition,
            raise_on_error=False,
            run_config={
                "ops": {
                    "startup_measurements": {"config": {"repeats": 1}},
                    "fault_runs": {
                        "config": {"faults": ["worker_killed"], "recoveries": [recovery]}
                    },
                    "raw_tables": {"config": {"published_results": False}},
                }
            },
        )
        yield MainJob(home, instance, partition, machine.engine is not None, result)


def failure_of(result: ExecuteInProcessResult, step: str) -> str:
    [event] = [item for item in result.all_events if item.is_step_failure]
    assert event.step_key == step
    data = event.step_failure_data.user_failure_data
    assert data is not None
    return data.description or ""


def jobs_of(home: Home) -> list[psutil.Process]:
    """Processes that work in a data home, this one left out."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(home.root) in word for word in process.info["cmdline"] or ())
    ]


def test_the_main_job_makes_everything(main_job: MainJob) -> None:
    assert main_job.result.success, [
        (event.step_key, event.message)
        for event in main_job.result.all_events
        if event.is_step_failure
    ]
    made = {event.asset_key for event in main_job.result.get_asset_materialization_events()}
    feeds = {dg.AssetKey("releases")}  # read from the network, by a job of their own
    assert made == {spec.key for spec in load_definitions().resolve_all_asset_specs()} - feeds


def test_no_check_finds_an_error(main_job: MainJob) -> None:
    evaluations = main_job.result.get_asset_check_evaluations()
    assert {"answers_equal", "controls_clean", "image_intact"} <= {
        item.check_name for item in evaluations
    }
    errors = [
        (item.asset_key.to_user_string(), item.check_name, item.description)
        for item in evaluations
        if not item.passed and item.severity is dg.AssetCheckSeverity.ERROR
    ]
    assert not errors


def test_what_was_measured_is_in_the_partition_of_this_machine(main_job: MainJob) -> None:
    for name in MEASURED:
        key = dg.AssetKey(name)
        assert main_job.instance.get_materialized_partitions(key) == {main_job.partition}


def test_a_materialization_shows_the_landing_folder_of_its_own_job(main_job: MainJob) -> None:
    kinds = {}
    for name in MEASURED:
        metadata = main_job.metadata(name)
        record = read_landing(Path(metadata["landing_folder"])).record
        kinds[name] = record.kind
        assert metadata["run_id"] == record.run_id
        assert metadata["stack_key"] == record.stack_key
        assert metadata["basis"] == record.basis == "reference"
        assert record.launcher == "local"
    assert kinds == dict(
        zip(MEASURED, (RunKind.SNAPSHOT, RunKind.STARTUP, RunKind.FAULT), strict=True)
    )


def test_the_lineage_leads_from_each_job_to_the_marts(main_job: MainJob) -> None:
    pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")
    lines = (main_job.home.root / LINEAGE).read_text().splitlines()
    ends = [event for event in map(json.loads, lines) if event["eventType"] != "START"]
    assert {event["eventType"] for event in ends} == {"COMPLETE"}

    def names(job: str, side: str) -> set[str]:
        found = [event for event in ends if event["job"]["name"] == job]
        return {item["name"] for event in found for item in event[side]}

    landed = {str(folder) for folder in find_landings(main_job.home.landing)}
    jobs = [f"run.{kind}" for kind in (RunKind.SNAPSHOT, RunKind.STARTUP, RunKind.FAULT)]
    assert set().union(*(names(job, "outputs") for job in jobs)) >= landed
    assert names("load", "inputs") == landed
    assert "warehouse.raw.faults" in names("load", "outputs") & names("dbt.build", "inputs")
    assert "warehouse.main.fault_runs" in names("dbt.main.fault_runs", "outputs")


def test_progress_of_a_job_is_in_the_log_of_the_run(main_job: MainJob) -> None:
    logs = main_job.instance.all_logs(main_job.result.run_id)
    messages = [entry.user_message for entry in logs if entry.step_key == "startup_measurements"]
    assert any(text.endswith("cold, start 1") for text in messages)
    assert "3/3 finished" in messages, "a wake is of a worker that was a warm start"


def test_the_published_file_holds_what_was_measured(main_job: MainJob) -> None:
    starts = query(main_job.home, "select arm, n from startup_summary order by arm").rows()
    expected = {arm.value: 1 for arm in Arm}
    if not main_job.snapshots_work:
        expected["restore"] = 0
    assert dict(starts) == expected
    faults = query(main_job.home, "select fault, verdict from fault_runs order by fault").rows()
    assert faults == [("control", "pass"), ("worker_killed", "pass")]


def test_row_counts_are_those_of_the_published_tables(main_job: MainJob) -> None:
    for mart in ("startup_measurements", "fault_runs", "runs", "stacks"):
        [(rows,)] = query(main_job.home, f"select count(*) from {mart}").rows()
        assert main_job.metadata("marts", mart)["dagster/row_count"] == rows > 0


def test_each_mart_tells_which_columns_its_own_come_from(main_job: MainJob) -> None:
    marts = [
        event.asset_key
        for event in main_job.result.get_asset_materialization_events()
        if event.asset_key and event.asset_key.path[0] == "marts"
    ]
    for mart in marts:
        if mart.path[1] == "failure_mix":  # others' figures, which come with the project
            continue
        lineage = main_job.metadata(*mart.path)["dagster/column_lineage"].deps_by_column
        columns = query(main_job.home, f"select * from {mart.path[1]} limit 0").columns
        assert lineage.keys() == set(columns)
        assert any(lineage.values()), mart
    from_median = main_job.metadata("marts", "startup_summary")["dagster/column_lineage"]
    assert (
        dg.TableColumnDep(dg.AssetKey(["marts", "startup_variants"]), "median_s")
        in from_median.deps_by_column["median_s"]
    )


def test_the_dashboard_is_written(main_job: MainJob) -> None:
    metadata = main_job.metadata("dashboard")
    page = Path(unquote(urlsplit(metadata["page"]).path))
    assert page.stat().st_size == metadata["bytes"] > 100_000
    [result] = (dict(record.data) for record in metadata["results"].records)
    assert "Restore" in result["start_up"]
    assert result["faults"].startswith("Faults: 1 of 1 experiment passed")


def test_a_first_look_finds_a_plot_tables_the_dashboard_and_the_evidence(main_job: MainJob) -> None:
    page = (main_job.home.dashboard / "index.html").read_text()
    for name in MEASURED:
        event = main_job.instance.get_latest_materialization_event(dg.AssetKey(name))
        assert event is not None
        assert event.asset_materialization is not None
        found = event.asset_materialization.metadata
        if name != "snapshot_images" or main_job.snapshots_work:
            assert any(isinstance(value, dg.MarkdownMetadataValue) for value in found.values())
        assert sum(isinstance(value, dg.TableMetadataValue) for value in found.values()) >= 2
        run = str(found["run_id"].value)
        address = urlsplit(str(found["dashboard"].value))
        assert (address.scheme, address.fragment) == ("file", f"run={run}")
        assert f'data-run="{run}"' in page
        landed = read_landing(Path(str(found["landing_folder"].value)))
        if landed.record.evidence:
            listed = found["evidence"]
            assert isinstance(listed, dg.TableMetadataValue)
            files = [str(dict(record.data)["file"]) for record in listed.records]
            assert files
            assert all((landed.folder / file).is_file() for file in files)


def test_every_mart_shows_its_columns_with_types_and_descriptions() -> None:
    specs = [
        spec for spec in load_definitions().resolve_all_asset_specs() if spec.group_name == "marts"
    ]
    assert len(specs) > 20
    for spec in specs:
        schema = spec.metadata["dagster/column_schema"]
        assert isinstance(schema, dg.TableSchema), spec.key
        assert all(column.type and column.description for column in schema.columns), spec.key
        assert spec.deps or spec.key.path[-1] == "failure_mix", spec.key


def test_loading_again_loads_nothing(main_job: MainJob) -> None:
    before = main_job.metadata("raw", "runs")
    result = main_job.run("refresh_warehouse", raw_tables={"published_results": False})
    assert result.success
    after = main_job.metadata("raw", "runs")
    assert (before["loaded"], before["already_loaded"]) == (3, 0)
    assert (after["loaded"], after["already_loaded"]) == (0, 3)
    assert after["dagster/row_count"] == before["dagster/row_count"] == 3


def test_a_damaged_image_is_noticed_by_its_check_alone(main_job: MainJob) -> None:
    if not main_job.snapshots_work:
        pytest.skip("no snapshot can be taken on this machine")
    snapshot = SnapshotStore(main_job.home.snapshots).get(
        main_job.metadata("snapshot_images")["snapshot_id"]
    )
    victim = min(snapshot.folder / file.path for file in snapshot.manifest.files if file.bytes)
    content = victim.read_bytes()
    victim.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    try:
        evaluation = main_job.check("image_intact")
    finally:
        victim.write_bytes(content)
    assert not evaluation.passed
    assert "SHA-256" in (evaluation.description or "")
    assert main_job.check("image_intact").passed


def test_a_landing_folder_that_was_changed_is_noticed_by_a_check_alone(
    main_job: MainJob,
) -> None:
    file = Path(main_job.metadata("startup_measurements")["landing_folder"]) / "run.json"
    content = file.read_bytes()
    record = json.loads(content)
    record["startups"][0]["total_s"] = 0.001
    file.write_text(json.dumps(record))
    try:
        evaluation = main_job.check("answers_equal")
    finally:
        file.write_bytes(content)
    assert not evaluation.passed
    assert "do not add up" in (evaluation.description or "")


def test_a_partition_of_another_machine_fails_and_starts_nothing(main_job: MainJob) -> None:
    main_job.instance.add_dynamic_partitions("hardware", ["8x-nvidia-h200"])
    software = main_job.partition.split("|")[1]
    landed = list(find_landings(main_job.home.landing))
    result = main_job.run("measure_startup", f"8x-nvidia-h200|{software}")
    reason = failure_of(result, "startup_measurements")
    hardware = main_job.partition.split("|")[0]
    assert f"hardware is {hardware!r} here and '8x-nvidia-h200' in the partition" in reason
    assert list(find_landings(main_job.home.landing)) == landed


@pytest.mark.parametrize(
    ("job", "step", "config", "words"),
    [
        ("measure_startup", "startup_measurements", {"repeats": -1}, "repeats = -1"),
        ("measure_startup", "startup_measurements", {"arms": ["lukewarm"]}, "lukewarm"),
        ("inject_faults", "fault_runs", {"faults": ["bit_rot"]}, "no such fault"),
    ],
)
def test_bad_configuration_fails_with_field_value_and_mend(
    main_job: MainJob, job: str, step: str, config: dict[str, Any], words: str
) -> None:
    result = main_job.run(job, main_job.partition, **{step: config})
    assert words in failure_of(result, step)


def test_a_job_that_takes_too_long_is_ended_with_all_it_started(main_job: MainJob) -> None:
    from assets.startup import startup_measurements

    others = {process.pid for process in jobs_of(main_job.home)}
    result = dg.materialize(
        [*(load_definitions().assets or ())],
        selection=dg.AssetSelection.assets(startup_measurements),
        instance=main_job.instance,
        partition_key=main_job.partition,
        resources={"home": HomeResource(), "launcher": LocalLauncher(deadline_s=3.0)},
        raise_on_error=False,
    )
    assert "did not end within 3 s" in failure_of(result, "startup_measurements")
    assert {process.pid for process in jobs_of(main_job.home)} <= others


def test_a_new_landing_folder_asks_for_a_refresh_that_waits_for_measurements(
    main_job: MainJob,
) -> None:
    sensor = load_definitions().resolve_sensor_def("new_landing_folders")

    def evaluate() -> Any:
        context = dg.build_sensor_context(
            instance=main_job.instance, resources={"home": HomeResource()}
        )
        return sensor(context)

    quiet = evaluate()
    assert isinstance(quiet, dg.SkipReason)
    assert "was seen" in (quiet.skip_message or "")
    folder = land(main_job.home.landing, RecordFactory(7).startup_record(1))
    request = evaluate()
    assert isinstance(request, dg.RunRequest)
    assert evaluate().run_key == request.run_key
    storage = main_job.instance.event_log_storage
    run = create_run_for_test(main_job.instance, status=dg.DagsterRunStatus.STARTED)
    assert storage.claim_concurrency_slot(GPU_POOL, run.run_id, "step").is_claimed
    try:
        waiting = evaluate()
        assert isinstance(waiting, dg.SkipReason)
        assert run.run_id in (waiting.skip_message or "")
    finally:
        main_job.instance.report_run_failed(run)
        storage.free_concurrency_slots_for_run(run.run_id)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def test_a_machine_that_is_not_registered_registers_itself(main_job: MainJob) -> None:
    sensor = load_definitions().resolve_sensor_def("this_machine")
    hardware, software = main_job.partition.split("|")
    with DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, resources={"home": HomeResource()})
        asked = sensor(context).dynamic_partitions_requests
    assert {item.partitions_def_name: list(item.partition_keys) for item in asked} == {
        "hardware": [hardware],
        "software": [software],
    }
    context = dg.build_sensor_context(
        instance=main_job.instance, resources={"home": HomeResource()}
    )
    assert not sensor(context).dynamic_partitions_requests


def test_the_schedule_asks_for_this_machine(main_job: MainJob) -> None:
    schedule = load_definitions().resolve_schedule_def("weekly_main")
    with dg.build_schedule_context(
        instance=main_job.instance,
        resources={"home": HomeResource()},
        repository_def=load_definitions().get_repository_def(),
    ) as context:
        requests = schedule.evaluate_tick(context).run_requests
    assert [request.partition_key for request in requests or ()] == [main_job.partition]
