"""One snapshot and single starts by Dynamo Snapshot, each with deadlines, reasons and phases.

What belongs here: making the objects, following them to their end, and removing them. What does
not: what their status means (`contract`), how often it is done and what is recorded (`benchmark`).

A start ends with its first token, and begins when its Job is asked for. A restore counts as one
only if the agent says that it restored, and no worker was started in the pod: the log of the pod
tells that, whatever the agent says. The agent's own timings, durations without a place, are put at
the end of the time in which the restore was seen, after `agent_wait`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults.cluster import Objects, owned_by_job
from resilience_pipelines.kubernetes_api import ApiError, Json, named, object_of
from resilience_pipelines.launchers.dynamo_snapshot import manifests
from resilience_pipelines.launchers.dynamo_snapshot.cluster import (
    POLL_S,
    Sight,
    Timeline,
    Watcher,
    as_json,
    phase,
)
from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    OWNER_LABEL,
    POD_SNAPSHOT,
    SNAPSHOT_JOB,
    DynamoError,
    DynamoReason,
    Restored,
    Word,
    read_snapshot,
    read_snapshot_job,
)
from resilience_pipelines.launchers.dynamo_snapshot.timing_log import (
    MARK,
    Act,
    AgentTiming,
    parse_log,
)
from resilience_pipelines.launchers.dynamo_snapshot.workload import STARTED_LINE
from resilience_pipelines.launchers.kubernetes.settings import DynamoSnapshotSettings
from resilience_pipelines.records import Phase
from resilience_pipelines.stopwatch import Stopwatch
from resilience_pipelines.workers.base import Worker
from resilience_pipelines.workers.client import WorkerClient, WorkerRequestError
from resilience_pipelines.workers.oracle import RecordedAnswer, first_token_is_right
from resilience_pipelines.workers.pod import PodPlace, PodSpace, in_pod
from resilience_pipelines.workers.process import RunningWorker

AGENT_CLOCK: Final = "dynamo_agent"
AGENT_RESOLUTION_S: Final = 1e-9
"""The agent writes nanoseconds."""
_LOG_LINES: Final = 50


@dataclass(frozen=True)
class Begun:
    """A worker in a pod that gave its first token.

    Attributes:
        total_s: from the decision until that token.
        right: whether it is the oracle's; None where there is none to compare with.
        node: where it runs.
        notices: what is to be said about the phases.
    """

    running: RunningWorker
    total_s: float
    phases: tuple[Phase, ...]
    right: bool | None
    node: str | None
    notices: tuple[str, ...] = ()

    @property
    def unaccounted_s(self) -> float:
        """What the total holds beyond the phases."""
        return max(0.0, self.total_s - sum(item.duration_s for item in self.phases))


@dataclass(frozen=True)
class Captured:
    """A snapshot that can be restored.

    Attributes:
        name: of its PodSnapshot.
        owner: what the Jobs restored from it belong to; None where nothing of ours outlives them.
        timing: what the agent timed, where that could be read.
        notices: what is to be said about that.
    """

    name: str
    owner: Json | None
    timing: AgentTiming | None
    notices: tuple[str, ...]


@dataclass
class _Followed:
    """What a start has seen so far."""

    timeline: Timeline
    sight: Sight | None = None
    uid: str | None = None


@dataclass
class DynamoEngine:
    """Dynamo Snapshot in one namespace of a cluster, for one worker.

    Args:
        evidence: a folder for what the cluster said of each start.

    Attributes:
        left: what could not be removed, and why.
    """

    place: PodPlace
    worker: Worker
    settings: DynamoSnapshotSettings
    shape: manifests.Shape
    evidence: Path
    watcher: Watcher = field(init=False)
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watcher = Watcher(self.place)
        self._snapshots = Objects(self.place, POD_SNAPSHOT)
        self._jobs = Objects(self.place, SNAPSHOT_JOB)
        self._made: list[tuple[Objects, str]] = []

    @property
    def _by_job(self) -> bool:
        return self.settings.capture == "snapshot_job"

    def obstacle(self) -> DynamoError | None:
        """Why the cluster takes no snapshots; None where it does.

        Raises:
            ApiError: the server is lost.
        """
        for objects, kind in ((self._snapshots, POD_SNAPSHOT), (self._jobs, SNAPSHOT_JOB)):
            try:
                objects.list()
            except ApiError as error:
                if error.status == 404:
                    return DynamoError(
                        DynamoReason.NO_DYNAMO_SNAPSHOT,
                        f"Not applicable: the cluster has no kind {kind.plural}.{kind.group}.",
                        mend="Install Dynamo Snapshot's chart.",
                    )
                if error.status in (401, 403):
                    return DynamoError(
                        DynamoReason.CLUSTER_FORBIDS, error.reason,
                        mend="Apply deploy/kubernetes/rbac-dynamo-snapshot.yaml.",
                    )  # fmt: skip
                raise
        return None

    def start_cold(self, name: str, measurement: str, *, captured: bool = False) -> Begun:
        """Start a worker in a new pod.

        Args:
            captured: it is the source of a snapshot.

        Raises:
            DynamoError: it does not serve. Nothing that was made stays.
        """
        running = in_pod(self.worker, self.place, name)
        followed = _Followed(Timeline(time.monotonic_ns()))
        try:
            with self._told(followed, measurement):
                self._make_source(running, captured)
                ready_ns = self._serving(running, followed)
                right_ns = self._first_token(running.client, None, ready_ns)[1]
        except BaseException:
            self.remove(name)
            raise
        return _begun(running, followed, None, right_ns, ready_ns)

    def _make_source(self, running: RunningWorker, captured: bool) -> None:
        space = _space(running)
        job = manifests.source_job(self.worker, space.name, self.place.settings, self.shape)
        if not (captured and self._by_job):
            space.uid = named(self.place.create_job(job), "uid")
            return
        spec = manifests.snapshot_job_spec(job, self.shape.lifetime_s)
        owner = self.place.settings.owner
        metadata = {"labels": self.shape.marks.labels} | (
            {"ownerReferences": [dict(owner)]} if owner is not None else {}
        )
        self._made.append((self._jobs, space.name))
        self._jobs.make(space.name, metadata, spec)

    def capture(self, source: RunningWorker, level: int, watch: Stopwatch) -> Captured:
        """Let a source sleep and take its snapshot, which ends it.

        Raises:
            DynamoError: there is none.
        """
        space = _space(source)
        with _api_errors():
            with watch.phase("sleep"):
                source.client.sleep(
                    level, timeout_s=self.worker.request_deadline_s, for_snapshot=True
                )
            if self._by_job:
                with watch.phase("capture"):
                    word = self._await(
                        self._jobs, space.name, read_snapshot_job, DynamoReason.CAPTURE_FAILED
                    )
                self._made.append((self._snapshots, word.snapshot))
                content = self._content(word.snapshot)
                return self._captured(word.snapshot, None, content, space.name)
            with watch.phase("ready"):
                uid = self._await_ready(space.name)
            with watch.phase("capture"):
                self._made.append((self._snapshots, space.name))
                metadata = {
                    "labels": self.shape.marks.labels, "ownerReferences": [owned_by_job(space)],
                }  # fmt: skip
                self._snapshots.make(space.name, metadata, manifests.snapshot_spec(*uid))
                word = self._await(
                    self._snapshots, space.name, read_snapshot, DynamoReason.CAPTURE_FAILED
                )
            return self._captured(space.name, owned_by_job(space), word.content, space.name)

    def _content(self, snapshot: str) -> str:
        found = self._snapshots.get(snapshot)
        return read_snapshot(found).content if found is not None else ""

    def _await_ready(self, name: str) -> tuple[str, str]:
        """Wait until a source says that it may be captured; returns its pod's name and uid."""
        end = time.monotonic() + self.settings.ready_s
        while True:
            sight = self.watcher.look(name)
            if sight is not None and sight.pod is not None and sight.ready:
                return sight.pod.name, sight.pod.uid
            if sight is not None and (sight.pod is None or sight.ended):
                raise DynamoError(DynamoReason.POD_ENDED, f"The source {name} has ended.")
            if time.monotonic() >= end:
                raise DynamoError(
                    DynamoReason.NOT_READY,
                    f"The pod of {name} did not get ready within {self.settings.ready_s:g} s after "
                    "its worker was quiet.",
                )
            time.sleep(POLL_S)

    def _await(
        self, objects: Objects, name: str, read: Callable[[Json], Word], failed: DynamoReason
    ) -> Word:
        """Follow an object until it says that all is done."""
        end = time.monotonic() + self.settings.capture_s
        last = Word(False, False, "it was not seen yet")
        while True:
            try:
                found = objects.get(name)
                if found is None:
                    raise DynamoError(
                        DynamoReason.SNAPSHOT_DELETED, f"Somebody deleted {name} while it was made."
                    )
                last = read(found)
            except ApiError as error:
                if not error.may_pass:
                    raise
            if last.failed:
                raise DynamoError(failed, f"{name} failed: {last.reason}")
            if last.done:
                return last
            if time.monotonic() >= end:
                raise DynamoError(
                    DynamoReason.CAPTURE_DEADLINE,
                    f"{name} was not done within {self.settings.capture_s:g} s: {last.reason}.",
                    mend="Look at the operator and at the agent of the node, or set "
                    "dynamo_snapshot.capture_s.",
                )
            time.sleep(POLL_S)

    def restore(
        self, snapshot: Captured, name: str, measurement: str, expected: RecordedAnswer
    ) -> Begun:
        """Start a pod that a snapshot is restored into.

        Raises:
            DynamoError: it does not serve, or what serves was not restored. Nothing stays.
        """
        running = in_pod(self.worker, self.place, name)
        followed = _Followed(Timeline(time.monotonic_ns()))
        try:
            with self._told(followed, measurement):
                job = manifests.restore_job(
                    self.worker, name, self.place.settings, self.shape, snapshot.name,
                    snapshot.owner,
                )  # fmt: skip
                _space(running).uid = named(self.place.create_job(job), "uid")
                self._restored(running, followed)
                restored_ns = followed.timeline.at_ns("restore") or time.monotonic_ns()
                right, right_ns = self._first_token(running.client, expected, restored_ns)
                self._refuse_started(name, followed)
        except BaseException:
            self.remove(name)
            raise
        begun = _begun(running, followed, right, right_ns, None)
        return self._with_agent(begun, followed, snapshot, measurement)

    def _serving(self, running: RunningWorker, followed: _Followed) -> int:
        """Wait until a worker answers that it is well; returns CLOCK_MONOTONIC of that."""
        name, limit_s = _space(running).name, self.worker.start_deadline_s
        for left_s in self._watch(name, followed, limit_s):
            if running.client.healthy():
                return time.monotonic_ns()
            if left_s <= 0:
                raise DynamoError(
                    DynamoReason.NO_ANSWER, f"{name} did not answer within {limit_s:g} s.\n"
                    f"{self._log(followed)}",
                )  # fmt: skip
        raise AssertionError("the watch ends with an error")

    def _restored(self, running: RunningWorker, followed: _Followed) -> None:
        """Wait until the agent says that it has restored."""
        name, limit_s = _space(running).name, self.settings.restore_s
        for left_s in self._watch(name, followed, limit_s):
            sight = followed.sight
            assert sight is not None
            if sight.restored is Restored.DONE:
                return
            if sight.restored is Restored.REFUSED:
                raise DynamoError(DynamoReason.RESTORE_REFUSED, sight.restored_words)
            if sight.restored is Restored.FAILED:
                raise DynamoError(DynamoReason.RESTORE_FAILED, sight.restored_words)
            self._refuse_started(name, followed)
            if left_s <= 0:
                if running.client.healthy():
                    raise DynamoError(
                        DynamoReason.COLD_FALLBACK,
                        f"{name} serves, and no agent has said within {limit_s:g} s that it "
                        "restored it.",
                    )
                raise DynamoError(
                    DynamoReason.RESTORE_DEADLINE,
                    f"{name} was not restored within {limit_s:g} s: {sight.restored_words}.",
                    mend="Look at the agent of its node, or set dynamo_snapshot.restore_s.",
                )

    def _refuse_started(self, name: str, followed: _Followed) -> None:
        """Refuse a worker that was started in a pod that one is restored into."""
        if STARTED_LINE in self._log(followed):
            raise DynamoError(
                DynamoReason.COLD_FALLBACK,
                f"A worker was started in the pod of {name}, "
                f"{(time.monotonic_ns() - followed.timeline.started_ns) / 1e9:.1f} s after it was "
                "asked for: this is a cold start and no restore.",
            )

    def _watch(self, name: str, followed: _Followed, limit_s: float) -> Iterator[float]:
        """Look at a pod again and again while its container runs; yields the seconds left.

        Args:
            limit_s: from the start of the container on.

        Raises:
            DynamoError: it ended, was deleted, or did not start in time.
        """
        pending_until = time.monotonic() + self.place.settings.pending_s
        end: float | None = None
        while True:
            sight = self.watcher.look(name)
            now = time.monotonic()
            if sight is not None:
                followed.timeline.note(sight)
                self._refuse_lost(name, sight, followed)
                followed.sight = sight
            if sight is not None and sight.running:
                end = end or now + limit_s
                yield end - now
            elif end is not None and now >= end:
                raise DynamoError(DynamoReason.API, "The API server did not answer in time.")
            elif end is None and now >= pending_until:
                raise DynamoError(
                    DynamoReason.POD_PENDING,
                    f"The container of {name} did not start within "
                    f"{self.place.settings.pending_s:g} s: "
                    f"{sight.waits_for if sight else 'the API server does not answer'}.",
                    mend="Check image, node_selector and tolerations of the Kubernetes settings.",
                )
            time.sleep(POLL_S)

    def _refuse_lost(self, name: str, sight: Sight, followed: _Followed) -> None:
        """Refuse a pod that has ended or is not the one that was there before."""
        pod = sight.pod
        deleted = pod is not None and pod.deleted_at is not None
        if deleted or (followed.uid is not None and (pod is None or pod.uid != followed.uid)):
            raise DynamoError(DynamoReason.POD_DELETED, f"Somebody deleted the pod of {name}.")
        if pod is None:
            return
        followed.uid = pod.uid
        if sight.ended:
            # What the agent says tells more: a restore that fails ends the container.
            if sight.restored in (Restored.FAILED, Restored.REFUSED):
                refused = sight.restored is Restored.REFUSED
                code = DynamoReason.RESTORE_REFUSED if refused else DynamoReason.RESTORE_FAILED
                raise DynamoError(code, sight.restored_words)
            followed.sight = sight
            code_ = pod.container.exit_code if pod.container else None
            raise DynamoError(
                DynamoReason.POD_ENDED,
                f"The container of {name} ended with exit code {code_}.\n{self._log(followed)}",
            )

    def _first_token(
        self, client: WorkerClient, expected: RecordedAnswer | None, since_ns: int
    ) -> tuple[bool | None, int]:
        """The first token, as soon as there is one; with it CLOCK_MONOTONIC of its arrival."""
        limit_s = self.worker.request_deadline_s
        while True:
            try:
                right: bool | None = None
                if expected is None:
                    client.complete("The first token", 1, timeout_s=limit_s)
                else:
                    right = first_token_is_right(client, expected, limit_s)
                return right, time.monotonic_ns()
            except WorkerRequestError as error:
                # A restored worker is woken by the workload around it.
                if time.monotonic_ns() - since_ns > limit_s * 1e9:
                    raise DynamoError(
                        DynamoReason.NO_ANSWER, f"It gave no token within {limit_s:g} s: {error}"
                    ) from error
            time.sleep(POLL_S / 2)

    def _log(self, followed: _Followed) -> str:
        pod = followed.sight.pod if followed.sight else None
        return self.place.log_tail(pod.name, _LOG_LINES) if pod is not None else ""

    def _with_agent(
        self, begun: Begun, followed: _Followed, snapshot: Captured, measurement: str
    ) -> Begun:
        """Put the agent's phases in the place of the one in which it was at work."""
        assert followed.sight is not None
        assert followed.sight.pod is not None
        pod = f"{self.place.settings.namespace}/{followed.sight.pod.name}"
        timing, notices = self._timing(
            begun.node, Act.RESTORE, measurement, pod=pod, snapshot=snapshot.name
        )
        phases: Sequence[Phase] = begun.phases
        if timing is not None:
            phases, more = split(phases, "restore", timing)
            notices += more
        return Begun(
            begun.running, begun.total_s, tuple(phases), begun.right, begun.node, tuple(notices)
        )

    def _captured(self, name: str, owner: Json | None, content: str, source: str) -> Captured:
        sight = self.watcher.look(source)
        node = sight.pod.node if sight is not None and sight.pod is not None else None
        timing, notices = self._timing(node, Act.CHECKPOINT, "snapshot-0", content=content)
        return Captured(name, owner, timing, tuple(notices))

    def _timing(
        self, node: str | None, act: Act, measurement: str, **subject: str
    ) -> tuple[AgentTiming | None, list[str]]:
        """What the agent of a node timed; None, and why, where that can't be told."""
        namespace = self.settings.agent_namespace
        if namespace is None:
            return None, []
        if node is None:
            return None, ["The agent's log was not read: the node is not known."]
        try:
            text = self.watcher.agent_log(namespace, node)
        except ApiError as error:
            return None, [f"The agent's log was not read: {error.reason}"]
        log = parse_log(text)
        timing = log.find(act, **subject)
        kept = [*([timing.line] if timing else []), *log.unread]
        if kept:
            (self.evidence / f"agent-{measurement}.log").write_text("\n".join(kept) + "\n")
        notices = []
        if log.unread:
            notices.append(f"{len(log.unread)} lines of the agent with a {MARK!r} can't be read.")
        if timing is None:
            notices.append(f"The agent of {node} logged no timings of this {act.value}.")
        elif timing.unknown:
            names = ", ".join(timing.unknown)[:500]
            notices.append(f"Phases of the agent that are not known here: {names}.")
        return timing, notices

    @contextmanager
    def _told(self, followed: _Followed, measurement: str) -> Iterator[None]:
        """Keep what the cluster says of a start, however it ends; what it refuses has a reason."""
        try:
            with _api_errors():
                yield
        finally:
            kept = json.dumps(as_json(followed.sight), indent=1, default=str)
            (self.evidence / f"pod-{measurement}.json").write_text(kept)

    def remove(self, name: str) -> None:
        """Remove a start's Job and pod; see `left`."""
        self._attempt(partial(self.place.delete_job, name))

    def close(self) -> None:
        """Remove all snapshots, and their sources' Jobs with them; see `left`."""
        while self._made:
            objects, name = self._made.pop()
            self._remove_object(objects, name)
            if objects is self._jobs:
                # Also of one that failed, whose PodSnapshot nobody told us of.
                self._attempt(partial(self._remove_made_by, name))

    def _remove_made_by(self, job: str) -> None:
        for item in self._snapshots.list():
            if object_of(object_of(item.get("metadata")).get("labels")).get(OWNER_LABEL) == job:
                self._remove_object(self._snapshots, named(item))

    def _remove_object(self, objects: Objects, name: str) -> None:
        self._attempt(partial(objects.remove, name, self.place.settings.gone_s))

    def _attempt(self, act: Callable[[], None]) -> None:
        """Do what must not hide the error that may have led here; what goes wrong is told."""
        try:
            act()
        except ResilienceError as error:
            self.left.append(error.reason)


def split(
    phases: Sequence[Phase], name: str, timing: AgentTiming
) -> tuple[tuple[Phase, ...], list[str]]:
    """Phases with those of the agent in the place of one of them, and what is to be said.

    They are left out where they take longer than what was seen: to stretch it would be a guess.
    """
    whole = next((item for item in phases if item.name == name), None)
    told_s = sum(seconds for _, seconds in timing.phases)
    if whole is None or told_s > whole.duration_s:
        seen_s = whole.duration_s if whole else 0.0
        return tuple(phases), [
            f"The agent's phases take {told_s:.3f} s, and {name} was seen for {seen_s:.3f} s: they "
            "are in the evidence only."
        ]
    begin_s = whole.start_s + whole.duration_s - told_s
    parts = [whole.model_copy(update={"name": "agent_wait", "duration_s": begin_s - whole.start_s})]
    for part, seconds in timing.phases:
        parts.append(
            Phase(
                name=part, start_s=begin_s, duration_s=seconds, clock=AGENT_CLOCK,
                resolution_s=AGENT_RESOLUTION_S,
            )
        )  # fmt: skip
        begin_s += seconds
    found: list[Phase] = []
    for item in phases:
        found += parts if item is whole else [item]
    return tuple(found), []


def _begun(
    running: RunningWorker,
    followed: _Followed,
    right: bool | None,
    token_ns: int,
    ready_ns: int | None,
) -> Begun:
    timeline, sight = followed.timeline, followed.sight
    phases = timeline.phases()
    cursor = timeline.started_ns + round(sum(item.duration_s for item in phases) * 1e9)
    if ready_ns is not None and ready_ns > cursor:
        phases.append(phase("ready_seen", cursor, ready_ns, timeline.started_ns))
        cursor = ready_ns
    phases.append(phase("first_token", cursor, max(cursor, token_ns), timeline.started_ns))
    node = sight.pod.node if sight is not None and sight.pod is not None else None
    total_s = (token_ns - timeline.started_ns) / 1e9
    return Begun(running, total_s, tuple(phases), right, node)


def _space(running: RunningWorker) -> PodSpace:
    assert isinstance(running.space, PodSpace)
    return running.space


@contextmanager
def _api_errors() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        forbidden = error.status in (401, 403)
        code = DynamoReason.CLUSTER_FORBIDS if forbidden else DynamoReason.API
        raise DynamoError(code, error.reason) from error
    except WorkerRequestError as error:
        raise DynamoError(DynamoReason.NO_ANSWER, error.reason) from error
