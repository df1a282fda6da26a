"""The interval of a median holds what it promises, in SQL as in arithmetic."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import duckdb
import pytest

from resilience_pipelines.trends.statistics import CONFIDENCE
from resilience_pipelines.warehouse.macros import EXACT_UP_TO, interval_rank, macros


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        for macro in macros():
            if not macro.reads:
                made.execute(f"create macro {macro.name}({', '.join(macro.parameters)}) as "
                             f"{macro.body}")  # fmt: skip
        yield made


def confidence(n: int, rank: int) -> float:
    """How often the rank-th smallest and largest of n values have the median between them."""
    return 1 - 2 * sum(math.comb(n, k) for k in range(rank)) / 2**n


# From tables of the sign test (Conover, "Practical Nonparametric Statistics").
@pytest.mark.parametrize(
    ("n", "rank"), [(5, None), (6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (25, 8), (50, 18)]
)
def test_ranks_are_those_of_the_tables(n: int, rank: int | None) -> None:
    assert interval_rank(n) == rank


@pytest.mark.parametrize("n", range(6, 120))
def test_the_interval_is_the_narrowest_that_covers_enough(n: int) -> None:
    rank = interval_rank(n)
    assert rank is not None
    assert confidence(n, rank) >= CONFIDENCE
    assert rank + 1 > (n + 1) // 2 or confidence(n, rank + 1) < CONFIDENCE


def test_sql_takes_the_values_at_these_ranks(connection: duckdb.DuckDBPyConnection) -> None:
    source = random.Random(3)
    for n in (0, 1, 2, 5, 6, 7, 20, EXACT_UP_TO - 1, EXACT_UP_TO):
        values = [source.gauss(5, 1) for _ in range(n)]
        [(found,)] = connection.execute(
            "select median_interval(x) from (select unnest(?::double[]) as x union all "
            "select null)", [values],
        ).fetchall()  # fmt: skip
        ordered, rank = sorted(values), interval_rank(n)
        assert found["n"] == n
        assert found["low"] == (ordered[rank - 1] if rank else None)
        assert found["high"] == (ordered[-rank] if rank else None)
        if n:
            middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
            assert found["median"] == pytest.approx(middle)


def test_above_the_exact_ranks_the_interval_is_never_narrower(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    for n in (*range(EXACT_UP_TO + 1, 400), 1000, 3001):
        [(found,)] = connection.execute(
            f"select median_interval(x) from range(1, {n} + 1) as t(x)"
        ).fetchall()
        exact = interval_rank(n)
        assert exact is not None
        assert exact - 1 <= found["low"] <= exact
        assert found["high"] == n + 1 - found["low"]


def test_it_is_an_aggregate_of_groups(connection: duckdb.DuckDBPyConnection) -> None:
    found = connection.execute(
        "select g, median_interval(x).low, median_interval(x).high "
        "from (select x % 2 as g, x from range(20) as t(x)) group by g order by g"
    ).fetchall()
    assert found == [(0, 2, 16), (1, 3, 17)]
