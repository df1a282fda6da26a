"""The start-up benchmark with Dynamo Snapshot: cold starts and restores of a worker in pods.

What belongs here: the order of starts, and turning them into records. What does not: one start
(`engine`), and the arms of a worker on this machine (`startup.benchmark`).

The pods are what is measured, so this runs where the launcher runs, and not as a job in a pod. Its
starts include the making of a pod. They are variants of the arms that they belong to, `pod` and
`dynamo_snapshot`, and its stack names the engine: nobody takes them for starts of a process.

The first cold start is the source. Its answer is the oracle's, its capture ends it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from resilience_pipelines.errors import ResilienceError, Stopped
from resilience_pipelines.launchers.dynamo_snapshot.cluster import node_facts
from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    ENGINE,
    DynamoError,
)
from resilience_pipelines.launchers.dynamo_snapshot.engine import (
    Begun,
    Captured,
    DynamoEngine,
    split,
)
from resilience_pipelines.launchers.dynamo_snapshot.manifests import Marks, Shape
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings, image_digest
from resilience_pipelines.records import (
    Arm,
    OracleVerdict,
    Outcome,
    SnapshotMeasurement,
    StartupMeasurement,
)
from resilience_pipelines.snapshots.reasons import SnapshotReason
from resilience_pipelines.stack import Stack
from resilience_pipelines.startup.benchmark import (
    Progress,
    StartupPlan,
    measure_throughput,
    reason_of,
)
from resilience_pipelines.stopwatch import Stopwatch
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.oracle import (
    NOT_CHECKED,
    RecordedAnswer,
    check_answer,
    record_answer,
)
from resilience_pipelines.workers.pod import PodPlace

VARIANTS: Final = {Arm.COLD: "pod", Arm.RESTORE: "dynamo_snapshot"}
"""The arms that there are in pods, and what sets them apart."""
_OTHER_ARMS: Final = (
    "Measured of a worker on a machine; in pods there are cold starts and restores."
)


@dataclass(frozen=True)
class DynamoResult:
    """All measurements of a run, and the stack that they belong to."""

    startups: tuple[StartupMeasurement, ...]
    snapshots: tuple[SnapshotMeasurement, ...]
    unsupported: dict[str, str]
    stack: Stack


@dataclass
class _Source:
    answer: RecordedAnswer
    throughput_tokens_per_s: float
    snapshot: Captured | None = None


@dataclass
class _Run:
    """The measurements of one run, in their order."""

    plan: StartupPlan
    engine: DynamoEngine
    worker: Worker
    startups: list[StartupMeasurement] = field(default_factory=list)
    snapshots: list[SnapshotMeasurement] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    engine_version: str | None = None
    source: _Source | None = None
    obstacle: DynamoError | None = None
    _source_name: str | None = None

    def measure(self, repeat: int, arm: Arm) -> None:
        """One start of the schedule."""
        if arm is Arm.COLD:
            self._cold(repeat)
        else:
            self._restore(repeat)

    def start_source(self, *, record: bool) -> None:
        """The first cold start, whose answer counts; and its snapshot, if restores are asked for.

        Raises:
            ResilienceError: it does not serve: then nothing can be measured.
        """
        captured = Arm.RESTORE in self.plan.arms and self.obstacle is None
        draft = self._draft(Arm.COLD, 0)
        name = _name()
        begun = self.engine.start_cold(name, str(draft["measurement_id"]), captured=captured)
        try:
            self._note(begun)
            self.engine_version = begun.running.client.version()
            answer = record_answer(begun.running.client, timeout_s=self.worker.request_deadline_s)
            throughput = measure_throughput(begun.running, answer)
            self.source = _Source(answer, throughput)
            if record:
                self._check(draft, begun, self.source)
            if captured:
                self._capture(begun, self.source)
        finally:
            if self.source is None or self.source.snapshot is None:
                self.engine.close()
                self.engine.remove(name)
            else:
                self._source_name = name

    def close(self) -> None:
        """Remove the snapshot, and then its source, which owns it."""
        self.engine.close()
        if self._source_name is not None:
            self.engine.remove(self._source_name)

    def _capture(self, begun: Begun, source: _Source) -> None:
        level = self.worker.snapshot_sleep_level
        watch = Stopwatch()
        facts: dict[str, object] = {
            "measurement_id": "snapshot-0", "started_at": datetime.now(UTC), "engine": ENGINE,
            "sleep_level": level,
        }  # fmt: skip
        try:
            snapshot = self.engine.capture(begun.running, level, watch)
        except DynamoError as error:
            facts |= {
                "outcome": Outcome.FAILED, "reason_code": error.code.value,
                "detail": error.reason[:4000], "phases": watch.phases,
            }  # fmt: skip
        else:
            source.snapshot = snapshot
            total_s = watch.elapsed_s()
            phases, notices = watch.phases, list(snapshot.notices)
            if snapshot.timing is not None:
                phases, more = split(phases, "capture", snapshot.timing)
                notices += more
            explained_s = sum(item.duration_s for item in phases)
            facts |= {
                "outcome": Outcome.OK, "snapshot_id": snapshot.name, "total_s": total_s,
                "phases": phases, "unaccounted_s": max(0.0, total_s - explained_s),
                "detail": " ".join(["Its capture ended the source.", *notices])[:4000],
            }  # fmt: skip
        self.snapshots.append(SnapshotMeasurement.model_validate(facts))

    def _cold(self, repeat: int) -> None:
        assert self.source is not None
        source, draft, name = self.source, self._draft(Arm.COLD, repeat), _name()
        self._start(
            draft, name, source,
            lambda: self.engine.start_cold(name, str(draft["measurement_id"])),
        )  # fmt: skip

    def _restore(self, repeat: int) -> None:
        assert self.source is not None
        source, draft, name = self.source, self._draft(Arm.RESTORE, repeat), _name()
        snapshot = source.snapshot
        if snapshot is None:
            self._without_snapshot(draft)
            return
        draft["snapshot_id"] = snapshot.name
        draft["throughput_before_tokens_per_s"] = source.throughput_tokens_per_s
        self._start(
            draft, name, source,
            lambda: self.engine.restore(
                snapshot, name, str(draft["measurement_id"]), source.answer
            ),
        )  # fmt: skip

    def _without_snapshot(self, draft: dict[str, object]) -> None:
        if self.obstacle is not None:
            self._append(
                draft, outcome=Outcome.UNSUPPORTED, reason_code=self.obstacle.code.value,
                detail=str(self.obstacle)[:4000], oracle=NOT_CHECKED,
            )  # fmt: skip
            return
        failure = self.snapshots[-1]
        self._append(
            draft, outcome=Outcome.FAILED, reason_code=failure.reason_code,
            detail=f"No snapshot: {failure.detail}"[:4000], oracle=NOT_CHECKED,
        )  # fmt: skip

    def _start(
        self, draft: dict[str, object], name: str, source: _Source, start: Callable[[], Begun]
    ) -> None:
        try:
            begun = start()
        except ResilienceError as error:
            self._fail(draft, error)
            return
        try:
            self._note(begun)
            self._check(draft, begun, source)
        finally:
            self.engine.remove(name)

    def _check(self, draft: dict[str, object], begun: Begun, source: _Source) -> None:
        """The whole oracle and the throughput, after the start was timed."""
        worker = self.worker
        try:
            oracle = check_answer(
                begun.running.client, source.answer,
                tolerance=worker.logprob_tolerance, timeout_s=worker.request_deadline_s,
            )  # fmt: skip
            throughput = measure_throughput(begun.running, source.answer)
        except ResilienceError as error:
            self._fail(draft, error)
            return
        facts: dict[str, object] = {
            "total_s": begun.total_s, "phases": begun.phases,
            "unaccounted_s": begun.unaccounted_s, "oracle": oracle,
        }  # fmt: skip
        if oracle.verdict is not OracleVerdict.EQUAL or begun.right is False:
            self._append(
                draft, outcome=Outcome.FAILED, reason_code=SnapshotReason.WRONG_ANSWER,
                detail=oracle.detail or "the first token differs", **facts,
            )  # fmt: skip
            return
        self._append(
            draft, outcome=Outcome.OK, throughput_tokens_per_s=throughput,
            detail=" ".join(begun.notices)[:4000], **facts,
        )  # fmt: skip

    def _note(self, begun: Begun) -> None:
        if begun.node is not None:
            self.nodes.add(begun.node)

    def _draft(self, arm: Arm, repeat: int) -> dict[str, object]:
        return {
            "measurement_id": f"{arm}-{repeat}", "arm": arm, "variant": VARIANTS[arm],
            "repeat": repeat, "position": len(self.startups), "started_at": datetime.now(UTC),
        }  # fmt: skip

    def _fail(self, draft: dict[str, object], error: ResilienceError) -> None:
        code = error.code.value if isinstance(error, DynamoError) else reason_of(error)
        self._append(
            draft, outcome=Outcome.FAILED, reason_code=code, detail=str(error)[:4000],
            oracle=NOT_CHECKED,
        )  # fmt: skip

    def _append(self, draft: dict[str, object], **facts: object) -> None:
        self.startups.append(StartupMeasurement.model_validate(draft | facts))


def run_dynamo(
    plan: StartupPlan,
    worker: Worker,
    place: PodPlace,
    settings: KubernetesSettings,
    marks: Marks,
    evidence: Path,
    progress: Progress,
) -> DynamoResult:
    """Measure every start of a plan that there is in pods, and leave nothing in the cluster.

    A start that fails is a measurement with its reason; the run goes on. A run that is stopped
    keeps the starts that were finished.

    Raises:
        ResilienceError: the source does not serve, or the API server is lost: then nothing can be
            measured.
        Stopped: before any start was finished.
    """
    shape = Shape(
        marks, settings.dynamo_snapshot.seccomp_profile, round(settings.deadlines.run_s),
        settings.gpu.count, settings.gpu.resource,
    )  # fmt: skip
    engine = DynamoEngine(place, worker, settings.dynamo_snapshot, shape, evidence)
    run = _Run(plan, engine, worker)
    unsupported = {arm.value: _OTHER_ARMS for arm in plan.arms if arm not in VARIANTS}
    schedule = [step for step in plan.schedule() if step[1] in VARIANTS]
    if (0, Arm.COLD) in schedule:
        schedule.remove((0, Arm.COLD))
    total = len(schedule) + 1
    try:
        if Arm.RESTORE in plan.arms:
            run.obstacle = engine.obstacle()
            if run.obstacle is not None:
                unsupported[Arm.RESTORE.value] = str(run.obstacle)
        progress("source worker and snapshot", 0, total)
        run.start_source(record=Arm.COLD in plan.arms)
        for done, (repeat, arm) in enumerate(schedule, start=1):
            progress(f"{arm} in a pod, start {repeat + 1}", done, total)
            run.measure(repeat, arm)
        progress("finished", total, total)
    except Stopped:
        if not run.startups:
            raise
        unsupported["rest of the run"] = f"It was stopped after {len(run.startups)} starts."
    finally:
        run.close()
    if engine.left:
        unsupported["removal from the cluster"] = " ".join(engine.left)[:4000]
    return DynamoResult(
        tuple(run.startups), tuple(run.snapshots), unsupported, _stack(run, place, settings)
    )


def _stack(run: _Run, place: PodPlace, settings: KubernetesSettings) -> Stack:
    """What the cluster tells of itself; the rest is not known."""
    facts: dict[str, str | int | None] = {}
    if settings.read_nodes:
        nodes = run.engine.watcher.nodes(settings.gpu.resource)
        facts = node_facts([node for node in nodes if node.name in run.nodes], settings.gpu.count)
    return Stack.model_validate(
        {
            **facts,
            "gpu_count": settings.gpu.count or None,
            "snapshot_engine": ENGINE,
            "kubernetes_version": place.version,
            "engine": run.worker.engine,
            "engine_version": run.engine_version,
            "model": run.worker.model,
            "model_precision": run.worker.model_precision,
            "image_digest": image_digest(settings.image),
        }
    )


def _name() -> str:
    return f"resilience-target-{secrets.token_hex(5)}"
