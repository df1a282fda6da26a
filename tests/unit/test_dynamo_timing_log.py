"""The log of Dynamo Snapshot's agent: its phases are ours, and nothing of it is lost or guessed."""

from __future__ import annotations

import pytest

from resilience_pipelines.go_duration import go_duration_s
from resilience_pipelines.launchers.dynamo_snapshot.timing_log import (
    PHASES,
    UNACCOUNTED,
    Act,
    parse_log,
)

# As github.com/ai-dynamo/snapshot writes them: benchmarks/snapshot_benchmarks/logs.py (bd939ea3).
RESTORE = (
    "2026-09-08T12:46:55Z  INFO  controller  executor/restore.go:249  Restore timing summary  "
    '{"pod": "default/vllm-restored-1", "snapshot": "vllm-snapshot", "restore": '
    '{"duration":"3.506021s", "phases":{"criu_restore":"2.359102s","cuda_restore":"0.894113s",'
    '"gpu_device_map":"659.262378ms","unaccounted":"9.1µs"},"started_to_complete":"3.601s"}}'
)
# e2e/tests/test_benchmark.py (85fb7afb), with the prefix that `kubectl logs --prefix` adds.
CHECKPOINTS = (
    "2026-09-09T07:46:35.000000000Z\tINFO\tCheckpoint timing summary\t"
    '{"content":"other","checkpoint":{"duration":"1s","phases":{}}}',
    "[pod/snapshot-agent/agent] 2026-09-09T07:48:42.938213483Z\tINFO\tcontroller\t"
    'Checkpoint timing summary\t{"content":"wanted","checkpoint":'
    '{"duration":"1m10.345884064s","phases":{"criu_dump":"1m4.861411573s",'
    '"overlay_capture":"220.658592ms"},"started_to_complete":"1m10.345894804s"}}',
)
# Before its lines named a pod: agent/internal/executor/restore.go (00c95302).
OLDER = (
    "2026-08-20T10:00:00Z INFO Restore timing summary "
    '{"restore": {"duration": "4s", "phases": {"host_inspect_duration": "10ms", '
    '"criu_restore_duration": "3s"}}}'
)


def test_a_restore_has_the_agent_s_phases_under_our_names_and_in_the_order_of_its_code() -> None:
    (timing,) = parse_log(f"something else\n{RESTORE}\n").timings
    assert timing.act is Act.RESTORE
    assert timing.duration_s == pytest.approx(3.506021)
    assert timing.phases == (
        ("agent_gpu_device_map", pytest.approx(0.659262378)),
        ("criu_restore", pytest.approx(2.359102)),
        ("cuda_restore", pytest.approx(0.894113)),
        (UNACCOUNTED, pytest.approx(9.1e-6)),
    )
    assert timing.unknown == ()


def test_a_line_is_found_by_what_it_is_about_and_by_nothing_else() -> None:
    found = parse_log("\n".join((RESTORE, *CHECKPOINTS, OLDER)))
    pod, snapshot = "default/vllm-restored-1", "vllm-snapshot"
    assert found.find(Act.RESTORE, pod=pod, snapshot=snapshot) is found.timings[0]
    assert found.find(Act.RESTORE, pod=pod, snapshot="another") is None
    wanted = found.find(Act.CHECKPOINT, content="wanted")
    assert wanted is not None
    assert wanted.duration_s == pytest.approx(70.345884064)
    assert dict(wanted.phases)["criu_dump"] == pytest.approx(64.861411573)


def test_the_last_of_several_lines_about_the_same_counts() -> None:
    later = RESTORE.replace("3.506021s", "9s")
    found = parse_log(f"{RESTORE}\n{later}").find(Act.RESTORE, snapshot="vllm-snapshot")
    assert found is not None
    assert found.duration_s == 9.0


def test_a_phase_that_is_not_known_is_kept_under_its_own_name_and_told() -> None:
    (timing,) = parse_log(OLDER).timings
    assert timing.phases == (
        ("agent_criu_restore_duration", 3.0), ("agent_host_inspect_duration", 0.01),
    )  # fmt: skip
    assert timing.unknown == ("criu_restore_duration", "host_inspect_duration")


@pytest.mark.parametrize(
    "line",
    [
        "Restore timing summary",
        "Restore timing summary {",
        'Restore timing summary {"restore": {"duration": "fast"}}',
        'Restore timing summary {"restore": {"duration": "1s", "phases": {"criu_restore": -1}}}',
        'Restore timing summary {"restore": {"duration": "1s"}, "restore": {"duration": "2s"}}',
        'Some other timing summary {"restore": {"duration": "1s"}}',
        'Checkpoint timing summary {"restore": {"duration": "1s"}}',
    ],
)
def test_a_line_of_timings_that_can_t_be_read_is_kept_as_it_is(line: str) -> None:
    found = parse_log(line)
    assert found.timings == ()
    assert found.unread == (line,)


def test_no_two_names_of_the_agent_become_one() -> None:
    for names in PHASES.values():
        assert len(set(names.values())) == len(names)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0.0), ("605.387111ms", 0.605387111), ("1m10.345884064s", 70.345884064),
     ("2h3m4.5s", 7384.5), ("9.1µs", 9.1e-6)],
)  # fmt: skip
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert go_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "-1s", "1 second", "1m garbage", 1.5, None])
def test_what_is_no_duration_is_none(text: object) -> None:
    assert go_duration_s(text) is None
