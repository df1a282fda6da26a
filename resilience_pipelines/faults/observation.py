"""What the detectors saw of one experiment, and what of it counts.

What belongs here: running the detectors together, and turning alarms into detections. What does
not: any one detector (`detectors`), and what a missed fault means for the verdict (`verdict`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from resilience_pipelines.detectors.base import Alarm, Detector
from resilience_pipelines.faults.verdict import Seen
from resilience_pipelines.records import Detection

_DETAIL_CHARACTERS = 4000


class Observation:
    """The detectors of one experiment, from before the injection on.

    Args:
        expected: the detectors that have to see the fault, and within how many seconds; in a
            control arm, where there is none, it is empty.

    Attributes:
        injected_ns: CLOCK_MONOTONIC just before the act, or of its place in a control arm.
        hidden_ns: when the recovery began to do what hides the fault from the detectors, and may
            itself be taken for one.
    """

    def __init__(
        self, detectors: Sequence[Detector], expected: Mapping[str, float], *, control: bool
    ) -> None:
        self.detectors = tuple(detectors)
        self.injected_ns: int | None = None
        self.hidden_ns: int | None = None
        self._expected = {} if control else dict(expected)
        self._control = control
        self._running = ExitStack()

    def start(self) -> None:
        """Start all of them."""
        for detector in self.detectors:
            self._running.enter_context(detector)

    def stop(self) -> None:
        """Stop all of them. A second call does nothing."""
        for detector in self.detectors:
            detector.ask_to_stop()
        self._running.close()

    def all_looked_since(self, at_ns: int) -> bool:
        """Whether each that works has looked at its subject since CLOCK_MONOTONIC `at_ns`."""
        return all(d.looked_since(at_ns) or d.failure for d in self.detectors)

    def alarmed(self) -> list[str]:
        """The detectors that see a problem now."""
        return [detector.name for detector in self.detectors if detector.alarmed]

    def expected_saw(self) -> bool:
        """Whether any expected detector has seen the fault."""
        return any(self._counted(d) for d in self.detectors if d.name in self._expected)

    def expected_may_see(self) -> bool:
        """Whether any expected detector has not seen the fault, and still works and has time."""
        assert self.injected_ns is not None
        waited_s = (time.monotonic_ns() - self.injected_ns) / 1e9
        return any(
            not d.failure and not self._counted(d) and waited_s < self._expected[d.name]
            for d in self.detectors
            if d.name in self._expected
        )

    def detections(self) -> tuple[Detection, ...]:
        """One for each detector; none for one that failed before it saw anything.

        Its silence says nothing, and must not be read as "it saw nothing".
        """
        found = (self._judge(detector) for detector in self.detectors)
        return tuple(detection for detection in found if detection is not None)

    def outcome(self) -> Seen:
        """What came of the expected detectors."""
        expected = [d for d in self.detections() if d.expected]
        if any(in_time(d) for d in expected):
            return Seen.IN_TIME
        if any(d.detected for d in expected):
            return Seen.LATE
        if not expected or any(name in self._expected for name in self.failed()):
            return Seen.UNKNOWN
        return Seen.NOT

    def failed(self) -> list[str]:
        """The detectors that failed."""
        return [detector.name for detector in self.detectors if detector.failure]

    def expected_failed(self) -> bool:
        """Whether an expected detector is among those that failed."""
        return any(name in self._expected for name in self.failed())

    def moments(self) -> list[tuple[int, str, str]]:
        """Alarms and failures for the timeline: CLOCK_MONOTONIC in ns, what, and its details."""
        alarms = [
            (alarm.at_ns, self._kind(alarm), f"{detector.name}: {alarm.detail}")
            for detector in self.detectors
            for alarm in detector.alarms
        ]
        now_ns = time.monotonic_ns()
        failures = [
            (now_ns, "detector_failed", f"{detector.name}: {detector.failure}")
            for detector in self.detectors
            if detector.failure
        ]
        return alarms + failures

    def _kind(self, alarm: Alarm) -> str:
        if self._control or self.injected_ns is None or alarm.at_ns < self.injected_ns:
            return "false_alarm"
        return "detected" if self._counts(alarm) else "alarm_during_recovery"

    def _counts(self, alarm: Alarm) -> bool:
        """Whether an alarm came after the injection and is not of the recovery's making."""
        if self.injected_ns is None or alarm.at_ns < self.injected_ns:
            return False
        return self.hidden_ns is None or alarm.at_ns < self.hidden_ns

    def _counted(self, detector: Detector) -> Alarm | None:
        return next((alarm for alarm in detector.alarms if self._counts(alarm)), None)

    def _judge(self, detector: Detector) -> Detection | None:
        first = self._counted(detector)
        early = [a for a in detector.alarms if self._kind(a) == "false_alarm" and a is not first]
        # In a control arm every alarm is a false one, before its moment as well as after it.
        seen = first or (early[0] if self._control and early else None)
        if detector.failure and seen is None:
            return None
        words = [seen.detail] if seen else []
        if early and not self._control:
            words.append(f"{len(early)} false alarms before the injection: {early[0].detail}")
        if detector.failure:
            words.append(f"it failed afterwards: {detector.failure}")
        after_s = None
        if first is not None and self.injected_ns is not None:
            after_s = (first.at_ns - self.injected_ns) / 1e9
        return Detection(
            detector=detector.name,
            expected=detector.name in self._expected,
            detected=seen is not None,
            detected_after_s=after_s,
            deadline_s=self._expected.get(detector.name),
            clock=detector.clock,
            resolution_s=detector.resolution_s,
            detail="; ".join(words)[:_DETAIL_CHARACTERS],
        )


def in_time(detection: Detection) -> bool:
    """Whether it was seen, within its deadline."""
    return (
        detection.detected_after_s is not None
        and detection.deadline_s is not None
        and detection.detected_after_s <= detection.deadline_s
    )
