"""An upgrade gets one word, and every word its reasons."""

from __future__ import annotations

import numpy as np
import pytest

from resilience_pipelines.trends.comparison import (
    DEFAULT_THRESHOLD,
    Comparison,
    FaultTally,
    Series,
    StackFigures,
    UpgradeVerdict,
    compare,
)

COLD = "start-up, cold"


def times(level: float, n: int = 10, noise: float = 0.005, runs: int = 2) -> Series:
    random = np.random.default_rng(int(level * 1000) + n)
    values = level * (1 + noise * random.standard_normal(n))
    return Series(tuple(values), tuple(f"run-{i * runs // n}" for i in range(n)))


def stack(
    series: dict[str, Series] | None = None,
    failures: dict[str, dict[str, int]] | None = None,
    faults: dict[str, FaultTally] | None = None,
) -> StackFigures:
    return StackFigures(
        {COLD: times(10)} if series is None else series, failures or {}, faults or {}
    )


def verdict(result: Comparison) -> tuple[UpgradeVerdict, str]:
    return result.verdict, " | ".join(result.reasons)


def test_nothing_worse_is_safe() -> None:
    word, reasons = verdict(compare(stack(), stack({COLD: times(9.99)})))
    assert word is UpgradeVerdict.SAFE
    assert "no figure of 1" in reasons


def test_faster_is_safe() -> None:
    result = compare(stack(), stack({COLD: times(5)}))
    assert result.verdict is UpgradeVerdict.SAFE
    assert result.differences[0].relevant
    assert result.differences[0].fraction == pytest.approx(-0.5, abs=0.02)


def test_a_relevant_slowdown_within_the_limit_is_a_note() -> None:
    word, reasons = verdict(compare(stack(), stack({COLD: times(11)})))
    assert word is UpgradeVerdict.SAFE_WITH_NOTES
    assert f"{COLD} takes 10% longer" in reasons


def test_a_slowdown_above_the_limit_is_not_safe() -> None:
    after = stack({COLD: times(11)})
    word, reasons = verdict(compare(stack(), after, max_slowdown=0.05))
    assert word is UpgradeVerdict.NOT_SAFE
    assert "n = 10 and 10" in reasons


def test_a_slowdown_within_the_series_own_noise_is_none() -> None:
    """Runs that differ by a tenth anyway: five percent more says nothing."""
    values = tuple(10 * (1 + 0.1 * (run % 2)) for run in range(12) for _ in range(5))
    runs = tuple(f"run-{run}" for run in range(12) for _ in range(5))
    before = stack({COLD: Series(values, runs)})
    result = compare(before, stack({COLD: times(11.2)}))
    assert result.differences[0].own_threshold
    assert result.differences[0].threshold > DEFAULT_THRESHOLD
    assert result.verdict is UpgradeVerdict.SAFE


def test_starts_that_fail_for_a_new_reason_are_not_safe() -> None:
    after = stack(failures={"start-up, restore": {"wrong_answer": 1}})
    word, reasons = verdict(compare(stack(), after))
    assert word is UpgradeVerdict.NOT_SAFE
    assert "start-up, restore: 1 ended with wrong_answer" in reasons


def test_failures_that_were_there_before_are_no_news() -> None:
    failing = {COLD: {"worker_failed": 3}}
    result = compare(stack(failures=failing), stack(failures=failing))
    assert result.verdict is UpgradeVerdict.SAFE


def test_a_fault_that_passed_and_fails_now_is_not_safe() -> None:
    before = stack(faults={"worker_killed (userspace)": FaultTally(passed=5)})
    after = stack(faults={"worker_killed (userspace)": FaultTally(passed=4, failed=1)})
    word, reasons = verdict(compare(before, after))
    assert word is UpgradeVerdict.NOT_SAFE
    assert "1 of 5 experiments failed, all 5 passed before" in reasons


def test_a_fault_that_was_never_tried_before_is_no_regression() -> None:
    after = stack(faults={"new": FaultTally(failed=1)})
    assert compare(stack(), after).verdict is UpgradeVerdict.SAFE


@pytest.mark.parametrize(("carries", "word"), [
    (None, UpgradeVerdict.SAFE), (True, UpgradeVerdict.SAFE),
    (False, UpgradeVerdict.SAFE_WITH_NOTES),
])  # fmt: skip
def test_snapshots_that_do_not_carry_over_are_a_note(
    carries: bool | None, word: UpgradeVerdict
) -> None:
    assert compare(stack(), stack(), snapshots_carry_over=carries).verdict is word


@pytest.mark.parametrize("after", [{}, {COLD: times(10, n=4)}, {"other": times(10)}])
def test_too_few_values_are_not_enough_data_and_never_a_pass(after: dict[str, Series]) -> None:
    word, reasons = verdict(compare(stack(), stack(after)))
    assert word is UpgradeVerdict.NOT_ENOUGH_DATA
    assert f"{COLD}: 10 and" in reasons


def test_a_failure_outweighs_missing_data() -> None:
    after = stack({}, failures={COLD: {"worker_failed": 1}})
    assert compare(stack(), after).verdict is UpgradeVerdict.NOT_SAFE


def test_a_slowdown_that_somebody_accepted_is_a_note() -> None:
    before, after = stack(), stack({COLD: times(20)})
    assert compare(before, after).verdict is UpgradeVerdict.NOT_SAFE
    result = compare(before, after, accepted={COLD})
    assert result.verdict is UpgradeVerdict.SAFE_WITH_NOTES
    assert "accepted" in result.reasons[0]
    assert compare(before, after, accepted={"start-up, restore"}).verdict is (
        UpgradeVerdict.NOT_SAFE
    )
