"""The figures of one stack, read from the published marts for a comparison.

What belongs here: finding a stack by what a person types, and reading what is known of it. What
does not: judging it (`trends.comparison`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home
from resilience_pipelines.records import Basis
from resilience_pipelines.stack import Stack
from resilience_pipelines.trends.comparison import FaultTally, Series, StackFigures
from resilience_pipelines.warehouse.query import query
from resilience_pipelines.warehouse.rows import stacks_in


def find_stack(home: Home, field: str, text: str) -> str:
    """The key of the stack that a person names: its key, the beginning of one, or `latest`.

    Args:
        field: the option, for the error.

    Raises:
        InputError: no stack, or several, are named so; it lists those there are.
    """
    stacks = query(
        home,
        "select stack_key, hardware_label, software_label from stacks "
        "order by last_measured_at desc, stack_key",
    )
    keys = stacks["stack_key"].to_list()
    if text == "latest" and keys:
        return str(keys[0])
    found = [key for key in keys if text and key.startswith(text.lower())]
    if len(found) == 1:
        return str(found[0])
    known = "; ".join(
        f"{row['stack_key']} ({row['software_label']} on {row['hardware_label']})"
        for row in stacks.iter_rows(named=True)
    )
    reason = "several stacks begin with it" if found else "no measured stack has this key"
    raise InputError(field, text, reason, mend=f"Choose from: {known or 'none yet'}.")


def measured_stacks(home: Home) -> list[Stack]:
    """Every stack that there are published results of; none before the first publishing."""
    return _stacks(home, "from stacks order by last_measured_at desc, stack_key")


def suite_stacks(home: Home) -> list[Stack]:
    """Those of them that the whole suite went over: with starts and with experiments."""
    return _stacks(
        home,
        "from stacks where stack_key in (select stack_key from startup_measurements) "
        "and stack_key in (select stack_key from fault_runs) order by stack_key",
    )


def failing_stacks(home: Home) -> list[Stack]:
    """Those of them on which an arm, or every snapshot, failed each time."""
    return _stacks(
        home,
        "from stacks where stack_key in ("
        "select stack_key from startup_measurements where result <> 'unsupported' "
        "group by stack_key, arm having not bool_or(result in ('right', 'not_checked')) "
        "union select stack_key from snapshots where outcome <> 'unsupported' "
        "group by stack_key having not bool_or(outcome = 'ok')) order by stack_key",
    )


def _stacks(home: Home, sql: str) -> list[Stack]:
    if not home.published.is_file():
        return []
    return stacks_in(query(home, sql))


def differing_dimensions(home: Home, one: str, other: str) -> dict[str, tuple[object, object]]:
    """The dimensions in which two stacks differ: name -> the values of both.

    Args:
        one, other: keys as `find_stack` gives them.
    """
    rows = {
        row["stack_key"]: row
        for row in query(home, "from stacks where stack_key in (?, ?)", [one, other]).iter_rows(
            named=True
        )
    }
    left, right = rows[one], rows[other]
    described = {
        "stack_key", "hardware_key", "software_key", "hardware_label", "software_label",
        "first_measured_at", "last_measured_at", "runs",
    }  # fmt: skip
    return {
        name: (left[name], right[name])
        for name in left
        if name not in described and left[name] != right[name]
    }


def read_figures(home: Home, key: str) -> StackFigures:
    """What the marts know of a stack."""
    starts = query(
        home,
        "select basis, arm, variant, run_id, result, reason_code, total_s "
        "from startup_measurements where stack_key = ? order by started_at, measurement_id",
        [key],
    )
    faults = query(
        home,
        "select basis, fault, layer, recovery, run_id, verdict, time_to_detect_s, "
        "time_to_recover_s from fault_runs where stack_key = ? and not control "
        "order by started_at, measurement_id",
        [key],
    )
    values: dict[str, list[tuple[float, str]]] = defaultdict(list)
    failures: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in starts.iter_rows(named=True):
        figure = _startup(row)
        if row["result"] == "right":
            values[figure].append((row["total_s"], row["run_id"]))
        elif row["result"] != "unsupported":
            failures[figure][row["reason_code"] or row["result"]] += 1
    _add_fault_times(values, faults)
    return StackFigures(
        times={
            figure: Series(tuple(v for v, _ in pairs), tuple(run for _, run in pairs))
            for figure, pairs in values.items()
        },
        failures={figure: dict(reasons) for figure, reasons in failures.items()},
        faults=_tallies(faults),
    )


def snapshots_carry_over(home: Home, source: str, target: str) -> bool | None:
    """Whether snapshots of one stack came back on another; None where nobody tried."""
    tried = query(
        home,
        "select n_ok, n from compatibility_matrix where source_stack_key = ? and stack_key = ? "
        "and image_edit is null",
        [source, target],
    )
    return None if tried.is_empty() else bool((tried["n_ok"] == tried["n"]).all())


def data_sets(home: Home, key: str) -> set[str]:
    """The landing zones that the measurements of a stack come from."""
    sql = "select distinct data_set from runs where stack_key = ? and data_set is not null"
    return set(query(home, sql, [key])["data_set"].to_list())


def accepted_figures(home: Home, before: str, after: str) -> set[str]:
    """The figures whose change between two stacks somebody has accepted or muted."""
    rows = query(
        home,
        "select basis, arm, variant from (from change_points where previous_stack_key = ? "
        "and stack_key = ? qualify row_number() over (partition by basis, arm, variant "
        "order by changed_at desc) = 1) where decision in ('accepted', 'muted')",
        [before, after],
    )
    return {_startup(row) for row in rows.iter_rows(named=True)}


def _add_fault_times(values: dict[str, list[tuple[float, str]]], faults: pl.DataFrame) -> None:
    for row in faults.iter_rows(named=True):
        name = _fault(row)
        if row["time_to_detect_s"] is not None:
            values[f"detection, {name}"].append((row["time_to_detect_s"], row["run_id"]))
        if row["time_to_recover_s"] is not None and row["verdict"] == "pass":
            figure = f"recovery, {name} by {row['recovery'] or 'itself'}"
            values[figure].append((row["time_to_recover_s"], row["run_id"]))


def _tallies(faults: pl.DataFrame) -> dict[str, FaultTally]:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in faults.iter_rows(named=True):
        name = _fault(row)
        if row["verdict"] == "pass":
            counts[name][0] += 1
        elif row["verdict"] in ("fail", "rollback_failed"):
            counts[name][1] += 1
    return {name: FaultTally(passed, failed) for name, (passed, failed) in counts.items()}


def _startup(row: dict[str, Any]) -> str:
    arm = f"{row['arm']} {row['variant']}" if row["variant"] else row["arm"]
    return f"start-up, {arm}{_basis(row)}"


def _fault(row: dict[str, Any]) -> str:
    """Results of different layers or bases never meet in one figure."""
    return f"{row['fault']} ({row['layer']}){_basis(row)}"


def _basis(row: dict[str, Any]) -> str:
    return "" if row["basis"] == Basis.MEASURED else f", {row['basis']}"
