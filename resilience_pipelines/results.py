"""Results as a person or a program works with them: loaded, published, listed, decided on.

What belongs here: `load`, `publish`, `trends`, `decide` and `baselines` of the command line as
functions. What does not: each step itself (`warehouse`, `lineage.warehouse`, `side_tables`), any
other question (`warehouse.query`), and the verdict on an upgrade (`upgrades`).
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import polars as pl
from pydantic import ValidationError

from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home
from resilience_pipelines.lineage import warehouse
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.trends import decisions
from resilience_pipelines.trends.decisions import Choice, Decision
from resilience_pipelines.warehouse.load import LoadReport, published_results
from resilience_pipelines.warehouse.query import query

_CHANGES: Final = """
    select change_id, changed_at, worker, basis, hardware_label, model, arm, variant,
        before_median_s, after_median_s, change_fraction, change_low, change_high, n_before,
        n_after, significant, relevant, attribution, candidate_dimensions, previous_stack_key,
        stack_key, decision, decision_note, decided_by, decided_at
    from change_points
    where ? or decision is distinct from 'muted'
    order by changed_at desc, arm, variant
"""


def load(
    home: Home,
    sources: Sequence[Path] = (),
    *,
    build: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> LoadReport:
    """Load new landing folders into the warehouse, each exactly once, and build the marts.

    Args:
        sources: folders with landing folders; the home's and `results/` when empty.
        build: whether dbt builds the marts too.
        tell: called with what is being done.

    Raises:
        InputError: a source is no folder.
        ResilienceError: the warehouse can't be written, or the marts can't be built.
    """
    for source in sources:
        if not source.is_dir():
            raise InputError(
                "sources", str(source), "it is no folder", mend="Give a folder of landing folders."
            )
    tell("loading landing folders")
    report = warehouse.load(home, sources or [home.landing, *published_results()])
    load_side_tables(home)
    if build:
        tell("building marts with dbt")
        warehouse.build(home)
    return report


def publish(home: Home, *, parquet: bool = False) -> Path:
    """Copy the marts to the file that analysts read without locks; returns it.

    Args:
        parquet: whether each mart is also written as `parquet/*.parquet` beside the file.

    Raises:
        ResilienceError: there is nothing to publish, or it can't be written.
    """
    return warehouse.publish(home, parquet=parquet)


def changes(home: Home, *, muted: bool = False) -> pl.DataFrame:
    """The published changes of level in start-up times, newest first: medians in seconds.

    Args:
        muted: whether those that somebody muted are among them.

    Raises:
        InputError: nothing was published yet.
    """
    return query(home, _CHANGES, [muted])


def decide(
    home: Home, change: str, choice: str, *, note: str = "", by: str | None = None
) -> Decision:
    """Accept, mute or annotate a published change of level; the newest decision counts.

    Args:
        change: its `change_id`.
        choice: `accepted`, `muted` or `noted`.
        by: who decides; the user of this process when None.

    Raises:
        InputError: there is no such change or choice, or a text is too long.
        StorageError: it can't be written; what was decided before stays.
    """
    choices = [item.value for item in Choice]
    if choice not in choices:
        raise InputError(
            "choice", choice, "no such choice", mend=f"Choose from {', '.join(choices)}."
        )
    if change not in changes(home, muted=True)["change_id"]:
        raise InputError(
            "change", change, "no change is named so",
            mend="`resilience trends --muted` lists them.",
        )  # fmt: skip
    try:
        return decisions.decide(home, change, Choice(choice), note, by or _user())
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            str(first["loc"][0]), str(first["input"])[:100], first["msg"], mend="Shorten it."
        ) from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise InputError("by", "", "this user has no name here", mend="Say who decides.") from error


def baselines(home: Home) -> pl.DataFrame:
    """The published figures of others, each with the newest of one's own beside it.

    Raises:
        InputError: nothing was published yet.
    """
    return query(
        home, "from baselines order by product, model, arm nulls last, figure, source, baseline_id"
    )
