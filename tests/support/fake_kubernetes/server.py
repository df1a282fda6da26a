"""The server: HTTP on loopback, as the `kubernetes` client speaks it, and what can go wrong."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from tests.support.fake_kubernetes.clock import parse_stamp, stamp
from tests.support.fake_kubernetes.store import Object, StatusError, Store

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[a-z.-]+)/(?P<version>v1[a-z0-9]*))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/:]+))?(?:/(?P<sub>log))?$"
)
_PROXY = re.compile(
    r"/api/v1/namespaces/[^/]+/pods/(?P<pod>[^/:]+):(?P<port>[0-9]+)/proxy(?P<path>/.*)"
)
Permission = tuple[str, str, str]


class Logs(Protocol):
    def lines(self, pod: str) -> list[tuple[float, str]]: ...
    def ended(self, pod: str) -> bool: ...
    def port(self, pod: str) -> int | None: ...


@dataclass
class Traffic:
    """What the network does to a pod's answers, as the proxy meets it."""

    delay_s: float = 0.0
    waking_s: float = 0.0
    """What a wake takes longer."""
    unreadable: bool = False
    """A wake can't read what it needs, and the worker sleeps on."""
    cut: bool = False
    """Nothing comes back until the client gives up."""


@dataclass
class Request:
    method: str
    group: str
    resource: str
    """`pods/log` for logs."""
    verb: str
    name: str | None
    query: dict[str, str]
    body: Object


@dataclass
class Fault:
    """What the server does wrong, to the first `times` requests of one permission."""

    permission: Permission
    error: StatusError | None = None
    """None: the connection breaks, after the act was done."""
    times: int = 1
    after_lines: int | None = None
    """For logs and watches: break after that many lines."""


class FakeServer:
    """The API server. `granted` None: everything is allowed."""

    def __init__(self, store: Store, logs: Logs, version: str, namespace: str) -> None:
        self.store = store
        self.logs = logs
        self.version = version
        self.namespace = namespace
        self.granted: set[Permission] | None = None
        self.used: set[Permission] = set()
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.admission: list[Callable[[Object], StatusError | None]] = []
        self.prune: Callable[[Object], None] = lambda job: None
        self.groups: set[str] = {"", "batch"}
        """API groups that it knows; custom resources add theirs."""
        self.traffic: dict[str, Traffic] = {}
        """By pod."""
        self.lost = threading.Event()
        self.stopped = threading.Event()
        self._connections: set[socket.socket] = set()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopped.set()
        self._http.shutdown()
        self.break_connections()
        self._http.server_close()

    def lose(self) -> None:
        """Answer nobody any more, and break what is open."""
        self.lost.set()
        self.break_connections()

    def come_back(self) -> None:
        self.lost.clear()

    def break_connections(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def fault(self, request: Request) -> Fault | None:
        wanted = (request.group, request.resource, request.verb)
        for item in self.faults:
            if item.permission == wanted and item.times > 0:
                item.times -= 1
                return item
        return None


@dataclass
class _Stream:
    lines: Iterator[str]
    break_after: int | None = None


@dataclass
class _Raw:
    """An answer that is a pod's own."""

    status: int
    text: str


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what this server is for."""


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            server._connections.add(self.connection)

        def finish(self) -> None:
            server._connections.discard(self.connection)
            with contextlib.suppress(OSError):
                super().finish()

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def do_PATCH(self) -> None:
            self._serve()

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            if server.lost.is_set():
                self._hang_up()
                return
            try:
                answer = self._answer(body)
            except StatusError as error:
                self._send(error.code, error.body, error.headers)
                return
            if answer is None:
                self._hang_up()
            elif isinstance(answer, _Raw):
                self._send(answer.status, answer.text, {}, text=True)
            elif isinstance(answer, _Stream):
                self._stream(answer)
            else:
                text = isinstance(answer, str)
                self._send(200 if self.command != "POST" else 201, answer, {}, text=text)

        def _answer(self, body: Object) -> Object | str | _Stream | _Raw | None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            if proxied := _PROXY.match(url.path):
                verb = _verb(self.command, "proxied", query)
                request = Request(self.command, "", "pods/proxy", verb, proxied["pod"], query, body)
                _authorize(server, request)
                path = proxied["path"] + (f"?{url.query}" if url.query else "")
                return _proxy(server, request, path)
            if url.path in ("/version", "/version/"):
                return {"gitVersion": server.version}
            match = _PATH.match(url.path)
            if match is None or (match["group"] or "") not in server.groups:
                raise StatusError(404, "NotFound", f"no such path {url.path}")
            resource = match["resource"] + ("/log" if match["sub"] else "")
            request = Request(
                self.command, match["group"] or "", resource,
                _verb(self.command, match["name"], query), match["name"], query, body,
            )  # fmt: skip
            server.requests.append(request)
            return _authorized(server, request)

        def _send(
            self, code: int, body: Object | str, headers: dict[str, str], *, text: bool = False
        ) -> None:
            encoded = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if text else "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            with contextlib.suppress(OSError):  # who asked may have given up
                self.wfile.write(encoded)

        def _stream(self, stream: _Stream) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number, line in enumerate(stream.lines):
                if number == stream.break_after:
                    self._hang_up()
                    return
                data = f"{line}\n".encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            if stream.break_after is not None or server.lost.is_set():
                self._hang_up()
                return
            self.wfile.write(b"0\r\n\r\n")

        def _hang_up(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    return Handler


def _verb(method: str, name: str | None, query: dict[str, str]) -> str:
    if method == "GET" and name is None:
        return "watch" if query.get("watch") in ("true", "True", "1") else "list"
    return {"GET": "get", "POST": "create", "DELETE": "delete", "PATCH": "patch"}[method]


def _authorize(server: FakeServer, request: Request) -> None:
    permission = (request.group, request.resource, request.verb)
    server.used.add(permission)
    if server.granted is not None and permission not in server.granted:
        raise StatusError(
            403, "Forbidden",
            f'{request.resource} is forbidden: User "system:serviceaccount:test" cannot '
            f'{request.verb} resource "{request.resource}"',
        )  # fmt: skip


def _authorized(server: FakeServer, request: Request) -> Object | str | _Stream | None:
    _authorize(server, request)
    fault = server.fault(request)
    if fault is not None and fault.error is not None:
        raise fault.error
    answer = _act(server, request)
    if fault is not None:
        if isinstance(answer, _Stream):
            answer.break_after = fault.after_lines or 0
            return answer
        return None
    return answer


def _act(server: FakeServer, request: Request) -> Object | str | _Stream:
    store = server.store
    if request.resource == "pods/log":
        return _log(server, request)
    match request.verb:
        case "list":
            with store.changed:
                items = [item for item in store.all(request.resource)
                         if _selected(item, request.query)]  # fmt: skip
                return {"items": items, "metadata": {"resourceVersion": str(store.version)}}
        case "watch":
            return _Stream(_watch(server, request))
        case "get":
            return store.get(request.resource, str(request.name))
        case "create":
            return _create(server, request)
        case "delete":
            return _delete(server, request)
        case "patch":
            store.get(request.resource, str(request.name))
            store.change(
                request.resource, str(request.name), lambda item: _merge(item, request.body)
            )
            return store.get(request.resource, str(request.name))
    raise StatusError(405, "MethodNotAllowed", f"{request.verb} is not for this fake")


def _merge(item: Object, change: Object) -> None:
    """A merge patch, RFC 7386."""
    for name, value in change.items():
        if value is None:
            item.pop(name, None)
        elif isinstance(value, dict):
            _merge(item.setdefault(name, {}), value)
        else:
            item[name] = value


def _proxy(server: FakeServer, request: Request, path: str) -> _Raw | None:
    """The pod's own answer, after what the network does to it."""
    server.store.get("pods", str(request.name))
    traffic = server.traffic.get(str(request.name), Traffic())
    if traffic.cut:
        until = time.monotonic() + 30
        while time.monotonic() < until and not server.stopped.is_set() and traffic.cut:
            time.sleep(0.02)
        return None
    if traffic.unreadable and path == "/wake_up":
        why = "weights.safetensors: the weight file can't be read: Input/output error"
        return _Raw(500, json.dumps({"error": {"message": why, "code": 500}}))
    time.sleep(traffic.delay_s + (traffic.waking_s if path == "/wake_up" else 0))
    port = server.logs.port(str(request.name))
    connection = http.client.HTTPConnection("127.0.0.1", port or 1, timeout=30)
    try:
        body = json.dumps(request.body).encode() if request.body else None
        connection.request(request.method, path, body)
        response = connection.getresponse()
        return _Raw(response.status, response.read().decode())
    except (OSError, http.client.HTTPException) as error:
        # As the real one: in plain text.
        return _Raw(503, f"Error trying to reach service: '{error}'")
    finally:
        connection.close()


def _create(server: FakeServer, request: Request) -> Object:
    given = copy.deepcopy(request.body)
    for review in server.admission:
        if error := review(given):
            raise error
    server.prune(given)
    return server.store.add(request.resource, given)


def _delete(server: FakeServer, request: Request) -> Object:
    options = request.body
    item = server.store.delete(
        request.resource, str(request.name), options.get("gracePeriodSeconds")
    )
    if request.resource == "jobs" and options.get("propagationPolicy") not in (
        "Background",
        "Foreground",
    ):
        # What batch/v1 does by itself: the pods stay, without an owner.
        for pod in server.store.all("pods"):
            owners = pod["metadata"].get("ownerReferences", [])
            if any(owner["uid"] == item["metadata"]["uid"] for owner in owners):
                server.store.change(
                    "pods",
                    pod["metadata"]["name"],
                    lambda found: found["metadata"].pop("ownerReferences"),
                )
    return item


def _watch(server: FakeServer, request: Request) -> Iterator[str]:
    store = server.store
    since = int(request.query.get("resourceVersion") or store.version)
    until = time.monotonic() + float(request.query.get("timeoutSeconds", "30"))
    while time.monotonic() < until and not server.stopped.is_set() and not server.lost.is_set():
        with store.changed:
            if since < store.oldest:
                gone = StatusError(410, "Expired", f"too old resource version: {since}")
                yield json.dumps({"type": "ERROR", "object": gone.body})
                return
            found = [item for item in store.history if item.version > since
                     and item.resource == request.resource]  # fmt: skip
            since = max(since, store.version)
            if not found:
                store.changed.wait(0.05)
        for item in found:
            if _selected(item.object, request.query):
                yield json.dumps({"type": item.type, "object": item.object})


def _log(server: FakeServer, request: Request) -> str | _Stream:
    name = str(request.name)
    server.store.get("pods", name)
    stamped = request.query.get("timestamps") in ("true", "True")
    if request.query.get("follow") in ("true", "True"):
        since = request.query.get("sinceTime")
        return _Stream(_follow(server, name, stamped, since))
    lines = server.logs.lines(name)
    tail = int(request.query.get("tailLines") or len(lines) or 1)
    return "".join(f"{_stamped(item, stamped)}\n" for item in lines[-tail:])


def _follow(server: FakeServer, pod: str, stamped: bool, since: str | None) -> Iterator[str]:
    # As the kubelet does: to the whole second.
    first = int(parse_stamp(since)) if since else 0
    sent = 0
    while not server.stopped.is_set() and not server.lost.is_set():
        ended = server.logs.ended(pod)
        lines = server.logs.lines(pod)
        for item in lines[sent:]:
            if item[0] >= first:
                yield _stamped(item, stamped)
        sent = len(lines)
        if ended:
            return
        time.sleep(0.02)


def _stamped(item: tuple[float, str], stamped: bool) -> str:
    return f"{stamp(item[0])} {item[1]}" if stamped else item[1]


def _selected(item: Object, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    for pair in filter(None, query.get("labelSelector", "").split(",")):
        name, _, value = pair.partition("=")
        if labels.get(name) != value:
            return False
    for pair in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = pair.partition("=")
        found: Any = item
        for part in path.split("."):
            found = (found or {}).get(part)
        if found != value:
            return False
    return True


@dataclass
class Old:
    """What an API server of 1.20 does not store."""

    dropped: tuple[str, ...] = field(default=("podFailurePolicy", "ttlSecondsAfterFinished"))

    def __call__(self, job: Object) -> None:
        for name in self.dropped:
            job["spec"].pop(name, None)
