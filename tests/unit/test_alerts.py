"""An alert arrives whole, and no message holds the address that it went to."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from resilience_pipelines.alerts import (
    EMAIL,
    SLACK,
    SMTP,
    WEBHOOK,
    Alert,
    AlertError,
    send,
    send_all,
)
from resilience_pipelines.alerts import channels as named_channels
from resilience_pipelines.errors import InputError, ResilienceError

ALERT = Alert("Upgrade not safe: a\n to <b> & c", ("slower", "fails"), {"verdict": "not_safe"})


@pytest.fixture(autouse=True)
def no_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (WEBHOOK, SLACK, EMAIL, SMTP):
        monkeypatch.delenv(name, raising=False)


POST = httpx.Client.post


def post_on_loopback(client: httpx.Client, address: str, **arguments: Any) -> httpx.Response:
    """Keeps a test that fails from sending anything to where clouds answer."""
    assert "127.0.0.1" in address
    return POST(client, address, **arguments)


@contextmanager
def http_server(status: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            self.send_header("location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hooks/s3cret", got
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def mail_server(refuse: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Takes one mail by the least of SMTP."""
    got: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            def say(line: str) -> None:
                self.wfile.write(f"{line}\r\n".encode())

            say("220 ready")
            for raw in self.rfile:
                word = raw.split()[0].upper() if raw.split() else b""
                if word == b"EHLO":
                    say("250-here")
                    say("250 AUTH PLAIN")
                elif word == b"AUTH":
                    say("535 wrong: s3cret" if refuse else "235 ok")
                elif word == b"DATA":
                    say("354 go on")
                    lines: list[str] = []
                    for part in self.rfile:
                        if part == b".\r\n":
                            break
                        lines.append(part.decode().rstrip())
                    got.append("\n".join(lines))
                    say("250 ok")
                elif word == b"QUIT":
                    say("221 bye")
                    return
                else:
                    say("250 ok")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"smtp://me%40example.org:s3cret@127.0.0.1:{server.server_address[1]}", got
    finally:
        server.shutdown()
        server.server_close()


def test_only_channels_that_the_environment_names_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert named_channels() == ()
    monkeypatch.setenv(SLACK, "http://127.0.0.1/x")
    assert named_channels() == ("slack",)


def test_a_webhook_gets_everything_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_server(204) as (address, got):
        monkeypatch.setenv(WEBHOOK, address)
        send("webhook", ALERT)
    assert got == [{"title": ALERT.title, "reasons": ["slower", "fails"], "verdict": "not_safe"}]


def test_a_channel_that_fails_keeps_nobody_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InputError, match=WEBHOOK):
        send_all([ALERT])
    with http_server(500) as (refusing, _), http_server(200) as (taking, got):
        monkeypatch.setenv(WEBHOOK, refusing)
        monkeypatch.setenv(SLACK, taking)
        failed = send_all([ALERT, ALERT])
    assert [channel for channel, _ in failed] == ["webhook"] * 2
    assert len(got) == 2


def test_slack_gets_text_in_which_nothing_is_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_server(200) as (address, got):
        monkeypatch.setenv(SLACK, address)
        send("slack", ALERT)
    assert got == [{"text": "Upgrade not safe: a\n to &lt;b&gt; &amp; c\n- slower\n- fails"}]


def test_a_mail_has_one_line_of_subject_and_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    with mail_server() as (address, got):
        monkeypatch.setenv(SMTP, address)
        monkeypatch.setenv(EMAIL, "a@example.org, b@example.org")
        send("email", ALERT)
    (mail,) = got
    assert "Subject: Upgrade not safe: a to <b> & c" in mail
    assert "From: me@example.org" in mail
    assert "To: a@example.org, b@example.org" in mail
    assert "- slower" in mail


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_webhook_that_refuses_or_leads_elsewhere_is_an_error(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with http_server(status) as (address, got):
        monkeypatch.setenv(WEBHOOK, address)
        with pytest.raises(AlertError, match=f"status {status}"):
            send("webhook", ALERT)
    assert len(got) == 1


@pytest.mark.parametrize(
    ("channel", "variable", "address"),
    [
        ("webhook", WEBHOOK, "http://127.0.0.1:1/s3cret"),
        ("webhook", WEBHOOK, "file:///s3cret"),
        ("slack", SLACK, "http://169.254.1.1/s3cret"),
        ("slack", SLACK, "http://[fe80::1]/s3cret"),
        ("email", EMAIL, "s3cret@example.org"),
    ],
)
def test_no_error_holds_the_address(
    monkeypatch: pytest.MonkeyPatch, channel: str, variable: str, address: str
) -> None:
    monkeypatch.setenv(variable, address)
    monkeypatch.setattr(httpx.Client, "post", post_on_loopback)
    with pytest.raises(ResilienceError) as error:
        send(channel, ALERT)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("channel", "settings"),
    [
        ("webhook", {WEBHOOK: "http://127.0.0.1:s3cret/"}),
        ("webhook", {WEBHOOK: "http://[s3cret"}),
        ("webhook", {WEBHOOK: "http://127.0.0.1/s3cret\n"}),
        ("slack", {SLACK: "http://" + "s3cret" * 20 + "/"}),
        ("email", {EMAIL: ","}),
        ("email", {EMAIL: "a@example.org", SMTP: "smtp://user:s3cr/s3cret@127.0.0.1"}),
        ("email", {EMAIL: "a@example.org", SMTP: "smtp://user:s3cret@127.0.0.1:99999"}),
    ],
)
def test_whatever_a_setting_is_the_error_is_one_of_ours_and_holds_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, channel: str, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(httpx.Client, "post", post_on_loopback)
    with pytest.raises(ResilienceError) as error:
        send(channel, ALERT)
    assert "s3c" not in str(error.value)


def test_no_address_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with http_server(200) as (address, _), caplog.at_level("INFO"):
        monkeypatch.setenv(WEBHOOK, address)
        send("webhook", ALERT)
    assert "s3cret" not in caplog.text


def test_a_password_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience_pipelines.alerts._on_loopback", lambda connection: False)
    with mail_server() as (address, got):
        monkeypatch.setenv(SMTP, address)
        monkeypatch.setenv(EMAIL, "a@example.org")
        with pytest.raises(AlertError, match="no encryption"):
            send("email", ALERT)
    assert got == []


def test_a_link_local_address_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WEBHOOK, "http://169.254.1.1/hook")
    monkeypatch.setattr(httpx.Client, "post", post_on_loopback)
    with pytest.raises(InputError, match="link-local"):
        send("webhook", ALERT)


def test_a_mail_server_that_refuses_does_not_get_its_answer_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with mail_server(refuse=True) as (address, got):
        monkeypatch.setenv(SMTP, address)
        monkeypatch.setenv(EMAIL, "a@example.org")
        with pytest.raises(AlertError) as error:
            send("email", ALERT)
    assert got == []
    assert "s3cret" not in str(error.value)
