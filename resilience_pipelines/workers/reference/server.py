"""The worker contract over HTTP, as vLLM's OpenAI server keeps it.

What belongs here: connections, routes, who may compute. What does not: the form of completions
(`completions`) and computing (`model`). One request computes at a time. A connection is closed
after its answer and has a deadline, so none is open for long, and none at a snapshot.
"""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from resilience_pipelines.workers.reference import MODEL_NAME, VERSION
from resilience_pipelines.workers.reference.completions import (
    RequestError,
    completion,
    error_object,
    read_request,
)
from resilience_pipelines.workers.reference.events import Events
from resilience_pipelines.workers.reference.generation import AsleepError
from resilience_pipelines.workers.reference.memory import resident_bytes
from resilience_pipelines.workers.reference.weights import WeightsError

if TYPE_CHECKING:  # compiles the kernels when it is imported
    from resilience_pipelines.workers.reference.model import Decoder

MAX_BODY_BYTES = 1 << 20
REQUEST_DEADLINE_S = 10.0
ANSWER_DEADLINE_S = 10.0
TURN_DEADLINE_S = 60.0
"""How long a request waits for the ones before it."""

_DISCARD_BYTES = 16 * MAX_BODY_BYTES
_PENDING_CONNECTIONS = 64

Body = dict[str, object] | None


class WorkerServer(ThreadingHTTPServer):
    """Serves one decoder on a socket that is bound and does not listen yet.

    Raises:
        OSError: another socket listens there.
    """

    daemon_threads = True
    request_queue_size = _PENDING_CONNECTIONS

    def __init__(self, bound: socket.socket, decoder: Decoder, events: Events) -> None:
        super().__init__(bound.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.decoder = decoder
        self.events = events
        self._turn = threading.Lock()
        self.server_activate()

    @contextmanager
    def turn(self) -> Iterator[Decoder]:
        """Have the decoder for oneself.

        Raises:
            RequestError: those before took too long.
        """
        if not self._turn.acquire(timeout=TURN_DEADLINE_S):
            raise RequestError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The worker was busy for {TURN_DEADLINE_S:g} s. Try again later",
            )
        try:
            yield self.decoder
        finally:
            self._turn.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Tell the host of a connection that broke, instead of writing to standard error."""
        self.events.report("connection_error", reason=repr(sys.exception())[:500])


class _Handler(BaseHTTPRequestHandler):
    server: WorkerServer

    def setup(self) -> None:
        super().setup()
        reader = _DeadlineReader(self.connection, time.monotonic() + REQUEST_DEADLINE_S)
        self.rfile = io.BufferedReader(reader)

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write nothing: events tell what the worker did."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that http.server refuses, in the form of all errors."""
        status = HTTPStatus(code)
        self._answer(status, error_object(status, message or explain or status.description))

    def _serve(self) -> None:
        try:
            method, act = self._route()
            if self.command != method:
                raise RequestError(
                    HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} {self.path}: give {method}"
                )
            status, body = HTTPStatus.OK, act(self._read_body())
        except RequestError as error:
            status, body = error.status, error_object(error.status, str(error), error.param)
        except TimeoutError as error:
            status = HTTPStatus.REQUEST_TIMEOUT
            body = error_object(status, f"{error}. Send all of it within {REQUEST_DEADLINE_S:g} s")
        except WeightsError as error:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            body = error_object(status, f"{error}. The worker sleeps on")
        self._answer(status, body)

    def _route(self) -> tuple[str, Callable[[bytes], Body]]:
        routes: dict[str, tuple[str, Callable[[bytes], Body]]] = {
            "/health": ("GET", lambda _: None),
            "/version": ("GET", lambda _: {"version": VERSION}),
            "/is_sleeping": ("GET", lambda _: {"is_sleeping": self.server.decoder.asleep}),
            "/v1/models": ("GET", lambda _: _models(self.server.decoder.max_sequence)),
            "/v1/completions": ("POST", self._complete),
            "/sleep": ("POST", lambda _: self._sleep()),
            "/wake_up": ("POST", lambda _: self._wake()),
        }
        path = urlsplit(self.path).path
        if path not in routes:
            raise RequestError(
                HTTPStatus.NOT_FOUND, f"{path[:80]}: give one of {', '.join(routes)}"
            )
        return routes[path]

    def _complete(self, body: bytes) -> Body:
        request = read_request(
            body,
            vocabulary=self.server.decoder.shape.vocabulary,
            max_sequence=self.server.decoder.max_sequence,
        )
        with self.server.turn() as decoder:
            start_ns = time.monotonic_ns()
            generated = decoder.generate(request.prompt, request.max_tokens, request.sampling)
            try:
                tokens = [next(generated)]
            except AsleepError as error:
                raise RequestError(
                    HTTPStatus.SERVICE_UNAVAILABLE, "The worker sleeps. POST /wake_up first"
                ) from error
            first_token_ns = time.monotonic_ns()
            tokens += generated
            self._event(
                "generation", start_ns, first_token_ns=first_token_ns,
                prompt_tokens=len(request.prompt), tokens=len(tokens),
            )  # fmt: skip
        return completion(request, tokens)

    def _sleep(self) -> Body:
        level = parse_qs(urlsplit(self.path).query).get("level", ["1"])[-1]
        if level not in ("1", "2"):
            raise RequestError(
                HTTPStatus.BAD_REQUEST, f"level = {level[:80]!r}: no such level. Give 1 or 2",
                "level",
            )  # fmt: skip
        with self.server.turn() as decoder:
            before = resident_bytes()
            start_ns = time.monotonic_ns()
            decoder.sleep(int(level))
            self._event(
                "sleep", start_ns, level=int(level), released_bytes=before - resident_bytes()
            )
        return None

    def _wake(self) -> Body:
        with self.server.turn() as decoder:
            start_ns = time.monotonic_ns()
            decoder.wake()
            self._event("wake", start_ns)
        return None

    def _event(self, name: str, start_ns: int, **facts: int) -> None:
        end_ns = time.monotonic_ns()
        self.server.events.report(name, start_ns=start_ns, end_ns=end_ns, **facts)

    def _read_body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise RequestError(
                HTTPStatus.LENGTH_REQUIRED, "Transfer-Encoding: give a Content-Length instead"
            )
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdecimal()) or len(length) > 20:
            raise RequestError(
                HTTPStatus.BAD_REQUEST, f"Content-Length = {length[:80]!r}: give a number of bytes"
            )
        if int(length) > MAX_BODY_BYTES:
            self._discard(int(length))
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"Content-Length = {length}: give at most {MAX_BODY_BYTES} bytes",
            )
        return self.rfile.read(int(length))

    def _discard(self, length: int) -> None:
        """Take in a body that is too large, up to a limit: many hear no answer before its end."""
        left = min(length, _DISCARD_BYTES)
        while left and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)

    def _answer(self, status: HTTPStatus, body: Body) -> None:
        text = b"" if body is None else json.dumps(body).encode()
        self.connection.settimeout(ANSWER_DEADLINE_S)
        self.send_response(status)
        if body is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
        self.close_connection = True


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until a moment. A time-out of each read alone lets a client trickle.

    Args:
        deadline_s: on `time.monotonic`.
    """

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection = connection
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request did not come in time")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


def _models(max_sequence: int) -> Body:
    return {
        "object": "list",
        "data": [
            {
                "id": MODEL_NAME, "object": "model", "owned_by": "resilience_pipelines",
                "max_model_len": max_sequence,
            }
        ],
    }  # fmt: skip
