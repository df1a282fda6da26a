"""Completions of the reference worker: what is accepted, what is refused and how, what is told."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.workers.reference.completions import (
    CompletionRequest,
    RequestError,
    completion,
    read_request,
)
from resilience_pipelines.workers.reference.generation import Sampling, Token
from resilience_pipelines.workers.reference.tokenizer import BEGIN, END, encode, token_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = ("model", "prompt", "max_tokens", "temperature", "seed", "logprobs", "return_token_ids",
          "ignore_eos", "stream", "n", "stop")  # fmt: skip


def read(body: object) -> CompletionRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(text, vocabulary=1000, max_sequence=64)


def test_defaults_are_those_of_openai() -> None:
    assert read({"prompt": "x"}) == CompletionRequest(
        prompt=(BEGIN, ord("x")),
        max_tokens=16,
        sampling=Sampling(temperature=1.0),
        logprobs=None,
        return_token_ids=False,
    )


def test_all_fields_are_read() -> None:
    body = {
        "model": "reference-decoder", "prompt": [1, 999], "max_tokens": 62, "temperature": 0,
        "seed": 5, "logprobs": 20, "return_token_ids": True, "ignore_eos": True, "stream": False,
        "n": 1, "top_p": 1.0, "user": "ignored, as an engine ignores what it does not know",
    }  # fmt: skip
    assert read(body) == CompletionRequest(
        prompt=(1, 999),
        max_tokens=62,
        sampling=Sampling(0.0, seed=5, top=20, ignore_end=True),
        logprobs=20,
        return_token_ids=True,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None), ("prompt", 1), ("prompt", []), ("prompt", ["x"]), ("prompt", [[1]]),
        ("prompt", [-1]), ("prompt", [1000]), ("prompt", [True]), ("prompt", [1.0]),
        ("prompt", "\ud800"),
        ("max_tokens", 0), ("max_tokens", 63), ("max_tokens", 1.5), ("max_tokens", True),
        ("max_tokens", "4"), ("max_tokens", 10**30),
        ("temperature", -0.1), ("temperature", 101), ("temperature", float("nan")),
        ("temperature", float("inf")), ("temperature", True), ("temperature", "0"),
        pytest.param("temperature", 10**400, id="temperature-huge"),
        ("seed", -1), ("seed", 2**63), ("seed", 0.5),
        ("logprobs", -1), ("logprobs", 21), ("logprobs", True),
        ("return_token_ids", 1), ("ignore_eos", "yes"),
        ("stream", True), ("n", 2), ("echo", True), ("stop", ["x"]), ("top_p", 0.9),
        ("top_k", 5), ("logit_bias", {"1": 2}),
    ],
)  # fmt: skip
def test_a_value_that_can_not_be_used_is_refused_by_field_and_value(
    field: str, value: object
) -> None:
    with pytest.raises(RequestError) as caught:
        read({"prompt": [1, 2], field: value})
    assert caught.value.status is HTTPStatus.BAD_REQUEST
    assert caught.value.param == field
    words = str(caught.value)
    assert words.startswith(f"{field} = ")
    assert "Give " in words or "Leave it out" in words
    assert len(words) < 300


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[1]", b"3", b"[" * 100_000, b'"x"'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match=r"The body is .*Give a JSON object") as caught:
        read(body)
    assert caught.value.status is HTTPStatus.BAD_REQUEST


def test_another_model_is_not_found() -> None:
    with pytest.raises(RequestError, match="gpt") as caught:
        read({"prompt": "x", "model": "gpt"})
    assert caught.value.status is HTTPStatus.NOT_FOUND


@given(st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON)
def test_any_body_is_served_or_refused_in_words(body: object) -> None:
    try:
        request = read(body)
    except RequestError as error:
        json.dumps(str(error)).encode()
    else:
        assert 0 < len(request.prompt) + request.max_tokens <= 64


REQUEST = CompletionRequest((1, 2), 3, Sampling(0.0, top=1), 1, True)
TOKENS = [
    Token(ord("a"), -0.5, ((ord("a"), -0.5),)),
    Token(0xE2, -2.0, ((500, -1.0),)),
    Token(END, -0.25, ((END, -0.25),)),
]


def choice_of(request: CompletionRequest, tokens: list[Token] = TOKENS) -> dict[str, object]:
    choices = completion(request, tokens)["choices"]
    assert isinstance(choices, list)
    (choice,) = choices
    assert isinstance(choice, dict)
    return choice


def test_an_answer_tells_text_ids_and_log_probabilities() -> None:
    answer = completion(REQUEST, TOKENS)
    assert answer["object"] == "text_completion"
    assert answer["model"] == "reference-decoder"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "a<0xE2><|end|>",
            "finish_reason": "stop",
            "token_ids": [97, 0xE2, END],
            "prompt_token_ids": [1, 2],
            "logprobs": {
                "tokens": ["a", "<0xE2>", "<|end|>"],
                "token_logprobs": [-0.5, -2.0, -0.25],
                "top_logprobs": [
                    {"a": -0.5},
                    {"<|500|>": -1.0, "<0xE2>": -2.0},
                    {"<|end|>": -0.25},
                ],
                "text_offset": [0, 1, 7],
            },
        }
    ]


def test_what_was_not_asked_for_is_not_told() -> None:
    choice = choice_of(CompletionRequest((1, 2), 3, Sampling(), None, False))
    assert choice["logprobs"] is None
    assert "token_ids" not in choice
    assert "prompt_token_ids" not in choice


def test_no_alternatives_still_tells_the_token_itself() -> None:
    choice = choice_of(CompletionRequest((1, 2), 3, Sampling(), 0, False), [Token(97, -0.5)])
    assert choice["logprobs"] == {
        "tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}],
        "text_offset": [0],
    }  # fmt: skip


def test_an_ignored_end_is_no_reason_to_stop() -> None:
    ignoring = CompletionRequest((1,), 3, Sampling(ignore_end=True), None, False)
    assert choice_of(ignoring)["finish_reason"] == "length"
    assert choice_of(REQUEST, TOKENS[:1])["finish_reason"] == "length"


def test_every_id_has_a_printable_form_of_its_own() -> None:
    forms = [token_text(token_id) for token_id in range(33_000)]
    assert len(set(forms)) == len(forms)
    assert all(form.isascii() and form.isprintable() for form in forms)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_is_its_bytes(text: str) -> None:
    begin, *rest = encode(text)
    assert begin == BEGIN
    assert bytes(rest).decode() == text
