"""What Chaos Mesh and Litmus say in a status, and the job of a worker in a pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client

from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.chaos_mesh import ChaosState, Disturbance, parse_state
from resilience_pipelines.faults.litmus import EngineState, parse_engine, parse_result
from resilience_pipelines.launchers.kubernetes.manifest import dropped_fields
from resilience_pipelines.workers.pod import PodSettings, target_job
from tests.support.workers import ContractWorker


def conditions(**holds: bool) -> list[dict[str, str]]:
    return [{"type": name, "status": str(true)} for name, true in holds.items()]


def test_an_object_that_nobody_looked_at_says_nothing() -> None:
    nothing = ChaosState(False, False, False, False, False, ())
    assert parse_state({}) == nothing
    assert parse_state({"status": {"experiment": {}}}) == nothing


def test_conditions_are_read_and_unknown_ones_do_no_harm() -> None:
    state = parse_state(
        {"status": {"conditions": conditions(Selected=True, AllInjected=True, Newer=True)}}
    )
    assert (state.taken_up, state.selected, state.all_injected) == (True, True, True)
    assert (state.all_recovered, state.paused) == (False, False)


def test_the_last_failure_of_each_record_is_told_and_older_records_have_none() -> None:
    records: list[dict[str, Any]] = [
        {"id": "a", "phase": "Not Injected"},
        {
            "id": "b",
            "phase": "Not Injected",
            "events": [
                {"type": "Failed", "operation": "Apply", "message": "first"},
                {"type": "Succeeded", "operation": "Apply"},
                {"type": "Failed", "operation": "Recover", "message": "last"},
            ],
        },
    ]
    status = {"conditions": conditions(Selected=True), "experiment": {"containerRecords": records}}
    assert parse_state({"status": status}).failures == ("Recover: last",)


def test_an_engine_without_a_status_has_no_words() -> None:
    assert parse_engine({}) == EngineState("", "")
    found = {"engineStatus": "initialized", "experiments": [{"status": "Running"}]}
    assert parse_engine({"status": found}) == EngineState("initialized", "Running")


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        ({"failStep": "N/A"}, ""),
        ({"failStep": "[pre-chaos]: no pod"}, "[pre-chaos]: no pod"),
        (
            {"failureOutput": {"failedStep": "ChaosInject", "errorCode": "TARGET_SELECTION_ERROR"}},
            "ChaosInject: TARGET_SELECTION_ERROR",
        ),
    ],
)
@pytest.mark.parametrize("verdict", ["Pass", "Fail", "Awaited", "Stopped", "Newer", ""])
def test_any_verdict_of_any_release_is_kept(
    status: dict[str, Any], failure: str, verdict: str
) -> None:
    found = parse_result({"status": {"experimentStatus": status | {"verdict": verdict}}})
    assert (found.verdict, found.failure) == (verdict, failure)


def test_a_result_that_is_not_there_yet_has_no_words() -> None:
    assert parse_result({}).verdict == ""


@pytest.mark.parametrize("item", Disturbance, ids=lambda item: item.name)
def test_what_lasts_ends_by_itself_and_what_is_done_at_once_has_no_end(item: Disturbance) -> None:
    one_shot = item.value.spec.get("action") in ("pod-kill", "container-kill")
    assert (item.value.duration_s is None) == one_shot


def test_both_operators_are_in_the_catalogue_under_their_strategies() -> None:
    strategies = {name: fault.strategy for name, fault in CATALOGUE.items()}
    assert strategies["chaos_mesh_pod_kill"] == "chaos_mesh"
    assert strategies["litmus_pod_delete"] == "litmus"


def job(**changes: Any) -> dict[str, Any]:
    settings = PodSettings(image="registry.test/worker:1", **changes)
    return target_job(ContractWorker(name="reference"), "resilience-target-0", settings)


class _Response:
    def __init__(self, data: str) -> None:
        self.data = data


def test_every_field_of_a_worker_s_job_is_one_that_the_api_knows() -> None:
    placement = {"nodeSelector": {"pool": "bench"}, "tolerations": [{"operator": "Exists"}]}
    sent = job(cpu="2", memory="4Gi", placement=placement)
    api = client.ApiClient()
    stored = api.sanitize_for_serialization(api.deserialize(_Response(json.dumps(sent)), "V1Job"))
    assert dropped_fields(sent, stored) == []


def test_a_worker_s_pod_has_no_token_and_no_privileges_and_its_job_an_end() -> None:
    spec = job()["spec"]
    pod = spec["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["ttlSecondsAfterFinished"] > 0


def test_a_worker_s_job_is_no_job_of_a_run() -> None:
    """Else cleaning up behind killed launchers would take it for one."""
    assert set(job()["metadata"]["labels"]) == {"resilience-pipelines/target"}
