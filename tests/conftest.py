"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.side_tables import load_side_tables
from resilience_pipelines.snapshots.compatibility import this_host
from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.criu_binary import find_criu
from resilience_pipelines.snapshots.device import NoDevice
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.snapshots.store import SnapshotStore
from resilience_pipelines.stack import Stack, read_host
from resilience_pipelines.warehouse.load import load, published_results
from resilience_pipelines.warehouse.publish import publish
from resilience_pipelines.warehouse.transform import build
from resilience_pipelines.workers.space import SpaceSupport, probe_spaces


def pytest_configure() -> None:
    """Let SIGINT end what tests start: a shell without job control has a background job ignore it,
    and everything that the job starts would inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The same examples for everybody: a test that fails here fails anywhere. Another profile of
    # Hypothesis (HYPOTHESIS_PROFILE=default) looks for new ones.
    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


APART = frozenset(
    [
        "backfill_pools",
        "dagster_tools",
        "dashboard_marts",
        "debian_archive",
        "full_disk",
        "kubernetes_marts",
        "metrics",
        "operations",
        "platform_concurrency",
        "power_loss",
        "snapshot_crashes",
        "snapshot_s3",
        "warehouse_marts",
        "warehouse_processes",
    ]
)
"""Integration tests that start no worker and look at nothing that tests share."""
RESULTS = frozenset({"analyst_notebook", "analysts_page", "published_upgrades"})
"""Those that also share `results_home`, which is dear to make."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests pytest-xdist may run at once: those of two groups.

    Tests that start workers, take snapshots or inject faults look at the machine's cgroups, mounts
    and processes: they are one group, in order. The others are a group for each file.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = Path(nodeid.split("::")[0])
            name = path.stem.removeprefix("test_")
            if name in RESULTS:
                return "results"
            beside = path.parent.name in ("unit", "browser") or name in APART
            return str(path) if beside else "machine"

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def results_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home that holds the results published with the project and nothing else."""
    home = open_home(tmp_path_factory.mktemp("results") / "home")
    assert load(home, published_results()).loaded
    load_side_tables(home)
    build(home)
    publish(home, parquet=True)
    return home


@pytest.fixture(scope="session")
def support() -> SpaceSupport:
    """Capsules, or a skip that says why there are none."""
    found = probe_spaces()
    if not found.capsule:
        pytest.skip(f"no capsules on this machine: {found.reason}")
    return found


@pytest.fixture(scope="session")
def criu(support: SpaceSupport) -> Criu:
    """A CRIU that works, or a skip that says why there is none."""
    try:
        return Criu(find_criu())
    except ResilienceError as error:
        pytest.skip(f"no CRIU on this machine: {error}")


@pytest.fixture
def engine(criu: Criu, tmp_path: Path) -> SnapshotEngine:
    """A snapshot engine with a store of its own."""
    stack = Stack.model_validate(
        {**read_host(tmp_path), "engine": "contract", "engine_version": "1",
         "criu_version": criu.version}
    )  # fmt: skip
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return SnapshotEngine(
        SnapshotStore(tmp_path / "store"), criu, NoDevice(), this_host(stack), scratch
    )
