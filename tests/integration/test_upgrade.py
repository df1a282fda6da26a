"""Upgrades from their feed to their verdicts, through Dagster's sensors and jobs, with no hand.

The machine and what its jobs measure are simulated, and their records say so; feeds, partitions,
sensors, the job, DuckDB, dbt, the check and the webhook are the real ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import dagster as dg
import pytest
from typer.testing import CliRunner

from resilience_pipelines.cli import app
from resilience_pipelines.dagster_io.instance import open_instance
from resilience_pipelines.dagster_io.launcher import IMAGE_TAG, JobLauncher, LocalLauncher
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import FaultSpec, JobSpec, SnapshotSpec, StartupSpec
from resilience_pipelines.launchers.choice import SETTINGS_FILE
from resilience_pipelines.launchers.kubernetes.settings import image_digest
from resilience_pipelines.records import Arm, RunKind, RunRecord
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.landing import LandedRun, read_landing
from resilience_pipelines.warehouse.query import query
from tests.factories import RecordFactory, land, make_home, make_stack
from tests.support.dagster_home import load_definitions

IMAGE = "registry.test/resilience@sha256:" + "a" * 64
OLD, NEW = make_stack(criu_version="4.2.1"), make_stack(criu_version="4.3")
IN_IMAGE = make_stack(criu_version="4.4", image_digest=image_digest(IMAGE))
RESTORES_S = {OLD: 1.0, NEW: 8.0, IN_IMAGE: 1.0}
A_MONTH_S = 30 * 86400


class Recorded(LocalLauncher):
    """Lands simulated records of the machine's stack; the second one restores more slowly."""

    machine: ClassVar[Stack] = OLD
    asked: ClassVar[list[str]] = []

    def run(self, context: dg.AssetExecutionContext, spec: JobSpec, home: Home) -> LandedRun:
        """Land the record of a run."""
        self.asked.append(spec.kind)
        stack = self.stack_of(context)
        later = A_MONTH_S * list(RESTORES_S).index(stack)
        return read_landing(
            land(home.landing, record_of(spec, stack, later + 3600 * len(self.asked)))
        )

    def stack_of(self, context: dg.AssetExecutionContext) -> Stack:
        """What the job would find."""
        return self.machine


class InACluster(Recorded):
    """Lands simulated records of the image that the run was requested for."""

    @property
    def measures_this_machine(self) -> bool:
        """It does not."""
        return False

    def stack_of(self, context: dg.AssetExecutionContext) -> Stack:
        """What the job would find in the image."""
        assert context.run.tags[IMAGE_TAG] == IMAGE
        return IN_IMAGE


def record_of(spec: JobSpec, stack: Stack, at_s: int) -> RunRecord:
    factory = RecordFactory(at_s)
    match spec:
        case SnapshotSpec():
            return factory.record(RunKind.SNAPSHOT, snapshots=[factory.snapshot()], stack=stack)
        case FaultSpec():
            return factory.fault_record(stack=stack)
        case _:
            totals = [RESTORES_S[stack] + 0.01 * n for n in range(5)]
            return factory.startup_record(stack=stack, totals_s={Arm.RESTORE: totals})


class Webhook(BaseHTTPRequestHandler):
    """Keeps what it gets, and refuses the first."""

    got: ClassVar[list[dict[str, Any]]] = []
    refuse: ClassVar[list[int]] = [503]

    def do_POST(self) -> None:
        """Take one alert."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = self.refuse.pop() if self.refuse else 200
        if status == 200:
            self.got.append(body)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def webhook() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/secret-path"
    server.shutdown()
    server.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    load_definitions()
    made = make_home(tmp_path / "home")
    monkeypatch.setenv("RESILIENCE_HOME", str(made.root))
    for name in FEEDS:
        monkeypatch.setenv(f"RESILIENCE_FEED_{name.upper()}", (tmp_path / "none").as_uri())
    feed = tmp_path / "criu.atom"
    monkeypatch.setenv("RESILIENCE_FEED_CRIU", feed.as_uri())

    def machines(_: Home) -> dict[str, Any]:
        machine = SimpleNamespace(
            stack=Recorded.machine, engine=None, no_engine_why="it is simulated"
        )
        return {"reference": machine}

    monkeypatch.delenv("RESILIENCE_LAUNCHER", raising=False)
    for module in (
        "assets.measuring",
        "assets.sensors",
        "assets.stacks",
        "resilience_pipelines.release_survey",
    ):
        monkeypatch.setattr(f"{module}.read_machines", machines)
    monkeypatch.setattr("assets.warehouse.published_results", list)
    return made


def publish_feed(folder: Path, *versions: str) -> None:
    entries = "".join(
        f"<entry><id>tag:github.com,2008:Repository/1/v{version}</id><title>v{version}</title><updated>2026-11-0{day}T00:00:00Z"
        f'</updated><link href="https://example.org/releases/tag/v{version}"/></entry>'
        for day, version in enumerate(versions, start=1)
    )
    (folder / "criu.atom").write_text(
        f'<feed xmlns="http://www.w3.org/2005/Atom"><title>criu</title>{entries}</feed>'
    )


def state_of(home: Home, version: str) -> str:
    shown = CliRunner().invoke(app, ["releases", "criu", "--home", str(home.root), "--json"])
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)["releases"]
    return str({row["version"]: row["state"] for row in rows}[version])


class Daemon:
    """Evaluates sensors and runs jobs, as Dagster's daemon and a run's process do."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.defs = load_definitions()

    def tick(self, name: str, cursor: str | None = None, **resources: Any) -> Any:
        """Evaluate a sensor once."""
        with (
            dg.build_sensor_context(
                instance=self.instance,
                cursor=cursor,
                repository_def=self.defs.get_repository_def(),
                resources={"home": HomeResource(), **resources},
            ) as context,
            # The daemon gives the context a reference to its instance, which does the same.
            dg.partition_loading_context(dynamic_partitions_store=self.instance),
        ):
            return self.defs.resolve_sensor_def(name).evaluate_tick(context)

    def read_feeds(self) -> None:
        """What the daily schedule does."""
        read = self.defs.resolve_job_def("read_releases")
        assert read.execute_in_process(
            instance=self.instance, resources={"home": HomeResource()}
        ).success

    def register_new_releases(self) -> list[str]:
        """The partitions that were added; there are no more of them."""
        (added,) = self.tick("new_releases").dynamic_partitions_requests
        self.instance.add_dynamic_partitions("software", list(added.partition_keys))
        assert not self.tick("new_releases").dynamic_partitions_requests
        return list(added.partition_keys)

    def run(self, request: Any, launcher: JobLauncher) -> None:
        """Run the main job for a request."""
        done = self.defs.resolve_job_def("main_job").execute_in_process(
            instance=self.instance, partition_key=request.partition_key,
            resources={"home": HomeResource(), "launcher": launcher},
            tags=request.tags, raise_on_error=False,
        )  # fmt: skip
        assert done.success, [e.message for e in done.all_events if e.is_failure]

    def newest_check(self) -> Any:
        """What the check of upgrades said last."""
        (check,) = self.instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(dg.AssetKey("published_database"), "upgrades_safe"), limit=1
        )
        return check.event.dagster_event.asset_check_evaluation_data


def test_releases_go_from_their_feed_to_a_verdict_that_is_told(
    home: Home, tmp_path: Path, webhook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is installed on the machine; for the second the operator names an image."""
    with open_instance(home) as instance:
        daemon = Daemon(instance)

        # The machine as it is, and what somebody has measured on it from the command line.
        publish_feed(tmp_path, "4.2.1")
        daemon.read_feeds()
        assert state_of(home, "4.2.1") == "available"
        (first,) = daemon.tick("unmeasured_stacks").run_requests
        for hours, spec in enumerate((SnapshotSpec(), StartupSpec(), FaultSpec())):
            land(home.landing, record_of(spec, OLD, 3600 * hours))

        # A release appears, is known, and has its partition before anybody has it.
        publish_feed(tmp_path, "4.2.1", "4.3")
        daemon.read_feeds()
        assert state_of(home, "4.3") == "known"
        assert daemon.register_new_releases() == [NEW.software_label]

        # The machine gets it: its suite is requested once, under a key of its own.
        monkeypatch.setattr(Recorded, "machine", NEW)
        assert state_of(home, "4.3") == "available"
        (request,) = daemon.tick("unmeasured_stacks").run_requests
        assert request.tags["resilience/releases"] == "criu 4.3"
        assert request.partition_key.endswith(NEW.software_label)
        assert request.run_key != first.run_key
        daemon.run(request, Recorded())
        assert daemon.tick("unmeasured_stacks").run_requests == []
        assert Recorded.asked == ["snapshot", "startup", "fault"]

        # Everybody can see what it did.
        assert [state_of(home, version) for version in ("4.2.1", "4.3")] == ["measured"] * 2
        states = query(home, "select version, state from releases order by version").rows()
        assert states == [("4.2.1", "measured"), ("4.3", "measured")]
        found = daemon.newest_check()
        assert not found.passed
        assert "1 of 1 upgrades are not safe" in found.description

        # It is told once, however often the channel fails before.
        assert "No channel" in daemon.tick("upgrade_verdicts").skip_message
        monkeypatch.setenv("RESILIENCE_ALERT_WEBHOOK", webhook)
        refused = daemon.tick("upgrade_verdicts")
        assert "status 503" in refused.skip_message
        assert "secret-path" not in refused.skip_message
        told = daemon.tick("upgrade_verdicts", refused.cursor)
        assert told.skip_message.startswith("1 sent")
        again = daemon.tick("upgrade_verdicts", told.cursor)
        assert again.skip_message.startswith("0 sent")
        shown = CliRunner().invoke(app, ["upgrades", "--home", str(home.root)])
        assert shown.exit_code == 1
        assert "criu_version 4.2.1 to 4.3" in " ".join(shown.stdout.split())

        # The next one no machine has, until the operator names an image for it.
        publish_feed(tmp_path, "4.2.1", "4.3", "4.4")
        daemon.read_feeds()
        assert state_of(home, "4.4") == "known"
        assert daemon.register_new_releases() == [IN_IMAGE.software_label]
        cluster = {"launcher": InACluster()}
        assert daemon.tick("offered_releases", **cluster).run_requests == []
        (home.root / SETTINGS_FILE).write_text(
            'image = "registry.test/resilience:1"\nhome = "/resilience"\n'
            '[landing]\nhost_path = "/landing"\n'
            f'[images.criu]\n"4.4" = "{IMAGE}"\n'
        )
        assert state_of(home, "4.4") == "available"
        (request,) = daemon.tick("offered_releases", **cluster).run_requests
        assert request.tags["resilience/releases"] == "criu 4.4"
        assert request.partition_key.endswith(IN_IMAGE.software_label)
        daemon.run(request, InACluster())
        assert daemon.tick("offered_releases", **cluster).run_requests == []
        assert daemon.tick("unmeasured_stacks").run_requests == []
        assert Recorded.asked == ["snapshot", "startup", "fault"] * 2

        # It is measured, and has made good what the one before had done.
        assert state_of(home, "4.4") == "measured"
        measured = query(home, "select image_digest from stacks where criu_version = '4.4'")
        assert measured.item() == image_digest(IMAGE)
        found = daemon.newest_check()
        assert found.passed, found.description
        assert daemon.tick("upgrade_verdicts", told.cursor).skip_message.startswith("1 sent")
    slower, faster = Webhook.got
    assert slower["verdict"] == "not_safe"
    assert slower["differing_dimensions"] == {"criu_version": ["4.2.1", "4.3"]}
    assert "start-up, restore" in " ".join(slower["reasons"])
    assert faster["verdict"] in ("safe", "safe_with_notes")
    assert faster["differing_dimensions"] == {
        "criu_version": ["4.3", "4.4"],
        "image_digest": [None, image_digest(IMAGE)],
    }
