"""Trying again: growing pauses, and an end."""

from __future__ import annotations

import pytest

from resilience_pipelines.launchers.kubernetes.client import ApiLostError, Backoff
from resilience_pipelines.launchers.kubernetes.failures import ClusterError, FailureKind
from resilience_pipelines.launchers.kubernetes.follow import _moment


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def backoff(clock: Clock, deadline_s: float) -> Backoff:
    return Backoff(deadline_s, clock=clock.time, sleep=clock.sleep)


def test_a_server_lost_for_a_minute_is_asked_until_it_is_back() -> None:
    clock = Clock()
    tries = backoff(clock, 600.0)
    while clock.now < 60.0:
        tries.pause(ApiLostError("refused"))
    assert len(clock.slept) < 15, "it is not asked all the time"
    assert max(clock.slept) <= 15.0
    assert clock.slept[0] <= 0.5


def test_a_server_lost_for_longer_than_the_deadline_is_given_up() -> None:
    clock = Clock()
    tries = backoff(clock, 600.0)

    def ask_for_ever() -> None:
        while True:
            tries.pause(ApiLostError("refused"))

    with pytest.raises(ClusterError, match="600 s") as caught:
        ask_for_ever()
    assert caught.value.kind is FailureKind.API_LOST
    assert clock.now == pytest.approx(600.0)


def test_a_server_that_says_when_is_asked_then() -> None:
    clock = Clock()
    backoff(clock, 600.0).pause(ApiLostError("HTTP 429", pause_s=7.0))
    assert clock.slept == [7.0]


def test_time_stamps_of_a_log_are_in_their_order_whatever_zeros_they_lack() -> None:
    stamps = [
        "2026-03-02T09:00:00Z",
        "2026-03-02T09:00:00.05Z",
        "2026-03-02T09:00:00.1Z",
        "2026-03-02T09:00:00.12Z",
        "2026-03-02T10:00:00.123456789+01:00",
        "2026-03-02T09:00:01Z",
    ]
    moments = [_moment(stamp) for stamp in stamps]
    assert None not in moments
    assert moments == sorted(moments)  # type: ignore[type-var]
    assert len(set(moments)) == len(stamps)


def test_a_line_without_a_time_stamp_is_none() -> None:
    assert _moment("failed") is None
    assert _moment("") is None
