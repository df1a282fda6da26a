"""Keeping others' figures: those that were imported, and those that come with the project.

What belongs here: the files, and reading all of them. What does not: parsing what others wrote
(`formats`), and the warehouse's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict

from resilience_pipelines.baselines.baseline import Baseline
from resilience_pipelines.baselines.formats import Origin, parse_table
from resilience_pipelines.durability import replace_text
from resilience_pipelines.errors import StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.kept_records import read_records

FOLDER: Final = "baselines"
PUBLISHED: Final = "published_by_others.csv"
"""The table in `results/` of figures that others published, each with its source."""


class Imported(BaseModel):
    """The content of one file: what one import brought."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    imported_at: AwareDatetime
    baselines: tuple[Baseline, ...]


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
    return parse_table(path.read_bytes(), Origin(PUBLISHED)) if path.is_file() else []
