"""Running a suite: its jobs one after the other, their cases, and one verdict.

What belongs here: what passes, fails or lacks data in a job's record, and what the suite says. What
does not: measuring (`api`), reading the suite (`suite`), writing reports (`junit`, `summary`).

A job that can't run does not end the suite: the others are worth knowing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Final

from resilience_pipelines.api import Measurement, Result, has_failed, run
from resilience_pipelines.ci.suite import (
    CollectivesJob,
    Comparison,
    FanoutJob,
    FaultJob,
    Job,
    StartupJob,
    Suite,
    spec_of,
)
from resilience_pipelines.collectives.arms import HEALTHY
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults.catalogue import choose
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.records import (
    CollectiveMeasurement,
    CompatibilityTrial,
    FanoutRestore,
    FaultRun,
    Outcome,
    PageCache,
    StartupMeasurement,
    Verdict,
)
from resilience_pipelines.results import load, publish
from resilience_pipelines.startup.benchmark import Progress
from resilience_pipelines.trends.comparison import UpgradeVerdict
from resilience_pipelines.upgrades import Upgrade, judge
from resilience_pipelines.warehouse.stack_figures import find_stack

NOT_ENOUGH_DATA: Final = 8
"""The exit code of a suite that can't be judged."""


class Status(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It does not apply here, or gave no data."""


class SuiteVerdict(StrEnum):
    """What a suite says. No data is never a pass."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    ERROR = "error"
    """A job could not run, and nothing failed that could."""
    NOT_ENOUGH_DATA = "not_enough_data"


@dataclass(frozen=True)
class Case:
    """One thing that was measured or judged.

    Attributes:
        group: the arm, fault or figure that it is a case of; each needs one that was decided.
        applies: false where the machine has no such part, which is no lack of data.
        seconds: what was measured, None where nothing was.
        reason: why it did not pass, in few words.
    """

    group: str
    name: str
    status: Status
    seconds: float | None = None
    reason: str = ""
    detail: str = ""
    applies: bool = True


@dataclass(frozen=True)
class JobReport:
    """What came of one job; either `result` or `error` is set."""

    job: Job
    started_at: datetime
    seconds: float
    result: Result | None = None
    error: ResilienceError | None = None
    cases: tuple[Case, ...] = ()

    @property
    def undecided(self) -> tuple[str, ...]:
        """The groups that apply here and of which no case was decided."""
        decided = {case.group for case in self.cases if case.status is not Status.SKIPPED}
        open_groups = (case.group for case in self.cases if case.applies)
        return tuple(dict.fromkeys(group for group in open_groups if group not in decided))

    @property
    def verdict(self) -> SuiteVerdict:
        """What this job says."""
        if any(case.status is Status.FAILED for case in self.cases):
            return SuiteVerdict.FAIL
        if self.error is not None:
            return SuiteVerdict.ERROR
        if self.undecided or not any(case.status is Status.PASSED for case in self.cases):
            return SuiteVerdict.NOT_ENOUGH_DATA
        return SuiteVerdict.PASS


@dataclass(frozen=True)
class SuiteReport:
    """What came of a suite.

    Attributes:
        upgrade: the verdict on the upgrade, where the suite asks for one and it could be drawn.
        compare_error: why it could not.
    """

    suite: Suite
    jobs: tuple[JobReport, ...]
    upgrade: Upgrade | None = None
    compare_error: ResilienceError | None = None

    @property
    def errors(self) -> tuple[ResilienceError, ...]:
        """What kept jobs or the comparison from running."""
        found = [*(report.error for report in self.jobs), self.compare_error]
        return tuple(error for error in found if error is not None)

    @property
    def verdict(self) -> SuiteVerdict:
        """The gravest of what jobs and comparison say."""
        said = [report.verdict for report in self.jobs]
        if self.compare_error is not None:
            said.append(SuiteVerdict.ERROR)
        if self.upgrade is not None:
            said.append(_OF_UPGRADES[self.upgrade.comparison.verdict])
        return next(verdict for verdict in _GRAVEST_FIRST if verdict in said)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 8 not enough data, else that of the first error."""
        match self.verdict:
            case SuiteVerdict.PASS:
                return 0
            case SuiteVerdict.FAIL:
                return 1
            case SuiteVerdict.NOT_ENOUGH_DATA:
                return NOT_ENOUGH_DATA
            case SuiteVerdict.ERROR:
                return self.errors[0].exit_code

    def as_dict(self) -> dict[str, object]:
        """The report in short, ready for JSON."""
        return {
            "suite": self.suite.name,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "jobs": [
                {
                    "name": report.job.name,
                    "kind": report.job.kind,
                    "verdict": report.verdict,
                    "seconds": round(report.seconds, 3),
                    "run_id": report.result.run_id if report.result else None,
                    "error": str(report.error) if report.error else None,
                    "undecided": report.undecided,
                    "cases": {
                        status.value: sum(case.status is status for case in report.cases)
                        for status in Status
                    },
                }
                for report in self.jobs
            ],
            "upgrade": self.upgrade.as_dict() if self.upgrade else None,
            "compare_error": str(self.compare_error) if self.compare_error else None,
        }


_GRAVEST_FIRST: Final = (
    SuiteVerdict.FAIL,
    SuiteVerdict.ERROR,
    SuiteVerdict.NOT_ENOUGH_DATA,
    SuiteVerdict.PASS,
)
_OF_UPGRADES: Final = {
    UpgradeVerdict.SAFE: SuiteVerdict.PASS,
    UpgradeVerdict.SAFE_WITH_NOTES: SuiteVerdict.PASS,
    UpgradeVerdict.NOT_SAFE: SuiteVerdict.FAIL,
    UpgradeVerdict.NOT_ENOUGH_DATA: SuiteVerdict.NOT_ENOUGH_DATA,
}


@dataclass(frozen=True)
class Tell:
    """Who hears of a suite while it runs."""

    progress: Progress = lambda *_: None
    notice: Callable[[str], None] = lambda _: None
    finished: Callable[[JobReport], None] = lambda _: None


def run_suite(
    suite: Suite, home: Path | str | None = None, tell: Tell | None = None
) -> SuiteReport:
    """Run all jobs of a suite, then compare if it asks for that.

    Raises:
        InputError: the data home can't be used.
    """
    data_home = open_home(home)
    tell = tell or Tell()
    reports = []
    for job in suite.jobs:
        reports.append(_run_job(job, suite, data_home, tell))
        tell.finished(reports[-1])
    if suite.compare is None:
        return SuiteReport(suite, tuple(reports))
    try:
        upgrade = _judge(suite.compare, reports, data_home)
    except ResilienceError as error:
        return SuiteReport(suite, tuple(reports), compare_error=error)
    return SuiteReport(suite, tuple(reports), upgrade)


def _run_job(job: Job, suite: Suite, home: Home, tell: Tell) -> JobReport:
    started_at, begin = datetime.now(UTC), time.monotonic()

    def progress(what: str, done: int, total: int) -> None:
        tell.progress(f"{job.name}: {what}", done, total)

    try:
        result = run(
            spec_of(job),
            home=home.root, launcher=suite.launcher, progress=progress, tell=tell.notice,
        )  # fmt: skip
    except ResilienceError as error:
        return JobReport(job, started_at, time.monotonic() - begin, error=error)
    seconds = time.monotonic() - begin
    return JobReport(job, started_at, seconds, result, cases=cases_of(job, result))


def cases_of(job: Job, result: Result) -> tuple[Case, ...]:
    """The cases of a job: its measurements, and the limits that the suite sets."""
    record = result.record
    asked: Iterable[_Asked] = ()
    limits: Iterable[Case] = ()
    match job:
        case StartupJob():
            arms = {item.arm for item in record.startups}
            asked = (_Asked(arm, arm in arms, arm) for arm in job.arms)
            limits = _median_limits(job, record.startups)
        case FaultJob():
            faults = {item.fault for item in record.faults}
            names = [fault.name for fault in choose(job.faults)]
            asked = (_Asked(name, name in faults, name) for name in names)
            limits = _fault_limits(job, record.faults)
        case FanoutJob():
            asked = _asked_waves(job, record.fanout)
            limits = _wave_limits(job, record.fanout)
        case CollectivesJob():
            asked = _asked_collectives(job, record.collectives)
            limits = _bandwidth_limits(job, record.collectives)
    missing = (
        _no_data(item.group, result.unsupported.get(item.told_as, "nothing was measured"))
        for item in asked
        if not item.measured
    )
    return (*map(_case, result.measurements), *missing, *limits)


@dataclass(frozen=True)
class _Asked:
    """Something that a job asks for.

    Attributes:
        measured: whether there is a measurement of it, of whichever outcome.
        told_as: under which name a record tells why there is none.
    """

    group: str
    measured: bool
    told_as: str


def _asked_waves(job: FanoutJob, restores: Sequence[FanoutRestore]) -> Iterable[_Asked]:
    found = {_wave(item.width, item.page_cache_found) for item in restores}
    for width in job.widths:
        for cache in job.page_caches:
            group = _wave(width, cache)
            yield _Asked(group, group in found, f"{width} restores at once")


def _asked_collectives(
    job: CollectivesJob, found: Sequence[CollectiveMeasurement]
) -> Iterable[_Asked]:
    arms = {item.arm for item in found}
    operations = {item.operation for item in found}
    for arm in job.arms:
        yield _Asked(arm, arm in arms, f"arm {arm}")
    for operation in job.operations:
        yield _Asked(operation, operation in operations, operation)


def _wave(width: int, cache: PageCache) -> str:
    return f"{width} at once, page cache {cache}"


def _no_data(group: str, why: str) -> Case:
    return Case(group, group, Status.SKIPPED, reason="no_data", detail=why)


def _case(item: Measurement) -> Case:
    group, name, seconds = _named(item)
    reason = item.reason_code or ""
    if has_failed(item):
        return Case(group, name, Status.FAILED, seconds, reason, item.detail)
    if isinstance(item, FaultRun):
        passed = item.verdict is Verdict.PASS
        applies = item.verdict is not Verdict.NOT_APPLICABLE
    elif isinstance(item, CompatibilityTrial):
        # A restore that failed as the gate had said: the gate was right, so that it passes.
        passed, applies = item.outcome is not Outcome.UNSUPPORTED, True
    else:
        passed, applies = item.outcome is Outcome.OK, True
    status = Status.PASSED if passed else Status.SKIPPED
    return Case(group, name, status, seconds, reason, item.detail, applies)


def _named(item: Measurement) -> tuple[str, str, float | None]:
    """Group, name and seconds of a measurement's case."""
    if isinstance(item, StartupMeasurement):
        arm = " ".join(filter(None, (item.arm.value, item.variant)))
        return arm, f"{arm} {item.repeat + 1}", item.total_s
    if isinstance(item, FaultRun):
        what = "control" if item.control else f"recovered by {item.recovery or 'itself'}"
        return item.fault, f"{item.fault}, {what} {item.repeat + 1}", item.time_to_recover_s
    if isinstance(item, CompatibilityTrial):
        name = f"{item.snapshot_id} {item.repeat + 1}"
        return item.snapshot_id, name, item.elapsed_s
    if isinstance(item, CollectiveMeasurement):
        name = f"{item.operation} {item.arm} {item.bytes} bytes {item.repeat + 1}"
        return f"{item.operation} {item.arm}", name, item.time_s
    if isinstance(item, FanoutRestore):
        # What a wave began with counts, and not what it was meant to begin with.
        group = _wave(item.width, item.page_cache_found)
        return group, f"{group}: {item.measurement_id}", item.total_s
    return "snapshot", "snapshot", item.total_s


def _median_limits(job: StartupJob, starts: Sequence[StartupMeasurement]) -> Iterable[Case]:
    for arm, limit in job.max_median_s.items():
        yield _limit(
            f"median of {arm}",
            [item.total_s for item in starts if item.arm is arm and item.total_s is not None],
            limit,
        )


def _fault_limits(job: FaultJob, runs: Sequence[FaultRun]) -> Iterable[Case]:
    injected = [item for item in runs if not item.control]
    for fault in dict.fromkeys(item.fault for item in injected):
        own = [item for item in injected if item.fault == fault]
        if all(item.verdict is Verdict.NOT_APPLICABLE for item in own):
            continue
        if job.max_detect_s is not None:
            times = [item.time_to_detect_s for item in own if item.time_to_detect_s is not None]
            yield _limit(f"detection of {fault}", times, job.max_detect_s, longest=True)
        if job.max_recover_s is not None:
            times = [item.time_to_recover_s for item in own if item.time_to_recover_s is not None]
            yield _limit(f"recovery from {fault}", times, job.max_recover_s, longest=True)


def _wave_limits(job: FanoutJob, restores: Sequence[FanoutRestore]) -> Iterable[Case]:
    for width, limit in job.max_wave_s.items():
        for cache in job.page_caches:
            waves = {
                item.repeat: item.wave_s
                for item in restores
                if (item.width, item.page_cache_found) == (width, cache) and item.wave_s is not None
            }
            yield _limit(f"wave of {_wave(width, cache)}", list(waves.values()), limit)


def _bandwidth_limits(
    job: CollectivesJob, found: Sequence[CollectiveMeasurement]
) -> Iterable[Case]:
    size = max(job.sizes)
    for operation, limit in job.min_busbw_bytes_per_s.items():
        what = f"bus bandwidth of {operation}"
        rates = [
            item.busbw_bytes_per_s
            for item in found
            if (item.operation, item.arm, item.bytes) == (operation, HEALTHY, size)
            and item.busbw_bytes_per_s is not None
        ]
        if not rates:
            yield _no_data(what, "nothing was measured")
            continue
        rate = median(rates)
        detail = f"{rate:.4g} bytes/s of {len(rates)} at {size} bytes, {limit:g} at least"
        if rate < limit:
            yield Case(what, what, Status.FAILED, reason="below_limit", detail=detail)
        else:
            yield Case(what, what, Status.PASSED, detail=detail)


def _limit(what: str, times: Sequence[float], limit: float, *, longest: bool = False) -> Case:
    if not times:
        return _no_data(what, "nothing was measured")
    found = max(times) if longest else median(times)
    detail = f"{found:.3f} s of {len(times)}, {limit:g} s at most"
    if found > limit:
        return Case(what, what, Status.FAILED, found, "above_limit", detail)
    return Case(what, what, Status.PASSED, found, detail=detail)


def _judge(asked: Comparison, reports: Sequence[JobReport], home: Home) -> Upgrade | None:
    """The upgrade from the baseline to what the last job was measured on; None without any."""
    results = [report.result for report in reports if report.result is not None]
    if not results:
        return None
    load(home)
    publish(home)
    return judge(
        home,
        find_stack(home, "compare.baseline", asked.baseline),
        results[-1].record.stack_key,
        max_slowdown=asked.max_slowdown,
    )
