"""No record, evidence or error keeps a secret that can be told, and all else stays as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.records import Outcome
from resilience_pipelines.redaction import redact, redact_bytes, redact_record
from tests.factories import RecordFactory

TOKEN = "hf_" + "aB3" * 11 + "x"
GITHUB = "ghp_" + "aB3x" * 9


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"token={TOKEN} used", "token=(redacted) used"),
        (f"x {GITHUB}, {TOKEN}.", "x (redacted), (redacted)."),
        ("proxy http://me:s3cret@10.0.0.1:3128/x", "proxy http://(redacted)@10.0.0.1:3128/x"),
        ("smtps://a%40b:p/w@h", "smtps://a%40b:p/w@h"),
        ("postgresql+psycopg://u:p@db/x", "postgresql+psycopg://(redacted)@db/x"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer (redacted)"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic (redacted)"),
        ("see https://example.org/a@b and me@example.org", None),
        ("Out of memory at 0x7f: 12 basic types", None),
    ],
)
def test_what_has_the_form_of_a_secret_is_taken_out(text: str, clean: str | None) -> None:
    assert redact(text, {}) == (text if clean is None else clean)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "encryption_key",
     "RESILIENCE_ALERT_WEBHOOK", "RESILIENCE_SMTP", "GOOGLE_CREDENTIALS"],
)  # fmt: skip
def test_what_a_variable_holds_whose_name_says_so_is_taken_out(name: str) -> None:
    value = "correct horse battery"
    assert redact(f"got '{value}'", {name: value}) == "got '(redacted)'"


def test_ordinary_variables_and_short_values_stay() -> None:
    environment = {"HOME": "/root/home", "SECRET": "on", "TOKENIZERS_PARALLELISM": "false"}
    assert redact("/root/home on false", environment) == "/root/home on false"


@given(st.text(alphabet=st.characters(exclude_characters="@")), st.binary(max_size=50))
def test_what_holds_no_secret_stays_to_the_byte(text: str, noise: bytes) -> None:
    if "earer" not in text.lower() and "asic" not in text.lower():
        assert redact(text, {}) == text
    if b"@" not in noise and b"sic" not in noise.lower() and b"rer" not in noise.lower():
        assert redact_bytes(noise, {}) == noise


def test_every_text_of_a_record_is_looked_at_and_its_stack_keeps_its_key() -> None:
    factory = RecordFactory(5)
    record = factory.fault_record(repeats=1)
    fault = record.faults[0].model_copy(update={
        "detail": f"it said {TOKEN}", "parameters": {"deep": [{"url": "http://a:b@h/"}]},
    })  # fmt: skip
    record = record.model_copy(update={
        "faults": (fault, *record.faults[1:]), "unsupported": {"snapshot": f"{TOKEN}"},
    })  # fmt: skip
    clean = redact_record(record, {})
    assert TOKEN not in clean.model_dump_json()
    assert "a:b@" not in clean.model_dump_json()
    assert clean.stack == record.stack
    assert type(clean).model_validate_json(clean.model_dump_json(), strict=True) == clean


def test_a_record_without_secrets_stays_as_it_is() -> None:
    record = RecordFactory(6).startup_record(repeats=2)
    assert redact_record(record, {}) == record
    assert redact_record(Outcome.OK, {"X_TOKEN": "ok" * 8}) is Outcome.OK
