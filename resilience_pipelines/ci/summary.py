"""A suite's report as Markdown, for a job's summary or a comment on a change.

What belongs here: the form. What does not: what passed and why (`run`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from resilience_pipelines.ci.run import JobReport, Status, SuiteReport
from resilience_pipelines.upgrades import words

MOST_PROBLEMS: Final = 50
"""Problems that are listed; the JUnit file has all of them."""


def to_markdown(report: SuiteReport) -> str:
    """The report as Markdown."""
    parts = [
        f"## {_cell(report.suite.name)}: {words(report.verdict)}",
        *_stacks(report),
        _table(
            ("job", "verdict", "passed", "failed", "skipped", "seconds"),
            [_row(job) for job in report.jobs],
        ),
        *_figures(report),
        *_problems(report),
        *_upgrade(report),
    ]
    return "\n\n".join(parts) + "\n"


def _stacks(report: SuiteReport) -> Iterable[str]:
    """What was measured, and whether it stands for something else."""
    records = [job.result.record for job in report.jobs if job.result is not None]
    lines = {
        f"Measured on {_cell(record.stack.hardware_label)} with "
        f"{_cell(record.stack.software_label)} (stack `{record.stack_key}`, "
        f"worker `{record.worker}`, basis `{record.basis}`)."
        for record in records
    }
    yield from sorted(lines)


def _row(job: JobReport) -> Sequence[str]:
    counts = (str(sum(case.status is status for case in job.cases)) for status in Status)
    return (_cell(job.job.name), words(job.verdict), *counts, f"{job.seconds:.1f}")


def _figures(report: SuiteReport) -> Iterable[str]:
    rows = []
    for job in report.jobs:
        times: dict[str, list[float]] = {}
        for case in job.cases:
            if case.status is Status.PASSED and case.seconds is not None:
                times.setdefault(case.group, []).append(case.seconds)
        rows += [
            (_cell(job.job.name), _cell(group), str(len(found)), f"{median(found):.3f}")
            for group, found in times.items()
        ]
    if rows:
        yield _table(("job", "figure", "n", "median s"), rows)


def _problems(report: SuiteReport) -> Iterable[str]:
    lines = [
        f"- {_cell(job.job.name)}: {_cell(str(job.error))}" for job in report.jobs if job.error
    ]
    for status in (Status.FAILED, Status.SKIPPED):
        lines += [
            f"- {_cell(job.job.name)}: {_cell(case.name)} {status.value}: "
            + _cell(": ".join(filter(None, (case.reason, case.detail))))
            for job in report.jobs
            for case in job.cases
            if case.status is status
        ]
    if len(lines) > MOST_PROBLEMS:
        lines = [*lines[:MOST_PROBLEMS], f"- and {len(lines) - MOST_PROBLEMS} more"]
    if lines:
        yield "\n".join(lines)


def _upgrade(report: SuiteReport) -> Iterable[str]:
    if report.compare_error is not None:
        yield f"The upgrade could not be judged: {_cell(str(report.compare_error))}"
    if report.upgrade is not None:
        reasons = [f"- {_cell(reason)}" for reason in report.upgrade.comparison.reasons]
        yield "\n".join((f"### Upgrade {_cell(report.upgrade.title)}", "", *reasons))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text that stays in its line and cell, whatever it holds."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
