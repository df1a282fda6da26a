"""A worker in a pod: started on a cluster, and reached through the API server's pod proxy.

What belongs here: the Job that holds it, waiting until it serves, the client that speaks with it,
and ending it. What does not: what is done to it (`faults`), and benchmark jobs
(`launchers.kubernetes`), which run in pods themselves and keep their workers to themselves.

A batch/v1 Job, because it ends by itself when this platform is killed (activeDeadlineSeconds) and
is removed by the cluster (ttlSecondsAfterFinished); until then its controller replaces a pod that
is lost, and the kubelet a container that ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import psutil

from resilience_pipelines import strict_json
from resilience_pipelines.errors import DeadlineError, UnsupportedError
from resilience_pipelines.kubernetes_api import FAKE_VERSION, ApiError, Json, call
from resilience_pipelines.workers.base import LaunchPlan, Worker
from resilience_pipelines.workers.client import (
    WorkerAnswerError,
    WorkerClient,
    WorkerUnreachableError,
)
from resilience_pipelines.workers.process import (
    DEFAULT_PORT,
    RunningWorker,
    WorkerFailedError,
    WorkerOutput,
)
from resilience_pipelines.workers.space import Process, Space, holds_within

CONTAINER: Final = "worker"
TARGET_LABEL: Final = "resilience-pipelines/target"
_REPLACEMENTS: Final = 6
_STEP_S: Final = 0.2


@dataclass(frozen=True)
class PodSettings:
    """How workers are started in pods.

    Attributes:
        home: where the volume with its weights and caches is mounted.
        placement: fields of the pod's specification: node selector, tolerations and the like.
        owner: an owner reference for the Job, where this platform runs in a pod itself.
        lifetime_s: after which the cluster ends it, whatever became of this platform.
        ttl_s: after which the cluster removes what has ended.
        pending_s: until the pod has to have started.
        request_s: one answer of the API server.
        gone_s: until what was deleted has to be gone.
    """

    image: str
    namespace: str = "resilience"
    image_pull_policy: str = "IfNotPresent"
    python: str = "python"
    home: str = "/var/lib/resilience"
    service_account: str = "resilience-job"
    cpu: str | None = None
    memory: str | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)
    owner: Mapping[str, Any] | None = None
    lifetime_s: int = 1800
    ttl_s: int = 60
    pending_s: float = 300.0
    request_s: float = 20.0
    gone_s: float = 90.0


@dataclass(frozen=True)
class PodLook:
    """What the API server says of a worker's pod.

    Attributes:
        restarts: of its container.
        waits_for: why its container does not run, in the kubelet's words.
    """

    name: str
    uid: str
    node: str | None
    running: bool
    restarts: int
    waits_for: str


class PodPlace:
    """One namespace of a cluster, where workers are started in pods."""

    def __init__(self, api: Any, settings: PodSettings, version: str) -> None:
        import kubernetes

        self.api = api
        self.settings = settings
        self.version = version
        """The API server's, e.g. `v1.31.2`."""
        self.custom = kubernetes.client.CustomObjectsApi(api)
        self._core = kubernetes.client.CoreV1Api(api)
        self._batch = kubernetes.client.BatchV1Api(api)

    @property
    def is_fake(self) -> bool:
        """Whether nothing there is a measurement."""
        return FAKE_VERSION in self.version

    def call(self, act: str, function: Any, *arguments: Any, **options: Any) -> Json:
        """One call with the time-out of the settings.

        Raises:
            ApiError
        """
        return call(act, function, *arguments, timeout_s=self.settings.request_s, **options)

    def create_job(self, manifest: Json) -> Json:
        """Make the Job of a worker."""
        name = manifest["metadata"]["name"]
        return self.call(
            f"create the job {name}", self._batch.create_namespaced_job,
            self.settings.namespace, manifest,
        )  # fmt: skip

    def delete_job(self, name: str) -> None:
        """Delete a Job with its pods, and wait until they are gone.

        Raises:
            DeadlineError: they are not.
            ApiError: the server refuses.
        """
        options = {"propagationPolicy": "Background", "gracePeriodSeconds": 1}
        gone = False

        def look() -> bool:
            nonlocal gone
            try:
                if not gone:
                    self.call(
                        f"delete the job {name}", self._batch.delete_namespaced_job, name,
                        self.settings.namespace, body=options,
                    )  # fmt: skip
                return False
            except ApiError as error:
                if error.status != 404 and not error.may_pass:
                    raise
                gone = error.status == 404
            return gone and not self._pods(name)

        if not holds_within(look, self.settings.gone_s, _STEP_S):
            raise DeadlineError(
                f"The job {name} or its pod is still there after {self.settings.gone_s:g} s.",
                mend=f"Look at it: kubectl describe job {name} -n {self.settings.namespace}.",
            )

    def pod(self, name: str) -> PodLook | None:
        """The newest pod of a worker that is not about to end; None where there is none.

        Raises:
            ApiError
        """
        found = [item for item in self._pods(name) if "deletionTimestamp" not in item["metadata"]]
        found.sort(key=lambda item: str(item["metadata"].get("creationTimestamp") or ""))
        return _look(found[-1]) if found else None

    def owners(self, name: str) -> list[str]:
        """The owners' ids of all pods that a worker's label selects, each once.

        Raises:
            ApiError
        """
        found = {
            str(owner["uid"])
            for item in self._pods(name)
            for owner in item["metadata"].get("ownerReferences") or [{"uid": "nobody"}]
        }
        return sorted(found)

    def events(self, uid: str) -> list[str]:
        """What the cluster reported about an object, the oldest first: reason and message.

        Raises:
            ApiError
        """
        found = self.call(
            "list events", self._core.list_namespaced_event, self.settings.namespace,
            field_selector=f"involvedObject.uid={uid}",
        )  # fmt: skip
        items = sorted(found["items"], key=lambda item: str(item.get("lastTimestamp") or ""))
        return [f"{item.get('reason')}: {item.get('message')}" for item in items]

    def log_tail(self, pod: str, lines: int = 15) -> str:
        """The last lines of a pod's log; empty where there is none."""
        import urllib3
        from kubernetes.client import ApiException

        try:
            response = self._core.read_namespaced_pod_log(
                pod, self.settings.namespace, container=CONTAINER, tail_lines=lines,
                _preload_content=False,
                _request_timeout=(self.settings.request_s, self.settings.request_s),
            )  # fmt: skip
        except (ApiException, urllib3.exceptions.HTTPError, OSError):
            return ""  # it only adds to an error that is told anyway
        return str(response.data.decode(errors="replace"))

    def _pods(self, name: str) -> Sequence[Json]:
        items: Sequence[Json] = self.call(
            "list pods", self._core.list_namespaced_pod, self.settings.namespace,
            label_selector=f"{TARGET_LABEL}={name}",
        )["items"]  # fmt: skip
        return items


class PodClient(WorkerClient):
    """Speaks the worker contract through the API server's proxy of the worker's pod."""

    def __init__(self, place: PodPlace, space: PodSpace, model: str) -> None:
        super().__init__(space, DEFAULT_PORT, model)
        self._place = place
        self._name = space.name
        self._pod: str | None = None

    def _request(
        self, method: str, path: str, body: Mapping[str, object] | None, timeout_s: float
    ) -> dict[str, Any]:
        end = time.monotonic() + timeout_s
        try:
            pod = self._pod or self._find()
            left = max(0.01, end - time.monotonic())
            return self._ask(pod, method, path, body, left)
        except WorkerUnreachableError:
            self._pod = None  # it may have been replaced
            raise

    def _find(self) -> str:
        try:
            look = self._place.pod(self._name)
        except ApiError as error:
            raise WorkerUnreachableError(error.reason) from error
        if look is None or not look.running:
            raise WorkerUnreachableError(f"No pod of {self._name} runs.")
        self._pod = look.name
        return look.name

    def _ask(
        self,
        pod: str,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        timeout_s: float,
    ) -> dict[str, Any]:
        place = f"/api/v1/namespaces/{self._place.settings.namespace}/pods/{pod}:{DEFAULT_PORT}"
        target, _, query = path.partition("?")
        pairs = [tuple(pair.split("=", 1)) for pair in query.split("&") if pair]
        headers = {"Accept": "*/*", "Content-Type": "application/json"}
        import urllib3
        from kubernetes.client import ApiException

        try:
            response = self._place.api.call_api(
                f"{place}/proxy{target}", method, {}, pairs, headers, body=body,
                auth_settings=["BearerToken"], _return_http_data_only=True,
                _preload_content=False, _request_timeout=(timeout_s, timeout_s),
            )  # fmt: skip
            text = response.data
        except ApiException as error:
            words = error.body.decode(errors="replace") if isinstance(error.body, bytes) else (
                str(error.body or error.reason)
            )  # fmt: skip
            if _is_of_the_server(words) or not error.status:
                raise WorkerUnreachableError(f"{method} {path}: {words[:300]}.") from error
            raise WorkerAnswerError(
                f"{method} {path}: status {error.status}: {words[:300]}", error.status
            ) from error
        except (urllib3.exceptions.HTTPError, OSError, http.client.HTTPException) as error:
            raise WorkerUnreachableError(f"{method} {path}: {type(error).__name__}.") from error
        try:
            answer = json.loads(text or b"{}")
        except (ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else {}


class PodProcess(Process):
    """A worker's pod in the place of its root process: nothing of its processes can be touched."""

    def __init__(self, space: PodSpace) -> None:
        # No pidfd: the process is another kernel's.
        self.pid = 0
        self.inner_pid = 0
        self._space = space

    def wait_gone(self, timeout_s: float) -> bool:
        """See `Process.wait_gone`. A lost API server says nothing of the pod."""

        def gone() -> bool:
            try:
                look = self._space.look()
            except ApiError:
                return False
            return look is None or not look.running

        return holds_within(gone, timeout_s, _STEP_S)

    def send(self, number: int) -> None:
        """See `Process.send`."""
        raise UnsupportedError(f"Signal {number} can't be sent into a pod.")

    def tree(self) -> list[psutil.Process]:
        """See `Process.tree`: none of them is this machine's."""
        return []

    def close(self) -> None:
        """See `Process.close`."""


class PodSpace(Space):
    """A pod as the place of one worker."""

    isolated = True
    root = Path("/")
    on_this_machine: ClassVar[bool] = False

    def __init__(self, place: PodPlace, name: str) -> None:
        self.place = place
        self.name = name
        """Of the Job, and the value of its pods' label."""
        self.uid = ""
        """Of the Job."""

    def look(self) -> PodLook | None:
        """See `PodPlace.pod`."""
        return self.place.pod(self.name)

    def spawn(self, argv: Sequence[str], **_: object) -> Process:
        """See `Space.spawn`."""
        raise UnsupportedError(f"A pod starts its own program, not {argv[0]}.")

    def enter(self) -> list[str]:
        """See `Space.enter`."""
        raise UnsupportedError("Nothing is run inside of a worker's pod.")

    def socket(self) -> socket.socket:
        """See `Space.socket`."""
        raise UnsupportedError("A pod is reached through the API server.")

    def adopt(self, inner_pid: int) -> Process:
        """See `Space.adopt`."""
        raise UnsupportedError(f"Process {inner_pid} is of another machine.")

    def close(self, deadline_s: float = 0.0) -> None:  # noqa: ARG002 - the settings say it
        """Delete the Job with its pods, and wait for it."""
        self.place.delete_job(self.name)


def start_in_pod(worker: Worker, place: PodPlace) -> RunningWorker:
    """Start a worker in a pod and wait until it serves.

    Raises:
        ApiError: the cluster does not take it.
        WorkerFailedError: its container does not start or ends.
        DeadlineError: it took too long.
    """
    name = f"resilience-target-{secrets.token_hex(5)}"
    running = in_pod(worker, place, name)
    space = running.space
    assert isinstance(space, PodSpace)
    try:
        space.uid = place.create_job(target_job(worker, name, place.settings))["metadata"]["uid"]
        _await_serving(running, space)
    except BaseException:
        with contextlib.suppress(ApiError):  # what went wrong first is told
            running.stop()
        raise
    return running


def in_pod(worker: Worker, place: PodPlace, name: str) -> RunningWorker:
    """A worker in the pod of a Job of that name, which is about to be made."""
    space = PodSpace(place, name)
    launched_ns = time.monotonic_ns()
    output = WorkerOutput()
    output.close_write_end()  # its log stays in the cluster
    plan = LaunchPlan(argv=(), port=DEFAULT_PORT)
    return RunningWorker(
        worker, space, PodProcess(space), PodClient(place, space, worker.model), output, plan,
        launched_ns,
    )  # fmt: skip


def target_job(worker: Worker, name: str, settings: PodSettings) -> dict[str, Any]:
    """The Job that holds one worker."""
    labels = {TARGET_LABEL: name}
    metadata: dict[str, Any] = {"name": name, "namespace": settings.namespace, "labels": labels}
    if settings.owner is not None:
        metadata["ownerReferences"] = [dict(settings.owner)]
    amounts = {
        key: value
        for key, value in (("cpu", settings.cpu), ("memory", settings.memory))
        if value is not None
    }
    container = {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": [
            settings.python, "-m", "resilience_pipelines.serve", "--home", settings.home,
            "--worker", worker.name, "--port", str(DEFAULT_PORT),
        ],
        "env": [],
        "ports": [{"containerPort": DEFAULT_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": DEFAULT_PORT}, "periodSeconds": 1,
        },
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "volumeMounts": [{"name": "home", "mountPath": settings.home}],
        "securityContext": {
            "privileged": False, "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": _REPLACEMENTS,
            "activeDeadlineSeconds": settings.lifetime_s,
            "ttlSecondsAfterFinished": settings.ttl_s,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    # A container that is killed is started again in its pod.
                    "restartPolicy": "OnFailure",
                    "serviceAccountName": settings.service_account,
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 1,
                    "volumes": [{"name": "home", "emptyDir": {}}],
                    "containers": [container],
                    **settings.placement,
                },
            },
        },
    }


def _await_serving(running: RunningWorker, space: PodSpace) -> None:
    settings = space.place.settings
    limit_s = settings.pending_s + running.worker.start_deadline_s
    seen: PodLook | None = None

    def serves() -> bool:
        nonlocal seen
        try:
            seen = space.look()
        except ApiError as error:
            if not error.may_pass:
                raise
            return False
        if seen is not None and seen.restarts:
            raise WorkerFailedError(
                f"The worker {running.worker.name} ended before it was ready.",
                space.place.log_tail(seen.name),
            )
        return seen is not None and seen.running and running.client.healthy()

    if not holds_within(serves, limit_s, _STEP_S):
        why = "no pod was made" if seen is None else (seen.waits_for or "it does not answer")
        raise DeadlineError(
            f"The worker {running.worker.name} did not serve in a pod within {limit_s:g} s: {why}.",
            mend="Check image, node_selector and tolerations of the Kubernetes settings.",
        )


def _look(found: Json) -> PodLook:
    status = found.get("status") or {}
    states = [item for item in status.get("containerStatuses") or () if item["name"] == CONTAINER]
    state: Json = (states[0].get("state") or {}) if states else {}
    waiting = state.get("waiting") or state.get("terminated") or {}
    refused = [
        item.get("message") or item.get("reason") or ""
        for item in status.get("conditions") or ()
        if item["type"] == "PodScheduled" and item["status"] == "False"
    ]
    words = [waiting.get("reason") or "", waiting.get("message") or "", *refused]
    return PodLook(
        name=found["metadata"]["name"],
        uid=found["metadata"]["uid"],
        node=(found.get("spec") or {}).get("nodeName"),
        running="running" in state,
        restarts=int(states[0].get("restartCount") or 0) if states else 0,
        waits_for=": ".join(word for word in words if word),
    )


def _is_of_the_server(text: str) -> bool:
    """Whether an answer is the API server's own word, not the worker's."""
    try:
        found = strict_json.loads(text)
    except ValueError:
        # The proxy says in plain text that it could not reach the pod.
        return True
    return isinstance(found, dict) and found.get("kind") == "Status"
