"""What deploy/ ships: known to the API, no more rights than the launcher uses, one set of names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from packaging.requirements import Requirement

from resilience_pipelines.faults.chaos_mesh import Disturbance
from resilience_pipelines.faults.cluster import PERMISSIONS as FAULT_PERMISSIONS
from resilience_pipelines.faults.litmus import ENGINES, EXPERIMENTS, RESULTS
from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    AGENT_PERMISSIONS,
    POD_SNAPSHOT,
    SNAPSHOT_JOB,
)
from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    PERMISSIONS as DYNAMO_PERMISSIONS,
)
from resilience_pipelines.launchers.kubernetes.client import CLUSTER_PERMISSIONS, PERMISSIONS
from resilience_pipelines.launchers.kubernetes.manifest import (
    MANAGED_BY,
    MANAGED_BY_LABEL,
    dropped_fields,
)
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings, read_settings
from resilience_pipelines.workers.pod import TARGET_LABEL
from resilience_pipelines.workers.process import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml")
               if path.name != "kustomization.yaml")  # fmt: skip
MODELS = {
    "Namespace": "V1Namespace", "ServiceAccount": "V1ServiceAccount", "Role": "V1Role",
    "RoleBinding": "V1RoleBinding", "ClusterRole": "V1ClusterRole",
    "ClusterRoleBinding": "V1ClusterRoleBinding", "NetworkPolicy": "V1NetworkPolicy",
    "PersistentVolumeClaim": "V1PersistentVolumeClaim", "ConfigMap": "V1ConfigMap",
}  # fmt: skip


class _Response:
    def __init__(self, data: str) -> None:
        self.data = data


def documents(*files: Path) -> list[dict[str, Any]]:
    return [item for path in files for item in yaml.safe_load_all(path.read_text())]


def one(kind: str, name: str) -> dict[str, Any]:
    [found] = [item for item in documents(*FILES)
               if item["kind"] == kind and item["metadata"]["name"] == name]  # fmt: skip
    return found


def known(item: Any, model: str) -> Any:
    """What the official client's model keeps of it."""
    api = client.ApiClient()
    return api.sanitize_for_serialization(api.deserialize(_Response(json.dumps(item)), model))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_field_of_a_manifest_is_one_that_the_api_knows(path: Path) -> None:
    for item in documents(path):
        assert dropped_fields(item, known(item, MODELS[item["kind"]])) == []


def granted(kind: str, name: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in one(kind, name)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_launcher_is_granted_exactly_what_it_does() -> None:
    assert granted("Role", "resilience-launcher") == PERMISSIONS
    assert granted("ClusterRole", "resilience-launcher-nodes") == CLUSTER_PERMISSIONS


def test_faults_on_a_cluster_are_granted_exactly_what_they_do() -> None:
    assert granted("Role", "resilience-faults") == FAULT_PERMISSIONS
    kinds = {item.value.kind for item in Disturbance} | {ENGINES, RESULTS, EXPERIMENTS}
    assert {(kind.group, kind.plural) for kind in kinds} == {
        (group, resource) for group, resource, _ in FAULT_PERMISSIONS if group
    }


def test_dynamo_snapshot_is_granted_exactly_what_is_done_with_it() -> None:
    assert granted("Role", "resilience-dynamo-snapshot") == DYNAMO_PERMISSIONS
    assert granted("Role", "resilience-dynamo-agent-log") == AGENT_PERMISSIONS
    kinds = {(kind.group, kind.plural) for kind in (POD_SNAPSHOT, SNAPSHOT_JOB)}
    assert kinds == {(group, resource) for group, resource, _ in DYNAMO_PERMISSIONS if group}


def test_a_worker_in_a_pod_can_be_asked_where_the_policies_are_enforced() -> None:
    spec = one("NetworkPolicy", "resilience-targets-answer")["spec"]
    [expression] = spec["podSelector"]["matchExpressions"]
    assert expression == {"key": TARGET_LABEL, "operator": "Exists"}
    assert [item["port"] for rule in spec["ingress"] for item in rule["ports"]] == [DEFAULT_PORT]
    assert not spec["egress"]


def test_only_the_platform_is_granted_anything() -> None:
    bindings = [item for item in documents(*FILES) if item["kind"].endswith("RoleBinding")
                or item["kind"] == "RoleBinding"]  # fmt: skip
    subjects = {subject["name"] for item in bindings for subject in item["subjects"]}
    assert subjects == {"resilience-platform"}
    assert one("ServiceAccount", "resilience-job")["automountServiceAccountToken"] is False


def test_the_network_policy_is_of_the_launcher_s_pods_and_lets_nothing_through() -> None:
    spec = one("NetworkPolicy", "resilience-jobs-are-alone")["spec"]
    assert spec["podSelector"]["matchLabels"] == {MANAGED_BY_LABEL: MANAGED_BY}
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert not spec["ingress"]
    assert not spec["egress"]


@pytest.mark.parametrize("kind", ["nfs", "ceph", "cloud"])
def test_each_storage_has_the_claims_that_the_settings_name(kind: str) -> None:
    settings = read_settings(DEPLOY / "kubernetes" / "kubernetes.toml")
    claims = documents(DEPLOY / "kubernetes" / f"volumes-{kind}.yaml")
    assert settings.snapshots is not None
    assert {item["metadata"]["name"] for item in claims} == {
        settings.landing.claim, settings.snapshots.claim,
    }  # fmt: skip
    assert all(item["spec"]["accessModes"] == ["ReadWriteMany"] for item in claims)


def test_the_settings_in_the_config_map_are_settings() -> None:
    text = one("ConfigMap", "resilience-kubernetes")["data"]["kubernetes.toml"]
    found = KubernetesSettings.model_validate(tomllib.loads(text))
    assert found.service_account == "resilience-job"


def test_the_kustomization_names_files_that_are_there() -> None:
    found = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert {(DEPLOY / "kubernetes" / name).is_file() for name in found["resources"]} == {True}


def rendered() -> list[dict[str, Any]]:
    """The objects of the kustomization: nothing of it changes what its files say."""
    found = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert set(found) == {"apiVersion", "kind", "resources"}
    return documents(*(DEPLOY / "kubernetes" / name for name in found["resources"]))


def test_what_the_kustomization_makes_is_whole_and_in_one_namespace() -> None:
    made = {(item["kind"], item["metadata"]["name"]): item for item in rendered()}
    assert len(made) == len(rendered()), "each is made once"
    for (kind, name), item in made.items():
        own = kind in ("Namespace", "ClusterRole", "ClusterRoleBinding")
        assert item["metadata"].get("namespace") == (None if own else "resilience"), name
        if kind.endswith("Binding"):
            assert (item["roleRef"]["kind"], item["roleRef"]["name"]) in made
            for subject in item["subjects"]:
                assert (subject["kind"], subject["name"]) in made
    text = made["ConfigMap", "resilience-kubernetes"]["data"]["kubernetes.toml"]
    settings = KubernetesSettings.model_validate(tomllib.loads(text))
    assert settings.snapshots is not None
    claims = {name for kind, name in made if kind == "PersistentVolumeClaim"}
    assert {settings.landing.claim, settings.snapshots.claim} <= claims
    assert ("ServiceAccount", settings.service_account) in made
    assert ("Namespace", settings.namespace) in made


def test_rights_that_only_some_need_are_not_given_to_all() -> None:
    roles = {item["metadata"]["name"] for item in rendered() if item["kind"].endswith("Role")}
    assert roles == {"resilience-launcher", "resilience-launcher-nodes"}


def test_the_kustomization_renders_to_its_files() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl to render it with")
    ended = subprocess.run(
        [kubectl, "kustomize", str(DEPLOY / "kubernetes")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = list(yaml.safe_load_all(ended.stdout))

    def order(item: dict[str, Any]) -> tuple[str, str]:
        return item["kind"], item["metadata"]["name"]

    assert sorted(found, key=order) == sorted(rendered(), key=order)


# The names of the chart's values, from the models that its values.schema.json is generated from
# (helm/dagster/schema/schema/charts in Dagster's repository: dagster/values.py at 835892b4,
# dagster/subschema/{global_,run_launcher,daemon,postgresql,service_account,telemetry}.py at
# 53ff29f3, 969d7265, 835892b4, 00701070, 6ff7cade, 0f2d9d8e; dagster_user_deployments/subschema/
# user_deployments.py at 58b05650).
CHART = {
    "": "dagsterWebserver dagster-user-deployments postgresql generatePostgresqlPasswordSecret "
    "generateCeleryConfigSecret rabbitmq redis flower ingress imagePullSecrets computeLogManager "
    "scheduler runLauncher pythonLogs dagsterDaemon busybox migrate telemetry serviceAccount "
    "global retention additionalInstanceConfig",
    "global": "postgresqlSecretName dagsterHome serviceAccountName celeryConfigSecretName "
    "dagsterInstanceConfigMap",
    "serviceAccount": "create name annotations",
    "telemetry": "enabled",
    "postgresql": "postgresqlScheme image enabled postgresqlHost postgresqlUsername "
    "postgresqlPassword postgresqlDatabase postgresqlParams service",
    "runLauncher": "type config",
    "runLauncher.config": "celeryK8sRunLauncher k8sRunLauncher customRunLauncher",
    "runLauncher.config.k8sRunLauncher": "image imagePullPolicy jobNamespace loadInclusterConfig "
    "kubeconfigFile envConfigMaps envSecrets envVars volumeMounts volumes labels "
    "failPodOnRunFailure resources schedulerName securityContext runK8sConfig",
    "runLauncher.config.k8sRunLauncher.runK8sConfig": "containerConfig podSpecConfig "
    "podTemplateSpecMetadata jobSpecConfig jobMetadata",
    "dagsterDaemon": "enabled image runCoordinator heartbeatTolerance env envConfigMaps envSecrets "
    "deploymentLabels labels nodeSelector affinity tolerations podSecurityContext securityContext "
    "resources livenessProbe readinessProbe startupProbe annotations runMonitoring runRetries "
    "sensors schedules schedulerName volumeMounts volumes",
    "dagsterDaemon.runCoordinator": "enabled type config",
    "dagster-user-deployments": "enabled enableSubchart imagePullSecrets deployments",
    "dagster-user-deployments.deployments": "name image dagsterApiGrpcArgs codeServerArgs "
    "includeConfigInLaunchedRuns port env envConfigMaps envSecrets annotations nodeSelector "
    "affinity tolerations podSecurityContext securityContext resources livenessProbe "
    "readinessProbe startupProbe labels volumeMounts volumes schedulerName",
}


@pytest.mark.parametrize("place", CHART)
def test_every_value_is_one_that_the_chart_knows(place: str) -> None:
    found: Any = helm_values()
    for name in filter(None, place.split(".")):
        found = found[name]
    for item in found if isinstance(found, list) else [found]:
        assert item, "it is used"
        assert set(item) <= set(CHART[place].split())


def test_the_chart_s_choices_are_among_its_own() -> None:
    values = helm_values()
    assert values["runLauncher"]["type"] == "K8sRunLauncher"
    coordinator = values["dagsterDaemon"]["runCoordinator"]
    assert coordinator["type"] in ("QueuedRunCoordinator", "CustomRunCoordinator")


def test_a_password_is_given_when_the_chart_is_installed_and_is_in_no_file() -> None:
    assert "postgresqlPassword" not in helm_values()["postgresql"]
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    [command] = re.findall(r"^\$ helm install dagster (?:.|\\\n)+?[^\\]$", text, re.MULTILINE)
    assert '--set postgresql.postgresqlPassword="$(openssl rand' in command


def helm_values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "helm" / "dagster-values.yaml").read_text())
    return found


def test_the_chart_uses_the_account_that_the_manifests_make_and_makes_none() -> None:
    values = helm_values()
    name = values["global"]["serviceAccountName"]
    assert one("ServiceAccount", name)["metadata"]["namespace"] == "resilience"
    assert values["serviceAccount"]["create"] is False
    run = values["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    assert run["podSpecConfig"]["serviceAccountName"] == name


def test_the_application_is_one_that_argo_cd_takes() -> None:
    """Each source gives a path, a chart or values for another; who refers to values has them."""
    found = yaml.safe_load((DEPLOY / "argocd" / "application.yaml").read_text())
    assert (found["apiVersion"], found["kind"]) == ("argoproj.io/v1alpha1", "Application")
    spec = found["spec"]
    assert set(spec) <= {
        "project", "destination", "source", "sources", "syncPolicy", "ignoreDifferences", "info",
        "revisionHistoryLimit",
    }  # fmt: skip
    assert ("server" in spec["destination"]) != ("name" in spec["destination"])
    assert spec["destination"]["namespace"] == "resilience"
    for source in spec["sources"]:
        assert source["repoURL"]
        assert source["targetRevision"]
        assert len({"path", "chart", "ref"} & set(source)) == 1, source
    references = {source["ref"] for source in spec["sources"] if "ref" in source}
    files = [file for source in spec["sources"] for file in source.get("helm", {}).get(
        "valueFiles", ())]  # fmt: skip
    assert files
    assert {file.split("/")[0].removeprefix("$") for file in files} <= references
    # The manifests make the namespace themselves.
    assert spec["syncPolicy"]["syncOptions"] == ["CreateNamespace=false"]
    assert one("Namespace", "resilience")


def test_what_the_platform_keeps_is_on_volumes_that_several_pods_may_write() -> None:
    """The pods of webserver, daemon, runs and jobs are on any node each."""
    claims = [item for item in documents(*FILES) if item["kind"] == "PersistentVolumeClaim"]
    assert claims
    for item in claims:
        assert item["spec"]["accessModes"] == ["ReadWriteMany"], item["metadata"]["name"]
        assert item["spec"]["storageClassName"], item["metadata"]["name"]
        assert re.fullmatch(r"[0-9]+[GT]i", item["spec"]["resources"]["requests"]["storage"])


def test_runs_and_code_location_see_the_same_volumes_with_parts_that_the_api_knows() -> None:
    values = helm_values()
    [deployment] = values["dagster-user-deployments"]["deployments"]
    run = values["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    assert run["podSpecConfig"]["volumes"] == deployment["volumes"]
    assert run["containerConfig"]["volumeMounts"] == deployment["volumeMounts"]
    for item in deployment["volumes"]:
        assert dropped_fields(item, known(item, "V1Volume")) == []
    for item in run["containerConfig"]["env"]:
        assert dropped_fields(item, known(item, "V1EnvVar")) == []
    claims = {item["metadata"]["name"] for item in documents(*FILES)
              if item["kind"] == "PersistentVolumeClaim"}  # fmt: skip
    assert {item["persistentVolumeClaim"]["claimName"] for item in deployment["volumes"]
            if "persistentVolumeClaim" in item} <= claims  # fmt: skip


def test_the_chart_s_run_launcher_takes_its_configuration() -> None:
    """dagster-k8s itself says whether the pods' configuration is one."""
    from dagster_k8s.job import UserDefinedDagsterK8sConfig

    run = helm_values()["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    found = UserDefinedDagsterK8sConfig.from_dict(
        {"container_config": run["containerConfig"], "pod_spec_config": run["podSpecConfig"]}
    )
    assert found.container_config["env"]


def test_a_run_in_the_chart_owns_its_jobs() -> None:
    run = helm_values()["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    fields = {item["name"]: item.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
              for item in run["containerConfig"]["env"]}  # fmt: skip
    assert fields["RESILIENCE_POD_NAME"] == "metadata.name"
    assert fields["RESILIENCE_POD_UID"] == "metadata.uid"


def test_the_chart_is_of_the_dagster_that_is_installed() -> None:
    import dagster

    application = yaml.safe_load((DEPLOY / "argocd" / "application.yaml").read_text())
    [chart] = [item for item in application["spec"]["sources"] if "chart" in item]
    assert chart["targetRevision"] == dagster.__version__
    assert (DEPLOY / chart["helm"]["valueFiles"][0].removeprefix("$values/deploy/")).is_file()
    paths = [item["path"] for item in application["spec"]["sources"] if "path" in item]
    assert [(ROOT / path).is_dir() for path in paths] == [True]


def test_the_image_copies_what_is_there_and_ignores_no_part_of_it() -> None:
    text = (DEPLOY / "images" / "Dockerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
              for name in line.split()]  # fmt: skip
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not set(copied) & set(ignored)


@pytest.mark.parametrize(
    ("extras", "wanted"), [("", "."), ("gpu", ".[gpu]"), ("gpu,s3", ".[gpu,s3]")]
)
def test_the_image_is_built_with_and_without_extras(extras: str, wanted: str) -> None:
    text = (DEPLOY / "images" / "Dockerfile").read_text()
    assert 'ARG EXTRAS=""' in text.splitlines()
    [line] = re.findall(r"^RUN pip install (.+)$", text, re.MULTILINE)
    words = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], env={"EXTRAS": extras},
        capture_output=True, text=True, check=True, timeout=10,
    ).stdout.splitlines()  # fmt: skip
    assert words[0] == wanted
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in filter(None, extras.split(",")):
        assert word in known["optional-dependencies"]
    # Dagster's own integrations are released in step.
    [postgres] = map(Requirement, words[1:])
    [k8s] = [item for item in map(Requirement, known["dependencies"]) if item.name == "dagster-k8s"]
    assert (postgres.name, postgres.specifier) == ("dagster-postgres", k8s.specifier)


def test_nothing_secret_is_shipped() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert not re.search(r"kind: Secret|password:|token: ", path.read_text()), path
