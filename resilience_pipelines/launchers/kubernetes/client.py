"""The client: calls of the API server, each with a time-out, and again while it may come back.

What belongs here: connecting, the few calls that a run needs, what is tried again, and the names of
permissions that they need. What does not: what answers mean (`state`, `failures`).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import kubernetes
import urllib3
from kubernetes.client import ApiException

from resilience_pipelines import strict_json
from resilience_pipelines.kubernetes_api import Json, load_configuration, object_of, objects_of
from resilience_pipelines.launchers.kubernetes.failures import ClusterError, FailureKind
from resilience_pipelines.launchers.kubernetes.manifest import (
    CONTAINER,
    Manifest,
    Owner,
    dropped_fields,
    selector,
)
from resilience_pipelines.launchers.kubernetes.nodes import (
    NodeState,
    fits,
    parse_node,
    wanted_labels,
)
from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings
from resilience_pipelines.launchers.kubernetes.state import (
    JobState,
    Look,
    PodState,
    parse_cluster_event,
    parse_job,
    parse_pod,
)

T = TypeVar("T")

POD_NAME_VARIABLE: Final = "RESILIENCE_POD_NAME"
POD_UID_VARIABLE: Final = "RESILIENCE_POD_UID"
"""Set from the downward API where the platform itself runs in a pod, to own the jobs it starts."""

PERMISSIONS: Final = frozenset(
    {
        ("batch", "jobs", "create"),
        ("batch", "jobs", "get"),
        ("batch", "jobs", "list"),
        ("batch", "jobs", "delete"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("", "pods", "delete"),
        ("", "pods/log", "get"),
        ("", "events", "list"),
    }
)
"""What the launcher does in its namespace: API group, resource, verb; deploy/kubernetes/rbac.yaml
grants it."""

CLUSTER_PERMISSIONS: Final = frozenset({("", "nodes", "list")})
"""What it may do besides, where `read_nodes` is set."""

_RETRIED: Final = frozenset({0, 429, 500, 502, 503, 504})
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 15.0


class ApiLostError(Exception):
    """One call did not reach the API server, or it could not answer; it may be tried again."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass
class Backoff:
    """Growing pauses between tries, until a deadline."""

    deadline_s: float
    first_s: float = _FIRST_PAUSE_S
    longest_s: float = _LONGEST_PAUSE_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tries: int = 0
    _since: float | None = field(default=None)

    def pause(self, error: ApiLostError) -> None:
        """Wait before the next try.

        Raises:
            ClusterError: the deadline has passed since the first try that failed.
        """
        now = self.clock()
        self._since = now if self._since is None else self._since
        left = self._since + self.deadline_s - now
        if left <= 0:
            raise ClusterError(
                FailureKind.API_LOST,
                f"the API server has not answered for {now - self._since:.0f} s ({error}).",
            ) from error
        grown = min(self.longest_s, self.first_s * 2.0**self._tries)
        # Many launchers that lost one server shall not come back in step.
        spread = grown * random.uniform(0.5, 1.0)  # noqa: S311
        self._tries += 1
        self.sleep(min(left, error.pause_s if error.pause_s is not None else spread))


@dataclass(frozen=True)
class Created:
    """A job that was made, and which fields of it the server did not store."""

    job: JobState
    dropped: tuple[str, ...]


class Cluster:
    """One namespace of one cluster, as the launcher uses it."""

    def __init__(self, settings: KubernetesSettings, api: Any) -> None:
        self.settings = settings
        self._api = api
        self._batch = kubernetes.client.BatchV1Api(api)
        self._core = kubernetes.client.CoreV1Api(api)
        self._namespace = settings.namespace
        self._timeout = settings.deadlines.request_s

    def close(self) -> None:
        """Close connections."""
        self._api.close()

    def version(self) -> str:
        """The API server's version, e.g. `v1.31.2`."""
        api = kubernetes.client.VersionApi(self._api)
        return str(self._json(api.get_code)["gitVersion"])

    def nodes(self) -> list[NodeState]:
        """The nodes that may take a job by their labels.

        Raises:
            ClusterError: FORBIDDEN where nodes may not be listed, which needs a right of its own.
        """
        gpu = self.settings.gpu.resource
        # The labels that all of them have are the server's business, the rest has two forms.
        text = ",".join(f"{name}={value}" for name, value in wanted_labels(self.settings).items())
        items = objects_of(self._list(self._core.list_node, label_selector=text).get("items"))
        found = [parse_node(item, gpu) for item in items]
        return [node for node in found if fits(node.labels, self.settings)]

    def container_runtime(self) -> str | None:
        """The runtime that every node has that may take a job; None where they differ or hide it.

        Nodes that may not be listed hide it.
        """
        try:
            kinds = {node.container_runtime for node in self.nodes()}
        except ClusterError as error:
            if error.kind is FailureKind.FORBIDDEN:
                return None
            raise
        return kinds.pop() if len(kinds) == 1 else None

    def create_job(self, manifest: Manifest) -> Created:
        """Make a job. One that a lost answer had made already is taken as made.

        Raises:
            ClusterError: FORBIDDEN, QUOTA_EXCEEDED, REJECTED or API_LOST.
        """
        name = manifest["metadata"]["name"]
        try:
            stored = self._json(self._batch.create_namespaced_job, self._namespace, manifest)
        except ApiException as error:
            if error.status != 409:
                raise _failure(error, f"create the job {name}") from error
            # The name holds the run's random part: nobody else can have made it.
            stored = self._json(self._batch.read_namespaced_job, name, self._namespace)
        return Created(parse_job(stored), tuple(dropped_fields(manifest, stored)))

    def look(self, name: str, run_id: str) -> Look:
        """What there is of a run now: its job, pods and events."""
        job = self.job(name)
        pods, version = self.pods(run_id)
        uids = {pod.uid for pod in pods} | ({job.uid} if job else set())
        events = [item for uid in sorted(uids) for item in self._events(uid)]
        ordered = sorted(events, key=lambda item: item.at.timestamp() if item.at else 0.0)
        return Look(job, pods, tuple(ordered), version)

    def job(self, name: str) -> JobState | None:
        """A job, or None."""
        try:
            return parse_job(self._json(self._batch.read_namespaced_job, name, self._namespace))
        except ApiException as error:
            if error.status == 404:
                return None
            raise _failure(error, f"read the job {name}") from error

    def jobs(self, home_id: str) -> list[JobState]:
        """All jobs that launchers of a data home made."""
        found = self._list(
            self._batch.list_namespaced_job, self._namespace, label_selector=selector(home=home_id)
        )
        return [parse_job(item) for item in objects_of(found.get("items"))]

    def pods(self, run_id: str) -> tuple[tuple[PodState, ...], str]:
        """The pods of a run, the oldest first, and the version of that list."""
        found = self._list(
            self._core.list_namespaced_pod, self._namespace, label_selector=selector(run_id=run_id)
        )
        pods = [parse_pod(item) for item in objects_of(found.get("items"))]
        pods.sort(key=lambda pod: (pod.created_at.timestamp() if pod.created_at else 0.0, pod.name))
        return tuple(pods), str(object_of(found.get("metadata")).get("resourceVersion") or "")

    def watch_pods(self, run_id: str, version: str, wait_s: float) -> Iterator[None]:
        """Yield at each change of a run's pods since a version, until `wait_s` have passed.

        Raises:
            ApiLostError: the stream broke, or that version is too old: list again.
        """
        try:
            with _lost(), self._stream(
                self._core.list_namespaced_pod, self._namespace,
                label_selector=selector(run_id=run_id), watch=True, resource_version=version,
                timeout_seconds=max(1, round(wait_s)),
                read_timeout=wait_s + self._timeout,
            ) as response:  # fmt: skip
                for line in _lines(response):
                    if line and strict_json.loads(line).get("type") == "ERROR":
                        raise ApiLostError("the watch ended with an error", 0.0)
                    yield None
        except ApiException as error:
            raise ApiLostError(
                f"HTTP {error.status}", 0.0 if error.status == 410 else None
            ) from error

    def log(self, pod: str, since: str | None, quiet_s: float) -> Iterator[str]:
        """Follow the log of a pod: lines with their time stamps, from `since` on.

        Args:
            since: a time stamp of the log itself, so that no other clock matters.
            quiet_s: a stream that brings nothing for that long counts as lost.

        Raises:
            ApiLostError: the stream broke, or there is no log yet.
        """
        extra = {"since": since} if since else {}
        try:
            with (
                _lost(),
                self._stream(
                    self._raw_log, pod, follow=True, read_timeout=quiet_s, **extra
                ) as response,
            ):
                yield from _lines(response)
        except ApiException as error:
            raise ApiLostError(f"HTTP {error.status}") from error

    def log_tail(self, pod: str, lines: int) -> str:
        """The last lines of a pod's log; empty where there is none (any more)."""
        try:
            return str(self._call(
                self._core.read_namespaced_pod_log, pod, self._namespace, container=CONTAINER,
                tail_lines=lines, read=lambda response: response.data.decode(errors="replace"),
            ))  # fmt: skip
        except ApiException as error:
            if error.status in (400, 404):
                return ""
            raise _failure(error, f"read the log of {pod}") from error

    def delete_job(self, name: str, grace_s: int) -> None:
        """Delete a job and, by the garbage collector, its pods. Gone already is fine."""
        self._delete(self._batch.delete_namespaced_job, name, {
            "propagationPolicy": "Background", "gracePeriodSeconds": grace_s,
        })  # fmt: skip

    def delete_pod(self, name: str, grace_s: int) -> None:
        """Delete a pod; with 0 also one whose node is lost. Gone already is fine."""
        self._delete(self._core.delete_namespaced_pod, name, {"gracePeriodSeconds": grace_s})

    def _delete(self, function: Any, name: str, options: Manifest) -> None:
        try:
            self._json(function, name, self._namespace, body=options)
        except ApiException as error:
            if error.status != 404:
                raise _failure(error, f"delete {name}") from error

    def _events(self, uid: str) -> list[Any]:
        found = self._list(
            self._core.list_namespaced_event, self._namespace,
            field_selector=f"involvedObject.uid={uid}",
        )  # fmt: skip
        return [parse_cluster_event(item) for item in objects_of(found.get("items"))]

    def _list(self, function: Any, *arguments: Any, **options: Any) -> Json:
        try:
            return self._json(function, *arguments, **options)
        except ApiException as error:
            raise _failure(error, function.__name__.replace("_", " ")) from error

    def _raw_log(self, pod: str, *, follow: bool, since: str | None = None, **options: Any) -> Any:
        # The generated client knows sinceSeconds only, which needs two clocks to agree.
        query = [("container", CONTAINER), ("follow", follow), ("timestamps", True)]
        if since is not None:
            query.append(("sinceTime", since))
        return self._api.call_api(
            "/api/v1/namespaces/{namespace}/pods/{name}/log", "GET",
            {"namespace": self._namespace, "name": pod}, query, {"Accept": "*/*"},
            auth_settings=["BearerToken"], _return_http_data_only=True, **options,
        )  # fmt: skip

    def _json(self, function: Any, *arguments: Any, **options: Any) -> Json:
        found = self._call(
            function, *arguments, read=lambda response: strict_json.loads(response.data), **options
        )
        assert isinstance(found, dict)
        return found

    def _call(
        self, function: Any, *arguments: Any, read: Callable[[Any], object], **options: Any
    ) -> object:
        backoff = Backoff(self.settings.deadlines.api_lost_s)
        while True:
            try:
                with _lost():
                    response = function(
                        *arguments, _preload_content=False,
                        _request_timeout=(self._timeout, self._timeout), **options,
                    )  # fmt: skip
                    return read(response)
            except ApiLostError as error:
                backoff.pause(error)

    def _stream(self, function: Any, *arguments: Any, read_timeout: float, **options: Any) -> Any:
        return _Closing(
            function(
                *arguments, _preload_content=False,
                _request_timeout=(self._timeout, read_timeout), **options,
            )
        )  # fmt: skip


class _Closing:
    """A streamed answer, whose connection is closed and not used again."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def __enter__(self) -> Any:
        return self._response

    def __exit__(self, *_: object) -> None:
        self._response.close()


class _lost:  # noqa: N801
    """Turns what means that the server could not answer into `ApiLostError`."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, urllib3.exceptions.HTTPError | OSError | ValueError):
            # A body that breaks off in the middle is no JSON.
            raise ApiLostError(type(error).__name__) from error
        if isinstance(error, ApiException) and error.status in _RETRIED:
            asked = (error.headers or {}).get("Retry-After", "")
            pause = float(asked) if asked.isdecimal() else None
            raise ApiLostError(f"HTTP {error.status}", pause) from error


def connect(settings: KubernetesSettings) -> Cluster:
    """Connect to the cluster of the settings.

    Raises:
        InputError: no cluster is named, or its configuration can't be used.
    """
    configuration = load_configuration(settings.kubeconfig, settings.context)
    return Cluster(settings, kubernetes.client.ApiClient(configuration))


def own_pod() -> Owner | None:
    """The pod that this process runs in, where its manifest tells it."""
    name, uid = os.environ.get(POD_NAME_VARIABLE), os.environ.get(POD_UID_VARIABLE)
    return Owner(name, uid) if name and uid else None


def _lines(response: Any) -> Iterator[str]:
    kept = b""
    for part in response.stream(amt=None, decode_content=False):
        *lines, kept = (kept + part).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if kept:
        yield kept.decode(errors="replace")


def _failure(error: ApiException, act: str) -> ClusterError:
    try:
        message = str(strict_json.loads(error.body or "{}").get("message") or error.reason)
    except ValueError:
        message = str(error.reason)
    if error.status == 403 and "exceeded quota" in message:
        kind = FailureKind.QUOTA_EXCEEDED
    elif error.status in (401, 403):
        kind = FailureKind.FORBIDDEN
    else:
        kind = FailureKind.REJECTED
    return ClusterError(kind, f"the API server refuses to {act} (HTTP {error.status}): {message}")
