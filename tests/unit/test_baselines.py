"""Others' figures are read as a whole or not at all, and kept once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.baselines.baseline import Baseline
from resilience_pipelines.baselines.formats import FORMATS, Origin
from resilience_pipelines.baselines.keep import FOLDER, keep, known_to_the_project, read_imported
from resilience_pipelines.errors import CorruptError, InputError
from resilience_pipelines.home import open_home

ORIGIN = Origin("somebody", "https://example.org/page", {"gpu_sku": "H200"})

NCCL = {
    "config": {"devices": [{"device_info": "NVIDIA H100"}, {"device_info": "NVIDIA H100"}]},
    "results": [
        {
            "size": 1024, "experiment_name": "all_reduce_perf", "actual_iterations": 20,
            "out_of_place": {"time": 10.0, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0},
            "in_place": {"time": 9.0, "alg_bw": 1.1, "bus_bw": 1.6, "nwrong": None},
        },
        {
            "size": 2048, "actual_iterations": 20, "out_of_place": None,
            "in_place": {"time": 9.0, "alg_bw": 1.1, "bus_bw": 2.6, "nwrong": 0},
        },
    ],
}  # fmt: skip
NVBANDWIDTH = {
    "nvbandwidth": {
        "Driver Version": "580.1",
        "testcases": [
            {
                "name": "device_to_device", "status": "Passed",
                "bandwidth_description": "memcpy (GB/s)",
                "bandwidth_matrix": [["N/A", "390.5"], ["391.5", "N/A"]],
            },
            {"name": "latency", "status": "Passed", "bandwidth_description": "latency (ns)",
             "bandwidth_matrix": [["512.0"]]},
            {"name": "multinode", "status": "Waived"},
        ],
    }
}  # fmt: skip

DYNAMO = {
    "rawPath": "results/v1/x.json",
    "result": {
        "outcome": "passed", "startedAt": "2026-10-01T09:08:20.707Z",
        "identity": {"case": "vllm", "suite": "framework-checkpoint-restore"},
        "environment": {
            "frameworkImage": "vllm/vllm-openai:v0.27.1-ubuntu2404@sha256:dafe",
            "model": "Qwen/Qwen3-0.6B", "nodeAffinity": "same",
            "restoreGpus": [{"driverVersion": "615.71.09", "model": "NVIDIA A100-SXM4-80GB"}],
            "storage": {"provisioner": "file.csi.azure.com"},
        },
        "measurements": [
            {"displayName": "Restore requested to traffic ready", "status": "complete",
             "name": "restore.to_traffic.duration", "unit": "seconds", "value": 56.99},
            {"displayName": "Restore (agent)", "name": "restore.agent.duration",
             "status": "incomplete", "unit": "seconds", "value": None},
            {"displayName": "Checkpoint", "name": "checkpoint.duration", "status": "complete",
             "unit": "seconds", "value": 57.4},
        ],
    },
}  # fmt: skip
AGENT_LOG = (
    "2026-09-08T12:46:54Z\tINFO\tcontroller\tsomething else {not json\n"
    "2026-09-08T12:46:55Z\tINFO\tcontroller\texecutor/restore.go:249\tRestore timing summary\t"
    '{"pod": "default/a", "snapshot": "b", "restore": {"duration": "1m2.5s", '
    '"phases": {"criu_restore": "2.359102s", "cuda_restore": "894.113ms", "unaccounted": "9µs"}}}\n'
)


def parse(name: str, content: object) -> list[Baseline]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return FORMATS[name](data, ORIGIN)


def test_vllms_own_benchmark_gives_the_median_of_each_kind_of_start() -> None:
    found = parse(
        "vllm-bench-startup",
        {"cold_startup_times": [30.0, 50.0, 40.0], "warm_startup_times": [20.0],
         "cold_compilation_times": [9.0, 11.0]},
    )  # fmt: skip
    assert [(item.figure, item.arm, item.value, item.n) for item in found] == [
        ("start-up, cold", "cold", 40.0, 3),
        ("compilation, cold", None, 10.0, 2),
        ("start-up, warm_cache", "warm_cache", 20.0, 1),
    ]
    assert {(item.source, item.url, item.gpu_sku) for item in found} == {
        ("somebody", "https://example.org/page", "H200")
    }


def test_nccl_tests_give_bus_bandwidth_for_each_size_and_place() -> None:
    found = parse("nccl-tests", NCCL)
    assert [(item.figure, item.value) for item in found] == [
        ("all_reduce_perf busbw, 1024 bytes, out of place", 1.5),
        ("all_reduce_perf busbw, 1024 bytes, in place", 1.6),
        ("collective busbw, 2048 bytes, in place", 2.6),
    ]
    # What the file says of the GPU stands before what the importing person says.
    assert {(item.gpu_sku, item.gpu_count) for item in found} == {("NVIDIA H100", 2)}


def test_a_collective_with_wrong_elements_is_no_baseline() -> None:
    wrong = json.loads(json.dumps(NCCL))
    wrong["results"][0]["out_of_place"]["nwrong"] = 3
    with pytest.raises(InputError, match="wrong elements"):
        parse("nccl-tests", wrong)


def test_nvbandwidth_gives_each_cell_of_each_test_that_passed() -> None:
    found = parse("nvbandwidth", NVBANDWIDTH)
    assert [(item.figure, item.value, item.unit) for item in found] == [
        ("device_to_device, row 0, column 1", 390.5, "GB/s"),
        ("device_to_device, row 1, column 0", 391.5, "GB/s"),
        ("latency, row 0, column 0", 512.0, "ns"),
    ]
    assert {item.driver_version for item in found} == {"580.1"}


def ndjson(*runs: object) -> bytes:
    return "\n".join(json.dumps(run) for run in runs).encode()


def test_dynamo_snapshot_s_index_gives_each_complete_measurement_of_runs_that_passed() -> None:
    failed = json.loads(json.dumps(DYNAMO))
    failed["result"]["outcome"] = "failed"
    found = parse("dynamo-snapshot", ndjson(DYNAMO, failed))
    assert [(item.figure, item.arm, item.value, item.unit, item.n) for item in found] == [
        ("restore.to_traffic.duration", "restore", 56.99, "s", 1),
        ("checkpoint.duration", None, 57.4, "s", 1),
    ]
    told = {(item.gpu_sku, item.gpu_count, item.driver_version, item.engine, item.engine_version,
             item.model) for item in found}  # fmt: skip
    assert told == {("NVIDIA A100-SXM4-80GB", 1, "615.71.09", "vllm", "0.27.1", "Qwen/Qwen3-0.6B")}
    assert "file.csi.azure.com" in found[0].detail


def test_dynamo_s_agent_tells_the_phases_of_each_restore_that_it_timed() -> None:
    found = parse("dynamo-agent-log", AGENT_LOG.encode())
    assert {item.figure: item.value for item in found} == pytest.approx(
        {
            "restore.agent.duration": 62.5,
            "restore.agent.criu_restore": 2.359102,
            "restore.agent.cuda_restore": 0.894113,
            "restore.agent.unaccounted": 9e-6,
        }
    )
    assert {item.detail for item in found} == {"pod default/a, snapshot b"}


def test_a_table_takes_the_columns_of_a_baseline_and_leaves_empty_cells_unsaid() -> None:
    (found,) = parse("table", b"product,figure,value,unit,n,model\nX,start,1.5,s,,m\n")
    assert (found.source, found.value, found.n, found.model) == ("somebody", 1.5, None, "m")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("table", b"product,figure,value,unit\n", "rows"),
        ("table", b"product,figure,value,unit\nX,start,fast,s\n", "row 1, value"),
        ("table", b"product,figure,value,unit\nX,start,nan,s\n", "row 1, value"),
        ("table", b"product,figure,value,unit,colour\nX,s,1,s,red\n", "row 1, colour"),
        ("table", b"\xff\xfe", "file"),
        ("vllm-bench-startup", {}, "cold_startup_times"),
        ("vllm-bench-startup", {"cold_startup_times": ["x"]}, "cold_startup_times"),
        ("vllm-bench-startup", b'{"cold_startup_times": [NaN]}', "file"),
        ("vllm-bench-startup", b"[" * 100_000, "file"),
        ("nccl-tests", {"results": []}, "results"),
        ("nccl-tests", {"results": [{"size": None}]}, "results[0].size"),
        ("nccl-tests", b'{"results": [{"size": 1e999}]}', "file"),
        ("nccl-tests", {"results": [{"size": "Inf"}]}, "results[0].size"),
        ("nccl-tests", {"results": [{"size": True}]}, "results[0].size"),
        ("nvbandwidth", {"nvbandwidth": {"testcases": []}}, "nvbandwidth.testcases"),
        ("nvbandwidth", [], "file"),
        ("dynamo-snapshot", {"result": {"outcome": "failed"}}, "file"),
        ("dynamo-snapshot", {"outcome": "passed"}, "line 1"),
        ("dynamo-snapshot", b"{}\nno", "file"),
        ("dynamo-agent-log", b"nothing of it", "file"),
        ("dynamo-agent-log", b"Restore timing summary {}", "line 1, restore"),
        (
            "dynamo-agent-log",
            b'Restore timing summary {"restore": {"duration": "soon"}}',
            "line 1, duration",
        ),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_field(
    name: str, content: Any, named: str
) -> None:
    with pytest.raises(InputError) as refused:
        parse(name, content)
    assert refused.value.field == named


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode), st.sampled_from([*FORMATS]))
def test_whatever_a_file_holds_it_is_read_or_refused(content: bytes, name: str) -> None:
    try:
        found = FORMATS[name](content, ORIGIN)
    except InputError:
        return
    assert found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["results", "size", "in_place", "bus_bw", "nvbandwidth", "testcases",
                         "status", "bandwidth_matrix", "cold_startup_times", "config", "devices"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    JSON,
    st.sampled_from(["vllm-bench-startup", "nccl-tests", "nvbandwidth", "dynamo-snapshot"]),
)
def test_whatever_json_a_file_holds_it_is_read_or_refused(content: Any, name: str) -> None:
    try:
        found = parse(name, content)
    except InputError:
        return
    assert all(item.value >= 0 for item in found)


def test_a_figure_is_kept_once_however_often_it_is_imported(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    found = parse("nvbandwidth", NVBANDWIDTH)
    assert keep(home, [*found, *found])[1] == 3
    assert keep(home, found)[1] == 0
    (imported,) = read_imported(home)
    assert list(imported.baselines) == found


def test_a_kept_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    path, _ = keep(home, parse("nvbandwidth", NVBANDWIDTH))
    path.write_text(path.read_text()[:-20])
    with pytest.raises(CorruptError, match=path.name):
        read_imported(home)
    assert path.parent.name == FOLDER


def test_every_figure_that_comes_with_the_project_has_a_source_to_read() -> None:
    found = known_to_the_project()
    assert len(found) >= 7
    assert all(item.url and item.url.startswith("https://") for item in found)
    assert len({item.baseline_id for item in found}) == len(found)
