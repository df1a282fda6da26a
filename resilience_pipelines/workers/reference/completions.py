"""Completions in OpenAI's form, with vLLM's additions: requests in, answers out.

What belongs here: reading and checking a request's fields, and the form of answers and errors. What
does not: HTTP (`server`) and computing (`model`).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from resilience_pipelines.workers.reference import MODEL_NAME
from resilience_pipelines.workers.reference.generation import Sampling, Token
from resilience_pipelines.workers.reference.tokenizer import END, encode, token_text

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 20
MAX_TEMPERATURE = 100.0
MAX_SEED = 2**63 - 1

# Fields that would change the answer and that this worker does not have, with the values that ask
# for nothing. Others are ignored, as vLLM ignores them.
_WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "n": (None, 1),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "stop": (None, [], ""),
    "stop_token_ids": (None, []),
    "stream": (None, False),
    "suffix": (None, ""),
    "top_k": (None, -1, 0),
    "top_p": (None, 1),
}


class RequestError(Exception):
    """A request that can't be served, in words that name field, value and mend.

    Args:
        param: the field that is at fault, where it is one.
    """

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


@dataclass(frozen=True)
class CompletionRequest:
    """A checked request.

    Attributes:
        logprobs: how many alternatives to tell with each token; None tells no log-probabilities.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    logprobs: int | None
    return_token_ids: bool


def read_request(body: bytes, *, vocabulary: int, max_sequence: int) -> CompletionRequest:
    """Check a request's body.

    Raises:
        RequestError
    """
    fields = _fields(body)
    model = fields.get("model")
    if model not in (None, MODEL_NAME):
        raise RequestError(
            HTTPStatus.NOT_FOUND,
            f"model = {_short(model)}: there is no such model. Give {MODEL_NAME!r} or leave it out",
            "model",
        )
    for name, values in _WITHOUT_EFFECT.items():
        if fields.get(name) not in values:
            raise _bad(name, fields[name], "not supported here", "Leave it out")
    prompt = _prompt(fields.get("prompt"), vocabulary)
    max_tokens = _integer(fields, "max_tokens", 1, max_sequence)
    max_tokens = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    if len(prompt) + max_tokens > max_sequence:
        raise _bad(
            "max_tokens", max_tokens, f"with {len(prompt)} prompt tokens that is too long",
            f"Give at most {max_sequence} tokens for both together",
        )  # fmt: skip
    logprobs = _integer(fields, "logprobs", 0, MAX_LOGPROBS)
    sampling = Sampling(
        temperature=_temperature(fields.get("temperature")),
        seed=_integer(fields, "seed", 0, MAX_SEED),
        top=logprobs or 0,
        ignore_end=_flag(fields, "ignore_eos"),
    )
    return CompletionRequest(
        prompt, max_tokens, sampling, logprobs, _flag(fields, "return_token_ids")
    )


def completion(request: CompletionRequest, tokens: Sequence[Token]) -> dict[str, object]:
    """The answer to a request."""
    texts = [token_text(token.token_id) for token in tokens]
    ended = tokens[-1].token_id == END and not request.sampling.ignore_end
    choice: dict[str, object] = {
        "index": 0,
        "text": "".join(texts),
        "finish_reason": "stop" if ended else "length",
        "logprobs": None if request.logprobs is None else _logprobs(tokens, texts),
    }
    if request.return_token_ids:
        choice["token_ids"] = [token.token_id for token in tokens]
        choice["prompt_token_ids"] = list(request.prompt)
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": MODEL_NAME,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(tokens),
            "total_tokens": len(request.prompt) + len(tokens),
        },
    }


def error_object(status: HTTPStatus, message: str, param: str | None = None) -> dict[str, object]:
    """An error in OpenAI's form."""
    return {
        "error": {
            "message": message,
            "type": status.phrase.title().replace(" ", "") + "Error",
            "param": param,
            "code": int(status),
        }
    }


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            HTTPStatus.BAD_REQUEST, f"The body is no JSON ({error}). Give a JSON object"
        ) from error
    if not isinstance(fields, dict):
        raise RequestError(
            HTTPStatus.BAD_REQUEST, f"The body is {_short(fields)}. Give a JSON object"
        )
    return fields


def _prompt(prompt: object, vocabulary: int) -> tuple[int, ...]:
    if isinstance(prompt, str):
        try:
            return tuple(encode(prompt))
        except UnicodeEncodeError as error:
            raise _bad(
                "prompt", prompt, "a lone surrogate is no text", "Give whole characters"
            ) from error
    mend = f"Give a text, or a list of token ids from 0 to {vocabulary - 1}"
    if not isinstance(prompt, list) or not prompt:
        raise _bad("prompt", prompt, "no text and no list of token ids", mend)
    for token in prompt:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise _bad("prompt", token, "no token id", mend)
    return tuple(prompt)


def _integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise _bad(name, value, "out of range", f"Give an integer from {low} to {high}")
    return int(value)


def _temperature(value: object) -> float:
    if value is None:
        return 1.0
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= MAX_TEMPERATURE  # NaN is not
    ):
        raise _bad("temperature", value, "out of range", f"Give 0 to {MAX_TEMPERATURE:g}")
    return float(value)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise _bad(name, value, "neither true nor false", "Give true or false")
    return bool(value)


def _logprobs(tokens: Sequence[Token], texts: Sequence[str]) -> dict[str, object]:
    offsets, end = [], 0
    for text in texts:
        offsets.append(end)
        end += len(text)
    return {
        "tokens": list(texts),
        "token_logprobs": [token.logprob for token in tokens],
        # The token itself is always among them, whether or not it is one of the most probable.
        "top_logprobs": [
            {
                token_text(token_id): logprob
                for token_id, logprob in (*token.top, (token.token_id, token.logprob))
            }
            for token in tokens
        ],
        "text_offset": offsets,
    }


def _bad(name: str, value: object, why: str, mend: str) -> RequestError:
    return RequestError(HTTPStatus.BAD_REQUEST, f"{name} = {_short(value)}: {why}. {mend}", name)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
