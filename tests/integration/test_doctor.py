"""A real diagnosis of this machine, and of a Kubernetes API server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from resilience_pipelines.doctor import PROBE_TIMEOUT_S, all_probes, diagnose
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.snapshots.criu_binary import find_criu


class ApiServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = {"gitVersion": "v1.36.2", "major": "1", "minor": "36"} | dict.fromkeys(
            ["buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "platform"], "x"
        )
        found = self.path.rstrip("/") == "/version"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep quiet."""


@pytest.fixture
def api_server() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(5)


def kubeconfig(folder: Path, port: int) -> Path:
    path = folder / "config"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )  # fmt: skip
    return path


def test_an_api_server_that_answers_is_available(
    api_server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, api_server)))
    found = diagnose(probes={"kubernetes": all_probes()["kubernetes"]})["kubernetes"]
    assert (found.status, found.version) == ("available", "v1.36.2"), found.reason


def test_an_api_server_that_is_gone_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        port = server.server_address[1]
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, port)))
    found = diagnose(probes={"kubernetes": all_probes()["kubernetes"]})["kubernetes"]
    assert found.status == "unavailable"
    assert "does not answer" in found.reason


def test_this_machine_is_diagnosed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    found = diagnose()
    assert [each.name for each in found.capabilities] == list(all_probes())
    silent = [each.name for each in found.capabilities if "gave no answer" in each.reason]
    assert silent == []
    assert found.duration_s < PROBE_TIMEOUT_S + 1
    for each in found.capabilities:
        assert each.detail if each.status == "available" else each.reason, each.name


def test_criu_is_reported_as_it_is_found() -> None:
    found = diagnose(probes={"criu": all_probes()["criu"]})["criu"]
    try:
        expected = find_criu().version
    except ResilienceError:
        expected = None
    assert found.version == expected
    if expected is None:
        assert found.status == "unavailable"
