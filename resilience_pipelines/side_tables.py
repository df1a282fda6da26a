"""Bringing into the warehouse what is known besides measurements.

What belongs here: gathering releases, decisions, others' figures and launches for the warehouse.
What does not: the tables themselves (`warehouse.side_tables`).
"""

from __future__ import annotations

from resilience_pipelines.baselines.keep import known_to_the_project, read_imported
from resilience_pipelines.durability import remove_unfinished
from resilience_pipelines.errors import StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.launches import read_launches
from resilience_pipelines.release_survey import release_rows
from resilience_pipelines.trends.decisions import decisions
from resilience_pipelines.warehouse.side_tables import BaselineRow, replace_side_tables


def load_side_tables(home: Home) -> None:
    """Replace the tables of releases, decisions, others' figures and launches by what is known now.

    Raises:
        CorruptError: a file that keeps them can't be read; names it.
        ResilienceError: the warehouse can't be written; what it had stays.
    """
    _clean(home)
    baselines = {item.baseline_id: BaselineRow(item, None) for item in known_to_the_project()}
    for imported in read_imported(home):
        for item in imported.baselines:
            baselines.setdefault(item.baseline_id, BaselineRow(item, imported.imported_at))
    replace_side_tables(
        home, release_rows(home), decisions(home), list(baselines.values()), read_launches(home)
    )


def _clean(home: Home) -> None:
    """Remove what killed writers of the files behind the tables left."""
    try:
        remove_unfinished(home.root, "*/")
        remove_unfinished(home.launches, "*/")
    except OSError as error:
        raise StorageError(
            f"Unfinished files in {home.root} can't be removed ({error.strerror or error}).",
            mend="Check the rights of the data home.",
        ) from error
