"""The oracle calls equal only what is equal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.records import OracleVerdict
from resilience_pipelines.workers.client import Completion
from resilience_pipelines.workers.oracle import RecordedAnswer, compare

IDS = st.lists(st.integers(0, 50_000), min_size=1, max_size=24)


def answer(ids: list[int], shift: float = 0.0) -> RecordedAnswer:
    return RecordedAnswer(
        prompt="p", token_ids=tuple(ids), logprobs=tuple(-1.0 - shift for _ in ids)
    )


def completion(ids: list[int], logprob: float = -1.0) -> Completion:
    return Completion(tuple(ids), tuple(logprob for _ in ids))


@given(IDS)
def test_the_same_answer_is_equal(ids: list[int]) -> None:
    assert compare(answer(ids), completion(ids), 0.0).verdict is OracleVerdict.EQUAL


@given(IDS, st.data())
def test_one_other_token_is_found_where_it_is(ids: list[int], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(ids) - 1))
    other = [*ids]
    other[index] += 1
    found = compare(answer(ids), completion(other), 1.0)
    assert found.verdict is OracleVerdict.DIFFERENT
    assert found.first_difference == index


@given(IDS)
def test_a_shorter_or_longer_answer_is_different(ids: list[int]) -> None:
    for other in (ids[:-1], [*ids, 1]):
        assert compare(answer(ids), completion(other), 1.0).verdict is OracleVerdict.DIFFERENT


@pytest.mark.parametrize(
    ("logprob", "tolerance", "equal"), [(-1.0005, 1e-3, True), (-1.1, 1e-3, False)]
)
def test_log_probabilities_count_to_the_tolerance(
    logprob: float, tolerance: float, equal: bool
) -> None:
    found = compare(answer([1, 2]), completion([1, 2], logprob), tolerance)
    assert (found.verdict is OracleVerdict.EQUAL) is equal


def test_a_nan_is_never_equal() -> None:
    found = compare(answer([1]), completion([1], math.nan), 1e9)
    assert found.verdict is OracleVerdict.DIFFERENT
    assert found.max_logprob_difference is None


def test_nothing_recorded_is_never_equal() -> None:
    assert compare(answer([]), completion([]), 1.0).verdict is OracleVerdict.DIFFERENT


def test_missing_log_probabilities_are_different() -> None:
    assert compare(answer([1]), Completion((1,), ()), 1.0).verdict is OracleVerdict.DIFFERENT
