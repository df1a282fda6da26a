"""The Job that a specification becomes: what is in it, and what a server did not store of it."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from resilience_pipelines.errors import InputError
from resilience_pipelines.job_spec import FaultSpec, StartupSpec, parse_spec
from resilience_pipelines.launchers.kubernetes.manifest import (
    ClusterFacts,
    build_job,
    dropped_fields,
    job_name,
)
from resilience_pipelines.launchers.kubernetes.settings import (
    SNAPSHOT_CAPABILITIES,
    KubernetesSettings,
    SecuritySettings,
    read_settings,
)
from resilience_pipelines.records import RunKind, new_run_id

RUN_ID = "20260302T090000Z-compatibility-0123abcd"
DIGEST = f"sha256:{'a' * 64}"
FULL = {
    "image": f"registry.test/resilience@{DIGEST}",
    "landing": {"claim": "landing", "sub_path": "zone"},
    "snapshots": {"claim": "snapshots"},
    "cache": {"host_path": "/var/cache/models"},
    "gpu": {"count": 2, "product": "NVIDIA-H200", "driver_version": "580.159.04"},
    "cpu": "8",
    "memory": "64Gi",
    "runtime_class": "nvidia",
    "node_selector": {"pool": "bench"},
    "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
    "image_pull_secrets": ["registry"],
    "security": {"privileged": True},
}
FACTS = ClusterFacts("v1.31.2", "containerd://1.7.0")


def build(**changes: Any) -> dict[str, Any]:
    settings = KubernetesSettings.model_validate(FULL | changes)
    return build_job(StartupSpec(), RUN_ID, "0" * 16, settings, FACTS)


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return found


def environment(manifest: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in pod(manifest)["containers"][0]["env"]}


class _Response:
    def __init__(self, data: str) -> None:
        self.data = data


def known(manifest: dict[str, Any]) -> Any:
    """What the official client's models keep: they drop the rest without a word."""
    api = client.ApiClient()
    return api.sanitize_for_serialization(api.deserialize(_Response(json.dumps(manifest)), "V1Job"))


def test_every_field_is_one_that_the_api_knows() -> None:
    manifest = build()
    assert dropped_fields(manifest, known(manifest)) == []


def test_the_specification_comes_whole_through_the_environment() -> None:
    spec = FaultSpec(faults=("worker_killed",), repeats=3)
    settings = KubernetesSettings.model_validate(FULL)
    manifest = build_job(spec, RUN_ID, "0" * 16, settings, FACTS)
    assert parse_spec(environment(manifest)["RESILIENCE_JOB_SPEC"]) == spec


def test_what_isn_t_known_isn_t_told() -> None:
    settings = KubernetesSettings.model_validate(FULL | {"image": "registry.test/resilience:1"})
    manifest = build_job(StartupSpec(), RUN_ID, "0" * 16, settings, ClusterFacts(None, None))
    names = ("KUBERNETES_VERSION", "CONTAINER_RUNTIME", "IMAGE_DIGEST", "SIMULATED")
    assert not {f"RESILIENCE_{name}" for name in names} & environment(manifest).keys()


def test_an_image_by_digest_names_it() -> None:
    assert environment(build())["RESILIENCE_IMAGE_DIGEST"] == DIGEST


def test_the_node_is_chosen_by_gpu_and_each_part_of_the_driver_in_either_form() -> None:
    assert pod(build())["nodeSelector"] == {
        "pool": "bench",
        "nvidia.com/gpu.product": "NVIDIA-H200",
    }
    [required] = pod(build())["affinity"]["nodeAffinity"].values()
    terms = [
        {item["key"]: item["values"] for item in term["matchExpressions"]}
        for term in required["nodeSelectorTerms"]
    ]
    assert terms == [
        {
            "nvidia.com/cuda.driver-version.major": ["580"],
            "nvidia.com/cuda.driver-version.minor": ["159"],
            "nvidia.com/cuda.driver-version.revision": ["04"],
        },
        {
            "nvidia.com/cuda.driver.major": ["580"],
            "nvidia.com/cuda.driver.minor": ["159"],
            "nvidia.com/cuda.driver.rev": ["04"],
        },
    ]
    limits = pod(build())["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}


def test_a_job_s_pod_is_never_replaced_and_has_no_token() -> None:
    manifest = build()
    assert manifest["spec"]["backoffLimit"] == 0
    assert pod(manifest)["restartPolicy"] == "Never"
    assert pod(manifest)["automountServiceAccountToken"] is False


def test_without_privileges_every_capability_is_dropped_but_those_named() -> None:
    manifest = build(security={"capabilities": ["SYS_PTRACE"]})
    context = pod(manifest)["containers"][0]["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}
    assert context["privileged"] is False
    assert not {"seccompProfile", "appArmorProfile"} & set(context)


def test_profiles_are_those_of_the_settings() -> None:
    manifest = build(
        security={"capabilities": ["SYS_ADMIN"], "seccomp": "Unconfined", "apparmor": "Unconfined"}
    )
    context = pod(manifest)["containers"][0]["securityContext"]
    assert context["seccompProfile"] == {"type": "Unconfined"}
    assert context["appArmorProfile"] == {"type": "Unconfined"}
    assert dropped_fields(manifest, known(manifest)) == []


@pytest.mark.parametrize("kind", list(RunKind))
def test_a_job_s_name_leaves_room_for_its_pod_s(kind: RunKind) -> None:
    name = job_name(new_run_id(kind))
    assert len(name) + len("-abcde") <= 63
    assert name == name.lower()


def test_nothing_is_missing_from_what_is_the_same() -> None:
    assert dropped_fields(build(), build()) == []


@given(st.sampled_from(["podFailurePolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds"]))
def test_a_dropped_field_is_found(name: str) -> None:
    stored = copy.deepcopy(build())
    del stored["spec"][name]
    assert dropped_fields(build(), stored) == [f"spec.{name}"]


def test_a_field_dropped_deep_inside_is_found() -> None:
    stored = copy.deepcopy(build())
    del stored["spec"]["template"]["spec"]["runtimeClassName"]
    del stored["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    assert dropped_fields(build(), stored) == [
        "spec.template.spec.containers[0].resources.limits.cpu",
        "spec.template.spec.runtimeClassName",
    ]


def test_defaults_that_a_server_adds_are_no_loss() -> None:
    stored = copy.deepcopy(build())
    stored["spec"]["suspend"] = False
    stored["spec"]["template"]["spec"]["tolerations"].append({"key": "added"})
    stored["spec"]["backoffLimit"] = 6
    assert dropped_fields(build(), stored) == []


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kubernetes.toml"
    path.write_text(text)
    return path


def test_the_least_settings_are_an_image_and_where_results_go(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path, 'image = "x:1"\nlanding = {claim = "landing"}'))
    assert settings.namespace == "resilience"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('landing = {claim = "x"}', "image"),
        ('image = "x"', "landing"),
        ('image = "x"\nlanding = {}', "landing"),
        ('image = "x"\nlanding = {claim = "a", host_path = "/b"}', "claim or host_path"),
        ('image = "x"\nlanding = {host_path = "relative"}', "landing.host_path"),
        ('image = "x"\nlanding = {claim = "a"}\ngpu = {driver_version = "n"}', "gpu.driver_ver"),
        ('image = "x"\nlanding = {claim = "a"}\nnamespaces = "y"', "namespaces"),
        ('image = "x"\nlanding = {claim = "a"}\ndeadlines = {run_s = 0}', "deadlines.run_s"),
        ("image = ", "TOML"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read_settings(write(tmp_path, text))


def test_the_manual_s_rights_for_snapshots_are_those_that_are_tested() -> None:
    text = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    [block] = [item for item in re.findall(r"```toml\n(.+?)```", text, re.DOTALL)
               if "[security]" in item]  # fmt: skip
    found = SecuritySettings.model_validate(tomllib.loads(block)["security"])
    assert found.capabilities == SNAPSHOT_CAPABILITIES
    assert found.seccomp == "Unconfined"
    rows = re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE)
    assert set(rows) == set(SNAPSHOT_CAPABILITIES), "what fails without each is told"
