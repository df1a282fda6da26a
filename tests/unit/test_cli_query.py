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


@pytest.mark.parametrize("ending", ["table", "csv", "json", "parquet"])
def test_a_file_holds_what_is_printed(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    file = tmp_path / f"answer.{ending}"
    code, text, _ = run(home, capsys, SQL, "--out", str(file))
    assert (code, text) == (0, f"2 rows in {file}\n")
    if ending == "parquet":
        assert pl.read_parquet(file).rows() == ROWS
        return
    _, printed, _ = run(home, capsys, SQL, "--format", ending)
    assert file.read_text().rstrip() == printed.rstrip()
    named = tmp_path / "of_another_ending"
    run(home, capsys, SQL, "--format", ending, "--out", str(named))
    assert named.read_bytes() == file.read_bytes()


def test_an_empty_answer_is_one_in_every_form(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = "select arm, n from summary where false"
    assert run(home, capsys, nothing)[1] == "none\n"
    assert run(home, capsys, nothing, "--format", "csv")[1] == "arm,n\n"
    assert json.loads(run(home, capsys, nothing, "--json")[1]) == []
    run(home, capsys, nothing, "--out", str(tmp_path / "x.parquet"))
    assert pl.read_parquet(tmp_path / "x.parquet").columns == ["arm", "n"]


def test_two_forms_at_once_are_refused(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("table", "csv", "parquet"):
        code, shown, err = run(home, capsys, SQL, "--json", "--format", form)
        assert (code, shown) == (2, "")
        assert f"--format = '{form}': --json asks for another form" in err
    assert run(home, capsys, SQL, "--json", "--format", "json")[0] == 0


def test_parquet_is_not_printed(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, err = run(home, capsys, SQL, "--format", "parquet")
    assert (code, shown, "--out" in err) == (2, "", True)


TYPES = """select ['a', 'b,"c'] as list, {'n': 1, 'm': null} as struct, 10::hugeint as whole,
    1.5::decimal(5, 2) as exact, 'nan'::double as not_a_number, 'ab'::blob as bytes,
    timestamptz '2026-01-01 00:00:00.5+00' as moment, date '2026-01-02' as day, '' as empty,
    null::varchar as missing, [timestamptz '2026-01-01 00:00:00+00'] as moments"""


def test_every_type_says_the_same_in_each_form(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = json.loads(run(home, capsys, TYPES, "--json")[1])
    assert row == {
        "list": ["a", 'b,"c'], "struct": {"n": 1, "m": None}, "whole": 10, "exact": 1.5,
        "not_a_number": None, "bytes": "6162", "moment": "2026-01-01T00:00:00.500000+00:00",
        "day": "2026-01-02", "empty": "", "missing": None,
        "moments": ["2026-01-01T00:00:00+00:00"],
    }  # fmt: skip
    _, text, _ = run(home, capsys, TYPES, "--format", "csv")
    [cells] = csv.DictReader(io.StringIO(text))
    assert {name: json.loads(cells[name]) for name in ("list", "struct", "moments")} == {
        name: row[name] for name in ("list", "struct", "moments")
    }
    assert (cells["whole"], float(cells["exact"])) == ("10", 1.5)
    assert [cells[name] for name in ("bytes", "moment", "day", "empty", "missing")] == [
        "6162", "2026-01-01T00:00:00.500000+00:00", "2026-01-02", "", "",
    ]  # fmt: skip
    assert "b'" not in text
    assert run(home, capsys, TYPES, "--out", str(tmp_path / "x.parquet"))[0] == 0
    assert run(home, capsys, TYPES)[0] == 0


def test_a_type_that_has_no_place_is_named(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(home, capsys, "select interval 3 day as span")
    assert (code, "can't be given out" in err, "INTERVAL" in err) == (2, True, True)


def test_a_file_that_can_not_be_written_is_named_and_what_was_there_stays(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(home, capsys, SQL, "--format", "parquet", "--out", str(tmp_path))
    assert (code, "it is a folder" in err) == (2, True)
    missing = tmp_path / "missing" / "answer.parquet"
    code, _, err = run(home, capsys, SQL, "--format", "parquet", "--out", str(missing))
    assert (code, "can't be written" in err) == (5, True)
