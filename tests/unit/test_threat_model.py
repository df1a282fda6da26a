"""Each threat of docs/threat-model.md names a test that is there, and dependencies have bounds."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "docs" / "threat-model.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in MODEL.read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| asset", "| ---"))
]
# Small libraries with stable interfaces. A dependency is bounded, or is named here on purpose.
UNBOUNDED = frozenset(
    {"cryptography", "defusedxml", "fsspec", "httpx", "jinja2", "markupsafe", "numba", "numpy",
     "nvidia-ml-py", "packaging", "prometheus-client", "protobuf", "psutil", "pydantic", "rich",
     "ruptures", "safetensors", "sqlglot", "starlette", "typer", "uvicorn"}
)  # fmt: skip


def test_there_are_threats() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2][:50])
def test_a_threat_has_a_mitigation_and_a_test_that_is_there(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row)
    named = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", row[4])
    assert named, row[4]
    (path,) = (ROOT / "tests").rglob(named[1])
    functions = {
        node.name for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }  # fmt: skip
    assert named[2] in functions


def test_what_results_depend_on_is_bounded() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for text in listed:
        requirement = Requirement(text)
        bounded = any(part.operator in ("==", "<", "<=", "~=") for part in requirement.specifier)
        assert bounded != (requirement.name in UNBOUNDED), text
        assert requirement.url is None, "a release, never whatever lies at an address"
