"""Well-known secrets are found wherever they lie in an image, and no finding holds one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience_pipelines.snapshots import secret_scan
from resilience_pipelines.snapshots.secret_scan import FORMS, Finding, scan

BODY = b"MC4CAQAwBQYDK2VwBCIEIKx" * 3
SECRETS = {
    "private_key": b"-----BEGIN PRIVATE KEY-----\n" + BODY[:64] + b"\n",
    "aws_access_key": b"AKIA" + b"ABCDEFGH" * 2,
    "github_token": b"ghp_" + b"a1B2c3D4e" * 4,
    "gitlab_token": b"glpat-" + b"a1B2c" * 4,
    "hugging_face_token": b"hf_" + b"aB" * 17,
    "nvidia_api_key": b"nvapi-" + b"a1B2c" * 12,
    "google_api_key": b"AIza" + b"a1B2c" * 7,
    "slack_token": b"xoxb-" + b"123456789012-" + b"a1B2c3D4" * 3,
    "json_web_token": b".".join(
        (b"eyJhbGciOiJIUzI1NiJ9", b"eyJzdWIiOiIxMjM0NTY3ODkwIn0", b"a" * 43)
    ),
}


def findings(folder: Path, content: bytes) -> list[Finding]:
    (folder / "pages-1.img").write_bytes(content)
    return list(scan(folder, ["pages-1.img"]))


def test_every_form_has_an_example() -> None:
    assert {form.kind for form in FORMS} == set(SECRETS)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_between_random_bytes_is_found_at_its_place(tmp_path: Path, kind: str) -> None:
    noise = bytes(byte | 0x80 for byte in os.urandom(5000))
    found = findings(tmp_path, noise + SECRETS[kind] + b"\0" + noise + SECRETS[kind] + b"\0")
    assert found == [Finding(kind, "pages-1.img", 2, 5000)]


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_across_two_windows_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(secret_scan, "_WINDOW_BYTES", 10_000)
    for start in (9_990, 19_999, 1_000):
        found = findings(tmp_path, b"\0" * start + SECRETS[kind] + b"\0" * 25_000)
        assert found == [Finding(kind, "pages-1.img", 1, start)]


@pytest.mark.parametrize(
    "harmless",
    [
        b"-----BEGIN PRIVATE KEY-----\0-----END PRIVATE KEY-----",
        b"-----BEGIN CERTIFICATE-----\n" + BODY[:64] + b"\n",
        b"AKIAabcdefghijklmnop",
        b"hf_transfer hf_hub_download",
        b"eyJhbGciOiJIUzI1NiJ9.notajwt",
        b"ghp_short",
        b"xoxb-",
        b"",
    ],
)
def test_what_only_begins_like_a_secret_is_none(tmp_path: Path, harmless: bytes) -> None:
    assert findings(tmp_path, harmless) == []


def test_no_finding_holds_a_secret(tmp_path: Path) -> None:
    found = findings(tmp_path, b"\0".join(SECRETS.values()))
    assert {item.kind for item in found} == set(SECRETS)
    assert not any(secret.decode() in repr(found) for secret in SECRETS.values())


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pages-1.img").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="plain file"):
        list(scan(tmp_path, ["pages-1.img"]))
