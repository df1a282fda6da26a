"""The worker contract over HTTP, as far as the platform uses it: greedy completions, sleep, wake.

What belongs here: routes and the form of answers. What does not: computing (`model`). One request
computes at a time; a connection is closed after its answer.
"""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from resilience_pipelines.workers.torch_reference import MODEL_NAME
from resilience_pipelines.workers.torch_reference.model import AsleepError, Decoder

MAX_BODY_BYTES = 1 << 20
REQUEST_DEADLINE_S = 10.0
_DEFAULT_TOKENS = 16


class RequestError(Exception):
    """A request that can't be served, and the status that says so."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class WorkerServer(ThreadingHTTPServer):
    """Serves one decoder.

    Args:
        breakable: whether `POST /break` may break this process's CUDA context, for experiments.
    """

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], decoder: Decoder, *, breakable: bool = False
    ) -> None:
        super().__init__(address, _Handler)
        self.decoder = decoder
        self.breakable = breakable
        self.turn = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: WorkerServer
    timeout = REQUEST_DEADLINE_S

    def do_GET(self) -> None:
        """Health and state."""
        self._serve({"/health": lambda _: {}, "/is_sleeping": self._is_sleeping})

    def do_POST(self) -> None:
        """Work."""
        routes = {"/v1/completions": self._complete, "/sleep": self._sleep, "/wake_up": self._wake}
        self._serve(routes | ({"/break": self._break} if self.server.breakable else {}))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write nothing: standard output is for events."""

    def _serve(self, routes: dict[str, Any]) -> None:
        try:
            act = routes.get(urlsplit(self.path).path)
            if act is None:
                raise RequestError(HTTPStatus.NOT_FOUND, f"{self.path[:80]}: no such route")
            status, body = HTTPStatus.OK, act(self._read_body())
        except RequestError as error:
            status, body = error.status, {"error": {"message": str(error), "code": error.status}}
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(payload)

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            raise RequestError(
                HTTPStatus.BAD_REQUEST, f"Content-Length = {length[:80]!r}: 0 to {MAX_BODY_BYTES}"
            )
        return self.rfile.read(int(length))

    def _is_sleeping(self, _: bytes) -> dict[str, object]:
        return {"is_sleeping": self.server.decoder.level != 0}

    def _sleep(self, _: bytes) -> dict[str, object]:
        level = parse_qs(urlsplit(self.path).query).get("level", ["1"])[-1]
        if level not in ("1", "2"):
            raise RequestError(HTTPStatus.BAD_REQUEST, f"level = {level[:80]!r}: give 1 or 2")
        with self.server.turn:
            self.server.decoder.sleep(int(level))
        return {}

    def _wake(self, _: bytes) -> dict[str, object]:
        with self.server.turn:
            self.server.decoder.wake()
        return {}

    def _break(self, _: bytes) -> dict[str, object]:
        from resilience_pipelines.workers.torch_reference.broken_context import MISTAKES

        name = parse_qs(urlsplit(self.path).query).get("mistake", [""])[-1]
        if name not in MISTAKES:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"mistake = {name[:80]!r}: no such mistake")
        with self.server.turn:
            try:
                MISTAKES[name]()
            except RuntimeError as error:
                return {"error": str(error).splitlines()[0]}
        return {"error": ""}

    def _complete(self, body: bytes) -> dict[str, object]:
        prompt, count = _read_request(body)
        with self.server.turn:
            try:
                tokens = list(self.server.decoder.generate(prompt, count))
            except AsleepError as error:
                raise RequestError(
                    HTTPStatus.SERVICE_UNAVAILABLE, "The worker sleeps. POST /wake_up first"
                ) from error
            except ValueError as error:
                raise RequestError(HTTPStatus.BAD_REQUEST, f"max_tokens: {error}") from error
        ids = [token for token, _ in tokens]
        return {
            "object": "text_completion",
            "model": MODEL_NAME,
            "choices": [
                {
                    "index": 0,
                    "text": bytes(token % 256 for token in ids).decode(errors="replace"),
                    "finish_reason": "length",
                    "token_ids": ids,
                    "logprobs": {"token_logprobs": [logprob for _, logprob in tokens]},
                }
            ],
        }


def _read_request(body: bytes) -> tuple[list[int], int]:
    try:
        fields = json.loads(body)
        prompt, count = fields["prompt"], fields.get("max_tokens", _DEFAULT_TOKENS)
        if not isinstance(prompt, str) or not prompt or type(count) is not int or count < 1:
            raise ValueError("prompt has to be a text and max_tokens a positive integer")
        if fields.get("temperature", 0) != 0:
            raise ValueError("temperature has to be 0")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"{error}") from error
    return list(prompt.encode()), count
