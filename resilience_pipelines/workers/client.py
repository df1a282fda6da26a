"""The worker contract from the host's side: health, completions, sleep and wake over HTTP.

What belongs here: one method for each call of the contract. What does not: what an answer means
for an experiment.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.workers.space import Space, SpaceError

HEALTH_TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 16 * 2**20
_MAX_TOKEN_ID = 2**31


class WorkerRequestError(ResilienceError):
    """A request brought no answer that can be used."""


class WorkerUnreachableError(WorkerRequestError):
    """No answer: refused, reset or not in time."""


class WorkerAnswerError(WorkerRequestError):
    """An answer that says no, or that is not of the contract's form."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Completion:
    """A completion's tokens.

    Attributes:
        token_ids: ids of the generated tokens.
        logprobs: natural logarithm of the probability of each, as the worker reports it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def parse_completion(answer: Mapping[str, Any]) -> Completion:
    """The tokens of an answer.

    A log-probability that is no finite number is kept: it is the worker's, and a wrong answer.

    Raises:
        WorkerAnswerError: it has none, or values that could only be made into some.
    """
    try:
        choice = answer["choices"][0]
        tokens, values = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if not all(type(token) is int and 0 <= token < _MAX_TOKEN_ID for token in tokens):
            raise ValueError("a token id is no number of a token")
        if not all(type(value) in (int, float) for value in values):
            raise ValueError("a log-probability is no number")
        return Completion(tuple(tokens), tuple(map(float, values)))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise WorkerAnswerError(
            f"The completion has no token ids and log-probabilities ({str(error)[:200]})."
        ) from error


class WorkerClient:
    """Speaks the worker contract with one worker.

    Args:
        space: where the worker lives.
        port: the port that it listens on, on loopback inside.
        model: the name it serves the model under.
    """

    def __init__(self, space: Space, port: int, model: str) -> None:
        self._space = space
        self._port = port
        self._model = model

    def healthy(self, timeout_s: float = HEALTH_TIMEOUT_S) -> bool:
        """Whether `GET /health` answers 200 in time."""
        try:
            self._request("GET", "/health", None, timeout_s)
        except WorkerRequestError:
            return False
        return True

    def version(self, timeout_s: float = HEALTH_TIMEOUT_S) -> str | None:
        """What `GET /version` tells; None where it tells nothing."""
        try:
            found = self._request("GET", "/version", None, timeout_s).get("version")
        except WorkerRequestError:
            return None
        return found if isinstance(found, str) and 0 < len(found) <= 100 else None

    def complete(self, prompt: str, max_tokens: int, *, timeout_s: float) -> Completion:
        """Greedy completion with token ids and log-probabilities.

        Raises:
            WorkerRequestError
        """
        answer = self._request(
            "POST",
            "/v1/completions",
            {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "logprobs": 1,
                "return_token_ids": True,
                # Without this an engine with an end token may stop early, at another length.
                "ignore_eos": True,
            },
            timeout_s,
        )
        return parse_completion(answer)

    def break_context(self, mistake: str, *, timeout_s: float) -> str:
        """Let a worker that was started for it break its own CUDA context, for an experiment.

        Returns:
            CUDA's own words for what went wrong; empty when nothing did.

        Raises:
            WorkerRequestError
        """
        answer = self._request("POST", f"/break?{urlencode({'mistake': mistake})}", None, timeout_s)
        return str(answer.get("error", ""))

    def sleep(self, level: int, *, timeout_s: float, for_snapshot: bool = False) -> None:
        """Release device memory; level 1 keeps the weights in host memory, level 2 nothing.

        Args:
            for_snapshot: also give back host memory that would only make an image larger.
        """
        query = {"level": str(level)} | ({"purpose": "snapshot"} if for_snapshot else {})
        self._request("POST", f"/sleep?{urlencode(query)}", None, timeout_s)

    def wake_up(self, *, timeout_s: float) -> None:
        """Undo `sleep`."""
        self._request("POST", "/wake_up", None, timeout_s)

    def _request(
        self, method: str, path: str, body: Mapping[str, object] | None, timeout_s: float
    ) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        headers = {"Connection": "close"}
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.sock = self._space.socket()
            connection.sock.settimeout(timeout_s)
            connection.sock.connect(("127.0.0.1", self._port))
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            text = response.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException, SpaceError) as error:
            raise WorkerUnreachableError(f"{method} {path}: {error!r}.") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise WorkerAnswerError(
                f"{method} {path}: status {response.status}: {text[:300].decode(errors='replace')}",
                response.status,
            )
        if not text.strip():
            return {}
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            return {}  # /health of some engines answers with plain text
        return answer if isinstance(answer, dict) else {}
