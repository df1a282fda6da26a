"""The launcher itself: a run on a cluster, from its specification to its landing folder.

What belongs here: the order of things, and which of the cluster's word and the job's own counts.
What does not: how each of them is asked or told (the other modules).

The job's last event comes in a file on the landing volume, as its result does. So a run that has
landed counts as landed, whatever became of its log, its pod or the API server meanwhile.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from resilience_pipelines import strict_json
from resilience_pipelines.errors import ResilienceError, StorageError
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import JobSpec
from resilience_pipelines.kubernetes_api import FAKE_VERSION
from resilience_pipelines.launchers.kubernetes.cleanup import (
    as_notice,
    evidence,
    followed,
    orphans,
    remove,
)
from resilience_pipelines.launchers.kubernetes.client import (
    Cluster,
    connect,
    own_pod,
)
from resilience_pipelines.launchers.kubernetes.failures import (
    ClusterError,
    FailureKind,
    Waited,
    classify,
    is_unreachable,
    pull_is_failing,
)
from resilience_pipelines.launchers.kubernetes.follow import (
    LogFollower,
    LogLine,
    News,
    PodWatch,
)
from resilience_pipelines.launchers.kubernetes.manifest import (
    OUTCOMES,
    ClusterFacts,
    build_job,
    job_name,
)
from resilience_pipelines.launchers.kubernetes.origin import NodeRule, node_rule
from resilience_pipelines.launchers.kubernetes.phases import pod_phases
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings
from resilience_pipelines.launchers.kubernetes.state import Look, PodState
from resilience_pipelines.launchers.launcher import (
    JobError,
    JobResult,
    parse_event,
    tell_progress,
    texts,
)
from resilience_pipelines.launches import LaunchRecord, home_id, is_recorded, write_launch
from resilience_pipelines.records import Basis, new_run_id
from resilience_pipelines.startup.benchmark import Progress
from resilience_pipelines.warehouse.landing import copy_landing, landing_folder

_DRAIN_S: Final = 10.0
_EXCERPT_LINES: Final = 20
_BEYOND_DEADLINE_S: Final = 120.0
"""Beyond activeDeadlineSeconds: a job controller that lives has ended the job by then."""
_ENDED_BY_OTHERS: Final = frozenset(
    {
        FailureKind.POD_DELETED, FailureKind.JOB_DELETED, FailureKind.EVICTED,
        FailureKind.DEADLINE_EXCEEDED,
    }
)  # fmt: skip
"""After these the job was told to end, and may still land what it has."""

Event = dict[str, object]


def run_on_kubernetes(
    spec: JobSpec,
    home: Home,
    progress: Progress,
    settings: KubernetesSettings,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> JobResult:
    """Run a job on a cluster to its end, and leave nothing of it there.

    Args:
        tell: gets what a person should know while the run goes on.

    Raises:
        ClusterError: the cluster did not let it end well; its `kind` says how.
        JobError: with the job's own reason and exit code.
        InputError: no cluster is named, or the node of a snapshot is not known and matters.
    """
    _require_zone(home, settings)
    rule = node_rule(spec, home, settings.restore_node)
    with contextlib.closing(connect(settings)) as cluster:
        for orphan in clean_orphans(cluster, home):
            tell(f"Removed the job of run {orphan}, whose launcher was killed.")
        run_id = new_run_id(spec.kind)
        with followed(home, run_id):
            run = _Run(spec, home, cluster, run_id, _facts(cluster), rule, tell)
            return run.result(progress)


def clean_orphans(cluster: Cluster, home: Home) -> list[str]:
    """Remove what killed launchers of this data home left, evidence first; returns the runs.

    What such a job landed stays, and what it has when it is ended is landed too.

    Raises:
        ClusterError: the API server refuses, or is lost.
    """
    removed = []
    for run_id in orphans(cluster, home, home_id(home)):
        look = cluster.look(job_name(run_id), run_id)
        kept = evidence(cluster, look)
        notices = remove(cluster, run_id)
        place = _Place(home, cluster.settings, run_id)
        place.collect()
        if not is_recorded(home, run_id):
            now = datetime.now(UTC)
            began = look.job.created_at if look.job else None
            write_launch(
                home,
                _record(
                    run_id, cluster, look, _facts(cluster), began or now,
                    look.job.worker if look.job else "unknown",
                    place.folder() is not None, FailureKind.LAUNCHER_KILLED,
                    "Nobody was left to follow the job.", notices,
                ),
                kept,
            )  # fmt: skip
        place.forget_outcome()
        removed.append(run_id)
    return removed


@dataclass(frozen=True)
class _Place:
    """Where one run's result comes to, and where it belongs."""

    home: Home
    settings: KubernetesSettings
    run_id: str

    @property
    def _zone(self) -> Path:
        return Path(self.settings.landing.here or self.home.landing)

    def outcome(self) -> Event | None:
        """The job's last event, once there is one."""
        try:
            found = strict_json.loads(self._outcome_file.read_bytes())
        except (OSError, ValueError):
            return None  # not there yet, or not yet whole on a shared file system
        return found if isinstance(found, dict) else None

    def folder(self) -> Path | None:
        """The landing folder in the data home, once it is whole there."""
        folder = self._below(self.home.landing)
        return folder if (folder / "run.json").is_file() else None

    def collect(self) -> Path | None:
        """Bring the result into the data home, if its volume is another place; returns its folder.

        Raises:
            CorruptError: what lies on the volume is not what the job wrote.
            StorageError: no space.
        """
        there = self._below(self._zone)
        if self.folder() is None and (there / "run.json").is_file():
            copy_landing(there, self.home.landing)
        return self.folder()

    def forget_outcome(self) -> str | None:
        """Remove the file of the last event; returns why it can't be."""
        try:
            self._outcome_file.unlink(missing_ok=True)
        except OSError as error:
            return f"{self._outcome_file} can't be removed ({error.strerror})."
        return None

    @property
    def _outcome_file(self) -> Path:
        return self._zone / OUTCOMES / f"{self.run_id}.json"

    def _below(self, zone: Path) -> Path:
        return landing_folder(zone, self.run_id)


@dataclass
class _Timers:
    """Since when a run is in the states that have deadlines."""

    since: dict[str, float] = field(default_factory=dict)

    def update(self, look: Look, now: float) -> Waited:
        """Take in one look."""
        pod = look.pod
        container = pod.container if pod else None
        started = container is not None and container.started_at is not None
        holds = {
            "unscheduled": pod is None or (pod.node is None and not pod.ended),
            "unstarted": pod is not None and pod.node is not None and not started
            and not pod.ended,
            "pull_failing": pod is not None and pull_is_failing(pod),
            "unreachable": is_unreachable(look),
        }  # fmt: skip
        if holds["unstarted"] and "pull_failing" in self.since:
            # Between two tries a pull looks like a container that is being made.
            holds["pull_failing"] = True
        self.since = {name: self.since.get(name, now) for name, true in holds.items() if true}
        return Waited(**{name: now - since for name, since in self.since.items()})


class _Run:
    """One run on a cluster."""

    def __init__(
        self,
        spec: JobSpec,
        home: Home,
        cluster: Cluster,
        run_id: str,
        facts: ClusterFacts,
        rule: NodeRule | None,
        tell: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._home = home
        self._cluster = cluster
        self._run_id = run_id
        self._facts = facts
        self._rule = rule
        self._tell = tell
        self._deadlines = cluster.settings.deadlines
        self._place = _Place(home, cluster.settings, run_id)
        self._news: queue.Queue[News] = queue.Queue()
        self._log: LogFollower | None = None
        self._seen: PodState | None = None
        self._look = Look(None, (), (), "")
        self._launched_at = datetime.now(UTC)
        self._notices: list[str] = []
        self._excerpt: list[str] = []

    def result(self, progress: Progress) -> JobResult:
        """Make the job, follow it, record it and remove it."""
        try:
            self._create()
            outcome = self._follow(progress)
            result = self._judge(outcome)
        except BaseException as error:
            self._close(error)
            raise
        self._close(None)
        return JobResult(result.run_id, result.folder, result.unsupported, tuple(self._notices))

    def _create(self) -> None:
        manifest = build_job(
            self._spec, self._run_id, home_id(self._home), self._cluster.settings, self._facts,
            own_pod(), self._rule,
        )  # fmt: skip
        created = self._cluster.create_job(manifest)
        if created.dropped:
            self._notice(
                f"The API server {self._facts.kubernetes_version} does not know, or an admission "
                f"webhook removed: {', '.join(created.dropped)}. The run goes on without: this "
                "launcher ends the job itself where the cluster would have."
            )

    def _follow(self, progress: Progress) -> Event:
        """Follow the run until its job's last event is there and the pod has ended.

        Raises:
            ClusterError: it will not come, or the job was ended before it was done.
        """
        watch = PodWatch(self._cluster, self._run_id, self._news)
        timers = _Timers()
        begin = time.monotonic()
        failure: ClusterError | None = None
        ended_since: float | None = None
        try:
            while True:
                look = self._see()
                now = time.monotonic()
                outcome = self._place.outcome()
                failure = failure or classify(
                    look, timers.update(look, now), self._deadlines, self._seen
                )
                self._seen = self._seen or look.pod
                if failure is None and now - begin > self._deadlines.run_s + _BEYOND_DEADLINE_S:
                    failure = ClusterError(
                        FailureKind.DEADLINE_EXCEEDED, "the cluster did not end the job in time."
                    )
                over = failure is not None or look.pod is None or look.pod.ended or outcome
                ended_since = (ended_since or now) if over else None
                waited = now - ended_since if ended_since is not None else 0.0
                if self._is_over(look, failure, outcome, waited):
                    return self._conclude(failure, outcome)
                watch.after(look.pods_version)
                self._take_news(progress, ended=bool(over))
        except ClusterError as error:
            return self._after_loss(error)
        finally:
            watch.stop()
            if self._log is not None:
                self._log.drain(_DRAIN_S if self._look.pod and self._look.pod.ended else 0.1)
                self._take_rest(progress)

    def _see(self) -> Look:
        look = self._cluster.look(job_name(self._run_id), self._run_id)
        if look.pod is not None or self._look.pod is None:
            self._look = look  # the last word about a pod that is gone is kept
        container = look.pod.container if look.pod else None
        if self._log is None and container is not None and container.started_at is not None:
            assert look.pod is not None
            self._log = LogFollower(self._cluster, look.pod.name, self._news)
        return look

    def _is_over(
        self, look: Look, failure: ClusterError | None, outcome: Event | None, waited: float
    ) -> bool:
        """Whether nothing more will come that matters."""
        pod = look.pod
        running = pod is not None and not pod.ended and pod.node is not None
        if failure is not None and failure.kind in _ENDED_BY_OTHERS:
            # It was told to end, and may be landing what it has.
            return not running or waited > self._deadlines.grace_s + self._deadlines.landing_s
        if failure is not None and failure.kind is not FailureKind.JOB_FAILED:
            return True
        if outcome is not None:
            return not running or waited > self._deadlines.landing_s
        ended = pod is not None and pod.ended
        complete = look.job is not None and look.job.condition("Complete") is not None
        return (ended or complete) and waited > self._deadlines.landing_s

    def _conclude(self, failure: ClusterError | None, outcome: Event | None) -> Event:
        if outcome is not None and (failure is None or failure.kind is FailureKind.JOB_FAILED):
            return outcome
        landed = outcome is not None and outcome.get("event") == "landed"
        if failure is not None and failure.kind is FailureKind.JOB_DELETED and landed:
            # Once it has ended anybody may remove it, the cluster's own clock among them.
            self._notice("Somebody else removed the job; it had landed its result.")
            assert outcome is not None
            return outcome
        if failure is None:
            raise ClusterError(
                FailureKind.RESULT_MISSING,
                f"the job ended well, and {self._run_id} is not on the landing volume.",
            )
        raise self._with_details(failure)

    def _with_details(self, failure: ClusterError) -> ClusterError:
        words = [failure.reason.partition(": ")[2]]
        if failure.kind is FailureKind.JOB_FAILED and self._excerpt:
            words += ["Its last words:", *self._excerpt]
        folder = self._place.collect()
        if folder is not None:
            words.append(f"What it had measured is in {folder}.")
        return ClusterError(failure.kind, "\n".join(words))

    def _after_loss(self, error: ClusterError) -> Event:
        outcome = self._place.outcome()
        if error.kind is FailureKind.API_LOST and outcome is not None:
            self._notice(f"{error.reason} The job's result had come.")
            return outcome
        raise error

    def _judge(self, outcome: Event) -> JobResult:
        if outcome.get("event") == "error":
            code = outcome.get("exit_code")
            raise JobError(
                str(outcome.get("reason")), mend=str(outcome.get("mend", "")),
                exit_code=code if isinstance(code, int) else 1,
            )  # fmt: skip
        until = time.monotonic() + self._deadlines.landing_s
        while (folder := self._place.collect()) is None:
            if time.monotonic() > until:
                raise ClusterError(
                    FailureKind.RESULT_MISSING,
                    f"the job says that it landed {self._run_id}, and its folder is not there.",
                )
            time.sleep(0.2)
        return JobResult(self._run_id, folder, texts(outcome, "unsupported"))

    def _take_news(self, progress: Progress, *, ended: bool) -> None:
        """Wait for something new; log lines are passed on, anything else is worth a look."""
        until = time.monotonic() + (0.2 if ended else self._deadlines.poll_s)
        while (left := until - time.monotonic()) > 0:
            try:
                item = self._news.get(timeout=left)
            except queue.Empty:
                return
            if not isinstance(item, LogLine):
                return
            if not self._take_line(item.text, progress):
                return  # its last event: the end is near

    def _take_rest(self, progress: Progress) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._news.get_nowait()
                if isinstance(item, LogLine):
                    self._take_line(item.text, progress)

    def _take_line(self, line: str, progress: Progress) -> bool:
        """Pass a line on; returns False for the job's last event, which counts from its file."""
        event = parse_event(line)
        if event is None:
            self._excerpt = [*self._excerpt, line][-_EXCERPT_LINES:]
            return True
        return tell_progress(event, progress)

    def _close(self, error: BaseException | None) -> None:
        """Evidence, removal, record: each as far as it goes. Never hides a result or an error."""
        kept: dict[str, str] = {}
        reachable = not (isinstance(error, ClusterError) and error.kind is FailureKind.API_LOST)
        if not reachable:
            self._notice(f"The job {job_name(self._run_id)} may still be in the cluster.")
        else:
            try:
                kept = evidence(self._cluster, self._look)
            except ClusterError as failure:
                self._notice(as_notice(failure, "Evidence could not be kept"))
            try:
                for notice in remove(self._cluster, self._run_id):
                    self._notice(notice)
            except ClusterError as failure:
                self._notice(as_notice(failure, f"The job {job_name(self._run_id)} may be left"))
        try:
            landed = self._place.collect() is not None
            if reachable and (left := self._place.forget_outcome()):
                self._notice(left)
            write_launch(self._home, self._launch_record(error, landed), kept)
        except ResilienceError as failure:
            self._notice(f"The launch could not be recorded: {failure}")

    def _launch_record(self, error: BaseException | None, landed: bool) -> LaunchRecord:
        kind: FailureKind | None = None
        if isinstance(error, ClusterError):
            kind = error.kind
        elif isinstance(error, JobError):
            kind = FailureKind.JOB_FAILED
        elif error is not None:
            kind = FailureKind.INTERRUPTED
        detail = str(error) if isinstance(error, ResilienceError) else ""
        return _record(
            self._run_id, self._cluster, self._look, self._facts, self._launched_at,
            self._spec.worker, landed, kind, detail, self._notices,
        )  # fmt: skip

    def _notice(self, text: str) -> None:
        self._notices.append(text)
        self._tell(text)


def _facts(cluster: Cluster) -> ClusterFacts:
    version = cluster.version()
    return ClusterFacts(
        kubernetes_version=version,
        container_runtime=cluster.container_runtime() if cluster.settings.read_nodes else None,
        simulated=f"API server {version}" if FAKE_VERSION in version else None,
    )


def _record(
    run_id: str,
    cluster: Cluster,
    look: Look,
    facts: ClusterFacts,
    launched_at: datetime,
    worker: str,
    landed: bool,
    failure: FailureKind | None,
    detail: str,
    notices: list[str],
) -> LaunchRecord:
    phases, about_phases = pod_phases(look)
    pod = look.pod
    container = pod.container if pod else None
    return LaunchRecord(
        run_id=run_id,
        launcher="kubernetes",
        worker=worker,
        basis=Basis.SIMULATED if facts.simulated else Basis.MEASURED,
        launched_at=launched_at,
        ended_at=datetime.now(UTC),
        landed=landed,
        failure=failure,
        detail=detail[:4000],
        namespace=cluster.settings.namespace,
        job_name=job_name(run_id),
        pod_name=pod.name if pod else None,
        node=pod.node if pod else None,
        image_id=container.image_id[:400] or None if container else None,
        exit_code=container.exit_code if container else None,
        kubernetes_version=facts.kubernetes_version,
        container_runtime=facts.container_runtime,
        phases=phases,
        notices=tuple(text[:4000] for text in (*notices, *about_phases)),
    )


def _require_zone(home: Home, settings: KubernetesSettings) -> None:
    """Check that the landing volume can be seen from here, before a job measures for nothing.

    Raises:
        StorageError: it can't.
    """
    zone = Path(settings.landing.here or home.landing)
    if not zone.is_dir():
        raise StorageError(
            f"{zone} is no folder: results could not come back.",
            mend="Mount the landing volume there, or set landing.here.",
        )
