"""The Airflow provider's client without Airflow: connections, lost answers, TLS, verdicts."""

from __future__ import annotations

import ast
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from dagster_graphql.schema import create_schema
from graphql import parse, validate

import resilience_pipelines.airflow as provider
from resilience_pipelines.airflow import client
from resilience_pipelines.airflow.client import Dagster, DagsterError, Endpoint, Launch, endpoint_of

FOLDER = Path(provider.__file__).parent


@dataclass
class Connection:
    host: str | None = "dagster.example.org"
    schema: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = None
    extra_dejson: dict[str, Any] = field(default_factory=dict)


Reply = tuple[int, object] | None
"""Status and body; None closes the connection without an answer."""


class Server:
    """Answers on loopback, and keeps what it was asked."""

    def __init__(self, answer: Callable[[dict[str, Any]], Reply]) -> None:
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                asked.append(({k.lower(): v for k, v in self.headers.items()}, body))
                reply = answer(body)
                if reply is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                text = reply[1] if isinstance(reply[1], str) else json.dumps(reply[1])
                self.send_response(reply[0])
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """No words on standard error."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)

    def endpoint(self, scheme: str = "http") -> Endpoint:
        return Endpoint(f"{scheme}://127.0.0.1:{self.http.server_port}/graphql", timeout_s=5.0)

    def __enter__(self) -> Server:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RETRY_WAIT_S", 0.0)


def no_runs(_: dict[str, Any]) -> Reply:
    return 200, {"data": {"runsOrError": {"__typename": "Runs", "results": []}}}


def test_every_request_is_one_that_dagster_understands() -> None:
    schema = create_schema().graphql_schema
    for name in ("_ASSETS", "_LAUNCH", "_RUNS", "_POLL", "_OUTCOME", "_TERMINATE", "_CHECKS"):
        assert validate(schema, parse(getattr(client, name))) == [], name


def test_the_provider_imports_nothing_of_the_platform_or_dagster() -> None:
    allowed = {"airflow", "httpx", *sys.stdlib_module_names}
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                own = name == "resilience_pipelines" or name.startswith(provider.__name__)
                assert own or name.split(".")[0] in allowed, f"{path.name}: {name}"


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        (Connection(), "http://dagster.example.org/graphql"),
        (Connection(schema="https", port=8443), "https://dagster.example.org:8443/graphql"),
        (Connection(host="https://d.example.org/"), "https://d.example.org/graphql"),
        (Connection(extra_dejson={"path": "/prod/"}), "http://dagster.example.org/prod/graphql"),
    ],
)
def test_a_connection_names_the_endpoint(connection: Connection, url: str) -> None:
    assert endpoint_of(connection).url == url


@pytest.mark.parametrize(
    ("connection", "word"),
    [
        (Connection(host=None), "host"),
        (Connection(extra_dejson={"timeout": "soon"}), "timeout = 'soon'"),
        (Connection(extra_dejson={"timeout": 0}), "timeout = 0"),
        (Connection(extra_dejson={"retries": -1}), "retries = -1"),
        (Connection(extra_dejson={"verify": 3}), "verify = 3"),
        (Connection(extra_dejson={"headers": "x"}), "headers"),
    ],
)
def test_a_wrong_field_of_a_connection_is_named(connection: Connection, word: str) -> None:
    with pytest.raises(DagsterError, match=word):
        endpoint_of(connection)


def test_login_and_headers_are_sent_and_not_shown() -> None:
    connection = Connection(
        login="me", password="secret-word",
        extra_dejson={"Dagster-Cloud-Api-Token": "secret-token", "headers": {"X-Team": "gpu"}},
    )  # fmt: skip
    found = endpoint_of(connection)
    assert "secret" not in repr(found)
    with Server(no_runs) as server:
        Dagster(replace(found, url=server.endpoint().url)).runs_with_tag("a", "b")
    ((headers, _),) = server.asked
    assert headers["dagster-cloud-api-token"] == "secret-token"
    assert headers["x-team"] == "gpu"
    assert headers["authorization"].startswith("Basic ")


@pytest.mark.parametrize("first", [(503, "busy"), None])
def test_a_question_is_asked_again_when_its_answer_got_lost(first: Reply) -> None:
    replies = [first, first]
    with Server(lambda body: replies.pop() if replies else no_runs(body)) as server:
        assert Dagster(server.endpoint()).runs_with_tag("a", "b") == []
    assert len(server.asked) == 3


def test_a_server_that_does_not_answer_is_waited_for_no_longer_than_was_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/graphql"
        with pytest.raises(DagsterError, match="ReadTimeout"):
            Dagster(Endpoint(url, timeout_s=0.05, retries=1)).runs_with_tag("a", "b")


def test_retries_end() -> None:
    with Server(lambda _: (503, "busy")) as server:
        endpoint = replace(server.endpoint(), retries=1)
        with pytest.raises(DagsterError, match="answers 503"):
            Dagster(endpoint).runs_with_tag("a", "b")
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((401, "no"), "check login, password"),
        ((404, "<html>"), "no GraphQL"),
        ((200, {"errors": [{"message": "no such field"}]}), "no such field"),
    ],
)
def test_what_dagster_refuses_is_told(reply: Reply, words: str) -> None:
    with Server(lambda _: reply) as server, pytest.raises(DagsterError, match=words):
        Dagster(server.endpoint()).runs_with_tag("a", "b")
    assert len(server.asked) == 1


JOB = Launch(job="main_job", location="here", repository="all")


def test_a_launch_whose_answer_got_lost_is_found_and_not_repeated() -> None:
    launched: list[str] = []

    def answer(body: dict[str, Any]) -> Reply:
        if "launchRun" in body["query"]:
            tags = body["variables"]["params"]["executionMetadata"]["tags"]
            launched.extend(tag["value"] for tag in tags if tag["key"] == "airflow/launch")
            return None
        (tag,) = body["variables"]["filter"]["tags"]
        found = [{"runId": "the-run"}] if tag["value"] in launched else []
        return 200, {"data": {"runsOrError": {"__typename": "Runs", "results": found}}}

    with Server(answer) as server:
        assert Dagster(server.endpoint()).launch(JOB) == "the-run"
    assert len(launched) == 1


def test_a_launch_that_was_refused_says_why() -> None:
    errors = [{"message": "repeats is missing"}]
    refused = {"__typename": "RunConfigValidationInvalid", "errors": errors}
    with (
        Server(lambda _: (200, {"data": {"launchRun": refused}})) as server,
        pytest.raises(DagsterError, match="repeats is missing"),
    ):
        Dagster(server.endpoint()).launch(JOB)


def test_a_job_alone_needs_its_place() -> None:
    with pytest.raises(DagsterError, match="location and repository"):
        Dagster(Endpoint("http://127.0.0.1:9/graphql")).launch(Launch(job="main_job"))


@pytest.mark.parametrize(
    "partition", ["cpu|reference", {"software": "reference", "hardware": "cpu"}]
)
def test_a_partition_of_two_dimensions_has_a_tag_for_each(partition: Any) -> None:
    assert client._partition_tags(partition, ["hardware", "software"]) == {
        "dagster/partition": "cpu|reference",
        "dagster/partition/hardware": "cpu",
        "dagster/partition/software": "reference",
    }


@pytest.mark.parametrize("partition", ["cpu", "a|b|c", {"hardware": "cpu"}])
def test_a_partition_that_lacks_a_dimension_is_refused(partition: Any) -> None:
    with pytest.raises(DagsterError, match="hardware and software"):
        client._partition_tags(partition, ["hardware", "software"])


def made(label: str = "n") -> dict[str, Any]:
    entry = {"__typename": "IntMetadataEntry", "label": label, "intRepr": "3"}
    return {
        "__typename": "MaterializationEvent",
        "assetKey": {"path": ["a", "b"]},
        "partition": "p",
        "metadataEntries": [entry],
    }


def checked(passed: bool, severity: str) -> dict[str, Any]:
    return {
        "__typename": "AssetCheckEvaluationEvent",
        "evaluation": {
            "assetKey": {"path": ["a", "b"]}, "checkName": "c", "success": passed,
            "severity": severity, "description": "d",
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "events", "verdict"),
    [
        ("SUCCESS", [made(), checked(True, "ERROR")], "pass"),
        ("SUCCESS", [made(), checked(False, "WARN")], "warn"),
        ("SUCCESS", [made(), checked(False, "ERROR")], "fail"),
        ("SUCCESS", [], "no_data"),
        ("FAILURE", [made()], "fail"),
        ("CANCELED", [made()], "canceled"),
    ],
)
def test_a_run_says_one_word(status: str, events: list[dict[str, Any]], verdict: str) -> None:
    found = client.outcome_of("r", status, events)
    assert found["verdict"] == verdict
    if events:
        assert found["figures"] == {"a/b": {"n": 3}}
        assert found["partitions"] == {"a/b": "p"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that is its own CA, with its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", f"{path}.key", "-out", str(path),
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return path


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[Server]:
    server = Server(no_runs)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, f"{certificate}.key")
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    with server:
        yield server


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_server: Server) -> None:
    endpoint = replace(tls_server.endpoint("https"), retries=0)
    with pytest.raises(DagsterError, match="CERTIFICATE_VERIFY_FAILED"):
        Dagster(endpoint).runs_with_tag("a", "b")
    assert tls_server.asked == []


def test_a_file_of_cas_is_used_and_checking_can_be_turned_off(
    tls_server: Server, certificate: Path
) -> None:
    for verify in (str(certificate), False):
        endpoint = replace(tls_server.endpoint("https"), verify=verify)
        assert Dagster(endpoint).runs_with_tag("a", "b") == []


def test_a_server_that_wants_to_know_who_asks_gets_the_clients_certificate(
    certificate: Path,
) -> None:
    server = Server(no_runs)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, f"{certificate}.key")
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    with server:
        nobody = replace(server.endpoint("https"), verify=str(certificate), retries=0)
        with pytest.raises(DagsterError):
            Dagster(nobody).runs_with_tag("a", "b")
        known = replace(nobody, cert=(str(certificate), f"{certificate}.key"))
        assert Dagster(known).runs_with_tag("a", "b") == []
    assert len(server.asked) == 1


def test_a_file_of_cas_that_is_not_there_is_told() -> None:
    with pytest.raises(DagsterError, match="verify or cert"):
        Dagster(Endpoint("https://127.0.0.1:9/graphql", verify="/nowhere.pem")).runs_with_tag(
            "a", "b"
        )
