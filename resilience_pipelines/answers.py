"""The answer to a query as a table, CSV, JSON or Parquet, printed or as a file.

What belongs here: what each form makes of the types that DuckDB has, so that all of them say the
same. What does not: asking (`warehouse.query`), and how a table is laid out (`cli_tables`).

Text of every form is UTF-8. A time is ISO 8601 with its zone; an integer stays one however large;
a value that is no finite number is null in JSON, which has no other word for it; lists and structs
are JSON inside a cell of CSV, and bytes are hexadecimal digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from resilience_pipelines.cli_tables import print_rows
from resilience_pipelines.durability import replace_file
from resilience_pipelines.errors import InputError, StorageError

if TYPE_CHECKING:
    import polars as pl


class Form(StrEnum):
    """The form of an answer."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def choose_form(asked: Form | None, as_json: bool, file: Path | None) -> Form:
    """The form that options ask for: one of them decides, else the file's ending, else a table.

    Raises:
        InputError: two options ask for different forms, or Parquet would go to a terminal.
    """
    if as_json and asked not in (None, Form.JSON):
        raise InputError(
            "--format", str(asked), "--json asks for another form", mend="Give one of the two."
        )
    by_name = {f".{form.value}": form for form in Form if form is not Form.TABLE}
    ending = by_name.get(file.suffix.lower(), Form.TABLE) if file else Form.TABLE
    form = Form.JSON if as_json else asked or ending
    if form is Form.PARQUET and file is None:
        raise InputError(
            "--format", str(form), "Parquet is no text to print", mend="Name its file with --out."
        )
    return form


def encode(frame: pl.DataFrame, form: Form) -> bytes:
    """An answer in one form, as a file holds it.

    Raises:
        InputError: a column has a type that Parquet has no place for.
    """
    # Imported here: commands that only look at forms must not wait for Polars.
    import polars as pl

    if form is Form.JSON:
        rows = [{name: _plain(value) for name, value in row.items()} for row in frame.to_dicts()]
        return (json.dumps(rows, indent=2, ensure_ascii=False) + "\n").encode()
    if form is Form.CSV:
        return _flat(frame).write_csv().encode()
    if form is Form.TABLE:
        text = StringIO()
        if len(frame):
            print_rows(frame.to_dicts(), Console(file=text, color_system=None))
        return text.getvalue().encode()
    encoded = BytesIO()
    try:
        frame.write_parquet(encoded)
    except pl.exceptions.PolarsError as error:
        raise InputError(
            "sql", str(dict(frame.schema)), f"Parquet can't hold a column of it ({error})",
            mend="Cast the column, for instance to VARCHAR.",
        ) from error  # fmt: skip
    return encoded.getvalue()


def write_file(path: Path, content: bytes) -> None:
    """Write an answer to a file in one step: whoever reads it never meets half of it.

    Raises:
        InputError: the path is a folder's.
        StorageError: it can't be written; what was there before stays.
    """
    if path.is_dir():
        raise InputError("--out", str(path), "it is a folder", mend="Give the name of a file.")
    try:
        replace_file(path, content, mode=None)
    except OSError as error:
        raise StorageError(
            f"{path} can't be written ({error.strerror or error}).",
            mend="Check the folder, its rights and its free space.",
        ) from error


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """The same with text where CSV has no place for what a column holds."""
    import polars as pl

    columns = []
    for column in frame:
        if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Duration, pl.Object):
            column = pl.Series(column.name, list(map(_cell, column.to_list())), pl.String)
        elif isinstance(column.dtype, pl.Datetime):
            zone = "%:z" if column.dtype.time_zone else ""
            column = column.dt.strftime(f"%Y-%m-%dT%H:%M:%S%.6f{zone}")
        columns.append(column)
    return pl.DataFrame(columns)


def _cell(value: object) -> str | None:
    plain = _plain(value)
    if plain is None or isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value in words of JSON."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value
