"""One setting moves the same commands and assets to a cluster (here the fake of its API)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance

from resilience_pipelines.dagster_io.instance import open_instance
from resilience_pipelines.dagster_io.launcher import ChosenLauncher
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.dagster_io.stack_partitions import partition_of, register
from resilience_pipelines.launchers.choice import SETTINGS_FILE
from resilience_pipelines.launchers.kubernetes.settings import read_settings
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.landing import find_landings, read_landing
from tests.factories import make_stack
from tests.support.dagster_home import load_definitions
from tests.support.fake_kubernetes.cluster import REPOSITORY, FakeCluster, fake_cluster


def toml(fields: dict[str, Any]) -> str:
    """TOML of plain values and of tables of them; JSON's strings, numbers and lists are TOML's."""
    plain = {k: v for k, v in fields.items() if v is not None and not isinstance(v, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    for name, table in fields.items():
        if isinstance(table, dict):
            lines.append(f"[{name}]")
            lines += [f"{k} = {json.dumps(v)}" for k, v in table.items() if v is not None]
    return "\n".join(lines) + "\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with fake_cluster(tmp_path) as found:
        found.stand_in()
        settings = found.settings()
        path = found.home.root / SETTINGS_FILE
        path.write_text(toml(settings.model_dump(mode="json")))
        assert read_settings(path) == settings
        yield found


def resilience(cluster: FakeCluster, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from resilience_pipelines.cli import main; main()", *words],
        env=os.environ
        | {"PYTHONPATH": str(REPOSITORY), "RESILIENCE_HOME": str(cluster.home.root)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_command_lands_from_a_cluster_what_it_lands_from_here(cluster: FakeCluster) -> None:
    process = resilience(cluster, "run", "startup", "--launcher", "kubernetes", "--json")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    answer = json.loads(out)
    record = read_landing(Path(answer["folder"])).record
    assert record.launcher == "kubernetes"
    assert answer["run_id"] == record.run_id
    assert cluster.left() == []


def test_a_command_that_is_told_to_end_ends_its_job(cluster: FakeCluster) -> None:
    cluster.stand_in("--hold", str(cluster.folder / "never"))
    process = resilience(cluster, "run", "startup", "--launcher", "kubernetes")
    until = time.monotonic() + 60
    while "step 1" not in cluster.output():
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert cluster.left() == []
    assert len(list(find_landings(cluster.home.landing))) == 1


def test_a_failure_has_its_name_its_mend_and_its_exit_code(cluster: FakeCluster) -> None:
    settings = cluster.settings(gpu={"count": 1})
    (cluster.home.root / SETTINGS_FILE).write_text(toml(settings.model_dump(mode="json")))
    process = resilience(cluster, "run", "startup", "--launcher", "kubernetes")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "Unschedulable: 0/1 nodes are available: Insufficient nvidia.com/gpu." in errors
    assert "mend:" in errors


def test_cleaning_says_what_it_removed(cluster: FakeCluster) -> None:
    process = resilience(cluster, "kubernetes", "clean", "--json")
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert json.loads(out) == []


def materialize(
    cluster: FakeCluster, instance: DagsterInstance, stack: Stack
) -> dg.ExecuteInProcessResult:
    assets: Any = load_definitions().assets or ()
    return dg.materialize(
        list(assets),
        selection=dg.AssetSelection.assets("startup_measurements"),
        partition_key=str(partition_of(stack)),
        instance=instance,
        resources={
            "home": HomeResource(path=str(cluster.home.root)),
            "launcher": ChosenLauncher(launcher="kubernetes"),
            "dbt": dg.ResourceDefinition.none_resource(),
        },
        raise_on_error=False,
    )


def test_the_asset_is_measured_on_a_cluster(cluster: FakeCluster) -> None:
    with open_instance(cluster.home) as instance:
        register(instance, make_stack())
        result = materialize(cluster, instance, make_stack())
        assert result.success
        [event] = result.get_asset_materialization_events()
        assert event.partition == str(partition_of(make_stack()))
    assert cluster.left() == []


def test_another_node_s_result_is_kept_and_its_partition_registered(cluster: FakeCluster) -> None:
    wanted = make_stack(cpu_model="Another CPU")
    with open_instance(cluster.home) as instance:
        register(instance, wanted)
        result = materialize(cluster, instance, wanted)
        assert not result.success
        hardware = instance.get_dynamic_partitions("hardware")
        assert make_stack().hardware_label in hardware
    [folder] = find_landings(cluster.home.landing)
    assert read_landing(folder).record.stack == make_stack()
