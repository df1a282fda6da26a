"""`resilience query` gives the same answer in each of its forms."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import duckdb
import polars as pl
import pytest

from resilience_pipelines.cli import main
from resilience_pipelines.home import Home, open_home

SQL = "select arm, n from summary order by arm"
ROWS = [("cold", 2), ("restore", 5)]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = open_home(tmp_path / "home")
    with duckdb.connect(str(made.published)) as connection:
        connection.execute(
            "create table summary as from (values ('restore', 5), ('cold', 2)) t(arm, n)"
        )
    return made


def run(home: Home, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["resilience", "query", *arguments, "--home", str(home.root)])
        with pytest.raises(SystemExit) as end:
            main()
    shown = capsys.readouterr()
    return int(end.value.code or 0), shown.out, " ".join(shown.err.split())


def test_every_form_holds_the_same_rows(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = run(home, capsys, SQL, "--format", "csv")
    assert [(row["arm"], int(row["n"])) for row in csv.DictReader(io.StringIO(text))] == ROWS
    _, text, _ = run(home, capsys, SQL, "--json")
    assert [(row["arm"], row["n"]) for row in json.loads(text)] == ROWS
    _, text, _ = run(home, capsys, SQL)
    assert [tuple(line.split()) for line in text.splitlines()[2:]] == [
        (arm, str(n)) for arm, n in ROWS
    ]
    file = tmp_path / "answer.parquet"
    code, text, _ = run(home, capsys, SQL, "--format", "parquet", "--out", str(file))
    assert (code, text.split()[0]) == (0, "2")
    assert pl.read_parquet(file).rows() == ROWS
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == [file.name]


@pytest.mark.parametrize(
    "arguments",
    [("--format", "parquet"), ("--out", "x.parquet"), ("--format", "csv", "--out", "x.csv")],
)
def test_a_file_and_its_form_go_together(
    home: Home, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, _, err = run(home, capsys, SQL, *arguments)
    assert code == 2
    assert "--out" in err


def test_a_file_that_can_not_be_written_is_named_and_what_was_there_stays(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(home, capsys, SQL, "--format", "parquet", "--out", str(tmp_path))
    assert (code, "it is a folder" in err) == (2, True)
    missing = tmp_path / "missing" / "answer.parquet"
    code, _, err = run(home, capsys, SQL, "--format", "parquet", "--out", str(missing))
    assert (code, "can't be written" in err) == (5, True)
