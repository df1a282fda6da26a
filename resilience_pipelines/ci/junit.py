"""A suite's report as JUnit XML, which every CI system reads.

What belongs here: the form. What does not: what passed and why (`run`).

A job is a `testsuite`, a case a `testcase`; what lacks data is `skipped` with the reason. A job
that could not run is one case with an `error`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Final

from resilience_pipelines.ci.run import Case, JobReport, Status, SuiteReport
from resilience_pipelines.trends.comparison import UpgradeVerdict
from resilience_pipelines.upgrades import words

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no place for, and a log's tail may hold."""


def to_junit(report: SuiteReport) -> bytes:
    """The report as a JUnit XML file."""
    root = ET.Element("testsuites", name=_text(report.suite.name))
    for job in report.jobs:
        root.append(_suite(job, report.suite.name))
    if report.suite.compare is not None:
        root.append(_comparison(report))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.set("time", f"{sum(job.seconds for job in report.jobs):.3f}")
    ET.indent(root)
    encoded: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return encoded + b"\n"


def _suite(job: JobReport, suite: str) -> ET.Element:
    element = ET.Element(
        "testsuite",
        name=_text(job.job.name),
        timestamp=job.started_at.isoformat(timespec="seconds"),
        time=f"{job.seconds:.3f}",
    )
    if job.result is not None:
        record = job.result.record
        properties = ET.SubElement(element, "properties")
        for name, value in (
            ("run_id", record.run_id),
            ("basis", record.basis.value),
            ("hardware", record.stack.hardware_label),
            ("software", record.stack.software_label),
            ("stack_key", record.stack_key),
            *((f"unsupported: {what}", why) for what, why in record.unsupported.items()),
        ):
            ET.SubElement(properties, "property", name=_text(name), value=_text(value))
    classname = f"{suite}.{job.job.name}"
    for case in job.cases:
        _add_case(element, classname, case)
    if job.error is not None:
        child = ET.SubElement(element, "testcase", name="job", classname=_text(classname))
        error = ET.SubElement(
            child, "error", message=_text(job.error.reason), type=type(job.error).__name__
        )
        error.text = _text(str(job.error))
    return _counted(element)


def _add_case(element: ET.Element, classname: str, case: Case) -> None:
    child = ET.SubElement(element, "testcase", name=_text(case.name), classname=_text(classname))
    if case.seconds is not None:
        child.set("time", f"{case.seconds:.6f}")
    if case.status is Status.PASSED:
        return
    tag = "failure" if case.status is Status.FAILED else "skipped"
    told = ET.SubElement(child, tag, message=_text(case.reason or case.detail))
    if tag == "failure":
        told.set("type", _text(case.reason or "failed"))
    told.text = _text(case.detail)


def _comparison(report: SuiteReport) -> ET.Element:
    element = ET.Element("testsuite", name="upgrade")
    child = ET.SubElement(
        element, "testcase", name="upgrade", classname=_text(f"{report.suite.name}.upgrade")
    )
    upgrade, error = report.upgrade, report.compare_error
    if error is not None:
        told = ET.SubElement(child, "error", message=_text(error.reason), type=type(error).__name__)
        told.text = _text(str(error))
    elif upgrade is None:
        ET.SubElement(child, "skipped", message="no job has a result")
    elif upgrade.comparison.verdict in (UpgradeVerdict.NOT_SAFE, UpgradeVerdict.NOT_ENOUGH_DATA):
        verdict = upgrade.comparison.verdict
        tag = "failure" if verdict is UpgradeVerdict.NOT_SAFE else "skipped"
        told = ET.SubElement(child, tag, message=words(verdict))
        told.text = _text("\n".join(upgrade.comparison.reasons))
    return _counted(element)


def _counted(element: ET.Element) -> ET.Element:
    element.set("tests", str(len(element.findall("testcase"))))
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(count, str(len(element.findall(f"testcase/{tag}"))))
    return element


def _text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
