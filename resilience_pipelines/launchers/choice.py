"""Choosing a launcher: one setting decides where jobs run.

What belongs here: the launchers' names, the setting, a launcher made from it, and cleaning up after
one that was killed. What does not: any launcher.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resilience_pipelines import job_environment
from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import JobSpec, SnapshotEngineName, StartupSpec
from resilience_pipelines.launchers.launcher import JobResult, Launch
from resilience_pipelines.startup.benchmark import Progress

if TYPE_CHECKING:
    from resilience_pipelines.launchers.kubernetes.settings import KubernetesSettings

VARIABLE: Final = "RESILIENCE_LAUNCHER"
SETTINGS_VARIABLE: Final = "RESILIENCE_KUBERNETES_SETTINGS"
SETTINGS_FILE: Final = "kubernetes.toml"
"""The settings in a data home, where no other file is named."""


class LauncherName(StrEnum):
    """Where jobs run."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


def launcher_name(asked: str | None = None) -> LauncherName:
    """The launcher that was asked for, else that of RESILIENCE_LAUNCHER, else `local`.

    Raises:
        InputError: there is none of that name.
    """
    given = asked or os.environ.get(VARIABLE) or LauncherName.LOCAL
    try:
        return LauncherName(given)
    except ValueError:
        raise InputError(
            "--launcher" if asked else VARIABLE, given, "no such launcher",
            mend=f"Choose from {', '.join(LauncherName)}.",
        ) from None  # fmt: skip


def kubernetes_launch(
    home: Home,
    settings: Path | None,
    tell: Callable[[str], None],
    *,
    image: str | None = None,
    driver_version: str | None = None,
) -> Launch:
    """The Kubernetes launcher, with the settings of a file.

    Args:
        settings: the file; RESILIENCE_KUBERNETES_SETTINGS, else `kubernetes.toml` in the data home,
            when None.
        tell: gets what a person should know while a run goes on.
        image: one that the settings name for a release, in place of the one for every job.
        driver_version: that of the nodes to use, in place of what the settings say.

    Raises:
        InputError: the settings can't be used, or do not name the image.
    """
    # Loading the client of the API takes a second that local jobs need not wait for.
    from resilience_pipelines.launchers.kubernetes.launcher import run_on_kubernetes

    found = kubernetes_settings(home, settings).directed(image=image, driver_version=driver_version)
    in_pod = partial(run_on_kubernetes, settings=found, tell=tell)

    def launch(spec: JobSpec, home: Home, progress: Progress) -> JobResult:
        if measures_pods(spec):
            return run_beside_pods(spec, home, progress, found)
        return in_pod(spec, home, progress)

    return launch


def measures_pods(spec: JobSpec) -> bool:
    """Whether a job's subject is pods that it makes, so that it is no job for a pod itself."""
    return (
        isinstance(spec, StartupSpec) and spec.snapshot_engine is SnapshotEngineName.DYNAMO_SNAPSHOT
    )


def run_beside_pods(
    spec: JobSpec, home: Home, progress: Progress, settings: KubernetesSettings
) -> JobResult:
    """Run a job that measures pods here, where the launcher has its rights; a pod has none.

    Raises:
        JobError: with the job's own reason and exit code.
        DeadlineError: it took longer than `deadlines.run_s`.
    """
    from resilience_pipelines.launchers.local import run_local

    told = {
        job_environment.LAUNCHED_BY: LauncherName.KUBERNETES.value,
        job_environment.CLUSTER: settings.model_dump_json(),
    }
    return run_local(spec, home, progress, deadline_s=settings.deadlines.run_s, told=told)


def clean_cluster(home: Home, settings: Path | None = None) -> list[str]:
    """Remove what killed launchers of a data home left in a cluster; returns the runs it was of.

    Args:
        settings: see `kubernetes_launch`.

    Raises:
        InputError: the settings can't be used.
        ClusterError, ApiError: the API server refuses, or is lost.
        DeadlineError: something is still there.
    """
    from resilience_pipelines.launchers.dynamo_snapshot.cleanup import clean_pods
    from resilience_pipelines.launchers.fault_cluster import open_place
    from resilience_pipelines.launchers.kubernetes.client import connect
    from resilience_pipelines.launchers.kubernetes.launcher import clean_orphans

    found = kubernetes_settings(home, settings)
    with closing(connect(found)) as cluster:
        removed = clean_orphans(cluster, home)
    with open_place(found) as place:
        return [*removed, *clean_pods(place, home)]


def kubernetes_settings(home: Home, asked: Path | None) -> KubernetesSettings:
    """The settings of the Kubernetes launcher; see `kubernetes_launch` for where they are.

    Raises:
        InputError: they can't be read, or one of them is wrong.
    """
    from resilience_pipelines.launchers.kubernetes.settings import read_settings

    return read_settings(_settings_file(home, asked))


def kubernetes_settings_if_any(home: Home) -> KubernetesSettings | None:
    """The settings that all commands find; None where nobody has written or named any.

    Raises:
        InputError: they can't be read, or one of them is wrong.
    """
    if not os.environ.get(SETTINGS_VARIABLE) and not _settings_file(home, None).exists():
        return None
    return kubernetes_settings(home, None)


def _settings_file(home: Home, asked: Path | None) -> Path:
    given = asked or os.environ.get(SETTINGS_VARIABLE)
    return Path(given) if given else home.root / SETTINGS_FILE


def choose(
    home: Home,
    asked: str | None = None,
    settings: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Launch:
    """The launcher that the setting names.

    Raises:
        InputError: there is none of that name, or its settings can't be used.
    """
    match launcher_name(asked):
        case LauncherName.LOCAL:
            from resilience_pipelines.launchers.local import run_local

            return run_local
        case LauncherName.KUBERNETES:
            return kubernetes_launch(home, settings, tell)
