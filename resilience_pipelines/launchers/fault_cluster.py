"""The cluster that faults may use for workers in pods, where an operator allows it.

What belongs here: whether it is allowed, and from the settings of the Kubernetes launcher to a
place for such workers. What does not: running jobs on a cluster (`kubernetes`), and any fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults.cluster import VARIABLE
from resilience_pipelines.home import Home
from resilience_pipelines.launchers.choice import kubernetes_settings
from resilience_pipelines.workers.pod import PodPlace, PodSettings

if TYPE_CHECKING:
    from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings


@contextmanager
def fault_cluster(home: Home) -> Iterator[tuple[PodPlace | None, str]]:
    """The place for workers in pods while the block runs; else None, and why there is none."""
    if os.environ.get(VARIABLE) != "1":
        yield None, f"Faults are injected on a cluster only where {VARIABLE}=1 allows it."
        return
    with ExitStack() as owner:
        try:
            place = owner.enter_context(open_place(kubernetes_settings(home, None)))
        except ResilienceError as error:
            yield None, str(error)
            return
        yield place, ""


@contextmanager
def open_place(found: KubernetesSettings) -> Iterator[PodPlace]:
    """The place for workers in pods that the launcher's settings name, while the block runs.

    Raises:
        InputError: no cluster is named, or its configuration can't be used.
        ApiError: it does not answer.
    """
    # Loading the client of the API takes a second that others need not wait for.
    import kubernetes

    from resilience_pipelines.kubernetes_api import call, load_configuration

    settings = pod_settings(found)
    api = kubernetes.client.ApiClient(load_configuration(found.kubeconfig, found.context))
    try:
        version = call(
            "tell its version", kubernetes.client.VersionApi(api).get_code,
            timeout_s=settings.request_s,
        )["gitVersion"]  # fmt: skip
        yield PodPlace(api, settings, str(version))
    finally:
        api.close()


def pod_settings(found: KubernetesSettings) -> PodSettings:
    """How workers are started in pods, by the settings of the Kubernetes launcher."""
    from resilience_pipelines.launchers.kubernetes.client import own_pod
    from resilience_pipelines.launchers.kubernetes.manifest import owner_reference, placement

    owner = own_pod()
    return PodSettings(
        image=found.image,
        namespace=found.namespace,
        image_pull_policy=found.image_pull_policy,
        python=found.python,
        home=found.home,
        service_account=found.service_account,
        cpu=found.cpu,
        memory=found.memory,
        placement=placement(found),
        owner=owner_reference(owner) if owner is not None else None,
        pending_s=found.deadlines.pending_s,
        request_s=found.deadlines.request_s,
        gone_s=found.deadlines.cleanup_s,
    )
