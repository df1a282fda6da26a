"""Detectors: alarms have a time, and what goes wrong with a detector shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from resilience_pipelines.detectors.base import Detector, PollingDetector
from resilience_pipelines.detectors.canary import Canary
from resilience_pipelines.detectors.cgroup_events import CgroupEvents, read_oom_kills
from resilience_pipelines.detectors.health_probe import HealthProbe
from resilience_pipelines.detectors.image_verifier import ImageVerifier
from resilience_pipelines.detectors.kernel_log import KernelLog, concerns, unavailable
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason
from resilience_pipelines.workers.client import (
    Completion,
    WorkerAnswerError,
    WorkerClient,
    WorkerUnreachableError,
)
from resilience_pipelines.workers.oracle import RecordedAnswer
from resilience_pipelines.workers.space import wait_until

EXPECTED = RecordedAnswer(prompt="p", token_ids=(5, 6, 7), logprobs=(-1.0, -2.0, -3.0))


class Scripted(PollingDetector):
    """Gives the next of some answers at each look; the last one for ever."""

    name = "scripted"

    def __init__(self, answers: Sequence[str | Exception | None]) -> None:
        super().__init__(0.001)
        self._answers = list(answers)
        self.done = threading.Event()

    def _look(self) -> str | None:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if len(self._answers) == 1:
            self.done.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeClient:
    """Answers as it is told."""

    def __init__(self, answer: Callable[[], Completion], healthy: Sequence[bool] = ()) -> None:
        self._answer = answer
        self._healthy = list(healthy)

    def complete(self, prompt: str, max_tokens: int, *, timeout_s: float) -> Completion:
        answer = self._answer()
        return Completion(answer.token_ids[:max_tokens], answer.logprobs[:max_tokens])

    def healthy(self, timeout_s: float) -> bool:
        return self._healthy.pop(0) if len(self._healthy) > 1 else self._healthy[0]


def client(answer: Callable[[], Completion], healthy: Sequence[bool] = (True,)) -> WorkerClient:
    return cast("WorkerClient", FakeClient(answer, healthy))


def right() -> Completion:
    return Completion(EXPECTED.token_ids, EXPECTED.logprobs)


def watch(detector: Detector, until: Callable[[], bool]) -> None:
    with detector:
        wait_until(until, 10, "The detector", 0.001)


def looked_twice(detector: Detector) -> Callable[[], bool]:
    marks: list[int] = []

    def done() -> bool:
        if not marks or detector.looked_since(marks[-1]):
            marks.append(time.monotonic_ns())
        return len(marks) > 2

    return done


def test_an_alarm_is_raised_when_well_turns_into_not_well() -> None:
    detector = Scripted([None, "a", "a", None, "b", None])
    before = time.monotonic_ns()
    watch(detector, detector.done.is_set)
    assert [alarm.detail for alarm in detector.alarms] == ["a", "b"]
    times = [alarm.at_ns for alarm in detector.alarms]
    assert before <= times[0] < times[1] <= time.monotonic_ns()
    assert detector.failure is None


def test_a_detector_that_is_silent_has_looked() -> None:
    detector = Scripted([None])
    watch(detector, looked_twice(detector))
    assert detector.alarms == ()
    assert not detector.alarmed
    assert detector.failure is None


def test_a_detector_that_raises_has_failed_and_keeps_its_alarms() -> None:
    detector = Scripted([None, "a", RuntimeError("broken")])
    watch(detector, lambda: detector.failure is not None)
    assert detector.failure == "RuntimeError: broken"
    assert len(detector.alarms) == 1


def test_a_detector_that_cannot_begin_has_failed() -> None:
    detector = CgroupEvents(Path("/nowhere"))
    with detector:
        assert "no count of OOM kills" in (detector.failure or "")
    assert detector.alarms == ()


def test_the_resolution_is_no_finer_than_the_pause_between_looks() -> None:
    detector = Scripted([None])
    watch(detector, looked_twice(detector))
    assert detector.resolution_s >= 0.001


def test_stopping_ends_the_thread() -> None:
    before = threading.active_count()
    detector = Scripted([None])
    watch(detector, looked_twice(detector))
    detector.stop()
    assert threading.active_count() == before


def test_a_canary_is_content_with_the_right_answer() -> None:
    detector = Canary(client(right), EXPECTED, tolerance=0, interval_s=0.001)
    watch(detector, looked_twice(detector))
    assert detector.alarms == ()
    assert detector.failure is None


@pytest.mark.parametrize(
    ("completion", "detail"),
    [
        (Completion((5, 9), (-1.0, -2.0)), "token 1 differs"),
        (Completion((5, 6), (-1.0, -2.5)), "log-probability"),
        (Completion((5,), (-1.0,)), "token 1 differs"),
    ],
)
def test_a_canary_catches_a_healthy_worker_that_answers_wrongly(
    completion: Completion, detail: str
) -> None:
    lying = client(lambda: completion)
    canary = Canary(lying, EXPECTED, tolerance=0.1, interval_s=0.001)
    watch(canary, lambda: bool(canary.alarms))
    assert "wrong answer" in canary.alarms[0].detail
    assert detail in canary.alarms[0].detail
    probe = HealthProbe(lying, interval_s=0.001)
    watch(probe, looked_twice(probe))
    assert probe.alarms == ()


@pytest.mark.parametrize("error", [WorkerUnreachableError("gone"), WorkerAnswerError("500")])
def test_a_canary_catches_a_worker_that_does_not_answer(error: Exception) -> None:
    def fail() -> Completion:
        raise error

    canary = Canary(client(fail), EXPECTED, tolerance=0, interval_s=0.001)
    watch(canary, lambda: bool(canary.alarms))
    assert "no answer" in canary.alarms[0].detail


@pytest.mark.parametrize(
    ("answers", "alarms"),
    [
        ([True], 0),
        ([False, True], 0),
        ([True, False, True, False, True], 0),
        ([False, False, True], 1),
        ([False, False, True, False, False, False, True], 2),
    ],
)
def test_a_health_probe_wants_failures_in_a_row(answers: list[bool], alarms: int) -> None:
    probe = HealthProbe(client(right, answers), interval_s=0.001, failures=2)
    fake = cast("Any", probe)._client._healthy
    settled = looked_twice(probe)
    watch(probe, lambda: len(fake) == 1 and settled())
    assert len(probe.alarms) == alarms


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_oom_kills_are_read_under_both_cgroup_versions(tmp_path: Path, name: str) -> None:
    counter = tmp_path / name
    counter.write_text("low 0\noom 7\noom_kill 3\noom_group_kill 9\n")
    assert read_oom_kills(tmp_path) == 3
    detector = CgroupEvents(tmp_path, interval_s=0.001)
    with detector:
        wait_until(looked_twice(detector), 10, "A look", 0.001)
        assert detector.alarms == ()  # those kills were before its time
        later = tmp_path / "later"
        later.write_text("oom_kill 4\n")
        later.replace(counter)  # at once, as the kernel's own file changes: never an empty one
        wait_until(lambda: bool(detector.alarms), 10, "An alarm", 0.001)
    assert "1 processes" in detector.alarms[0].detail


def test_a_cgroup_that_vanishes_is_a_failure_and_not_silence(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    detector = CgroupEvents(tmp_path, interval_s=0.001)
    with detector:
        (tmp_path / "memory.events").unlink()
        wait_until(lambda: detector.failure is not None, 10, "A failure", 0.001)


class FakeStore:
    def __init__(self, code: SnapshotReason | None) -> None:
        self.code = code

    def verify(self, snapshot: object) -> None:
        if self.code is not None:
            raise SnapshotError(self.code, "verify", "pages-1.img is missing.")


def test_an_image_verifier_reports_a_corrupt_image_and_nothing_else() -> None:
    corrupt = ImageVerifier(
        cast("Any", FakeStore(SnapshotReason.IMAGE_CORRUPT)), cast("Any", None), interval_s=0.001
    )
    watch(corrupt, lambda: bool(corrupt.alarms))
    assert "pages-1.img" in corrupt.alarms[0].detail
    other = ImageVerifier(
        cast("Any", FakeStore(SnapshotReason.STORE_EXPOSED)), cast("Any", None), interval_s=0.001
    )
    watch(other, lambda: other.failure is not None)
    assert other.alarms == ()
    well = ImageVerifier(cast("Any", FakeStore(None)), cast("Any", None), interval_s=0.001)
    watch(well, looked_twice(well))
    assert (well.alarms, well.failure) == ((), None)


KILLED = (
    "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB, UID:0"
)
KILLED_GLOBALLY = "Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB"
OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/jobs/fault-1,task_memcg=/jobs/fault-1,task=python,pid=4711,uid=0"
)
XID = "NVRM: Xid (PCI:0000:3d:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault"
XID_QUOTED = "NVRM: Xid (PCI:0000:3d:00): 43, pid='4711', name=python, Ch 00000008"
XID_UNKNOWN = "NVRM: Xid (PCI:0000:3d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"
XID_OLD = "NVRM: Xid (PCI:0000:3d:00): 63, Row Remapper: New row marked for remapping"


@pytest.mark.parametrize(
    ("message", "pids", "cgroup", "wanted"),
    [
        (XID, [4711], None, True),
        (XID, [471], None, False),
        (XID_QUOTED, [4711], None, True),
        (XID_QUOTED, [1], None, False),
        (XID_UNKNOWN, [1], None, True),
        (XID_OLD, [], None, True),
        (KILLED, [4711], None, True),
        (KILLED_GLOBALLY, [1, 4711], None, True),
        (KILLED, [471], None, False),
        (KILLED, [47110], "fault-1", False),
        (OOM, [], "fault-1", True),
        (OOM, [4711], None, False),
        (OOM, [], "ault-1", False),
        (OOM, [], "fault-2", False),
        ("usb 1-1: new device", [4711], "fault-1", False),
        ("", [4711], "fault-1", False),
    ],
)
def test_only_kernel_messages_about_this_worker_concern_it(
    message: str, pids: list[int], cgroup: str | None, wanted: bool
) -> None:
    assert concerns(message, pids, cgroup) == wanted


def test_a_kernel_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in (unavailable(tmp_path / "none") or "")
    detector = KernelLog([1], path=tmp_path / "none")
    with detector:
        assert "FileNotFoundError" in (detector.failure or "")
