"""Lineage is told as OpenLineage has it, and a target that misbehaves harms no run."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from resilience_pipelines.errors import ResilienceError, Stopped
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import StartupSpec
from resilience_pipelines.lineage import send as sending
from resilience_pipelines.lineage import warehouse
from resilience_pipelines.lineage.event import Event, RunName, State, folder_of
from resilience_pipelines.lineage.jobs import job_lineage
from resilience_pipelines.lineage.send import is_on, send
from resilience_pipelines.lineage.span import span
from resilience_pipelines.warehouse.landing import read_landing
from resilience_pipelines.warehouse.transform import TransformError
from tests.factories import RecordFactory, land, make_home

KEY = "key-that-nobody-may-see"
EVENT = Event(
    State.START, datetime(2026, 1, 1, tzinfo=UTC), RunName("a job", str(uuid.UUID(int=1)))
)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OPENLINEAGE"):
            monkeypatch.delenv(name)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Events go to a file; gives those that are in it."""
    pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(file))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return lambda: [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


def names(data_sets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(item["namespace"], item["name"]) for item in data_sets]


def tags(event: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in event["run"]["facets"]["tags"]["tags"]}


def test_without_a_target_nothing_is_sent_and_nothing_is_looked_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resilience_pipelines.lineage.span.send", pytest.fail)
    assert not is_on()
    with span("load") as now:
        now.find = pytest.fail
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "True")
    assert not is_on()
    with span("load"):
        pass
    assert not caplog.records


@pytest.mark.parametrize(
    "name", ["OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE"]
)
def test_each_setting_of_openlineage_names_a_target(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "anything")
    assert is_on()


def test_a_job_tells_what_it_landed_and_kept(
    told: Callable[[], list[dict[str, Any]]], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "lab")
    record = RecordFactory(1).startup_record(repeats=1)
    [snapshot] = record.snapshots
    image = home.snapshots / str(snapshot.snapshot_id)
    image.mkdir()
    (image / "pages-1.img").write_bytes(b"a secret of 20 bytes")
    folder = land(home.landing, record)
    with job_lineage(StartupSpec(), home) as landed:
        assert landed(read_landing(folder)).record.run_id == record.run_id
    start, end = told()
    assert [start["eventType"], end["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == end["run"]["runId"]
    assert start["job"]["namespace"] == end["job"]["namespace"] == "lab"
    assert end["job"]["name"] == "run.startup"
    assert tags(start)["worker"] == record.worker
    assert tags(end)["run_id"] == record.run_id
    assert tags(end)["stack_key"] == record.stack_key
    assert tags(end)["basis"] == record.basis.value
    assert names(end["outputs"]) == [("file", str(folder)), ("file", str(image))]
    sizes = end["outputs"][-1]["outputFacets"]["outputStatistics"]
    assert (sizes["size"], sizes["fileCount"]) == (20, 1)
    assert "secret" not in json.dumps(end)


def test_a_restored_snapshot_is_what_a_job_read_unless_it_took_it_itself(
    told: Callable[[], list[dict[str, Any]]], home: Home
) -> None:
    made = RecordFactory(2)
    record = made.startup_record(repeats=1)
    own = str(record.snapshots[0].snapshot_id)
    read = ["snapshot-b", "snapshot-c", "snapshot-d"]
    restored = [made.compatibility_trial(), *made.fanout(1, [1.0]), record.startups[0]]
    trial, wave, start = (
        item.model_copy(update={"snapshot_id": name})
        for item, name in zip(restored, read, strict=True)
    )
    again = record.startups[1].model_copy(update={"snapshot_id": own})
    record = record.model_copy(
        update={"compatibility": (trial,), "fanout": (wave,), "startups": (start, again)}
    )
    for name in (*read, own):
        (home.snapshots / name).mkdir()
    with job_lineage(StartupSpec(), home) as landed:
        landed(read_landing(land(home.landing, record)))
    assert names(told()[-1]["inputs"]) == [("file", str(home.snapshots / name)) for name in read]


def test_a_job_that_fails_is_told_with_its_reason_and_one_that_is_ended_is_not_a_failure(
    told: Callable[[], list[dict[str, Any]]], home: Home
) -> None:
    reason = ResilienceError("It ended with exit code 9.\nTOKEN=" + KEY)
    with pytest.raises(ResilienceError), job_lineage(StartupSpec(), home):
        raise reason
    with pytest.raises(ValueError, match=KEY), job_lineage(StartupSpec(), home):
        raise ValueError(KEY)
    with pytest.raises(Stopped), job_lineage(StartupSpec(), home):
        raise Stopped(143)
    ends = [event for event in told() if event["eventType"] != "START"]
    assert [event["eventType"] for event in ends] == ["FAIL", "FAIL", "ABORT"]
    said = [event["run"]["facets"].get("errorMessage", {}).get("message") for event in ends]
    assert said == ["It ended with exit code 9.", "ValueError", None]
    assert KEY not in json.dumps(told())


def test_a_load_reads_what_was_new_and_writes_raw_tables(
    told: Callable[[], list[dict[str, Any]]], home: Home
) -> None:
    folder = land(home.landing, RecordFactory(3).startup_record(repeats=1))
    assert warehouse.load(home).loaded == (folder,)
    assert not warehouse.load(home).loaded
    first, second = (event for event in told() if event["eventType"] == "COMPLETE")
    assert names(first["inputs"]) == [("file", str(folder))]
    duckdb = f"duckdb://{home.warehouse}"
    assert (duckdb, "warehouse.raw.startups") in names(first["outputs"])
    assert tags(first)["loaded"] == "1"
    assert (second["inputs"], second["outputs"]) == ([], [])


def test_publishing_reads_marts_and_writes_the_tables_that_analysts_open(
    told: Callable[[], list[dict[str, Any]]], home: Home
) -> None:
    with duckdb.connect(str(home.warehouse)) as connection:
        connection.execute("create table numbers (i bigint, half double)")
        connection.execute("comment on column numbers.half is 'Half of it.'")
        connection.execute("create schema raw; create table raw.other (x bigint)")
    assert warehouse.publish(home) == home.published
    end = told()[-1]
    assert names(end["inputs"]) == [(f"duckdb://{home.warehouse}", "warehouse.main.numbers")]
    assert names(end["outputs"]) == [(f"duckdb://{home.published}", "resilience.main.numbers")]
    fields = end["outputs"][0]["facets"]["schema"]["fields"]
    assert [(field["name"], field["type"]) for field in fields] == [
        ("i", "BIGINT"), ("half", "DOUBLE"),
    ]  # fmt: skip
    assert fields[1]["description"] == "Half of it."


def write_build(target: Path, begun_at: datetime, status: str) -> None:
    """What dbt leaves behind, as far as it is read."""
    target.mkdir(parents=True)

    def node(kind: str, schema: str, name: str, *reads: str) -> dict[str, Any]:
        return {
            "resource_type": kind, "schema": schema, "name": name, "alias": name,
            "depends_on": {"nodes": list(reads)},
            "columns": {"a": {"name": "a", "data_type": "bigint", "description": "In seconds."}},
        }  # fmt: skip

    manifest = {
        "nodes": {
            "model.p.stg_runs": node("model", "main", "stg_runs", "source.p.raw.runs"),
            "model.p.runs": node("model", "main", "runs", "model.p.stg_runs", "seed.p.words"),
            "seed.p.words": node("seed", "main", "words"),
            "test.p.unique": node("test", "main", "unique", "model.p.runs"),
        },
        "sources": {"source.p.raw.runs": node("source", "raw", "runs")},
    }
    (target / "manifest.json").write_text(json.dumps(manifest))
    timing = [
        {
            "name": "execute",
            "started_at": begun_at.isoformat(),
            "completed_at": (begun_at + timedelta(seconds=2)).isoformat(),
        }
    ]
    results = [
        {"unique_id": "model.p.stg_runs", "status": "success", "timing": timing},
        {"unique_id": "model.p.runs", "status": status, "timing": timing},
        {"unique_id": "test.p.unique", "status": "pass", "timing": timing},
        {"unique_id": "seed.p.words", "status": "skipped", "timing": []},
    ]
    (target / "run_results.json").write_text(json.dumps({"results": results}))


def test_a_build_tells_of_each_model_which_tables_it_reads_and_makes(
    told: Callable[[], list[dict[str, Any]]], home: Home, tmp_path: Path
) -> None:
    target = tmp_path / "target"

    def fail() -> None:
        with warehouse.build_lineage(home, target):
            write_build(target, datetime.now(UTC), "error")
            raise TransformError("dbt node runs failed: no such column")

    with pytest.raises(TransformError):
        fail()
    begun, *parts, end = told()
    assert [event["eventType"] for event in parts] == ["START", "COMPLETE", "START", "FAIL"]
    duckdb = f"duckdb://{home.warehouse}"
    staged, runs = parts[1], parts[3]
    assert names(staged["inputs"]) == [(duckdb, "warehouse.raw.runs")]
    assert names(staged["outputs"]) == [(duckdb, "warehouse.main.stg_runs")]
    assert names(runs["inputs"]) == [
        (duckdb, "warehouse.main.stg_runs"), (duckdb, "warehouse.main.words"),
    ]  # fmt: skip
    [column] = runs["outputs"][0]["facets"]["schema"]["fields"]
    assert (column["name"], column["type"], column["description"]) == ("a", "bigint", "In seconds.")
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in parts} == {
        begun["run"]["runId"]
    }
    assert end["eventType"] == "FAIL"
    assert end["run"]["facets"]["errorMessage"]["message"].startswith("dbt node runs failed")
    assert names(end["inputs"]) == [
        (duckdb, "warehouse.raw.runs"),
        (duckdb, "warehouse.main.words"),
    ]


def test_what_an_earlier_build_left_is_not_told_again(
    told: Callable[[], list[dict[str, Any]]], home: Home, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    write_build(target, datetime.now(UTC) - timedelta(minutes=1), "success")
    with warehouse.build_lineage(home, target):
        pass
    assert [event["eventType"] for event in told()] == ["START", "COMPLETE"]


def test_facts_that_can_not_be_read_are_told_and_fail_nothing(
    told: Callable[[], list[dict[str, Any]]],
    home: Home,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with warehouse.build_lineage(home, tmp_path / "nothing"):
        pass
    assert [event["eventType"] for event in told()] == ["START", "COMPLETE"]
    assert "what dbt.build read and wrote is not known" in caplog.text


def test_a_folder_is_its_path_and_its_size(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"123")
    found = folder_of(tmp_path)
    assert (found.name, found.size_bytes, found.files) == (str(tmp_path), 3, 1)


Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def with_status(status: int) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("location", "/elsewhere")
        handler.send_header("content-length", "0")
        handler.end_headers()

    return answer


def close(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def garble(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x16\x03\x01 no HTTP\r\n\r\n")


@contextmanager
def http_target(answer: Answer | None) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A target that gets events and answers so, or never; gives its address and what it got."""
    got: list[tuple[str, Any]] = []
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.headers.get("authorization", ""), json.loads(body)))
            if answer is None:
                over.wait(20)
            else:
                answer(self)

        def do_GET(self) -> None:
            pytest.fail("a redirect was followed")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def test_events_go_to_a_target_over_http_with_its_key_and_in_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")
    with http_target(with_status(201)) as (address, got):
        monkeypatch.setenv("OPENLINEAGE_URL", address)
        monkeypatch.setenv("OPENLINEAGE_API_KEY", KEY)
        before = dict(os.environ)
        with span("load"):
            pass
        assert dict(os.environ) == before
    assert [event["eventType"] for _, event in got] == ["START", "COMPLETE"]
    assert {key for key, _ in got} == {f"Bearer {KEY}"}
    assert KEY not in json.dumps([event for _, event in got])
    assert not [item for item in caplog.records if item.name == sending.LOG.name]


@pytest.mark.parametrize(
    ("answer", "deadline_s", "words"),
    [
        (with_status(400), 20.0, "the target answered with 400"),
        (with_status(401), 20.0, "the target answered with 401"),
        (with_status(302), 20.0, "TooManyRedirects|answered with 302"),
        # The client tries these again and again.
        (with_status(503), 0.7, "too late"),
        (close, 0.7, "too late"),
        (garble, 0.7, "too late"),
        (None, 0.7, "too late"),
    ],
)
def test_a_target_that_misbehaves_is_told_and_no_run_fails_by_it(
    answer: Answer | None,
    deadline_s: float,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")
    monkeypatch.setattr(sending, "DEADLINE_S", deadline_s)
    with http_target(answer) as (address, got):
        monkeypatch.setenv("OPENLINEAGE_URL", address)
        monkeypatch.setenv("OPENLINEAGE_API_KEY", KEY)
        done = []
        with span("load"):
            done.append("loaded")
    assert done == ["loaded"]
    assert got
    said = [item.getMessage() for item in caplog.records if item.name == sending.LOG.name]
    assert ["START of load" in said[0], "COMPLETE of load" in said[1]] == [True, True]
    assert all(any(word in text for word in words.split("|")) for text in said), said
    assert KEY not in caplog.text
    assert address not in "".join(said)


def test_an_error_stays_what_it_was_when_it_can_not_be_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")
    with http_target(with_status(400)) as (address, _):
        monkeypatch.setenv("OPENLINEAGE_URL", address)
        with pytest.raises(TransformError, match="as it was"), span("dbt.build"):
            raise TransformError("as it was")
    assert "from FAIL of dbt.build on, may not have been sent" in caplog.text


def test_a_target_that_is_slow_gets_all_events_and_one_that_is_too_slow_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        time.sleep(0.3)
        with_status(201)(handler)

    monkeypatch.setattr(sending, "DEADLINE_S", 2.0)
    with http_target(answer) as (address, got):
        monkeypatch.setenv("OPENLINEAGE_URL", address)
        send([EVENT] * 10)
        assert len(got) == 10
        assert "may not have been sent" not in caplog.text
        monkeypatch.setattr(sending, "DEADLINE_S", 0.5)
        monkeypatch.setattr(sending, "LONGEST_S", 0.6)
        send([EVENT] * 30)
        assert "too late" in caplog.text
        assert len(got) < 40


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"OPENLINEAGE_URL": "http://127.0.0.1:1"}, "too late|ConnectionError"),
        ({"OPENLINEAGE_URL": "no address"}, "ValueError"),
        ({"OPENLINEAGE_URL": "http://169.254.7.7"}, "credentials of machines"),
        ({"OPENLINEAGE_CONFIG": "/nowhere/openlineage.yml"}, "OPENLINEAGE_CONFIG"),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "pigeon"}, "Error"),
        ({"OPENLINEAGE__TRANSPORT__URL": "http://127.0.0.1:1"}, "no transport"),
        (
            {
                "OPENLINEAGE__TRANSPORT__TYPE": "file",
                "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": "/proc/nowhere/events",
            },
            "RuntimeError (No such file or directory)",
        ),
    ],
)
def test_a_setting_that_names_no_target_is_told(
    settings: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    requests = pytest.importorskip("requests")
    pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")
    sent = requests.Session.send

    def only_loopback(session: Any, request: Any, **arguments: Any) -> Any:
        assert "127.0.0.1" in request.url
        return sent(session, request, **arguments)

    monkeypatch.setattr(requests.Session, "send", only_loopback)
    monkeypatch.setattr(sending, "DEADLINE_S", 0.7)
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert is_on()
    send([EVENT])
    said = [item.getMessage() for item in caplog.records if item.name == sending.LOG.name]
    assert len(said) == 1
    assert any(word in said[0] for word in words.split("|")), said


def test_a_client_that_is_not_installed_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(sending.importlib.util, "find_spec", lambda _: None)
    send([EVENT])
    assert "pip install 'resilience-pipelines[openlineage]'" in caplog.text


def test_after_the_first_event_that_is_lost_no_other_one_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("openlineage", reason="the extra `openlineage` is not installed")
    with http_target(with_status(400)) as (address, got):
        monkeypatch.setenv("OPENLINEAGE_URL", address)
        send([EVENT] * 5)
    assert len(got) == 1
    assert "5 of 5 events" in caplog.text
