"""The worker contract over HTTP, in the form of vLLM's OpenAI server.

What belongs here: requests, their validation, answers. What does not: the model. One request
computes at a time; connections are closed after each answer, so that none is open at a snapshot.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from resilience_pipelines.workers.reference.model import Decoder, Token, decode, encode
from resilience_pipelines.workers.reference.weights import WeightsError

MODEL_NAME = "reference-decoder"
MAX_BODY_BYTES = 1 << 20

Report = Callable[[dict[str, object]], None]


class RequestError(Exception):
    """A request that can't be served: status, and words that name field, value and mend."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class CompletionRequest(BaseModel):
    """What of OpenAI's completion request counts here; other fields are accepted and ignored."""

    model_config = ConfigDict(extra="ignore")

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[int], Field(min_length=1)]
    max_tokens: int = Field(default=16, ge=1, le=4096)
    temperature: float = Field(default=1.0, ge=0, le=100, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=20)
    return_token_ids: bool = False


class WorkerApplication:
    """Serves one decoder. `application` is the ASGI application."""

    def __init__(self, decoder: Decoder, report: Report) -> None:
        self._decoder = decoder
        self._report = report
        self._computing = threading.Lock()
        self.application = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/version", self._version),
                Route("/is_sleeping", self._is_sleeping),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/sleep", self._sleep, methods=["POST"]),
                Route("/wake_up", self._wake_up, methods=["POST"]),
            ],
            exception_handlers={RequestError: _refuse, WeightsError: _fail},
        )

    async def _health(self, request: Request) -> JSONResponse:  # noqa: ARG002
        return JSONResponse({})

    async def _version(self, request: Request) -> JSONResponse:  # noqa: ARG002
        return JSONResponse({"version": MODEL_NAME})

    async def _is_sleeping(self, request: Request) -> JSONResponse:  # noqa: ARG002
        return JSONResponse({"is_sleeping": self._decoder.asleep})

    async def _models(self, request: Request) -> JSONResponse:  # noqa: ARG002
        return JSONResponse({"object": "list", "data": [{"id": MODEL_NAME, "object": "model"}]})

    async def _completions(self, request: Request) -> JSONResponse:
        asked = await _read(request)
        return JSONResponse(await run_in_threadpool(self._complete, asked))

    async def _sleep(self, request: Request) -> JSONResponse:
        level = request.query_params.get("level", "1")
        if level not in ("1", "2"):
            raise RequestError(HTTPStatus.BAD_REQUEST, f"level = {level!r}: give 1 or 2")
        await run_in_threadpool(self._change, "sleep", lambda: self._decoder.sleep(int(level)))
        return JSONResponse({})

    async def _wake_up(self, request: Request) -> JSONResponse:  # noqa: ARG002
        await run_in_threadpool(self._change, "wake", self._decoder.wake)
        return JSONResponse({})

    def _change(self, name: str, change: Callable[[], int | None]) -> None:
        with self._computing:
            start_ns = time.monotonic_ns()
            released = change()
            self._event(name, start_ns, released_bytes=released)

    def _complete(self, asked: CompletionRequest) -> dict[str, object]:
        shape = self._decoder.shape
        prompt = encode(asked.prompt) if isinstance(asked.prompt, str) else asked.prompt
        if not all(0 <= token < shape.vocabulary for token in prompt):
            raise RequestError(
                HTTPStatus.BAD_REQUEST, f"prompt: give token ids from 0 to {shape.vocabulary - 1}"
            )
        if len(prompt) + asked.max_tokens > shape.max_sequence:
            raise RequestError(
                HTTPStatus.BAD_REQUEST,
                f"prompt and max_tokens = {len(prompt) + asked.max_tokens} tokens: "
                f"give at most {shape.max_sequence}",
            )
        with self._computing:
            if self._decoder.asleep:
                raise RequestError(
                    HTTPStatus.SERVICE_UNAVAILABLE, "the worker sleeps: POST /wake_up first"
                )
            start_ns = time.monotonic_ns()
            tokens = list(
                self._decoder.generate(
                    prompt, asked.max_tokens,
                    temperature=asked.temperature, seed=asked.seed, top=max(asked.logprobs or 0, 1),
                )
            )  # fmt: skip
            self._event("completion", start_ns, tokens=len(tokens))
        return _completion(asked, prompt, tokens)

    def _event(self, name: str, start_ns: int, **facts: object) -> None:
        self._report({"event": name, "start_ns": start_ns, "end_ns": time.monotonic_ns(), **facts})


async def _read(request: Request) -> CompletionRequest:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body: give at most {MAX_BODY_BYTES} bytes",
            )
    try:
        return CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the body"
        value = json.dumps(first.get("input"), default=str)[:80]
        raise RequestError(
            HTTPStatus.BAD_REQUEST, f"{field} = {value}: {first['msg'].lower()}"
        ) from error


async def _refuse(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
    assert isinstance(error, RequestError)
    return _error(error.status, "invalid_request_error", str(error))


async def _fail(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "weights_error", str(error))


def _error(status: HTTPStatus, kind: str, message: str) -> JSONResponse:
    body = {"error": {"message": message, "type": kind, "code": status.value}}
    return JSONResponse(body, status.value)


def _completion(
    asked: CompletionRequest, prompt: list[int], tokens: list[Token]
) -> dict[str, object]:
    texts = [decode(token.token_id) for token in tokens]
    choice: dict[str, object] = {
        "index": 0,
        "text": "".join(texts),
        "finish_reason": "length",
        "logprobs": None,
    }
    if asked.logprobs:
        choice["logprobs"] = {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {decode(index): value for index, value in token.top} for token in tokens
            ],
            "text_offset": [sum(map(len, texts[:index])) for index in range(len(texts))],
        }
    if asked.return_token_ids:
        choice["token_ids"] = [token.token_id for token in tokens]
        choice["prompt_token_ids"] = prompt
    return {
        "id": f"cmpl-{time.monotonic_ns():x}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": MODEL_NAME,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens),
            "total_tokens": len(prompt) + len(tokens),
        },
    }
