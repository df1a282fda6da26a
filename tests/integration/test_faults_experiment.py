"""Experiments with real processes, real cgroups and real CRIU: each verdict, and its traces."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from resilience_pipelines.collectives import support as collectives
from resilience_pipelines.detectors.base import Alarm, Detector
from resilience_pipelines.errors import DeadlineError, UnsupportedError
from resilience_pipelines.faults import (
    experiment,
    limits,
    memory,
    process,
    snapshot_image,
    training,
)
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.experiment import run_experiment
from resilience_pipelines.faults.fault import Fault, FaultContext, Injection, ObstacleError, Target
from resilience_pipelines.faults.gpu_device import need_gpu
from resilience_pipelines.faults.guards import FreeDisk, FreeMemory
from resilience_pipelines.faults.process import KillInjection, StopInjection
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.run import FaultPlan, run_faults
from resilience_pipelines.faults.training import JobInjection
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import FaultRun, Oracle, OracleVerdict, Proof, Verdict
from resilience_pipelines.snapshots.compatibility import this_host
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.device import NoDevice
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot
from resilience_pipelines.stack import Stack, read_host
from resilience_pipelines.startup.benchmark import BenchmarkContext, Source, prepare_source
from resilience_pipelines.workers.oracle import RecordedAnswer
from resilience_pipelines.workers.process import RunningWorker, launch
from resilience_pipelines.workers.space import HostSpace, SpaceSupport, open_space, wait_until
from tests.integration.fault_support import (
    NEED_GPU,
    NEED_NO_GPU,
    NEEDS_TORCH,
    HeavyWorker,
    Planted,
    after,
    children,
    contract_weights,
    instead,
    make_context,
    needed_by,
    nothing_stays,
    record,
    started_as,
)

EACH_FAULT = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needed_by(name)) for name in sorted(NEED_NO_GPU)]
)
HOST = SpaceSupport(False, "asked by the test")
Sources = tuple[SnapshotEngine, RecordedAnswer, StoredSnapshot]


@pytest.fixture(scope="module")
def source(criu: Criu, support: SpaceSupport, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    root = tmp_path_factory.mktemp("source")
    (root / "scratch").mkdir()
    stack = Stack.model_validate(
        {**read_host(root), "engine": "contract", "engine_version": "1",
         "criu_version": criu.version}
    )  # fmt: skip
    host = this_host(stack)
    engine = SnapshotEngine(SnapshotStore(root / "store"), criu, NoDevice(), host, root / "scratch")
    answer, snapshot = record(support, engine, root)
    assert snapshot is not None
    return engine, answer, snapshot


@pytest.fixture
def context(source: Sources, support: SpaceSupport, tmp_path: Path) -> FaultContext:
    engine, answer, snapshot = source
    return make_context(tmp_path, support, engine, answer, snapshot)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for what will not happen, and the control arm's, are short here."""
    monkeypatch.setattr(experiment, "CONTROL_OBSERVATION_S", 0.5)
    monkeypatch.setattr(process, "EFFECT_DEADLINE_S", 2.0)
    monkeypatch.setattr(memory, "EFFECT_DEADLINE_S", 3.0)
    monkeypatch.setattr(limits, "EFFECT_DEADLINE_S", 3.0)
    monkeypatch.setattr(training, "EFFECT_DEADLINE_S", 4.0)


def change(context: FaultContext, **changes: Any) -> FaultContext:
    return dataclasses.replace(context, **changes)


def first_recovery(fault: Fault) -> Recovery:
    return Recovery(fault.recoveries[0])


TRIES = 3


def experiment_with(
    fault: Fault, context: FaultContext, recovery: Recovery | None = None
) -> FaultRun:
    with nothing_stays(context):
        for _ in range(TRIES):
            run = run_experiment(fault, recovery or first_recovery(fault), context, repeat=0)
            # A loaded machine may be too late for the middle of an operation, and says so.
            if not (run.verdict is Verdict.NOT_INJECTED and "ended before (success)" in run.detail):
                break
        return run


def control_of(fault: Fault, context: FaultContext) -> FaultRun:
    with nothing_stays(context):
        return run_experiment(fault, None, context, repeat=0, control=True)


def names(run: FaultRun) -> list[str]:
    return [event.name for event in run.events]


# Passes.


@pytest.mark.parametrize(
    ("name", "recovery"),
    [
        pytest.param(name, recovery, marks=needed_by(name))
        for name in NEED_NO_GPU
        for recovery in CATALOGUE[name].recoveries
    ],
)
def test_every_fault_is_proved_detected_recovered_from_and_rolled_back(
    context: FaultContext, name: str, recovery: str
) -> None:
    run = experiment_with(CATALOGUE[name], context, Recovery(recovery))
    assert run.verdict is Verdict.PASS, (run.reason_code, run.detail, run.events)
    assert run.detail == ""
    assert run.effect is not None
    assert run.effect.proved
    assert run.rollback is not None
    assert run.rollback.proved
    assert run.oracle.verdict is OracleVerdict.EQUAL
    assert (run.fault, run.recovery, run.control) == (name, recovery, False)
    order = [
        "steady_state", "guards_passed", "injected", "effect_proved", "decided_to_recover",
        "recovered", "rolled_back", "rollback_proved", "oracle",
    ]  # fmt: skip
    assert [event for event in names(run) if event in order] == order
    at_s = {event.name: event.at_s for event in run.events}
    assert at_s["injected"] == 0
    assert at_s["steady_state"] < 0
    assert run.time_to_detect_s is not None
    assert run.time_to_recover_s is not None
    assert run.recovery_s is not None
    assert run.time_to_recover_s == pytest.approx(at_s["recovered"])
    assert run.recovery_s == pytest.approx(at_s["recovered"] - at_s["decided_to_recover"])
    assert run.time_to_detect_s <= at_s["decided_to_recover"]
    seen = {d.detector: d for d in run.detections}
    assert {"process_watch", "health_probe", "canary"} <= set(seen)
    assert set(CATALOGUE[name].expected) & {d for d, found in seen.items() if found.detected}
    assert all(found.expected == (d in CATALOGUE[name].expected) for d, found in seen.items())


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NEED_NO_GPU
        if Recovery.WARM_CACHE in CATALOGUE[name].recoveries and not name.startswith("snapshot")
    ],
)
def test_faults_of_a_worker_need_no_namespaces(context: FaultContext, name: str) -> None:
    run = experiment_with(CATALOGUE[name], change(context, support=HOST), Recovery.WARM_CACHE)
    assert run.verdict is Verdict.PASS, (run.reason_code, run.detail)


@EACH_FAULT
def test_a_control_arm_sees_nothing_and_changes_nothing(context: FaultContext, name: str) -> None:
    run = control_of(CATALOGUE[name], context)
    assert run.verdict is Verdict.PASS, (run.reason_code, run.detail, run.events)
    assert run.control
    assert run.recovery is None
    assert run.effect is None
    assert run.oracle.verdict is OracleVerdict.EQUAL
    assert run.detections
    assert not any(found.detected or found.expected for found in run.detections)
    assert (run.time_to_detect_s, run.time_to_recover_s, run.recovery_s) == (None, None, None)


def test_the_memory_fault_is_seen_by_the_kernel(context: FaultContext) -> None:
    run = experiment_with(CATALOGUE["memory_exhausted"], context)
    found = {d.detector: d for d in run.detections}
    assert found["cgroup_events"].detected
    assert run.effect is not None
    assert "1 kills" in run.effect.detail
    assert run.parameters["cgroup_version"] in (1, 2)
    # It is the worker that was killed, and not the helper that ate the memory.
    assert found["process_watch"].detected


def test_a_worker_that_hangs_has_not_ended(context: FaultContext) -> None:
    run = experiment_with(CATALOGUE["worker_hung"], context)
    found = {d.detector: d for d in run.detections}
    assert not found["process_watch"].detected  # that the recovery ended it does not count
    assert found["health_probe"].detected
    assert found["canary"].detected


# Not injected.


@EACH_FAULT
def test_an_injection_that_silently_does_nothing_is_not_injected(
    context: FaultContext, name: str
) -> None:
    fault = Planted(CATALOGUE[name], instead("inject", lambda: None))
    run = experiment_with(fault, context)
    assert run.verdict is Verdict.NOT_INJECTED, (run.reason_code, run.detail)
    assert run.reason_code == FaultReason.EFFECT_NOT_PROVED
    assert run.effect is not None
    assert not run.effect.proved
    assert run.rollback is not None
    assert run.rollback.proved
    assert run.oracle.verdict is OracleVerdict.EQUAL
    assert run.time_to_recover_s is None


def test_a_worker_of_which_a_part_goes_on_is_not_hung(context: FaultContext) -> None:
    def plant(injection: Injection) -> None:
        instead("inject", lambda: injection.target.running.process.send(signal.SIGSTOP))(injection)

    fault = Planted(CATALOGUE["worker_hung"], plant)
    run = experiment_with(fault, change(context, worker=HeavyWorker(("child",))))
    assert (run.verdict, run.reason_code) == (Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED)
    assert "states" in run.detail


def test_a_worker_that_still_answers_is_not_hung(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "completes", lambda target, timeout_s: True)
    run = experiment_with(CATALOGUE["worker_hung"], context)
    assert (run.verdict, run.reason_code) == (Verdict.NOT_INJECTED, FaultReason.EFFECT_NOT_PROVED)
    assert "an answer" in run.detail


def test_an_injection_that_fails_is_not_injected(context: FaultContext) -> None:
    def fail() -> None:
        raise PermissionError("not allowed")

    run = experiment_with(Planted(CATALOGUE["worker_killed"], instead("inject", fail)), context)
    assert (run.verdict, run.reason_code) == (Verdict.NOT_INJECTED, FaultReason.INJECTION_FAILED)
    assert "not allowed" in run.detail


# Rollback failed.


@EACH_FAULT
def test_a_fault_that_stays_in_place_is_a_failed_rollback(context: FaultContext, name: str) -> None:
    """Aborted in the middle of the fault, with a rollback that does nothing."""
    abort = threading.Event()
    worker = HeavyWorker(
        ("child",), weights=contract_weights()
    )  # a child outlives the root that is killed

    def plant(injection: Injection) -> None:
        instead("roll_back", lambda: None)(injection)
        after("prove_effect", abort.set)(injection)

    run = experiment_with(
        Planted(CATALOGUE[name], plant), change(context, worker=worker, abort=abort)
    )
    assert run.verdict is Verdict.ROLLBACK_FAILED, (run.reason_code, run.detail)
    assert run.rollback is not None
    assert not run.rollback.proved


def test_a_rollback_that_raises_and_undoes_nothing_is_a_failed_rollback(
    context: FaultContext,
) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    fault = Planted(CATALOGUE["snapshot_image_corrupted_truncation"], instead("roll_back", fail))
    run = experiment_with(fault, context)
    assert run.verdict is Verdict.ROLLBACK_FAILED
    assert run.rollback is not None
    assert "the disk is gone" in run.rollback.detail


def test_a_worker_that_does_not_end_is_a_failed_rollback(context: FaultContext) -> None:
    def plant(injection: Injection) -> None:
        def attach(target: Target) -> None:
            KillInjection.attach(cast("KillInjection", injection), target)
            stop = target.running.stop

            def stop_and_complain() -> None:
                stop()
                raise DeadlineError("Processes below 4711 did not end within 10 s.")

            target.running.stop = stop_and_complain  # type: ignore[method-assign]

        instead("attach", attach)(injection)

    run = control_of(Planted(CATALOGUE["worker_killed"], plant), context)
    assert run.verdict is Verdict.ROLLBACK_FAILED
    assert "did not end" in run.detail


def test_a_damaged_original_is_a_failed_rollback(context: FaultContext, source: Sources) -> None:
    _, _, snapshot = source
    path = (
        snapshot.folder / snapshot_image.choose_files(snapshot, snapshot_image.Damage.BIT_FLIP)[0]
    )
    content = path.read_bytes()
    fault = CATALOGUE["snapshot_image_corrupted_missing_file"]
    try:
        spoil = after("roll_back", lambda: os.truncate(path, len(content) - 1))
        run = experiment_with(Planted(fault, spoil), context)
    finally:
        path.write_bytes(content)
    assert run.verdict is Verdict.ROLLBACK_FAILED
    assert run.rollback is not None
    assert "the original is damaged" in run.rollback.detail


# Aborted.


@EACH_FAULT
def test_an_operator_can_abort_in_the_middle_of_a_fault(context: FaultContext, name: str) -> None:
    abort = threading.Event()
    fault = Planted(CATALOGUE[name], after("prove_effect", abort.set))
    run = experiment_with(fault, change(context, abort=abort))
    assert (run.verdict, run.reason_code) == (Verdict.ABORTED, FaultReason.OPERATOR_ABORT)
    assert run.effect is not None
    assert run.effect.proved
    assert run.rollback is not None
    assert run.rollback.proved


def test_a_guard_that_objects_keeps_the_fault_away(context: FaultContext) -> None:
    fault = Planted(CATALOGUE["worker_killed"], extra_guards=(FreeMemory(2**60),))
    run = experiment_with(fault, context)
    assert (run.verdict, run.reason_code) == (Verdict.ABORTED, FaultReason.GUARD_REFUSED)
    assert "free_memory" in run.detail
    assert run.effect is None
    assert all(event.at_s <= 0 for event in run.events)


def test_a_guard_that_cannot_be_looked_at_objects(context: FaultContext, tmp_path: Path) -> None:
    guard = FreeDisk(tmp_path / "gone", 1)
    run = experiment_with(Planted(CATALOGUE["worker_killed"], extra_guards=(guard,)), context)
    assert (run.verdict, run.reason_code) == (Verdict.ABORTED, FaultReason.GUARD_REFUSED)
    assert "free_disk: it can't be looked at" in run.detail


def test_a_worker_of_somebody_else_is_not_hit(context: FaultContext) -> None:
    def plant(injection: Injection) -> None:
        def attach(target: Target) -> None:
            target.members = (psutil.Process(1),)
            KillInjection.attach(cast("KillInjection", injection), target)

        instead("attach", attach)(injection)

    run = experiment_with(Planted(CATALOGUE["worker_killed"], plant), context)
    assert (run.verdict, run.reason_code) == (Verdict.ABORTED, FaultReason.GUARD_REFUSED)
    assert "was not started by this process" in run.detail


def test_an_experiment_ends_at_its_deadline(context: FaultContext) -> None:
    fault = Planted(
        CATALOGUE["worker_killed"],
        after("prove_effect", lambda: time.sleep(8)),
    )
    run = experiment_with(fault, change(context, deadline_s=7.0))
    assert (run.verdict, run.reason_code) == (Verdict.ABORTED, FaultReason.DEADLINE)
    assert run.rollback is not None
    assert run.rollback.proved


def test_an_interrupt_rolls_back_and_goes_on_its_way(context: FaultContext) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    undone: list[bool] = []

    def plant(injection: Injection) -> None:
        after("prove_effect", interrupt)(injection)
        after("roll_back", lambda: undone.append(True))(injection)

    with pytest.raises(KeyboardInterrupt):
        experiment_with(Planted(CATALOGUE["memory_exhausted"], plant), context)
    assert undone == [True]


# Not applicable and inconclusive.


@pytest.mark.parametrize("name", NEED_GPU)
def test_without_a_gpu_its_faults_are_not_applicable(context: FaultContext, name: str) -> None:
    try:
        need_gpu()
    except ObstacleError:
        pass
    else:
        pytest.skip("this machine has a GPU: tests/gpu runs them")
    fault = CATALOGUE[name]
    for run in (experiment_with(fault, context), control_of(fault, context)):
        assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, FaultReason.NO_GPU)
        assert "no NVIDIA driver" in run.detail


def test_without_criu_a_recovery_by_restore_is_not_applicable(context: FaultContext) -> None:
    run = experiment_with(
        CATALOGUE["worker_killed"], change(context, engine=None, no_engine_why="no CRIU here"),
        Recovery.RESTORE,
    )  # fmt: skip
    assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, "no_criu")
    assert run.detail == "no CRIU here"


def test_without_a_memory_cgroup_the_memory_fault_is_not_applicable(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> None:
        raise UnsupportedError("no memory controller")

    monkeypatch.setattr(memory, "find_place", nowhere)
    run = experiment_with(CATALOGUE["memory_exhausted"], context)
    assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, FaultReason.NO_MEMORY_CGROUP)
    assert "no memory controller" in run.detail


@pytest.mark.parametrize("name", ["address_space_exhausted", "file_descriptors_exhausted"])
def test_without_resource_limits_their_faults_are_not_applicable(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = resource.prlimit

    def refuse(pid: int, kind: int, *limits: Any) -> Any:
        if limits:
            raise PermissionError(1, "Operation not permitted")
        return real(pid, kind)

    monkeypatch.setattr(resource, "prlimit", refuse)
    run = experiment_with(CATALOGUE[name], context)
    assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, FaultReason.NO_RESOURCE_LIMIT)


def test_a_store_that_can_not_be_mounted_is_not_applicable(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = context.scratch.parent / "tools"  # no `mount` among them
    tools.mkdir()
    for name in ("sh", "cat", "mountpoint", "umount", "rmdir"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    fault = CATALOGUE["snapshot_store_out_of_bytes"]
    with pytest.raises(ObstacleError) as obstacle:
        fault.prepare(context)
    assert obstacle.value.code == FaultReason.NO_MOUNT
    assert list(context.scratch.iterdir()) == []


@pytest.mark.parametrize("name", [n for n in CATALOGUE if needed_by(n)])
def test_without_torch_faults_of_a_training_job_are_not_applicable(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(collectives, "unavailable", lambda: "PyTorch is not installed here")
    run = experiment_with(CATALOGUE[name], context)
    assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, FaultReason.NO_TORCH)
    assert "not installed" in run.detail


@NEEDS_TORCH
def test_without_namespaces_a_link_can_not_be_cut(context: FaultContext) -> None:
    run = experiment_with(CATALOGUE["rank_link_cut"], change(context, support=HOST))
    assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, FaultReason.NO_NAMESPACES)


@NEEDS_TORCH
@pytest.mark.parametrize("name", ["rank_killed", "rank_hung", "rank_slow"])
def test_faults_of_ranks_on_one_node_need_no_namespaces(context: FaultContext, name: str) -> None:
    run = experiment_with(CATALOGUE[name], change(context, support=HOST))
    assert run.verdict is Verdict.PASS, (run.reason_code, run.detail)
    assert run.parameters["transport"] == "gloo over TCP, on the CPU"


@NEEDS_TORCH
def test_the_steps_that_were_lost_are_counted(context: FaultContext) -> None:
    run = experiment_with(CATALOGUE["rank_killed"], context)
    found = run.parameters
    assert found["resumed_from_step"] % found["checkpoint_every"] == 0
    assert 0 <= found["steps_lost"] < 2 * found["checkpoint_every"]
    assert found["lost_at_step"] == found["resumed_from_step"] + found["steps_lost"]
    assert found["states_compared"] == found["steps_lost"] + 1  # the checkpoint's own too


@NEEDS_TORCH
def test_a_job_that_comes_back_with_another_state_is_a_failure(context: FaultContext) -> None:
    def plant(injection: Injection) -> None:
        # The job that comes back begins from the checkpoint and learns from other data.
        assert isinstance(injection, JobInjection)
        injection.plan = dataclasses.replace(injection.plan, seed=injection.plan.seed + 1)
        kill, job, every = injection.inject, injection.job, injection.plan.checkpoint_every

        def kill_in_between() -> None:
            wait_until(lambda: job.last_step() % every == every // 2, 10, "Half way", 0.005)
            kill()

        instead("inject", kill_in_between)(injection)

    run = experiment_with(Planted(CATALOGUE["rank_killed"], plant), context)
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.WRONG_ANSWER)
    assert run.time_to_recover_s is None


@NEEDS_TORCH
@pytest.mark.parametrize(
    ("name", "at_load"),
    [
        ("checkpoint_corrupted_tensor_bit_flip", "wrong_state"),
        ("checkpoint_corrupted_metadata_bit_flip", "refused"),
        ("checkpoint_corrupted_zeroed_page", "wrong_state"),
        ("checkpoint_corrupted_truncation", "refused"),
        ("checkpoint_corrupted_missing_shard", "refused"),
        ("checkpoint_corrupted_swapped_shards", "wrong_state"),
        ("checkpoint_corrupted_stale_shard", "wrong_state"),
        ("checkpoint_corrupted_stale_metadata", "same_state"),
        ("checkpoint_save_killed_at_10_percent", "refused"),
        ("checkpoint_save_killed_at_50_percent", "refused"),
        ("checkpoint_save_killed_at_90_percent", "refused"),
        ("checkpoint_save_killed_after_metadata", "same_state"),
    ],
)
def test_what_a_load_without_hashes_does_is_recorded_and_the_job_falls_back(
    context: FaultContext, name: str, at_load: str
) -> None:
    """torch's distributed checkpoint has no checksum: damaged tensors load without a word."""
    run = experiment_with(CATALOGUE[name], context)
    assert run.verdict is Verdict.PASS, (run.reason_code, run.detail, run.events)
    found = run.parameters
    assert found["at_load"] == at_load, found["at_load_detail"]
    assert found["lost_at_step"] == found["resumed_from_step"] + found["steps_lost"]
    if name.startswith("checkpoint_corrupted"):
        # The newest of two was damaged: the job falls back to the one before.
        assert (found["resumed_from_step"], found["steps_lost"]) == (10, 15)
        assert found["states_compared"] == 16
    else:
        assert found["steps_lost"] == found["checkpoint_every"]


@pytest.mark.parametrize("exhausted", ["bytes", "inodes"])
def test_a_full_store_needs_criu_and_namespaces(context: FaultContext, exhausted: str) -> None:
    fault = CATALOGUE[f"snapshot_store_out_of_{exhausted}"]
    run = experiment_with(fault, change(context, engine=None, no_engine_why="none here"))
    assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, "no_criu")
    run = experiment_with(fault, change(context, support=HOST))
    assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, "no_namespaces")


def test_a_snapshot_that_does_harm_in_a_full_store_is_a_failure(context: FaultContext) -> None:
    def forget(injection: Injection) -> None:
        # The store's own file system has room all the time: the snapshot succeeds.
        injection._engine = context.engine  # type: ignore[attr-defined]

    run = experiment_with(Planted(CATALOGUE["snapshot_store_out_of_bytes"], forget), context)
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.EXPECTATION_BROKEN)
    assert context.engine is not None
    newest = max(context.engine.store.all(), key=lambda found: found.manifest.created_at)
    context.engine.store.remove(newest.manifest.snapshot_id)


@pytest.mark.parametrize(
    ("damage", "at_load"),
    [
        ("header_bit_flip", "refused"),
        ("tensor_bit_flip", "wrong_answer"),
        ("zeroed_page", "wrong_answer"),
        ("truncation", "refused"),
        ("missing_file", "refused"),
    ],
)
def test_what_damaged_weights_do_at_load_is_recorded(
    context: FaultContext, damage: str, at_load: str
) -> None:
    """An engine without checksums, as safetensors has none, serves from damaged tensors."""
    run = experiment_with(CATALOGUE[f"weights_corrupted_{damage}"], context)
    assert run.verdict is Verdict.PASS, (run.reason_code, run.detail)
    assert run.parameters["at_load"] == at_load
    assert [seen.detector for seen in run.detections if seen.expected and seen.detected] == [
        "weights_verifier"
    ]


def test_a_worker_without_weights_can_not_have_them_damaged(context: FaultContext) -> None:
    run = experiment_with(
        CATALOGUE["weights_corrupted_truncation"], change(context, worker=HeavyWorker())
    )
    assert (run.verdict, run.reason_code) == (Verdict.NOT_APPLICABLE, FaultReason.NO_WEIGHTS)


@pytest.mark.parametrize("name", ["worker_killed", "snapshot_image_corrupted_bit_flip"])
def test_a_snapshot_that_could_not_be_taken_leaves_it_open(
    context: FaultContext, name: str
) -> None:
    run = experiment_with(
        CATALOGUE[name], change(context, snapshot=None, no_snapshot_why="the dump failed"),
        Recovery.RESTORE,
    )  # fmt: skip
    assert (run.verdict, run.reason_code) == (Verdict.INCONCLUSIVE, FaultReason.NO_SNAPSHOT)
    assert run.detail == "the dump failed"


def test_without_a_steady_state_nothing_is_injected(context: FaultContext) -> None:
    worker = HeavyWorker(("random_memory",))  # answers otherwise than the oracle
    run = experiment_with(CATALOGUE["worker_killed"], change(context, worker=worker))
    assert run.verdict is Verdict.INCONCLUSIVE
    assert run.reason_code == FaultReason.STEADY_STATE_NOT_REACHED
    assert "injected" not in names(run)
    assert run.oracle.verdict is OracleVerdict.DIFFERENT


def test_a_worker_that_does_not_start_leaves_it_open_and_its_output_is_kept(
    context: FaultContext,
) -> None:
    worker = HeavyWorker(("exits",))
    run = experiment_with(CATALOGUE["worker_killed"], change(context, worker=worker))
    assert (run.verdict, run.reason_code) == (
        Verdict.INCONCLUSIVE, FaultReason.PREPARATION_FAILED
    )  # fmt: skip
    (log,) = context.evidence.iterdir()
    assert "ends at once" in log.read_text()


class FailingDetector(Detector):
    name = "failing"

    def _watch(self) -> None:
        raise RuntimeError("the detector is broken")


class AlarmingDetector(Detector):
    """Raises one alarm when it starts, then sees nothing."""

    name = "alarming"

    @property
    def alarmed(self) -> bool:
        return False

    def _watch(self) -> None:
        self._alarms.append(Alarm(time.monotonic_ns(), "a shadow"))


def test_a_detector_that_failed_leaves_it_open(context: FaultContext) -> None:
    fault = Planted(
        CATALOGUE["worker_killed"],
        instead("detectors", lambda: (FailingDetector(),)),
        expected_instead={"failing": 0.2},
    )
    run = experiment_with(fault, context)
    assert (run.verdict, run.reason_code) == (Verdict.INCONCLUSIVE, FaultReason.DETECTOR_FAILED)
    assert "failing" not in [d.detector for d in run.detections]
    assert "detector_failed" in names(run)


def test_without_an_expected_detector_it_stays_open(context: FaultContext) -> None:
    fault = Planted(CATALOGUE["worker_killed"], expected_instead={"not_here": 0.2})
    run = experiment_with(fault, context)
    assert (run.verdict, run.reason_code) == (
        Verdict.INCONCLUSIVE, FaultReason.NO_EXPECTED_DETECTOR
    )  # fmt: skip


def test_an_effect_that_could_not_be_read_leaves_it_open(context: FaultContext) -> None:
    def fail() -> Proof:
        raise OSError("/proc is not mounted")

    run = experiment_with(
        Planted(CATALOGUE["worker_killed"], instead("prove_effect", fail)), context
    )
    assert (run.verdict, run.reason_code) == (Verdict.INCONCLUSIVE, FaultReason.EFFECT_UNKNOWN)
    assert run.rollback is not None
    assert run.rollback.proved


# Fails.


def test_a_fault_that_nobody_sees_is_a_failure(context: FaultContext) -> None:
    fault = Planted(CATALOGUE["worker_hung"], expected_instead={"process_watch": 0.3})
    run = experiment_with(fault, context, Recovery.RESUME)
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.NOT_DETECTED)
    assert run.time_to_detect_s is None
    assert run.time_to_recover_s is None
    assert run.recovery_s is not None


def test_a_fault_that_is_seen_too_late_is_a_failure(context: FaultContext) -> None:
    fault = Planted(
        CATALOGUE["worker_hung"], expected_instead={"health_probe": 0.1, "process_watch": 3.0}
    )
    run = experiment_with(fault, context)
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.DETECTED_LATE)


def test_an_alarm_before_the_injection_is_recorded_and_is_no_detection(
    context: FaultContext,
) -> None:
    fault = Planted(
        CATALOGUE["worker_killed"],
        instead("detectors", lambda: (AlarmingDetector(),)),
        expected_instead={"alarming": 0.3},
    )
    run = experiment_with(fault, context)
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.NOT_DETECTED)
    assert "false_alarm" in names(run)
    found = {d.detector: d for d in run.detections}["alarming"]
    assert not found.detected
    assert "a shadow" in found.detail


def test_a_false_alarm_fails_the_control_arm(context: FaultContext) -> None:
    fault = Planted(CATALOGUE["worker_killed"], instead("detectors", lambda: (AlarmingDetector(),)))
    run = control_of(fault, context)
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.FALSE_ALARM)
    assert "alarming" in run.detail


def test_a_recovery_that_fails_is_a_failure(context: FaultContext) -> None:
    # The target is well; the worker that replaces it ends at once.
    run = experiment_with(
        Planted(CATALOGUE["worker_killed"], started_as(HeavyWorker())),
        change(context, worker=HeavyWorker(("exits",))),
        Recovery.WARM_CACHE,
    )
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, "worker_failed")
    assert run.oracle.verdict is OracleVerdict.NOT_CHECKED
    assert run.rollback is not None
    assert run.rollback.proved


def test_a_wrong_answer_after_the_recovery_is_a_failure(context: FaultContext) -> None:
    run = experiment_with(
        Planted(CATALOGUE["worker_killed"], started_as(HeavyWorker())),
        change(context, worker=HeavyWorker(("random_memory",))),
        Recovery.WARM_CACHE,
    )
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.WRONG_ANSWER)
    assert run.time_to_recover_s is None


def test_an_answer_that_only_begins_right_is_no_recovery(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_right(running: object, *args: Any, **options: Any) -> Oracle:
        asked.append(running)
        equal = OracleVerdict.EQUAL if len(asked) == 1 else OracleVerdict.DIFFERENT
        return Oracle(verdict=equal, detail="token 7 differs")

    asked: list[object] = []
    monkeypatch.setattr(experiment, "check_answer", first_right)
    run = experiment_with(CATALOGUE["worker_killed"], context, Recovery.WARM_CACHE)
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.WRONG_ANSWER)
    assert run.detail == "token 7 differs"
    assert (run.time_to_recover_s, run.recovery_s) == (None, None)
    assert run.time_to_detect_s is not None


def test_a_restore_from_a_damaged_image_that_is_not_refused_is_a_failure(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RunningWorker] = []

    def careless(*args: Any, **options: Any) -> Any:
        running = launch(HeavyWorker(), HostSpace(), context.warm_cache)
        started.append(running)
        return dataclasses.make_dataclass("Started", ["running"])(running)

    monkeypatch.setattr(snapshot_image, "restore_worker", careless)
    run = experiment_with(CATALOGUE["snapshot_image_corrupted_bit_flip"], context)
    assert (run.verdict, run.reason_code) == (Verdict.FAIL, FaultReason.EXPECTATION_BROKEN)
    assert run.parameters["at_load"] == "restored"
    assert len(started) == 1


# A whole run.


def bench_of(context: FaultContext, engine: SnapshotEngine) -> BenchmarkContext:
    return BenchmarkContext(
        worker=context.worker, stack=engine.host.stack, support=context.support,
        device=engine.device, engine=engine, no_engine_why="",
        warm_cache=context.warm_cache, evidence=context.evidence, scratch=context.scratch,
        telemetry=context.telemetry,
    )  # fmt: skip


def test_a_run_makes_every_experiment_of_its_plan(context: FaultContext, source: Sources) -> None:
    engine, _, _ = source
    bench = bench_of(context, engine)
    prepared = prepare_source(bench, snapshot=True)
    told: list[tuple[str, int, int]] = []
    plan = FaultPlan(faults=("worker_killed",))
    runs = run_faults(plan, bench, prepared, lambda *step: told.append(step))
    assert [run.verdict for run in runs] == [Verdict.PASS] * 4
    assert len({run.measurement_id for run in runs}) == 4
    assert [(done, total) for _, done, total in told] == [(n, 4) for n in range(5)]
    samples = bench.telemetry.frame()
    assert set(samples["subject"].unique()) == {run.measurement_id for run in runs}


def test_what_is_left_of_an_aborted_run_is_recorded_as_aborted(
    context: FaultContext, source: Sources
) -> None:
    engine, answer, snapshot = source
    bench = bench_of(context, engine)
    prepared = Source(answer, 1.0, [], snapshot)
    abort = threading.Event()
    abort.set()
    runs = run_faults(FaultPlan(repeats=2), bench, prepared, lambda *step: None, abort=abort)
    assert len(runs) == len(FaultPlan(repeats=2).schedule())
    assert {run.reason_code for run in runs} == {FaultReason.OPERATOR_ABORT}
    assert len({run.measurement_id for run in runs}) == len(runs)


def test_a_stopped_worker_goes_on_after_the_rollback(
    context: FaultContext, support: SpaceSupport
) -> None:
    """The proof of the rollback says 'stopped' as long as it is."""
    before = set(children())
    with launch(HeavyWorker(("child",)), open_space(support), context.warm_cache) as running:
        running.wait_ready()
        injection = StopInjection(context)
        injection.attach(Target(running))
        injection.inject()
        assert injection.prove_effect().proved
        assert not injection.prove_rollback().proved
        injection.roll_back()
        assert injection.prove_rollback().proved
        assert running.client.healthy(5)
    assert set(children()) == before
