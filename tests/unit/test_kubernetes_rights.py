"""Each call of the API server in the code has its right, and no right is without a call.

The calls are read from the source, so that one on a path that no test takes counts too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from resilience_pipelines.faults.cluster import PERMISSIONS as FAULTS
from resilience_pipelines.launchers.dynamo_snapshot.contract import AGENT_PERMISSIONS
from resilience_pipelines.launchers.dynamo_snapshot.contract import PERMISSIONS as DYNAMO
from resilience_pipelines.launchers.kubernetes.client import CLUSTER_PERMISSIONS, PERMISSIONS

PACKAGE = Path(__file__).parents[2] / "resilience_pipelines"
Right = tuple[str, str, str]

VERBS: Final = {"read": "get", "get": "get"}
RESOURCES: Final = {
    "job": ("batch", "jobs"), "pod": ("", "pods"), "pod_log": ("", "pods/log"),
    "event": ("", "events"), "node": ("", "nodes"),
}  # fmt: skip
CUSTOM: Final = "custom_object"
METHOD: Final = re.compile(
    r"(create|read|get|list|delete|patch|replace|connect)_(?:namespaced|cluster)_(\w+)"
    r"|(list|read|patch)_(node)"
)
LAUNCHER = sorted((PACKAGE / "launchers" / "kubernetes").glob("*.py"))
PODS = [PACKAGE / "workers" / "pod.py", PACKAGE / "faults" / "cluster.py"]
DYNAMO_FILES = sorted((PACKAGE / "launchers" / "dynamo_snapshot").glob("*.py"))


def methods(files: Iterable[Path]) -> Iterator[tuple[str, str, bool]]:
    """Verb and resource of each method of the generated client that is named, and if it watches."""
    for path in files:
        tree = ast.parse(path.read_text())
        watching = {
            inner
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and any(word.arg == "watch" for word in call.keywords)
            for inner in ast.walk(call)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (found := METHOD.fullmatch(node.attr)):
                verb, resource = found[1] or found[3], found[2] or found[4]
                yield VERBS.get(verb, verb), resource, node in watching


def rights(files: Iterable[Path]) -> set[Right]:
    """The rights that calls of the API's own kinds need."""
    return {
        (*RESOURCES[resource], "watch" if watches else verb)
        for verb, resource, watches in methods(files)
        if resource != CUSTOM
    }


def custom_verbs(files: Iterable[Path]) -> set[str]:
    return {verb for verb, resource, _ in methods(files) if resource == CUSTOM}


def raw_calls(files: Iterable[Path]) -> list[str]:
    """The modules that call the API server past the generated methods."""
    return [
        path.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "call_api"
    ]


def test_the_launcher_s_rights_are_its_calls() -> None:
    assert rights(LAUNCHER) == PERMISSIONS | CLUSTER_PERMISSIONS
    assert custom_verbs(LAUNCHER) == set()
    assert raw_calls(LAUNCHER) == ["client.py"], "the log, whose right the other call has too"


def test_faults_in_pods_do_what_the_launcher_may_and_what_they_are_granted_besides() -> None:
    assert rights(PODS) <= PERMISSIONS | FAULTS
    assert custom_verbs(PODS) == {verb for group, _, verb in FAULTS if group}
    assert raw_calls(PODS) == ["pod.py"], "the proxy"
    assert {right for right in FAULTS if not right[0]} == {
        ("", "pods/proxy", "get"), ("", "pods/proxy", "create"),
    }  # fmt: skip


def test_dynamo_snapshot_does_what_the_launcher_may_and_what_it_is_granted_besides() -> None:
    found = rights(DYNAMO_FILES)
    assert found <= PERMISSIONS | CLUSTER_PERMISSIONS | DYNAMO
    assert found >= AGENT_PERMISSIONS, "what it reads in the agents' namespace"
    # Its objects are those of the faults' module, of which it changes none.
    assert custom_verbs(DYNAMO_FILES) == set()
    assert {verb for group, _, verb in DYNAMO if group} == custom_verbs(PODS) - {"patch"}
    assert raw_calls(DYNAMO_FILES) == []


def test_nobody_else_calls_the_api_server() -> None:
    known = {*LAUNCHER, *PODS, *DYNAMO_FILES}
    others = [path for path in PACKAGE.rglob("*.py") if path not in known]
    assert len(others) > 100
    assert list(methods(others)) == []
    assert raw_calls(others) == []


@pytest.mark.parametrize("granted", [PERMISSIONS, CLUSTER_PERMISSIONS, FAULTS, DYNAMO])
def test_nothing_reads_secrets_runs_commands_or_gives_rights(granted: frozenset[Right]) -> None:
    for group, resource, verb in granted:
        assert resource not in ("secrets", "pods/exec", "pods/attach", "serviceaccounts/token")
        assert "rbac" not in group
        assert "*" not in (group, resource, verb)
        assert verb not in ("escalate", "bind", "impersonate", "deletecollection")
