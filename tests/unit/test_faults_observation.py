"""What counts of the detectors' alarms: those of the fault, and no others."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.detectors.base import Alarm, Detector
from resilience_pipelines.faults.observation import Observation
from resilience_pipelines.faults.verdict import Seen

START_NS = 10**9


class Recorded(Detector):
    """A detector whose alarms and failure are given, in seconds since the injection."""

    name = "recorded"

    def __init__(self, name: str, *alarms_s: float, failure: str | None = None) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self._alarms = [Alarm(START_NS + round(at * 1e9), f"at {at}") for at in alarms_s]
        self._failure = failure

    def _watch(self) -> None:
        raise AssertionError("never started")


def observe(
    *detectors: Detector,
    expected: Mapping[str, float],
    control: bool = False,
    hidden_s: float | None = None,
) -> Observation:
    observation = Observation(detectors, expected, control=control)
    observation.injected_ns = START_NS
    if hidden_s is not None:
        observation.hidden_ns = START_NS + round(hidden_s * 1e9)
    return observation


def test_the_first_alarm_after_the_injection_counts() -> None:
    found = observe(Recorded("a", 0.25, 0.5), expected={"a": 1.0})
    (detection,) = found.detections()
    assert detection.detected
    assert detection.expected
    assert detection.detected_after_s == pytest.approx(0.25)
    assert detection.deadline_s == 1.0
    assert found.outcome() is Seen.IN_TIME


def test_an_alarm_before_the_injection_is_a_false_one_and_no_detection() -> None:
    found = observe(Recorded("a", -0.5), expected={"a": 1.0})
    (detection,) = found.detections()
    assert not detection.detected
    assert detection.detected_after_s is None
    assert "false alarm" in detection.detail
    assert [name for _, name, _ in found.moments()] == ["false_alarm"]
    assert found.outcome() is Seen.NOT


def test_a_detector_that_gave_a_false_alarm_may_still_see_the_fault() -> None:
    found = observe(Recorded("a", -0.5, 0.5), expected={"a": 1.0})
    (detection,) = found.detections()
    assert detection.detected_after_s == pytest.approx(0.5)
    assert "false alarm" in detection.detail
    assert [name for _, name, _ in found.moments()] == ["false_alarm", "detected"]


def test_an_alarm_of_the_recoverys_making_is_no_detection() -> None:
    found = observe(Recorded("a", 0.8), expected={"a": 1.0}, hidden_s=0.7)
    assert not found.detections()[0].detected
    assert [name for _, name, _ in found.moments()] == ["alarm_during_recovery"]
    assert found.outcome() is Seen.NOT


def test_an_alarm_after_the_deadline_is_late() -> None:
    found = observe(Recorded("a", 1.5), expected={"a": 1.0})
    assert found.detections()[0].detected
    assert found.outcome() is Seen.LATE


def test_one_expected_detector_in_time_is_enough() -> None:
    found = observe(
        Recorded("a", 1.5), Recorded("b", 0.1), Recorded("c"),
        expected={"a": 1.0, "b": 1.0, "c": 1.0},
    )  # fmt: skip
    assert found.outcome() is Seen.IN_TIME


def test_a_detector_that_is_not_expected_does_not_count_for_the_outcome() -> None:
    found = observe(Recorded("a", 0.1), Recorded("b"), expected={"b": 1.0})
    assert [d.detected for d in found.detections()] == [True, False]
    assert not found.expected_saw()
    assert found.outcome() is Seen.NOT


def test_the_silence_of_a_detector_that_failed_is_not_written_down_as_silence() -> None:
    found = observe(Recorded("a", failure="OSError"), Recorded("b"), expected={"a": 1.0, "b": 1.0})
    assert [d.detector for d in found.detections()] == ["b"]
    assert found.failed() == ["a"]
    assert found.outcome() is Seen.UNKNOWN
    assert ("detector_failed", "a: OSError") in [(n, d) for _, n, d in found.moments()]


def test_what_a_detector_saw_before_it_failed_stays() -> None:
    found = observe(Recorded("a", 0.1, failure="OSError"), expected={"a": 1.0})
    assert found.detections()[0].detected
    assert "OSError" in found.detections()[0].detail
    assert found.outcome() is Seen.IN_TIME


def test_without_an_expected_detector_nothing_is_known() -> None:
    assert observe(Recorded("a", 0.1), expected={"z": 1.0}).outcome() is Seen.UNKNOWN


def test_in_a_control_arm_nothing_is_expected_and_every_alarm_is_false() -> None:
    found = observe(
        Recorded("a", -0.5), Recorded("b", 0.5), Recorded("c"), expected={"a": 1.0}, control=True
    )
    assert [d.expected for d in found.detections()] == [False, False, False]
    assert [d.detected for d in found.detections()] == [True, True, False]
    assert {name for _, name, _ in found.moments()} == {"false_alarm"}


@given(st.lists(st.floats(-2, 2), max_size=4), st.floats(0, 2) | st.none())
def test_a_detection_lies_between_injection_and_recovery(
    alarms_s: list[float], hidden_s: float | None
) -> None:
    found = observe(Recorded("a", *sorted(alarms_s)), expected={"a": 1.0}, hidden_s=hidden_s)
    (detection,) = found.detections()
    counted = [at for at in alarms_s if round(at * 1e9) >= 0]
    if hidden_s is not None:
        counted = [at for at in counted if round(at * 1e9) < round(hidden_s * 1e9)]
    assert detection.detected == bool(counted)
    assert detection.detected_after_s == (
        pytest.approx(min(counted), abs=2e-9) if counted else None
    )


def test_an_expected_detector_may_see_until_its_deadline() -> None:
    found = Observation([Recorded("a")], {"a": 0.05}, control=False)
    found.injected_ns = time.monotonic_ns()
    assert found.expected_may_see()
    time.sleep(0.06)
    assert not found.expected_may_see()


@pytest.mark.parametrize("detector", [Recorded("a", 0.0), Recorded("a", failure="x")])
def test_a_detector_that_saw_or_failed_is_not_waited_for(detector: Detector) -> None:
    found = observe(detector, expected={"a": 10**6})
    assert not found.expected_may_see()
