"""The cluster that faults may use: only where it is allowed, and a fake one is known for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_pipelines.faults.cluster import VARIABLE
from resilience_pipelines.home import open_home
from resilience_pipelines.launchers.fault_cluster import fault_cluster, pod_settings
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings
from tests.support.fake_kubernetes.cluster import fake_cluster

SETTINGS = """
image = "registry.test/worker:1"
kubeconfig = "{kubeconfig}"
namespace = "resilience"
memory = "4Gi"
[landing]
claim = "landing"
[gpu]
product = "NVIDIA-H200"
[deadlines]
request_s = 2
"""


def test_nothing_is_connected_to_unless_an_operator_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with fault_cluster(open_home(tmp_path)) as (place, why):
        assert place is None
        assert f"{VARIABLE}=1" in why


def test_settings_that_are_not_there_are_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with fault_cluster(open_home(tmp_path)) as (place, why):
        assert place is None
        assert "kubernetes.toml" in why


def test_a_fake_cluster_is_known_for_one_and_its_settings_are_the_launcher_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with fake_cluster(tmp_path) as fake:
        text = SETTINGS.format(kubeconfig=fake.kubeconfig)
        (fake.home.root / "kubernetes.toml").write_text(text)
        with fault_cluster(fake.home) as (place, why):
            assert place is not None, why
            assert place.is_fake
            assert place.settings.memory == "4Gi"
            assert place.settings.placement["nodeSelector"] == {
                "nvidia.com/gpu.product": "NVIDIA-H200"
            }
        fake.server.lose()
        with fault_cluster(fake.home) as (place, why):
            assert place is None
            assert "did not tell its version" in why


def test_a_worker_in_a_pod_goes_with_the_platform_s_own_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = KubernetesSettings.model_validate({"image": "x", "landing": {"claim": "landing"}})
    assert pod_settings(found).owner is None
    monkeypatch.setenv("RESILIENCE_POD_NAME", "run-1")
    monkeypatch.setenv("RESILIENCE_POD_UID", "1-2-3")
    owner = pod_settings(found).owner
    assert owner is not None
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "run-1", "1-2-3")
