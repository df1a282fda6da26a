"""Headline: the verdict on one scope in words, the key figures, and what needs attention.

What belongs here: sentences that the marts' rows support, each with its interval and n, and none
that they don't. What does not: how a number is written (`words`) and how the page looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from resilience_pipelines.dashboards import words
from resilience_pipelines.dashboards.data import Scope
from resilience_pipelines.dashboards.rows import (
    FaultCountRow,
    SnapshotCountRow,
    SpeedupRow,
    StartCountRow,
    VariantRow,
)
from resilience_pipelines.records import Arm, OracleVerdict, Outcome, Verdict
from resilience_pipelines.trends.decisions import Choice

BEST_OTHER_START = "best_other_start"
WRONG_ANSWER, NOT_CHECKED, FAILED, UNSUPPORTED = (
    "wrong_answer", "not_checked", "failed", "unsupported",
)  # fmt: skip
"""Classes of a start's result besides `right`, as the marts name them."""


class Status(StrEnum):
    """How a statement is marked; the page adds a symbol and a word to the colour."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    NONE = "none"


_WORST_FIRST = (Status.BAD, Status.WARN, Status.GOOD, Status.NONE)


@dataclass(frozen=True)
class Statement:
    """A sentence and what it means for the reader."""

    status: Status
    text: str


@dataclass(frozen=True)
class Card:
    """A key figure."""

    label: str
    value: str
    detail: str
    status: Status


@dataclass(frozen=True)
class Finding:
    """Something the reader must not overlook, with the reasons that the data gives."""

    status: Status
    text: str
    reasons: tuple[str, ...] = ()


def statements(scope: Scope) -> tuple[Statement, ...]:
    """The verdict: restore first, then faults."""
    return (restore_statement(scope), fault_statement(scope))


def restore_statement(scope: Scope) -> Statement:
    """How fast a restore brings a worker back, and against what."""
    row = _summary(scope, Arm.RESTORE)
    results = _counted((row.result, row.n) for row in scope.start_counts if row.arm == Arm.RESTORE)
    unsupported = results.pop(UNSUPPORTED, 0)
    wrong = results[WRONG_ANSWER]
    if row is None or row.median_s is None:
        return _no_restore(results, unsupported)
    lead = f"Restore brings a worker back in {words.seconds(row.median_s)}"
    best = _speedup(scope, BEST_OTHER_START)
    if best is None or best.speedup is None:
        text, status = (
            f"{lead} ({words.sample(row.n)}); no other start was measured to compare",
            Status.NONE,
        )
    else:
        text, status = f"{lead}, {_compared(best)}", _comparison_status(best)
    if wrong:
        answered = f"{wrong} of {words.plural(results.total(), 'restore')} answered wrongly"
        return Statement(Status.BAD, f"{text}. {answered}.")
    return Statement(status, f"{text}.")


def fault_statement(scope: Scope) -> Statement:
    """How many experiments passed, and whether the control arms were clean."""
    verdicts, controls = _verdicts(scope), scope.n_controls
    if not verdicts and not controls:
        return Statement(Status.NONE, "Faults: no experiment has been run on this stack.")
    skipped = verdicts.pop(Verdict.NOT_APPLICABLE, 0)
    asked, passed = verdicts.total(), verdicts[Verdict.PASS]
    parts = []
    if asked:
        others = ", ".join(
            f"{count} {words.verdict(name)}"
            for name, count in _ordered(verdicts)
            if name != Verdict.PASS and count
        )
        noun = "experiment" if asked == 1 else "experiments"
        parts.append(f"{passed} of {asked} {noun} passed" + (f" ({others})" if others else ""))
    if skipped:
        parts.append(f"{skipped} not applicable on this stack")
    clean = scope.clean_controls
    parts.append(
        f"control arms: {clean} of {controls} clean" if controls else "no control arm was run"
    )
    if verdicts[Verdict.FAIL] or verdicts[Verdict.ROLLBACK_FAILED]:
        status = Status.BAD
    elif passed < asked or clean < controls or not controls:
        status = Status.WARN
    else:
        status = Status.GOOD if asked else Status.NONE
    return Statement(status, f"Faults: {'; '.join(parts)}.")


def cards(scope: Scope) -> tuple[Card, ...]:
    """The key figures; one without data says so."""
    return (
        _restore_card(scope),
        _speedup_card(scope),
        answers_card(scope),
        experiments_card(scope),
        _slowest_card(scope, "detect", "Slowest detection"),
        _slowest_card(scope, "recover", "Slowest recovery"),
        _snapshot_card(scope),
    )


def findings(scope: Scope) -> tuple[Finding, ...]:
    """What went wrong or is missing, the worst first."""
    found: list[Finding] = []
    wrong = _starts(scope, WRONG_ANSWER)
    if wrong:
        found.append(
            Finding(
                Status.BAD,
                f"{words.plural(_n(wrong), 'start')} answered wrongly; not counted in any median",
                _tally((words.arm(row.arm, row.variant), row.n) for row in wrong),
            )
        )
    wrong_faults = [
        row for row in scope.fault_counts if row.oracle_verdict == OracleVerdict.DIFFERENT
    ]
    if wrong_faults:
        found.append(
            Finding(
                Status.BAD,
                f"{words.plural(_n(wrong_faults), 'experiment')} ended with a wrong answer",
                _tally((words.label(row.planned_fault), row.n) for row in wrong_faults),
            )
        )
    found.extend(_bad_verdicts(scope.fault_counts))
    failed = _starts(scope, FAILED)
    if failed:
        found.append(
            Finding(
                Status.BAD,
                f"{words.plural(_n(failed), 'start')} failed",
                _tally(
                    (_because(words.arm(row.arm, row.variant), row.reason_code), row.n)
                    for row in failed
                ),
            )
        )
    dumps = [row for row in scope.snapshot_counts if row.outcome == Outcome.FAILED]
    if dumps:
        found.append(
            Finding(
                Status.BAD,
                f"{words.plural(_n(dumps), 'snapshot')} failed",
                _tally(
                    (_because(row.snapshot_engine or "unknown engine", row.reason_code), row.n)
                    for row in dumps
                ),
            )
        )
    silent = [row for row in scope.snapshot_counts if row.source_serving_after is False]
    if silent:
        found.append(
            Finding(
                Status.BAD,
                f"after {words.plural(_n(silent), 'snapshot')} the source worker did not serve",
            )
        )
    slower = _slower(scope)
    if slower:
        found.append(Finding(Status.WARN, "slower from this stack on", slower))
    false_alarms = _false_alarms(scope)
    if false_alarms:
        found.append(Finding(Status.WARN, "false alarms in control arms", false_alarms))
    unchecked = _starts(scope, NOT_CHECKED)
    if unchecked:
        found.append(
            Finding(
                Status.WARN,
                f"the answer of {words.plural(_n(unchecked), 'start')} was not checked, "
                "so no median counts it",
                _tally((words.arm(row.arm, row.variant), row.n) for row in unchecked),
            )
        )
    found.extend(_unsupported(scope))
    return tuple(sorted(found, key=lambda finding: _WORST_FIRST.index(finding.status)))


def _n(rows: Iterable[StartCountRow | FaultCountRow | SnapshotCountRow]) -> int:
    return sum(row.n for row in rows)


def _counted(items: Iterable[tuple[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for name, count in items:
        total[name] += count
    return total


def _starts(scope: Scope, result: str) -> list[StartCountRow]:
    return [row for row in scope.start_counts if row.result == result]


def _verdicts(scope: Scope) -> Counter[str]:
    """The verdicts of all experiments; no control arms."""
    return _counted((row.verdict, row.n) for row in scope.fault_counts if not row.control)


def _summary(scope: Scope, arm: str) -> VariantRow | None:
    return next((row for row in scope.summary if row.arm == arm), None)


def _speedup(scope: Scope, versus: str) -> SpeedupRow | None:
    return next((row for row in scope.speedups if row.versus == versus), None)


def _no_restore(results: Counter[str], unsupported: int) -> Statement:
    if results:
        tried = words.plural(results.total(), "attempt")
        how = ", ".join(f"{n} {words.spoken(name)}" for name, n in sorted(results.items()) if n)
        return Statement(Status.BAD, f"Restore brought no worker back right in {tried}: {how}.")
    if unsupported:
        return Statement(Status.NONE, "Restore is not supported on this stack.")
    return Statement(Status.NONE, "Restore has not been measured on this stack.")


def _compared(row: SpeedupRow) -> str:
    assert row.speedup is not None
    than = "the best other start"
    if row.other_arm:
        than += f", {words.arm(row.other_arm).lower()}"
    counts = f"{words.sample(row.n_restore)}" if row.n_restore == row.n_other else (
        f"{words.sample(row.n_restore)} and {row.n_other}"
    )  # fmt: skip
    if row.ci_low is None or row.ci_high is None:
        return f"{words.times(row.speedup)} the speed of {than} (no interval, {counts})"
    if row.ci_high < 1:
        interval = words.confidence(words.ratio_range(1 / row.ci_high, 1 / row.ci_low))
        return f"{words.times(1 / row.speedup)} slower than {than} ({interval}, {counts})"
    interval = words.confidence(words.ratio_range(row.ci_low, row.ci_high))
    if row.ci_low > 1:
        return f"{words.times(row.speedup)} faster than {than} ({interval}, {counts})"
    return f"not shown to be faster or slower than {than} ({interval}, {counts})"


def _comparison_status(row: SpeedupRow) -> Status:
    if row.ci_low is None or row.ci_high is None:
        return Status.NONE
    if row.ci_low > 1:
        return Status.GOOD
    return Status.WARN if row.ci_high >= 1 else Status.BAD


def _restore_card(scope: Scope) -> Card:
    row = _summary(scope, Arm.RESTORE)
    if row is None or row.median_s is None:
        return Card("Restore, median", words.MISSING, "no right answer measured", Status.NONE)
    interval = words.confidence(words.seconds_range(row.ci_low_s, row.ci_high_s))
    return Card(
        "Restore, median", words.seconds(row.median_s),
        f"{interval or 'no interval'}, {words.sample(row.n)}",
        Status.BAD if row.n_wrong_answer else Status.GOOD,
    )  # fmt: skip


def _speedup_card(scope: Scope) -> Card:
    row = _speedup(scope, BEST_OTHER_START)
    label = "Speed-up by restore"
    if row is None or row.speedup is None:
        return Card(label, words.MISSING, "nothing to compare", Status.NONE)
    interval = words.confidence(words.ratio_range(row.ci_low, row.ci_high))
    other = f"over {words.arm(row.other_arm).lower()}, " if row.other_arm else ""
    wrong = any(row.arm == Arm.RESTORE for row in _starts(scope, WRONG_ANSWER))
    return Card(
        label, words.times(row.speedup), f"{other}{interval or 'no interval'}",
        # However fast: some of these restores answered wrongly.
        Status.BAD if wrong else _comparison_status(row),
    )  # fmt: skip


def answers_card(scope: Scope) -> Card:
    """How many answers were wrong, of those checked."""
    counts: list[StartCountRow | FaultCountRow] = [*scope.start_counts, *scope.fault_counts]
    verdicts = _counted((row.oracle_verdict, row.n) for row in counts if row.oracle_verdict)
    wrong = verdicts[OracleVerdict.DIFFERENT]
    checked = verdicts[OracleVerdict.EQUAL] + wrong
    if not checked:
        return Card("Wrong answers", words.MISSING, "no answer was checked", Status.NONE)
    return Card(
        "Wrong answers", str(wrong), f"of {words.plural(checked, 'answer')} checked",
        Status.BAD if wrong else Status.GOOD,
    )  # fmt: skip


def experiments_card(scope: Scope) -> Card:
    """How many experiments passed, of those that apply."""
    verdicts, controls = _verdicts(scope), scope.n_controls
    skipped = verdicts.pop(Verdict.NOT_APPLICABLE, 0)
    asked, passed = verdicts.total(), verdicts[Verdict.PASS]
    detail = (
        f"controls clean: {scope.clean_controls} of {controls}" if controls else "no control arm"
    )
    if skipped:
        detail += f"; {skipped} not applicable"
    if not asked:
        return Card("Experiments passed", words.MISSING, "none was run", Status.NONE)
    return Card(
        "Experiments passed", f"{passed} of {asked}", detail,
        fault_statement(scope).status,
    )  # fmt: skip


def _slowest_card(scope: Scope, what: str, label: str) -> Card:
    rows = [row for row in scope.fault_summary if getattr(row, f"{what}_median_s") is not None]
    if not rows:
        return Card(label, words.MISSING, "not measured", Status.NONE)
    slowest = max(rows, key=lambda row: float(getattr(row, f"{what}_median_s")))
    by = (
        f", {words.arm(slowest.recovery).lower()}" if what == "recover" and slowest.recovery else ""
    )
    return Card(
        label, words.seconds(getattr(slowest, f"{what}_median_s")),
        f"{words.label(slowest.planned_fault)} ({slowest.layer}){by}, median",
        Status.NONE,
    )  # fmt: skip


def _snapshot_card(scope: Scope) -> Card:
    newest = next((row for row in scope.snapshots if row.image_bytes is not None), None)
    if newest is None:
        return Card("Snapshot image", words.MISSING, "none was taken", Status.NONE)
    taken = f"taken in {words.seconds(newest.total_s)}" if newest.total_s is not None else "newest"
    return Card("Snapshot image", words.size(newest.image_bytes), taken, Status.NONE)


def _bad_verdicts(faults: Sequence[FaultCountRow]) -> list[Finding]:
    found = []
    for verdict, status in (
        (Verdict.ROLLBACK_FAILED, Status.BAD),
        (Verdict.FAIL, Status.BAD),
        (Verdict.ABORTED, Status.WARN),
        (Verdict.INCONCLUSIVE, Status.WARN),
        (Verdict.NOT_INJECTED, Status.WARN),
    ):
        for control in (False, True):
            rows = [row for row in faults if row.verdict == verdict and row.control is control]
            if rows:
                what = words.plural(_n(rows), "control arm" if control else "experiment")
                found.append(
                    Finding(
                        status,
                        f"{what}{':' if verdict == Verdict.ROLLBACK_FAILED else ''} "
                        f"{words.verdict(verdict)}",
                        _tally(
                            (_because(words.label(row.planned_fault), row.reason_code), row.n)
                            for row in rows
                        ),
                    )
                )
    return found


def _slower(scope: Scope) -> tuple[str, ...]:
    """Relevant changes of level for the worse that came with this stack and nobody accepted."""
    return tuple(
        f"{words.arm(row.arm, row.variant)} {words.percent(row.change_fraction, signed=True)} "
        f"({', '.join(map(words.dimension, row.candidate_dimensions)) or 'nothing known changed'})"
        for row in scope.change_points
        if row.stack_key == scope.stack.stack_key
        and row.relevant
        and (row.change_fraction or 0) > 0
        and row.decision != Choice.ACCEPTED
    )


def _false_alarms(scope: Scope) -> tuple[str, ...]:
    return tuple(
        f"{words.label(row.detector)} in {row.n_false_alarms} of {row.n_control} controls of "
        f"{words.spoken(row.planned_fault)}"
        for row in scope.coverage
        if row.n_false_alarms
    )


def _unsupported(scope: Scope) -> list[Finding]:
    reasons: dict[str, str] = {}
    for run in scope.run_facts:
        for part, why in run.unsupported.items():
            reasons.setdefault(part, str(why))
    listed = [_because(words.label(part), why) for part, why in sorted(reasons.items())]
    starts = _starts(scope, UNSUPPORTED)
    listed += [
        text
        for text in _tally(
            (_because(words.arm(row.arm, row.variant), row.reason_code), row.n) for row in starts
        )
        if text not in listed
    ]
    skipped = [row for row in scope.fault_counts if row.verdict == Verdict.NOT_APPLICABLE]
    listed += _tally(
        (_because(words.label(row.planned_fault), row.reason_code), row.n) for row in skipped
    )
    if not listed:
        return []
    return [Finding(Status.NONE, "not supported or not applicable on this stack", tuple(listed))]


def _because(what: str, reason: str | None) -> str:
    return f"{what}: {words.spoken(reason)}" if reason else what


def _tally(items: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Each different text once, with how often it occurs."""
    return tuple(
        text if count == 1 else f"{text} ({count}\N{MULTIPLICATION SIGN})"
        for text, count in sorted(_counted(items).items(), key=lambda item: (-item[1], item[0]))
    )


def _ordered(verdicts: Counter[str]) -> list[tuple[str, int]]:
    order = [item.value for item in Verdict]
    return sorted(
        verdicts.items(),
        key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]),
    )
