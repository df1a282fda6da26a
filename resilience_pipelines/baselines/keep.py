"""Keeping others' figures: those that were imported, and those that come with the project.

What belongs here: taking a file of others into the data home, and reading all that was taken. What
does not: parsing what others wrote (`formats`), and the warehouse's table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict

from resilience_pipelines.baselines import formats
from resilience_pipelines.baselines.baseline import Baseline
from resilience_pipelines.durability import replace_text
from resilience_pipelines.errors import InputError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.kept_records import read_records
from resilience_pipelines.plain_files import read_named

FOLDER: Final = "baselines"
PUBLISHED: Final = "published_by_others.csv"
"""The table in `results/` of figures that others published, each with its source."""


class Imported(BaseModel):
    """The content of one file: what one import brought."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    imported_at: AwareDatetime
    baselines: tuple[Baseline, ...]


@dataclass(frozen=True)
class ImportReport:
    """What an import brought.

    Attributes:
        figures: how many the file has.
        new: how many of them were not known before.
    """

    figures: int
    new: int


def import_file(
    home: Home,
    path: Path,
    file_format: str,
    *,
    source: str | None = None,
    url: str | None = None,
    facts: Mapping[str, str] | None = None,
) -> ImportReport:
    """Keep the figures of a file: all of them or, where one is wrong, none; each once.

    Args:
        file_format: a name in `formats.FORMATS`.
        source: who published it; the file's name when None.
        url: where it can be read again.
        facts: what the file does not say, by the field of a `Baseline`.

    Raises:
        InputError: there is no such format or field, or the file can't be read or is not of its
            format.
        StorageError: it can't be kept.
    """
    if file_format not in formats.FORMATS:
        raise InputError(
            "file_format", file_format, "no such format",
            mend=f"Choose from {', '.join(formats.FORMATS)}.",
        )  # fmt: skip
    facts = facts or {}
    for name in facts:
        if name not in Baseline.model_fields:
            raise InputError(
                "facts", name, "a figure has no such field",
                mend=f"Fields: {', '.join(Baseline.model_fields)}.",
            )  # fmt: skip
    content = read_named("path", path, formats.MAX_BYTES)
    origin = formats.Origin(source or path.name, url, facts)
    found = formats.FORMATS[file_format](content, origin)
    _, new = keep(home, found)
    return ImportReport(len(found), new)


def keep(home: Home, baselines: Sequence[Baseline]) -> tuple[Path, int]:
    """Keep what is not known yet; returns the file and how many were new (none: no file is made).

    Raises:
        StorageError: it can't be written; what was kept before stays.
    """
    known = {item.baseline_id for imported in read_imported(home) for item in imported.baselines}
    new = {item.baseline_id: item for item in baselines if item.baseline_id not in known}
    now = datetime.now(UTC)
    path = home.root / FOLDER / f"{now:%Y%m%dT%H%M%S.%fZ}.json"
    if not new:
        return path, 0
    content = Imported(imported_at=now, baselines=tuple(new.values()))
    try:
        replace_text(path, content.model_dump_json(indent=1))
    except OSError as error:
        raise StorageError(
            f"{path} can't be written ({error.strerror}).",
            mend="Check its rights and the free space; what was imported before is kept.",
        ) from error
    return path, len(new)


def read_imported(home: Home) -> list[Imported]:
    """What was imported into a data home, the oldest first.

    Raises:
        CorruptError: a file can't be read; names it.
    """
    return read_records(
        (home.root / FOLDER).glob("[0-9]*.json"),
        Imported,
        mend="Remove it, and import its source again.",
    )


def known_to_the_project() -> list[Baseline]:
    """The figures in `results/` of the checkout this package runs from, if it does."""
    path = Path(__file__).resolve().parents[2] / "results" / PUBLISHED
    if not path.is_file():
        return []
    return formats.parse_table(path.read_bytes(), formats.Origin(PUBLISHED))
