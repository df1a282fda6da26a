"""The verdict in words says what the rows support, and nothing more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.dashboards import headline, words
from resilience_pipelines.dashboards.data import Scope, read_published
from resilience_pipelines.dashboards.headline import Status
from tests import dashboard_fixtures as fixtures
from tests.dashboard_fixtures import plain


def scope_of(marts: fixtures.Marts, tmp_path: Path) -> Scope:
    return read_published(marts.write(tmp_path / "published.duckdb")).scopes[0]


def restore_sentence(marts: fixtures.Marts, tmp_path: Path) -> tuple[Status, str]:
    statement = headline.restore_statement(scope_of(marts, tmp_path))
    return statement.status, plain(statement.text)


def with_speedup(**values: Any) -> fixtures.Marts:
    marts = fixtures.rich()
    for row in marts.rows["restore_speedup"]:
        if row["versus"] == "best_other_start":
            row |= values
    return marts


@pytest.mark.parametrize(
    ("values", "status", "said"),
    [
        ({"speedup": 4.1, "ci_low": 3.8, "ci_high": 4.4, "n_other": 5, "n_restore": 5}, Status.GOOD,
         "4.1x faster than the best other start, warm cache (95 % CI 3.8-4.4, n = 5)."),
        ({"speedup": 4.1, "ci_low": 3.8, "ci_high": 4.4, "n_other": 6, "n_restore": 5}, Status.GOOD,
         "n = 5 and 6"),
        ({"speedup": 1.1, "ci_low": 0.9, "ci_high": 1.3}, Status.WARN,
         "not shown to be faster or slower"),
        ({"speedup": 0.5, "ci_low": 0.4, "ci_high": 0.8}, Status.BAD,
         "2.0x slower than the best other start, warm cache (95 % CI 1.2-2.5"),
        ({"speedup": 4.1, "ci_low": None, "ci_high": None}, Status.NONE, "no interval"),
    ],
)  # fmt: skip
def test_a_difference_is_claimed_only_if_its_interval_excludes_one(
    tmp_path: Path, values: dict[str, Any], status: Status, said: str
) -> None:
    found_status, text = restore_sentence(with_speedup(**values), tmp_path)
    assert text.startswith("Restore brings a worker back in 0.224 s, ")
    assert said in text
    assert found_status is status


def test_a_lone_restore_is_not_compared(tmp_path: Path) -> None:
    assert restore_sentence(fixtures.one_row(), tmp_path) == (
        Status.NONE,
        "Restore brings a worker back in 5.57 s (n = 1); no other start was measured to compare.",
    )


def only_restores(result: str, count: int) -> fixtures.Marts:
    marts = fixtures.one_row()
    row = marts.rows["startup_measurements"][0]
    row |= {"result": result, "total_s": None, "unaccounted_s": None}
    marts.rows["startup_measurements"] = [
        row | {"measurement_id": str(n), "repeat": n} for n in range(count)
    ]
    for variant in marts.rows["startup_variants"]:
        variant |= {"n": 0, "median_s": None, "min_s": None, "max_s": None}
    return marts


def test_a_restore_that_never_worked_says_how_often_it_was_tried(tmp_path: Path) -> None:
    status, text = restore_sentence(only_restores("failed", 3), tmp_path)
    assert (status, text) == (
        Status.BAD, "Restore brought no worker back right in 3 attempts: 3 failed."
    )  # fmt: skip


def test_an_unsupported_restore_is_neither_failed_nor_missing(tmp_path: Path) -> None:
    assert restore_sentence(only_restores("unsupported", 2), tmp_path) == (
        Status.NONE, "Restore is not supported on this stack."
    )  # fmt: skip


def test_wrong_answers_make_a_fast_restore_bad(tmp_path: Path) -> None:
    status, text = restore_sentence(fixtures.troubled(), tmp_path)
    assert status is Status.BAD
    assert text.endswith("2 of 7 restores answered wrongly.")
    cards = headline.cards(scope_of(fixtures.troubled(), tmp_path))
    assert [card.status for card in cards[:3]] == [Status.BAD] * 3


def test_faults_are_counted_with_what_did_not_pass_named(tmp_path: Path) -> None:
    statement = headline.fault_statement(scope_of(fixtures.troubled(), tmp_path))
    assert statement.status is Status.BAD
    assert plain(statement.text) == (
        "Faults: 36 of 42 experiments passed (2 failed, 1 inconclusive, 1 not injected, 1 aborted, "
        "1 rollback failed); 6 not applicable on this stack; control arms: 6 of 7 clean."
    )


def test_faults_without_controls_are_not_good(tmp_path: Path) -> None:
    marts = fixtures.rich()
    marts.rows["fault_runs"] = [
        row | {"verdict": "pass", "reason_code": None}
        for row in marts.rows["fault_runs"]
        if not row["control"] and row["planned_fault"] == "worker_hang"
    ]
    statement = headline.fault_statement(scope_of(marts, tmp_path))
    assert statement.status is Status.WARN
    assert "6 of 6 experiments passed; no control arm was run" in statement.text


def test_all_passed_and_all_controls_clean_is_good(tmp_path: Path) -> None:
    marts = fixtures.rich()
    marts.rows["fault_runs"] = [
        row for row in marts.rows["fault_runs"] if row["planned_fault"] == "worker_hang"
    ]
    statement = headline.fault_statement(scope_of(marts, tmp_path))
    assert statement.status is Status.GOOD
    assert statement.text == "Faults: 6 of 6 experiments passed; control arms: 1 of 1 clean."


def test_a_control_in_which_a_detector_reported_is_not_clean(tmp_path: Path) -> None:
    marts = fixtures.rich()
    control = next(
        row
        for row in marts.rows["fault_runs"]
        if row["control"] and row["planned_fault"] == "worker_hang"
    )
    marts.add(
        "fault_detections", run_id=control["run_id"], measurement_id=control["measurement_id"],
        fault="control", planned_fault="worker_hang", control=True, layer="userspace",
        detector="nvml_poll", expected=False, detected=True, detected_after_s=1.0,
    )  # fmt: skip
    marts.rows["fault_runs"] = [
        row for row in marts.rows["fault_runs"] if row["planned_fault"] == "worker_hang"
    ]
    statement = headline.fault_statement(scope_of(marts, tmp_path))
    assert statement.status is Status.WARN
    assert statement.text.endswith("control arms: 0 of 1 clean.")


def test_no_experiment_is_never_a_pass(tmp_path: Path) -> None:
    scope = scope_of(fixtures.one_row(), tmp_path)
    assert headline.fault_statement(scope).status is Status.NONE
    by_label = {card.label: card for card in headline.cards(scope)}
    assert by_label["Experiments passed"].value == words.MISSING
    assert by_label["Slowest recovery"].value == words.MISSING


def test_everything_that_went_wrong_is_found_the_worst_first(tmp_path: Path) -> None:
    found = headline.findings(scope_of(fixtures.troubled(), tmp_path))
    said = [plain(finding.text) for finding in found]
    for part in (
        "2 starts answered wrongly", "1 experiment ended with a wrong answer",
        "1 experiment: rollback failed", "2 experiments failed", "1 control arm failed",
        "1 experiment inconclusive", "1 experiment not injected", "1 experiment aborted",
        "1 start failed", "1 snapshot failed", "after 1 snapshot the source worker did not serve",
        "false alarms in control arms", "the answer of 1 start was not checked",
        "not supported or not applicable on this stack",
    ):  # fmt: skip
        assert any(text.startswith(part) for text in said), part
    ranks = [("bad", "warn", "good", "none").index(finding.status) for finding in found]
    assert ranks == sorted(ranks)


def test_what_became_slower_with_this_stack_needs_attention_unless_accepted(tmp_path: Path) -> None:
    published = read_published(fixtures.rich().write(tmp_path / "published.duckdb"))
    scope = next(scope for scope in published.scopes if scope.change_points)
    own = scope.stack.stack_key
    slower = [
        row.model_copy(
            update={
                "stack_key": key, "arm": "cold", "variant": None, "change_fraction": fraction,
                "relevant": relevant, "decision": decision,
                "candidate_dimensions": ("criu_version",),
            }
        )
        for row, key, fraction, relevant, decision in (
            (scope.change_points[0], own, 0.25, True, None),
            (scope.change_points[0], own, 0.26, True, "accepted"),
            (scope.change_points[0], own, 0.27, False, None),
            (scope.change_points[0], own, 0.28, None, None),
            (scope.change_points[0], own, -0.29, True, None),
            (scope.change_points[0], "0" * 16, 0.30, True, None),
        )
    ]  # fmt: skip
    found = headline.findings(replace(scope, change_points=tuple(slower)))
    (finding,) = [item for item in found if "slower" in item.text]
    assert [plain(reason) for reason in finding.reasons] == ["Cold +25 % (CRIU)"]


def test_reasons_are_counted_not_repeated(tmp_path: Path) -> None:
    found = headline.findings(scope_of(fixtures.rich(), tmp_path))
    missed = next(finding for finding in found if "experiments failed" in finding.text)
    assert [plain(reason) for reason in missed.reasons] == [
        "ECC DBE cache: not detected in time (2x)"
    ]
    unsupported = found[-1]
    assert any("there is no NVLink peer" in reason for reason in unsupported.reasons)


def test_layers_are_not_averaged_in_the_slowest_figures(tmp_path: Path) -> None:
    scope = scope_of(fixtures.rich(), tmp_path)
    slowest = next(card for card in headline.cards(scope) if card.label == "Slowest detection")
    worst = max(row.detect_median_s or 0 for row in scope.fault_summary)
    assert slowest.value == words.seconds(worst)
    assert "(cache)" in slowest.detail
