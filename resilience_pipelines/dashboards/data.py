"""Read what the dashboard shows from the published DuckDB file.

What belongs here: the reading, and the cut of it by worker, basis and stack (a `Scope`), because
results of two scopes are never mixed. What does not: what a row holds (`rows`), words and markup,
and any figure with an interval (the dbt marts have those).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import duckdb
from pydantic import AwareDatetime, ValidationError

from resilience_pipelines.dashboards.rows import (
    MOST_DETAILED,
    SCOPE,
    ChangePointRow,
    CleanControlsRow,
    CompatibilityRow,
    CoverageRow,
    DetectionRow,
    DumpPhaseRow,
    DumpRow,
    EconomicsRow,
    EventRow,
    FanoutRow,
    FaultCountRow,
    FaultRow,
    FaultScoreRow,
    FaultSummaryRow,
    PhaseSummaryRow,
    QualityRow,
    RestoreRow,
    Row,
    RunFactsRow,
    RunRow,
    ScopedRow,
    SeriesRow,
    SnapshotCountRow,
    SnapshotRow,
    SpeedupRow,
    StackRow,
    StartCountRow,
    StartupRow,
    ThroughputRow,
    TrendRow,
    VariantRow,
)
from resilience_pipelines.errors import CorruptError, InputError, StorageError
from resilience_pipelines.records import Basis
from resilience_pipelines.stack import Stack
from resilience_pipelines.trends.decisions import Choice

_R = TypeVar("_R", bound=Row)
_S = TypeVar("_S", bound=ScopedRow)

ScopeKey = tuple[str, str, str]
"""worker, basis and stack_key."""

MeasurementKey = tuple[str, str]
"""run_id and measurement_id."""


@dataclass(frozen=True)
class Scope:
    """Everything that one worker, on one basis, showed on one stack.

    Counts and summaries are over all rows; `runs`, `startups`, `snapshots` and `faults` hold the
    newest ones (`READ_...`, `MOST_EXPERIMENTS`), and none where there are many newer scopes.
    """

    worker: str
    basis: str
    stack: StackRow
    run_facts: tuple[RunFactsRow, ...]
    runs: tuple[RunRow, ...]
    start_counts: tuple[StartCountRow, ...]
    startups: tuple[StartupRow, ...]
    throughputs: tuple[ThroughputRow, ...]
    variants: tuple[VariantRow, ...]
    phase_summary: tuple[PhaseSummaryRow, ...]
    speedups: tuple[SpeedupRow, ...]
    trend: tuple[TrendRow, ...]
    """The whole series that this scope is part of: the same machine, model, worker and basis."""
    change_points: tuple[ChangePointRow, ...]
    """The changes of level in that series, the newest first; none that somebody muted."""
    snapshot_counts: tuple[SnapshotCountRow, ...]
    snapshots: tuple[SnapshotRow, ...]
    dumps: DumpRow | None
    dump_phases: tuple[DumpPhaseRow, ...]
    restores: RestoreRow | None
    economics: tuple[EconomicsRow, ...]
    fanout: tuple[FanoutRow, ...]
    fault_counts: tuple[FaultCountRow, ...]
    faults: tuple[FaultRow, ...]
    clean_controls: int
    """Control arms that passed and in which no detector reported anything."""
    fault_summary: tuple[FaultSummaryRow, ...]
    fault_scores: tuple[FaultScoreRow, ...]
    coverage: tuple[CoverageRow, ...]
    compatibility: tuple[CompatibilityRow, ...]
    """Restores on this stack, and restores elsewhere of what was taken on it."""
    quality: tuple[QualityRow, ...]

    @property
    def key(self) -> ScopeKey:
        """Worker, basis and stack key: what sets one scope apart from another."""
        return (self.worker, self.basis, self.stack.stack_key)

    @property
    def summary(self) -> tuple[VariantRow, ...]:
        """One row per arm: the starts that no variant sets apart."""
        return tuple(row for row in self.variants if row.variant is None)

    @property
    def n_runs(self) -> int:
        """How many runs there are."""
        return sum(row.n for row in self.run_facts)

    @property
    def n_experiments(self) -> int:
        """How many experiments there are, control arms among them."""
        return sum(row.n for row in self.fault_counts)

    @property
    def n_controls(self) -> int:
        """How many control arms there are."""
        return sum(row.n for row in self.fault_counts if row.control)

    @property
    def last_measured_at(self) -> AwareDatetime:
        """When the newest run of this scope started."""
        return max(
            (row.last_started_at for row in self.run_facts), default=self.stack.last_measured_at
        )

    @property
    def first_measured_at(self) -> AwareDatetime:
        """When the oldest run of this scope started."""
        return min(
            (row.first_started_at for row in self.run_facts), default=self.stack.first_measured_at
        )


@dataclass(frozen=True)
class Published:
    """Everything the page shows, the scope that it opens with first."""

    scopes: tuple[Scope, ...]
    stacks: dict[str, StackRow]
    events: dict[MeasurementKey, tuple[EventRow, ...]]
    detections: dict[MeasurementKey, tuple[DetectionRow, ...]]


def read_published(published: Path) -> Published:
    """Read every table that the page shows.

    Raises:
        InputError: there is no such file.
        StorageError: it can't be opened.
        CorruptError: it is no DuckDB file, or a table or column is missing or holds something else.
    """
    if not published.is_file():
        raise InputError(
            "published", str(published), "there is no such file",
            mend="Load and publish results first: `resilience publish`.",
        )  # fmt: skip
    try:
        connection = duckdb.connect(str(published), read_only=True)
    except duckdb.IOException as error:
        kind = CorruptError if "valid DuckDB" in str(error) else StorageError
        raise kind(
            f"{published} can't be opened: {_first_line(error)}.",
            mend="Publish it again: `resilience publish`.",
        ) from error
    except duckdb.Error as error:
        raise CorruptError(
            f"{published} is not a readable DuckDB file: {_first_line(error)}.",
            mend="Publish it again: `resilience publish`.",
        ) from error
    with connection:
        connection.sql("set timezone = 'UTC'")
        return _cut(connection, published)


def _cut(connection: duckdb.DuckDBPyConnection, published: Path) -> Published:
    def read(model: type[_R]) -> tuple[_R, ...]:
        return _read(connection, published, model)

    def by_scope(model: type[_S]) -> _ByScope[_S]:
        return _ByScope(read(model))

    stacks = {row.stack_key: row for row in _read_stacks(connection, published)}
    run_facts, quality = by_scope(RunFactsRow), by_scope(QualityRow)
    speedups = by_scope(SpeedupRow)
    keys = _first_to_open(
        {*run_facts.keys, *quality.keys}, run_facts, speedups.keys, stacks, published
    )

    start_counts, throughputs = by_scope(StartCountRow), by_scope(ThroughputRow)
    variants, phases = by_scope(VariantRow), by_scope(PhaseSummaryRow)
    snapshot_counts, fault_counts = by_scope(SnapshotCountRow), by_scope(FaultCountRow)
    dumps, dump_phases, restores = by_scope(DumpRow), by_scope(DumpPhaseRow), by_scope(RestoreRow)
    economics, fanout = by_scope(EconomicsRow), by_scope(FanoutRow)
    fault_summary, coverage = by_scope(FaultSummaryRow), by_scope(CoverageRow)
    fault_scores = by_scope(FaultScoreRow)
    clean_controls, compatibility = by_scope(CleanControlsRow), read(CompatibilityRow)
    change_points = [row for row in read(ChangePointRow) if row.decision != Choice.MUTED]
    series = _Series(read(TrendRow), change_points)

    _choose(connection, published)
    runs, startups = by_scope(RunRow), by_scope(StartupRow)
    snapshots, faults = by_scope(SnapshotRow), by_scope(FaultRow)

    return Published(
        scopes=tuple(
            Scope(
                worker=key[0],
                basis=key[1],
                stack=stacks[key[2]],
                run_facts=run_facts[key],
                runs=runs[key],
                start_counts=start_counts[key],
                startups=startups[key],
                throughputs=throughputs[key],
                variants=variants[key],
                phase_summary=phases[key],
                speedups=speedups[key],
                trend=series.trend(key),
                change_points=series.change_points(key),
                snapshot_counts=snapshot_counts[key],
                snapshots=snapshots[key],
                dumps=next(iter(dumps[key]), None),
                dump_phases=dump_phases[key],
                restores=next(iter(restores[key]), None),
                economics=economics[key],
                fanout=fanout[key],
                fault_counts=fault_counts[key],
                faults=faults[key],
                clean_controls=sum(row.n for row in clean_controls[key]),
                fault_summary=fault_summary[key],
                fault_scores=fault_scores[key],
                coverage=coverage[key],
                compatibility=tuple(
                    row
                    for row in compatibility
                    if key in (_scope_key(row), (row.worker, row.basis, row.source_stack_key))
                ),
                quality=quality[key],
            )
            for key in keys
        ),
        stacks=stacks,
        events=_by_measurement(read(EventRow)),
        detections=_by_measurement(read(DetectionRow)),
    )


class _ByScope(Generic[_S]):
    """Rows of one model, found by scope."""

    def __init__(self, rows: Iterable[_S]) -> None:
        self._found: dict[ScopeKey, list[_S]] = {}
        for row in rows:
            self._found.setdefault(_scope_key(row), []).append(row)
        self.keys = frozenset(self._found)

    def __getitem__(self, key: ScopeKey) -> tuple[_S, ...]:
        return tuple(self._found.get(key, ()))


class _Series:
    """Trends and changes of level, found by a scope that is part of their series."""

    def __init__(self, trend: Sequence[TrendRow], changes: Sequence[ChangePointRow]) -> None:
        self._trend, self._changes = trend, changes
        self._of: dict[ScopeKey, set[tuple[str, str, str, str | None]]] = {}
        for row in trend:
            self._of.setdefault(_scope_key(row), set()).add(_series_key(row))

    def trend(self, key: ScopeKey) -> tuple[TrendRow, ...]:
        series = self._of.get(key, set())
        return tuple(row for row in self._trend if _series_key(row) in series)

    def change_points(self, key: ScopeKey) -> tuple[ChangePointRow, ...]:
        series = self._of.get(key, set())
        return tuple(row for row in self._changes if _series_key(row) in series)


def _first_to_open(
    keys: Iterable[ScopeKey], runs: _ByScope[RunFactsRow], compared: Collection[ScopeKey],
    stacks: Mapping[str, StackRow], published: Path,
) -> list[ScopeKey]:  # fmt: skip
    """Scopes in the order of the page: the real thing leads.

    Within one basis those lead whose restore can be compared with another start, then the newest.
    """
    for _, _, stack_key in keys:
        if stack_key not in stacks:
            raise CorruptError(
                f"{published}: stack {stack_key} has runs but is not in table `stacks`.",
                mend="Build and publish it again: `resilience publish`.",
            )
    order = {basis.value: place for place, basis in enumerate(Basis)}

    def newest(key: ScopeKey) -> AwareDatetime:
        return max(
            (row.last_started_at for row in runs[key]), default=stacks[key[2]].last_measured_at
        )

    return sorted(
        sorted(sorted(keys), key=newest, reverse=True),
        key=lambda key: (order.get(key[1], len(order)), key not in compared),
    )


def _choose(connection: duckdb.DuckDBPyConnection, published: Path) -> None:
    """Make the tables that the models' clauses name: whose single rows are read.

    They hold keys as they are in the file, which may differ from what is printed of them.
    """
    bases = ", ".join(f"'{basis}'" for basis in Basis)
    experiments = f"select run_id, measurement_id from {FaultRow.TABLE} {FaultRow.CLAUSE}"  # noqa: S608
    try:
        # In the order of `_first_to_open`.
        connection.execute(
            f"create temp table detailed as select {SCOPE} from runs group by {SCOPE} "  # noqa: S608
            f"order by list_position([{bases}], basis) nulls last, "
            f"({SCOPE}) in (select ({SCOPE}) from {SpeedupRow.TABLE}) desc, "
            f"max(started_at) desc, {SCOPE} limit {MOST_DETAILED}"
        )
        connection.execute(f"create temp table experiments as {experiments}")
    except duckdb.Error as error:
        raise _not_readable(published, "runs` or `fault_runs", error) from error


def _scope_key(row: ScopedRow) -> ScopeKey:
    return (row.worker, row.basis, row.stack_key)


def _series_key(row: SeriesRow) -> tuple[str, str, str, str | None]:
    return (row.worker, row.basis, row.hardware_key, row.model)


_M = TypeVar("_M", EventRow, DetectionRow)


def _by_measurement(rows: Iterable[_M]) -> dict[MeasurementKey, tuple[_M, ...]]:
    found: dict[MeasurementKey, list[_M]] = {}
    for row in rows:
        found.setdefault((row.run_id, row.measurement_id), []).append(row)
    return {key: tuple(value) for key, value in found.items()}


def _read(
    connection: duckdb.DuckDBPyConnection, published: Path, model: type[_R]
) -> tuple[_R, ...]:
    columns = [
        f"{model.EXPRESSIONS[name]} as {name}" if name in model.EXPRESSIONS else f'"{name}"'
        for name in model.model_fields
    ]
    rows = _select(connection, published, model, columns)
    try:
        return tuple(model(**row) for row in rows)
    except ValidationError as error:
        raise _unreadable(published, model.TABLE, error) from error


def _read_stacks(connection: duckdb.DuckDBPyConnection, published: Path) -> tuple[StackRow, ...]:
    names = [name for name in StackRow.model_fields if name != "dimensions"]
    dimensions = list(Stack.model_fields)
    columns = [f'"{name}"' for name in (*names, *dimensions)]
    rows = _select(connection, published, StackRow, columns)
    try:
        return tuple(
            StackRow(
                **{name: row[name] for name in names},
                dimensions={name: row[name] for name in dimensions},
            )
            for row in rows
        )
    except ValidationError as error:
        raise _unreadable(published, StackRow.TABLE, error) from error


def _select(
    connection: duckdb.DuckDBPyConnection, published: Path, model: type[Row], columns: Sequence[str]
) -> list[dict[str, Any]]:
    # All of it is constants of the models above.
    query = (
        f'select {", ".join(columns)} from "{model.TABLE}" {model.CLAUSE} '  # noqa: S608
        f"order by {model.ORDER}"
    )
    try:
        found: list[dict[str, Any]] = connection.sql(query).pl().to_dicts()
    except duckdb.Error as error:
        raise _not_readable(published, model.TABLE, error) from error
    return found


def _not_readable(published: Path, table: str, error: duckdb.Error) -> CorruptError:
    return CorruptError(
        f"{published}: table `{table}` can't be read: {_first_line(error)}.",
        mend="Build and publish it again with this version: `resilience publish`.",
    )


def _unreadable(published: Path, table: str, error: ValidationError) -> CorruptError:
    first = error.errors(include_url=False)[0]
    column = ".".join(str(part) for part in first["loc"])
    return CorruptError(
        f"{published}: table `{table}`, column `{column}`: {first['msg']} "
        f"(it holds {str(first['input'])[:80]!r}).",
        mend="Build and publish it again with this version: `resilience publish`.",
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
