"""SQL macros that come with the published file, for analysts in whatever reads DuckDB.

What belongs here: their text, and the ranks of the interval of a median. What does not: writing
them into the file (`publish`), and the intervals of the marts (`trends.statistics`).

A macro is kept in the file as SQL, so it works where none of our code is. It has to be text that
DuckDB 1.4 and later understand: no lambda, no newer function.

The interval of a median is the one between two order statistics (David and Nagaraja, "Order
Statistics", 2003, section 7.1): it holds for every distribution, needs no draws and so gives the
same in every tool, and does not exist below six values. The marts' own intervals are bootstrap
ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from resilience_pipelines.stack import Stack
from resilience_pipelines.trends.statistics import CONFIDENCE

EXACT_UP_TO: Final = 200
"""How many values have exact ranks; more have those of the normal approximation, outwards."""

_MISSED = 1 - Fraction(str(CONFIDENCE))  # exact: the powers of 2 are beyond what a float holds
_Z = 1.959963984540054  # the quantile of the normal distribution that `CONFIDENCE` stands for


@dataclass(frozen=True)
class Macro:
    """One macro.

    Attributes:
        parameters: their names, in order.
        reads: the marts it is over; without one of them it can't be made.
        body: an expression, or for a table macro a statement.
        comment: what a person sees who lists the functions of the file.
    """

    name: str
    parameters: tuple[str, ...]
    reads: frozenset[str]
    is_table: bool
    body: str
    comment: str


def macros() -> tuple[Macro, ...]:
    """All of them; one that calls another comes after it."""
    return (_median_interval(), _latest_stacks(), _stack_differences(), _compare_stacks())


def interval_rank(n: int) -> int | None:
    """The rank k, from 1, so that of `n` values the k-th smallest and the k-th largest bound the
    median of what they were drawn from with a confidence of at least `CONFIDENCE`.

    Returns:
        None where even the smallest and the largest do not.
    """
    tail = 0
    rank = None
    for k in range(1, (n + 1) // 2 + 1):
        tail += math.comb(n, k - 1)
        if 2 * tail > _MISSED * 2**n:
            break
        rank = k
    return rank


def _median_interval() -> Macro:
    ranks = ", ".join(
        "null" if rank is None else str(rank)
        for rank in (interval_rank(n) for n in range(1, EXACT_UP_TO + 1))
    )
    n = "count(x)"
    rank = (
        f"(case when {n} <= {EXACT_UP_TO} then [{ranks}][{n}] "
        f"else floor(({n} - {_Z} * sqrt({n})) / 2) end)::bigint"
    )
    values = "(list(x order by x) filter (where x is not null))"
    return Macro(
        "median_interval",
        ("x",),
        frozenset(),
        False,
        f"{{'n': {n}, 'median': median(x), 'low': {values}[{rank}], "
        f"'high': {values}[{n} + 1 - {rank}]}}",
        "Aggregate: n, median, and low and high of its 95 % interval between order statistics; "
        "null values do not count, and below six there is no interval.",
    )


def _latest_stacks() -> Macro:
    return Macro(
        "latest_stacks",
        (),
        frozenset({"stacks"}),
        True,
        "select * from stacks qualify row_number() over (partition by hardware_key, engine, model "
        "order by last_measured_at desc, stack_key) = 1 order by last_measured_at desc, stack_key",
        "The stack that was measured last on each machine, for each engine and model; columns as "
        "in stacks.",
    )


def _stack_differences() -> Macro:
    rows = " union all ".join(
        f"select {position} as position, '{name}' as dimension, "  # noqa: S608
        f"(select {name}::varchar from stacks where stack_key = a) as value_a, "
        f"(select {name}::varchar from stacks where stack_key = b) as value_b"
        for position, name in enumerate(Stack.model_fields)
    )
    return Macro(
        "stack_differences",
        ("a", "b"),
        frozenset({"stacks"}),
        True,
        f"select dimension, value_a, value_b from ({rows}) as dimensions "  # noqa: S608
        "where value_a is distinct from value_b order by position",
        "The dimensions in which the stacks with these two keys differ, and the value of each.",
    )


def _compare_stacks() -> Macro:
    sides = " full join ".join(f"({_figures(side)}) as side_{side}" for side in "ab")
    columns = ", ".join(_compared())
    return Macro(
        "compare_stacks",
        ("a", "b"),
        frozenset({"stacks", "startup_variants", "fault_summary", "fault_runs"}),
        True,
        f"select {columns} from {sides} using (figure, worker, basis) "  # noqa: S608
        "order by figure, worker, basis",
        "Every figure of the stacks with these two keys side by side, in seconds, with n and "
        "95 % interval: the median of b against that of a (0.1 is a tenth longer), whether the "
        "intervals overlap, and the dimensions in which the stacks differ.",
    )


def _figures(side: str) -> str:
    """Medians of one stack; a figure of faults never crosses layers."""
    starts = (
        "select concat_ws(', ', 'start-up', arm, variant) as figure, worker, basis, n, "  # noqa: S608
        "median_s, ci_low_s, ci_high_s from startup_variants "
        f"where stack_key = {side} and n > 0"
    )
    return " union all ".join(
        [starts, *(_fault_times(side, what) for what in ("detect", "recover"))]
    )


def _fault_times(side: str, what: str) -> str:
    # An experiment without a proved effect, or in which nobody noticed, is in no median.
    timed = (
        "select count(*) from fault_runs as runs where not control and effect_proved "  # noqa: S608
        f"and time_to_{what}_s is not null and runs.stack_key = summary.stack_key "
        "and runs.worker = summary.worker and runs.basis = summary.basis "
        "and runs.planned_fault = summary.planned_fault and runs.layer = summary.layer "
        "and runs.recovery is not distinct from summary.recovery"
    )
    return (
        f"select concat_ws(', ', 'time to {what}', planned_fault, layer, "  # noqa: S608
        f"'recovery ' || recovery) as figure, worker, basis, ({timed}) as n, "
        f"{what}_median_s as median_s, {what}_ci_low_s as ci_low_s, "
        f"{what}_ci_high_s as ci_high_s from fault_summary as summary "
        f"where stack_key = {side} and {what}_median_s is not null"
    )


def _compared() -> Iterator[str]:
    yield from ("figure", "worker", "basis")
    for side in "ab":
        yield f"side_{side}.n as n_{side}"
        yield from (f"side_{side}.{x}_s as {x}_{side}_s" for x in ("median", "ci_low", "ci_high"))
    yield "side_b.median_s / nullif(side_a.median_s, 0) - 1 as change_fraction"
    yield (
        "side_a.ci_low_s <= side_b.ci_high_s and side_b.ci_low_s <= side_a.ci_high_s "
        "as intervals_overlap"
    )
    yield "(select list(dimension) from stack_differences(a, b)) as differing_dimensions"
