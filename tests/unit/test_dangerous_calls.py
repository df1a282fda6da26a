"""No source of the product loads code from data, hands text to a shell or skips a certificate.

The sources are read as syntax trees, so that a comment or a text about it is none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("resilience_pipelines", "assets", "dbt", "deploy", "docs", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
MODULES = frozenset(
    {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle",
     "telnetlib", "xml.etree", "xml.dom", "xml.sax", "lxml"}
)  # fmt: skip
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
ATTRIBUTES = frozenset(
    {
        ("os", "system"), ("os", "popen"), ("subprocess", "getoutput"),
        ("subprocess", "getstatusoutput"), ("tempfile", "mktemp"), ("yaml", "load"),
        ("yaml", "load_all"), ("yaml", "full_load"), ("yaml", "unsafe_load"), ("np", "loads"),
        ("ssl", "_create_unverified_context"), ("tarfile", "open"), ("shutil", "unpack_archive"),
        ("zipfile", "ZipFile"), ("pl", "deserialize"),
    }
)  # fmt: skip
KEYWORDS = {"shell": True, "verify": False, "allow_pickle": True, "check_hostname": False,
            "weights_only": False, "trust_remote_code": True, "autoescape": False}  # fmt: skip
ALLOWED = {
    # The type of an element that defusedxml parsed, and its error.
    ("resilience_pipelines/releases/formats.py", "import of xml.etree.ElementTree"),
    # It writes a report and reads none.
    ("resilience_pipelines/ci/junit.py", "import of xml.etree.ElementTree"),
    # Archives that these benchmarks made themselves, for a machine without an index.
    ("benchmarks/h200/measure.py", "call of tarfile.open"),
    ("benchmarks/h200/pack.py", "call of tarfile.open"),
    ("benchmarks/h200/pack.py", "call of zipfile.ZipFile"),
}


def dangers(source: str) -> Iterator[tuple[int, str]]:
    """Lines and what is dangerous there."""
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            if any(name == bad or name.startswith(f"{bad}.") for bad in MODULES):
                yield line, f"import of {name}"
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in BUILTINS:
            yield line, f"call of {called.id}"
        if (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and (called.value.id, called.attr) in ATTRIBUTES
        ):
            yield line, f"call of {called.value.id}.{called.attr}"
        if isinstance(called, ast.Attribute) and called.attr == "load" and not node.keywords:
            owner = called.value
            if isinstance(owner, ast.Name) and owner.id == "torch":
                yield line, "call of torch.load without weights_only"
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg in KEYWORDS and value is KEYWORDS[keyword.arg]:
                yield line, f"{keyword.arg}={value}"


def test_there_are_sources_to_look_at() -> None:
    assert len(SOURCES) > 200


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_does_what_is_dangerous(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    found = [
        (line, what)
        for line, what in dangers(path.read_text())
        if (name, what) not in ALLOWED
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import xml.etree.ElementTree as ET",
        "eval(text)", "exec(code)", "__import__(name)", "os.system(x)", "yaml.load(x)",
        "subprocess.run(x, shell=True)", "httpx.get(u, verify=False)", "torch.load(f)",
        "np.load(f, allow_pickle=True)", "torch.load(f, weights_only=False)", "tempfile.mktemp()",
        "def f():\n    if x:\n        subprocess.Popen(y, shell=True)",
    ],
)  # fmt: skip
def test_what_is_dangerous_is_found(source: str) -> None:
    assert list(dangers(source))


@pytest.mark.parametrize(
    "source",
    ["# eval(x)", "'pickle.loads(x)'", "yaml.safe_load(x)", "subprocess.run(x, shell=False)",
     "model.eval()", "re.compile(x)", "httpx.get(u, verify=True)", "import pickletools"],
)  # fmt: skip
def test_what_only_looks_like_it_is_not(source: str) -> None:
    assert not list(dangers(source))
