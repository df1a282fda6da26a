"""`resilience import` as a person meets it: what is taken, and what is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilience_pipelines.baselines import formats
from resilience_pipelines.baselines.keep import read_imported
from resilience_pipelines.cli import main
from resilience_pipelines.home import open_home

TABLE = "product,figure,value,unit\nX,start-up,1.5,s\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["resilience", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_file_is_imported_once_with_what_was_said_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    home = tmp_path / "home"
    arguments = (
        "import", str(file), "--format", "table", "--home", str(home), "--json",
        "--url", "https://example.org", "--fact", "gpu_sku=H200",
    )  # fmt: skip
    code, out, _ = run(capsys, *arguments)
    assert (code, json.loads(out)) == (0, {"figures": 1, "new": 1})
    code, out, _ = run(capsys, *arguments)
    assert (code, json.loads(out)) == (0, {"figures": 1, "new": 0})
    ((kept,),) = [imported.baselines for imported in read_imported(open_home(home))]
    assert (kept.source, kept.url, kept.gpu_sku) == ("table.csv", "https://example.org", "H200")


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("missing.csv", ("--format", "table"), "FILE"),
        ("table.csv", ("--format", "nope"), "--format"),
        ("table.csv", ("--format", "nccl-tests"), "file"),
        ("table.csv", ("--format", "table", "--fact", "colour=red"), "--fact"),
        ("table.csv", ("--format", "table", "--fact", "gpu_sku"), "--fact"),
        ("large.csv", ("--format", "table"), "file"),
        (".", ("--format", "table"), "FILE"),
    ],
)
def test_what_can_not_be_imported_is_refused_with_the_field(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    arguments: tuple[str, ...],
    named: str,
) -> None:
    monkeypatch.setattr(formats, "MAX_BYTES", 100)
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "large.csv").write_text(TABLE + "X,start-up,1.5,s\n" * 100)
    home = tmp_path / "home"
    code, _, err = run(capsys, "import", str(tmp_path / name), *arguments, "--home", str(home))
    assert code == 2
    assert f"error: {named} = " in " ".join(err.split())
    assert not (home / "baselines").exists()


def test_a_device_that_never_ends_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "import", "/dev/zero", "--format", "table", "--home", str(tmp_path))
    assert code == 2
    assert "it is no file" in " ".join(err.split())
