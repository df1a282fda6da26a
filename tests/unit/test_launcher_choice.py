"""One setting decides where jobs run."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets.partitions import worker_named_by
from resilience_pipelines.context import WORKERS
from resilience_pipelines.errors import InputError
from resilience_pipelines.home import open_home
from resilience_pipelines.launchers.choice import LauncherName, choose, launcher_name
from resilience_pipelines.launchers.local import run_local


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESILIENCE_LAUNCHER", raising=False)
    monkeypatch.delenv("RESILIENCE_KUBERNETES_SETTINGS", raising=False)


def test_jobs_run_here_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    assert choose(open_home(tmp_path)) is run_local


def test_what_is_asked_for_counts_more_than_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESILIENCE_LAUNCHER", "kubernetes")
    assert launcher_name() is LauncherName.KUBERNETES
    assert launcher_name("local") is LauncherName.LOCAL


def test_a_launcher_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--launcher = 'slurm'"):
        launcher_name("slurm")
    monkeypatch.setenv("RESILIENCE_LAUNCHER", "slurm")
    with pytest.raises(InputError, match="RESILIENCE_LAUNCHER = 'slurm'"):
        launcher_name()


def test_a_cluster_without_settings_is_told_where_they_belong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"kubernetes\.toml"):
        choose(open_home(tmp_path), "kubernetes")


@pytest.mark.parametrize("worker", WORKERS)
def test_a_partition_names_its_worker(worker: str) -> None:
    assert worker_named_by(f"1x-nvidia-h200|{worker}-1.2-driver-580") == worker


def test_a_partition_of_another_worker_is_refused() -> None:
    with pytest.raises(InputError, match="'torch'"):
        worker_named_by("1x-nvidia-h200|vllm-0.24.0", "torch")
    with pytest.raises(InputError, match="any worker"):
        worker_named_by("1x-nvidia-h200|other-0.24.0")
