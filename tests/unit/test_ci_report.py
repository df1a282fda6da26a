"""What a suite says of its jobs, and how JUnit and Markdown tell it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.api import Result
from resilience_pipelines.ci.junit import to_junit
from resilience_pipelines.ci.run import JobReport, Status, SuiteReport, SuiteVerdict, cases_of
from resilience_pipelines.ci.suite import (
    CollectivesJob,
    FanoutJob,
    FaultJob,
    Job,
    StartupJob,
    Suite,
)
from resilience_pipelines.ci.summary import MOST_PROBLEMS, to_markdown
from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.records import (
    Arm,
    CollectiveOperation,
    PageCache,
    StartupMeasurement,
    Verdict,
)
from resilience_pipelines.trends.comparison import Comparison, UpgradeVerdict
from resilience_pipelines.upgrades import Upgrade
from resilience_pipelines.warehouse.landing import read_landing
from tests.factories import RecordFactory, land, make_home

NOW = datetime(2026, 3, 2, tzinfo=UTC)
FACTORY = RecordFactory(1)


def suite(*jobs: Job) -> Suite:
    return Suite.model_validate({"name": "gate", "job": list(jobs)})


def report(tmp_path: Path, job: Job, **parts: Any) -> JobReport:
    """A job's report, from a record that was landed and read again."""
    record = FACTORY.record(job.kind, **parts)
    home = make_home(tmp_path / record.run_id)
    result = Result(read_landing(land(home.landing, record)))
    return JobReport(job, NOW, 1.0, result, cases=cases_of(job, result))


def starts(job: StartupJob, *totals: float, missing: Sequence[Arm] = ()) -> dict[str, Any]:
    found: list[StartupMeasurement] = [
        FACTORY.startup(arm, repeat=n, position=n, total_s=total)
        for arm in job.arms
        if arm not in missing
        for n, total in enumerate(totals)
    ]
    return {"startups": found}


ONE_ARM = StartupJob(name="comes back", arms=(Arm.RESTORE,), max_median_s={Arm.RESTORE: 2.0})


@pytest.mark.parametrize(
    ("totals", "verdict"),
    [
        ((1.0, 2.0, 9.0), SuiteVerdict.PASS),
        ((1.0, 2.1, 9.0), SuiteVerdict.FAIL),
        ((), SuiteVerdict.NOT_ENOUGH_DATA),
    ],
)
def test_a_limit_holds_for_the_median(
    tmp_path: Path, totals: tuple[float, ...], verdict: SuiteVerdict
) -> None:
    assert report(tmp_path, ONE_ARM, **starts(ONE_ARM, *totals)).verdict is verdict


def test_a_limit_without_a_value_is_no_pass(tmp_path: Path) -> None:
    job = StartupJob(name="a", arms=(Arm.COLD, Arm.RESTORE), max_median_s={Arm.RESTORE: 2.0})
    found = report(tmp_path, job, **starts(job, 1.0, missing=[Arm.RESTORE]))
    assert found.undecided == ("restore", "median of restore")
    assert found.verdict is SuiteVerdict.NOT_ENOUGH_DATA


def test_an_arm_that_was_asked_for_and_has_no_start_is_no_pass(tmp_path: Path) -> None:
    job = StartupJob(name="a", arms=(Arm.COLD, Arm.RESTORE))
    parts = starts(job, 1.0, missing=[Arm.RESTORE])
    found = report(tmp_path, job, **parts, unsupported={"restore": "no CRIU"})
    assert found.undecided == ("restore",)
    assert [case.detail for case in found.cases if case.status is Status.SKIPPED] == ["no CRIU"]


def test_a_start_that_failed_fails_the_job(tmp_path: Path) -> None:
    failed = FACTORY.failed_startup(Arm.RESTORE, repeat=1)
    found = report(tmp_path, ONE_ARM, startups=[*starts(ONE_ARM, 1.0)["startups"], failed])
    assert found.verdict is SuiteVerdict.FAIL


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((Verdict.PASS,), SuiteVerdict.PASS),
        ((Verdict.PASS, Verdict.INCONCLUSIVE), SuiteVerdict.PASS),
        ((Verdict.PASS, Verdict.FAIL), SuiteVerdict.FAIL),
        ((Verdict.ROLLBACK_FAILED,), SuiteVerdict.FAIL),
        ((Verdict.INCONCLUSIVE,), SuiteVerdict.NOT_ENOUGH_DATA),
        ((Verdict.NOT_INJECTED,), SuiteVerdict.NOT_ENOUGH_DATA),
        ((Verdict.ABORTED,), SuiteVerdict.NOT_ENOUGH_DATA),
        ((Verdict.NOT_APPLICABLE,), SuiteVerdict.NOT_ENOUGH_DATA),
    ],
)
def test_only_a_decided_experiment_is_data(
    tmp_path: Path, verdicts: tuple[Verdict, ...], expected: SuiteVerdict
) -> None:
    faults = [
        FACTORY.fault("worker_killed", n, verdict=verdict) for n, verdict in enumerate(verdicts)
    ]
    assert (
        report(tmp_path, FaultJob(name="f", faults=("worker_killed",)), faults=faults).verdict
        is expected
    )


def test_a_fault_that_does_not_apply_lacks_no_data_beside_one_that_does(tmp_path: Path) -> None:
    other = FACTORY.fault("worker_hung", 1, verdict=Verdict.NOT_APPLICABLE)
    job = FaultJob(name="f", faults=("worker_killed", "worker_hung"), max_recover_s=1000.0)
    found = report(tmp_path, job, faults=[FACTORY.fault("worker_killed"), other])
    assert found.verdict is SuiteVerdict.PASS
    assert [case.status for case in found.cases].count(Status.SKIPPED) == 1


def test_a_recovery_above_its_limit_fails(tmp_path: Path) -> None:
    job = FaultJob(name="f", faults=("worker_killed",), max_recover_s=1e-9)
    assert (
        report(tmp_path, job, faults=[FACTORY.fault("worker_killed")]).verdict is SuiteVerdict.FAIL
    )


WAVES = FanoutJob(name="w", widths=(1, 2), page_caches=(PageCache.WARM,), max_wave_s={2: 3.0})


@pytest.mark.parametrize(
    ("totals", "found", "verdict"),
    [
        ((2.0, 2.9), PageCache.WARM, SuiteVerdict.PASS),
        ((2.0, 3.1), PageCache.WARM, SuiteVerdict.FAIL),
        ((2.0, None), PageCache.WARM, SuiteVerdict.FAIL),
        ((2.0, 2.9), PageCache.MIXED, SuiteVerdict.NOT_ENOUGH_DATA),
        ((), PageCache.WARM, SuiteVerdict.NOT_ENOUGH_DATA),
    ],
)
def test_a_wave_counts_where_it_began_as_asked_and_all_of_it_came_back(
    tmp_path: Path, totals: Sequence[float | None], found: PageCache, verdict: SuiteVerdict
) -> None:
    waves = [*FACTORY.fanout(1, [1.0]), *FACTORY.fanout(2, totals, found=found)]
    assert report(tmp_path, WAVES, fanout=waves).verdict is verdict


def test_a_wave_without_room_says_so(tmp_path: Path) -> None:
    why = {"2 restores at once": "no memory"}
    found = report(tmp_path, WAVES, fanout=FACTORY.fanout(1, [1.0]), unsupported=why)
    assert found.undecided == (
        "2 at once, page cache warm", "wave of 2 at once, page cache warm",
    )  # fmt: skip
    assert "no memory" in [case.detail for case in found.cases]


TALK = CollectivesJob(
    name="t", operations=(CollectiveOperation.ALL_REDUCE,), sizes=(2**20,), arms=("healthy",),
    min_busbw_bytes_per_s={CollectiveOperation.ALL_REDUCE: 1e9},
)  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((0.9e9, 1.1e9, 1.2e9), SuiteVerdict.PASS),
        ((0.8e9, 0.9e9, 1.2e9), SuiteVerdict.FAIL),
        ((1.1e9, None), SuiteVerdict.FAIL),
        ((), SuiteVerdict.NOT_ENOUGH_DATA),
    ],
)
def test_a_bandwidth_is_the_median_of_the_healthy_arm_at_the_largest_size(
    tmp_path: Path, rates: Sequence[float | None], verdict: SuiteVerdict
) -> None:
    job = TALK.model_copy(update={"sizes": (2**10, 2**20)})
    found = [
        *(FACTORY.collective(repeat=n, busbw=rate) for n, rate in enumerate(rates)),
        *(FACTORY.collective(repeat=n, busbw=1.0, size=2**10) for n in range(5) if rates),
    ]
    assert report(tmp_path, job, collectives=found).verdict is verdict


def test_an_arm_that_this_machine_has_not_lacks_data(tmp_path: Path) -> None:
    job = TALK.model_copy(update={"arms": ("healthy", "p2p_off")})
    why = {"arm p2p_off": "The backend gloo has no such arm."}
    found = report(tmp_path, job, collectives=[FACTORY.collective()], unsupported=why)
    assert (found.undecided, found.verdict) == (("p2p_off",), SuiteVerdict.NOT_ENOUGH_DATA)


def test_each_measurement_is_a_case_of_its_own(tmp_path: Path) -> None:
    waves = [wave for n in range(2) for wave in FACTORY.fanout(2, [1.0, 2.0], repeat=n)]
    talk = [FACTORY.collective(repeat=n) for n in range(2)]
    for found in (
        report(tmp_path / "w", WAVES, fanout=waves),
        report(tmp_path / "t", TALK, collectives=talk),
    ):
        names = [case.name for case in found.cases]
        assert len(names) == len(set(names))


def upgrade(verdict: UpgradeVerdict) -> Upgrade:
    return Upgrade("a", "b", "hardware", "old", "new", {}, Comparison(verdict, ("why",), ()))


def test_the_gravest_decides_and_has_its_exit_code(tmp_path: Path) -> None:
    good = report(tmp_path, ONE_ARM, **starts(ONE_ARM, 1.0))
    bad = report(tmp_path / "bad", ONE_ARM, **starts(ONE_ARM, 5.0))
    empty = report(tmp_path / "empty", ONE_ARM)
    error = JobReport(ONE_ARM, NOW, 1.0, error=UnsupportedError("no GPU"))
    whole = SuiteReport(suite(ONE_ARM), (good,))
    assert (whole.verdict, whole.exit_code) == (SuiteVerdict.PASS, 0)
    for jobs, code in (
        ((good, empty), 8),
        ((good, error, empty), 3),
        ((error, bad, empty), 1),
    ):
        assert replace(whole, jobs=jobs).exit_code == code
    for verdict, code in (
        (UpgradeVerdict.SAFE, 0),
        (UpgradeVerdict.SAFE_WITH_NOTES, 0),
        (UpgradeVerdict.NOT_SAFE, 1),
        (UpgradeVerdict.NOT_ENOUGH_DATA, 8),
    ):
        assert replace(whole, upgrade=upgrade(verdict)).exit_code == code
    missing = InputError("compare.baseline", "x", "no such stack", mend="Choose.")
    assert replace(whole, compare_error=missing).exit_code == 2


def test_junit_has_each_case_once_with_its_counts(tmp_path: Path) -> None:
    good = report(tmp_path, ONE_ARM, **starts(ONE_ARM, 1.0))
    bad = report(tmp_path / "bad", ONE_ARM, **starts(ONE_ARM, 5.0))
    error = JobReport(ONE_ARM, NOW, 1.0, error=UnsupportedError("no \x00 <GPU> & more"))
    compared = suite(ONE_ARM).model_copy(update={"compare": {"baseline": "a"}})
    whole = SuiteReport(compared, (good, bad, error), upgrade(UpgradeVerdict.NOT_SAFE))
    root = ET.fromstring(to_junit(whole))
    assert [child.get("name") for child in root] == [*["comes back"] * 3, "upgrade"]
    counts = ("tests", "failures", "errors", "skipped")
    assert [root.get(name) for name in counts] == ["6", "2", "1", "0"]
    assert [[child.get(name) for name in counts] for child in root] == [
        ["2", "0", "0", "0"], ["2", "1", "0", "0"], ["1", "0", "1", "0"], ["1", "1", "0", "0"],
    ]  # fmt: skip
    (told,) = root.findall("testsuite/testcase/error")
    assert told.get("message") == "no \ufffd <GPU> & more"
    properties = {item.get("name"): item.get("value") for item in root.iter("property")}
    assert properties["basis"] == "simulated"


def test_markdown_says_verdict_figures_and_problems_and_keeps_its_tables(tmp_path: Path) -> None:
    job = ONE_ARM.model_copy(update={"name": "a | b\nc"})
    bad = report(tmp_path, job, **starts(job, 5.0, 6.0))
    text = to_markdown(SuiteReport(suite(job), (bad,), upgrade(UpgradeVerdict.SAFE)))
    assert text.startswith("## gate: fail\n")
    assert "basis `simulated`" in text
    assert "| a \\| b c | fail | 2 | 1 | 0 | 1.0 |" in text
    assert "| a \\| b c | restore | 2 | 5.500 |" in text
    assert "median of restore failed: above_limit: 5.500 s of 2, 2 s at most" in text
    assert "### Upgrade safe" in text


def test_markdown_of_many_problems_stays_short(tmp_path: Path) -> None:
    faults = [
        FACTORY.fault("worker_killed", n, verdict=Verdict.FAIL) for n in range(MOST_PROBLEMS + 3)
    ]
    job = FaultJob(name="f", faults=("worker_killed",))
    text = to_markdown(SuiteReport(suite(job), (report(tmp_path, job, faults=faults),)))
    assert text.rstrip().endswith("- and 3 more")
