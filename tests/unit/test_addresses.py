"""Nothing is sent to where clouds keep their credentials, by whatever name or spelling.

Names are looked up by a table here, and no connection is opened to anything but loopback.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from resilience_pipelines.addresses import (
    ForbiddenAddressError,
    Network,
    find_destination,
    is_forbidden,
    look_up,
    network_of,
)
from resilience_pipelines.alerts import EMAIL, SMTP, WEBHOOK, Alert, send
from resilience_pipelines.errors import InputError
from resilience_pipelines.releases.fetch import FetchError, fetch

NAMES: dict[str, list[str]] = {
    "hooks.example.org": ["93.184.215.14"],
    "inside.example.org": ["10.1.2.3"],
    "metadata.example.org": ["169.254.169.254"],
    "both.example.org": ["93.184.215.14", "169.254.169.254"],
    "here.example.org": ["127.0.0.1"],
    "aws6.example.org": ["fd00:ec2::254"],
}
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every address that a connection was opened to; only loopback really is."""
    found: list[tuple[str, int]] = []
    real_look_up, real_connect = socket.getaddrinfo, socket.socket.connect

    def known(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name not in NAMES:
            return real_look_up(host, port, *rest, **options)
        made = [(ipaddress.ip_address(text), text) for text in NAMES[name]]
        families = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [
            (families[address.version], socket.SOCK_STREAM, 6, "", (text, port or 0))
            for address, text in made
        ]

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            found.append((address[0], address[1]))
            if not ipaddress.ip_address(address[0]).is_loopback:
                raise ConnectionRefusedError("a test sends nothing there")
        real_connect(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    monkeypatch.setattr(socket.socket, "connect", connect)
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return found


FORBIDDEN = [
    "169.254.169.254", "169.254.1.1", "2852039166", "0xa9fea9fe", "169.254.43518", "[fe80::1]",
    "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::]", "[fd00:ec2::254]", "100.100.100.200", "192.0.0.192", "168.63.129.16",
    "0.0.0.0", "0", "[::]", "224.0.0.1", "[ff02::1]",
    "metadata.example.org", "both.example.org", "aws6.example.org",
]  # fmt: skip


@pytest.mark.parametrize("host", FORBIDDEN)
def test_no_spelling_of_a_forbidden_address_is_sent_to(
    monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, int]], host: str
) -> None:
    with pytest.raises(ForbiddenAddressError):
        find_destination(f"http://{host}/latest/meta-data")
    monkeypatch.setenv(WEBHOOK, f"http://{host}/hook")
    with pytest.raises(InputError, match="link-local"):
        send("webhook", Alert("t", (), {}))
    with pytest.raises(FetchError, match="no feed"):
        fetch(f"http://{host}/feed", deadline_s=1)
    monkeypatch.setenv(EMAIL, "a@example.org")
    monkeypatch.setenv(SMTP, f"smtp://{host}:25")
    with pytest.raises(InputError, match="link-local"):
        send("email", Alert("t", (), {}))
    assert opened == []


def test_a_name_of_somebody_else_does_not_lead_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, int]]
) -> None:
    monkeypatch.setenv(WEBHOOK, "http://here.example.org:9/hook")
    with pytest.raises(InputError, match="or localhost"):
        send("webhook", Alert("t", (), {}))
    assert opened == []
    for host in ("127.0.0.1", "localhost", "127.9.9.9"):
        assert network_of(look_up(host)[0]) is Network.LOOPBACK


@pytest.fixture
def redirecting() -> Iterator[tuple[str, list[str]]]:
    """A server on loopback that leads wherever it is asked for, and the hosts it was called."""
    hosts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts.append(str(self.headers["Host"]))
            target = self.path.partition("?")[2]
            self.send_response(302 if target else 200)
            if target:
                self.send_header("Location", target)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", hosts
        server.shutdown()


@pytest.mark.parametrize("host", FORBIDDEN)
def test_no_redirect_leads_to_a_forbidden_address(
    redirecting: tuple[str, list[str]], opened: list[tuple[str, int]], host: str
) -> None:
    url, _ = redirecting
    with pytest.raises(FetchError, match="no feed"):
        fetch(f"{url}?http://{host}/x", deadline_s=2)
    assert {address for address, _ in opened} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("url", "nearest"),
    [
        ("http://inside.example.org/", Network.PUBLIC),
        ("http://10.0.0.1/", Network.PUBLIC),
        ("http://[fd12::1]/", Network.PUBLIC),
        ("http://127.0.0.1/", Network.PUBLIC),
        ("http://localhost/", Network.PRIVATE),
    ],
)
def test_an_answer_does_not_lead_nearer_to_this_machine_than_it_comes_from(
    url: str, nearest: Network
) -> None:
    with pytest.raises(ForbiddenAddressError):
        find_destination(url, nearest=nearest)
    assert find_destination(url).network < nearest


def test_a_name_is_looked_up_once_and_what_was_looked_at_is_gone_to(
    monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, int]]
) -> None:
    answers = [["93.184.215.14"], ["169.254.169.254"]]
    monkeypatch.setitem(NAMES, "turns.example.org", [])
    looked_up = socket.getaddrinfo

    def turning(host: Any, *rest: Any, **options: Any) -> Any:
        if str(host) == "turns.example.org":
            NAMES["turns.example.org"] = answers.pop(0)
        return looked_up(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", turning)
    monkeypatch.setenv(WEBHOOK, "http://turns.example.org/hook")
    with pytest.raises(Exception, match="did not answer"):
        send("webhook", Alert("t", (), {}))
    assert opened == [("93.184.215.14", 80)]


def test_the_host_is_named_as_it_was_and_its_certificate_has_to_have_that_name() -> None:
    found = find_destination("https://me:pw@hooks.example.org:8443/a?b=c")
    assert found.url == "https://me:pw@93.184.215.14:8443/a?b=c"
    assert found.headers == {"Host": "hooks.example.org:8443"}
    assert found.extensions == {"sni_hostname": "hooks.example.org"}
    assert found.network is Network.PUBLIC


def test_a_proxy_looks_up_for_itself_what_can_not_be_looked_up_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    monkeypatch.setitem(NAMES, "unknown.invalid", [])
    assert find_destination("https://unknown.invalid/x").url == "https://unknown.invalid/x"
    with pytest.raises(ForbiddenAddressError):
        find_destination("https://169.254.169.254/x")


@pytest.mark.parametrize("text", ["8.8.8.8", "10.0.0.1", "127.0.0.1", "2001:4860::1", "::1"])
def test_ordinary_addresses_are_allowed(text: str) -> None:
    assert not is_forbidden(ipaddress.ip_address(text))
