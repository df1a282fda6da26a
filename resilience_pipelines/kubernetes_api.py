"""The Kubernetes API at its lowest: where a cluster is, and one call with a time-out.

What belongs here: reading a kubeconfig, and turning an answer into JSON or an error. What does not:
trying again, and what any object means (`launchers.kubernetes`, `workers.pod`, `faults`).

The client's own package is imported where it is used: it takes a second that others need not wait.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from resilience_pipelines import strict_json
from resilience_pipelines.errors import InputError, ResilienceError

Json = Mapping[str, Any]

FAKE_VERSION: Final = "+fake"
"""In the version that an API server tells: nothing on it is a measurement."""


def object_of(value: object) -> Json:
    """A part of an answer that is an object; empty where it is missing, or something else."""
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[Json]:
    """A part of an answer that is a list of objects, without what is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    """A part of an answer that is a text; empty where it is missing, or something else."""
    return value if isinstance(value, str) else ""


def named(found: Json, field: str = "name") -> str:
    """What every object has in its metadata.

    Raises:
        ApiError: it is not there: who answered is no API server, or answered about nothing.
    """
    if name := text_of(object_of(found.get("metadata")).get(field)):
        return name
    raise ApiError("tell of an object", 0, f"it has no metadata.{field}")


class ApiError(ResilienceError):
    """The API server said no, or nothing.

    Args:
        status: of HTTP; 0 where no answer came.
    """

    def __init__(self, act: str, status: int, message: str) -> None:
        said = f"HTTP {status}" if status else "no answer"
        super().__init__(f"The API server did not {act} ({said}): {message}.")
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status in (0, 429, 500, 502, 503, 504)


def load_configuration(kubeconfig: str | None, context: str | None) -> Any:
    """The client's configuration for a cluster.

    Args:
        kubeconfig: None: the pod's own service account, else KUBECONFIG, else ~/.kube/config.
        context: of the kubeconfig; its current one when None.

    Raises:
        InputError: no cluster is named, or its configuration can't be used.
    """
    import kubernetes

    configuration = kubernetes.client.Configuration()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        else:
            kubernetes.config.load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=configuration
            )
    except (kubernetes.config.ConfigException, OSError, ValueError) as error:
        raise InputError(
            "kubeconfig", kubeconfig or os.environ.get("KUBECONFIG", ""),
            f"no cluster can be reached with it ({str(error).splitlines()[0]})",
            mend="Name a kubeconfig in the settings or in KUBECONFIG.",
        ) from error  # fmt: skip
    configuration.retries = False  # trying again is ours: it has a deadline
    return configuration


def call(act: str, function: Any, *arguments: Any, timeout_s: float, **options: Any) -> Json:
    """One call of the generated client, answered with JSON.

    Args:
        act: what is asked for, for an error.

    Raises:
        ApiError
    """
    import urllib3
    from kubernetes.client import ApiException

    try:
        response = function(
            *arguments, _preload_content=False, _request_timeout=(timeout_s, timeout_s), **options
        )
        found = strict_json.loads(response.data)
    except ApiException as error:
        raise ApiError(act, error.status or 0, _message(error)) from error
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        # A body that breaks off in the middle is no JSON.
        raise ApiError(act, 0, type(error).__name__) from error
    assert isinstance(found, dict)
    return found


def _message(error: Any) -> str:
    try:
        return str(strict_json.loads(error.body or "{}").get("message") or error.reason)
    except ValueError:
        return str(error.reason)
