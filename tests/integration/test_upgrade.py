"""An upgrade from its feed to its verdict, through Dagster's sensors and jobs, with no hand.

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
from resilience_pipelines.dagster_io.launcher import LocalLauncher
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import FaultSpec, JobSpec, SnapshotSpec
from resilience_pipelines.records import Arm, RunKind
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.stack import Stack
from resilience_pipelines.warehouse.landing import LandedRun, read_landing
from resilience_pipelines.warehouse.query import query
from tests.factories import RecordFactory, land, make_home, make_stack
from tests.support.dagster_home import load_definitions

OLD, NEW = make_stack(criu_version="4.2.1"), make_stack(criu_version="4.3")
A_MONTH_S = 30 * 86400


class Recorded(LocalLauncher):
    """Lands simulated records of the machine's stack; the new one restores more slowly."""

    machine: ClassVar[Stack] = OLD
    asked: ClassVar[list[str]] = []

    def run(self, context: dg.AssetExecutionContext, spec: JobSpec, home: Home) -> LandedRun:
        """Land the record of a run."""
        self.asked.append(spec.kind)
        later = A_MONTH_S if self.machine == NEW else 0
        factory = RecordFactory(later + 3600 * len(self.asked))
        match spec:
            case SnapshotSpec():
                record = factory.record(
                    RunKind.SNAPSHOT, snapshots=[factory.snapshot()], stack=self.machine
                )
            case FaultSpec():
                record = factory.fault_record(stack=self.machine)
            case _:
                slow = [8.0 + 0.01 * n for n in range(5)]
                totals = {Arm.RESTORE: slow} if self.machine == NEW else None
                record = factory.startup_record(stack=self.machine, totals_s=totals)
        return read_landing(land(home.landing, record))


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


def test_a_release_goes_from_its_feed_to_a_verdict_that_is_told(
    home: Home, tmp_path: Path, webhook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs = load_definitions()
    resources = {"home": HomeResource(), "launcher": Recorded()}
    with open_instance(home) as instance:

        def tick(name: str, cursor: str | None = None) -> Any:
            sensor = defs.resolve_sensor_def(name)
            with (
                dg.build_sensor_context(
                    instance=instance,
                    cursor=cursor,
                    repository_def=defs.get_repository_def(),
                    resources={"home": HomeResource()},
                ) as context,
                # The daemon gives the context a reference to its instance, which does the same.
                dg.partition_loading_context(dynamic_partitions_store=instance),
            ):
                return sensor.evaluate_tick(context)

        def run_what_is_requested() -> str:
            (request,) = tick("unmeasured_stacks").run_requests
            job = defs.resolve_job_def("main_job")
            done = job.execute_in_process(
                instance=instance, partition_key=request.partition_key, resources=resources,
                tags=request.tags, raise_on_error=False,
            )  # fmt: skip
            assert done.success, [e.message for e in done.all_events if e.is_failure]
            assert tick("unmeasured_stacks").run_requests == []
            return str(request.run_key)

        # The machine as it is.
        publish_feed(tmp_path, "4.2.1")
        read = defs.resolve_job_def("read_releases")
        assert read.execute_in_process(instance=instance, resources=resources).success
        assert state_of(home, "4.2.1") == "available"
        first = run_what_is_requested()
        assert state_of(home, "4.2.1") == "measured"

        # A release appears, is known, and has its partition before anybody has it.
        publish_feed(tmp_path, "4.2.1", "4.3")
        assert read.execute_in_process(instance=instance, resources=resources).success
        assert state_of(home, "4.3") == "known"
        (added,) = tick("new_releases").dynamic_partitions_requests
        assert list(added.partition_keys) == [NEW.software_label]
        instance.add_dynamic_partitions("software", list(added.partition_keys))
        assert not tick("new_releases").dynamic_partitions_requests
        assert tick("unmeasured_stacks").run_requests == []

        # The machine gets it: its suite is requested once, under a key of its own.
        monkeypatch.setattr(Recorded, "machine", NEW)
        assert state_of(home, "4.3") == "available"
        (request,) = tick("unmeasured_stacks").run_requests
        assert request.tags["resilience/releases"] == "criu 4.3"
        assert request.partition_key.endswith(NEW.software_label)
        assert run_what_is_requested() == request.run_key != first
        assert Recorded.asked == ["snapshot", "startup", "fault"] * 2

        # Everybody can see what it did.
        assert state_of(home, "4.3") == "measured"
        states = query(home, "select version, state from releases order by version").rows()
        assert states == [("4.2.1", "measured"), ("4.3", "measured")]
        (check,) = instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(dg.AssetKey("published_database"), "upgrades_safe"), limit=1
        )
        evaluation = check.event.dagster_event.asset_check_evaluation_data
        assert not evaluation.passed
        assert "1 of 1 upgrades are not safe" in evaluation.description

        # It is told once, however often the channel fails before.
        assert "No channel" in tick("upgrade_verdicts").skip_message
        monkeypatch.setenv("RESILIENCE_ALERT_WEBHOOK", webhook)
        refused = tick("upgrade_verdicts")
        assert "status 503" in refused.skip_message
        assert "secret-path" not in refused.skip_message
        told = tick("upgrade_verdicts", refused.cursor)
        assert told.skip_message.startswith("1 sent")
        again = tick("upgrade_verdicts", told.cursor)
        assert again.skip_message.startswith("0 sent")
    (alert,) = Webhook.got
    assert alert["verdict"] == "not_safe"
    assert alert["differing_dimensions"] == {"criu_version": ["4.2.1", "4.3"]}
    assert "start-up, restore" in " ".join(alert["reasons"])
    shown = CliRunner().invoke(app, ["upgrades", "--home", str(home.root)])
    assert shown.exit_code == 1
    assert "criu_version 4.2.1 to 4.3" in " ".join(shown.stdout.split())
