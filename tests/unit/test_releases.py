"""Releases are read from feeds of their projects' formats; a bad feed changes nothing."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.errors import CorruptError, DeadlineError, InputError, ResilienceError
from resilience_pipelines.home import Home, open_home
from resilience_pipelines.release_survey import refresh_feeds
from resilience_pipelines.releases import fetch as fetching
from resilience_pipelines.releases import ledger
from resilience_pipelines.releases.catalogue import FEEDS, Feed
from resilience_pipelines.releases.fetch import FetchError, fetch
from resilience_pipelines.releases.formats import (
    FeedFormatError,
    parse_atom,
    parse_cuda_index,
    parse_nvidia_drivers,
)
from resilience_pipelines.releases.ledger import merge, refresh, remembered
from resilience_pipelines.releases.release import (
    Release,
    is_prerelease,
    version_key,
    version_of_tag,
)

DATA = Path(__file__).parent / "data" / "feeds"
DRIVERS, ATOM = (DATA / "drivers.json").read_bytes(), (DATA / "vllm.atom").read_bytes()


CUDA = b"""<html><pre>
<a href="../">../</a>
<a href="redistrib_12.4.1.json">redistrib_12.4.1.json</a>      2024-04-02 12:00  123456
<a href="redistrib_12.4.0.json">redistrib_12.4.0.json</a>      2024-03-05 12:00  123456
<a href='redistrib_13.0.2.json'>redistrib_13.0.2.json</a><a href="redistrib_13.1.0.json">x</a>
<a href="cuda_nvcc/">cuda_nvcc/</a>                            2025-01-01 12:00  -
</pre></html>"""


def test_cuda_toolkits_are_releases_of_what_a_driver_calls_its_cuda() -> None:
    found = {item.version: item.released for item in parse_cuda_index(CUDA)}
    assert found == {"12.4": date(2024, 3, 5), "13.0": None, "13.1": None}


@given(st.binary(max_size=300))
def test_whatever_a_page_holds_it_is_read_or_refused(body: bytes) -> None:
    try:
        assert parse_cuda_index(body)
    except FeedFormatError:
        return


# Versions.


@pytest.mark.parametrize(
    "ordered",
    [
        ["0.9.2", "0.20.0", "0.24.0rc1", "0.24.0", "0.24.1"],
        ["470.256.02", "570.9.1", "570.86.15", "580.159.04"],
        ["1.31.0-alpha.3", "1.31.0-rc.0", "1.31.0", "1.31.1"],
    ],
)
def test_versions_are_ordered_as_versions(ordered: list[str]) -> None:
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert sorted(shuffled, key=version_key) == ordered


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1))
def test_whatever_a_tag_is_it_has_its_place(versions: list[str]) -> None:
    other_way = versions[::-1]
    assert sorted(other_way, key=version_key) == sorted(versions, key=version_key)


@pytest.mark.parametrize(
    ("tag", "version"),
    [("v0.24.0", "0.24.0"), ("release-1.2", "1.2"), ("1.0", "1.0"), ("nightly", "nightly")],
)
def test_a_tag_names_its_version(tag: str, version: str) -> None:
    assert version_of_tag(tag) == version


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.24.0rc1", True), ("1.31.0-alpha.3", True), ("2.0.dev1", True), ("0.24.0", False),
     ("0.8.5.post1", False), ("580.159.04", False)],
)  # fmt: skip
def test_prereleases_are_known_by_their_version(version: str, expected: bool) -> None:
    assert is_prerelease(version) is expected


# Formats.


def test_drivers_have_branch_kind_date_and_architectures() -> None:
    releases = {release.version: release for release in parse_nvidia_drivers(DRIVERS)}
    assert releases["570.86.15"] == Release(
        version="570.86.15", branch="R570", kind="production branch", released=date(2025, 1, 27),
        architectures=("x86_64", "arm64-sbsa"),
    )  # fmt: skip
    assert releases["470.256.02"].kind == "lts branch"
    assert releases["570.9.1"].released is None, "a date that can't be read is no date"


def test_an_atom_feed_gives_tags_as_versions() -> None:
    found = [(r.version, r.released, r.prerelease) for r in parse_atom(ATOM)]
    assert found == [
        ("0.24.0", date(2026, 6, 20), False),
        ("0.24.0rc1", date(2026, 6, 12), True),
        ("0.9.2", None, False),
    ]


BOMB = b"""<!DOCTYPE f [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>
<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>x/&b;</id></entry></feed>"""


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"null", b"{", DRIVERS[:-30], b'{"570": {}}',
        b'{"570": {"driver_info": {}}}', b'{"570": {"driver_info": [1]}}',
        b'{"570": {"driver_info": [{"release_version": ""}]}}',
        b'{"570": {"driver_info": []}}', b"[" * 100_000, ATOM,
    ],
)  # fmt: skip
def test_what_is_no_driver_feed_is_refused_whole(body: bytes) -> None:
    with pytest.raises(FeedFormatError):
        parse_nvidia_drivers(body)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html/>", ATOM[:-30], BOMB, DRIVERS, b"<feed xmlns='http://www.w3.org/2005/Atom'/>",
        b"<feed xmlns='http://www.w3.org/2005/Atom'><entry/></feed>", b"\xff\xfe",
    ],
)  # fmt: skip
def test_what_is_no_atom_feed_is_refused_whole(body: bytes) -> None:
    with pytest.raises(FeedFormatError):
        parse_atom(body)


@given(st.binary(max_size=300))
def test_noise_is_refused_and_never_breaks_the_parser(body: bytes) -> None:
    for parse in (parse_atom, parse_nvidia_drivers):
        with pytest.raises(FeedFormatError):
            parse(body)


# What is remembered.


def releases(*versions: str) -> list[Release]:
    return [Release(version=version) for version in versions]


def test_a_release_that_is_only_too_old_for_the_feed_is_kept() -> None:
    merged = merge(tuple(releases("1.0", "1.1")), releases("1.2", "1.1"))
    assert [(r.version, r.withdrawn) for r in merged] == [
        ("1.2", False), ("1.1", False), ("1.0", False),
    ]  # fmt: skip


def test_a_release_that_was_taken_back_is_withdrawn_and_may_come_again() -> None:
    merged = merge(tuple(releases("1.0", "1.1")), releases("1.0", "1.2"))
    assert [(r.version, r.withdrawn) for r in merged] == [
        ("1.2", False), ("1.1", True), ("1.0", False),
    ]  # fmt: skip
    again = merge(tuple(merged), releases("1.0", "1.1", "1.2"))
    assert not any(release.withdrawn for release in again)


@given(st.lists(st.sets(st.integers(0, 30), min_size=1), min_size=1, max_size=6))
def test_no_release_is_ever_lost(rounds: list[set[int]]) -> None:
    known: tuple[Release, ...] = ()
    for numbers in rounds:
        known = tuple(merge(known, releases(*(f"1.{n}" for n in numbers))))
    assert {release.version for release in known} == {f"1.{n}" for n in set().union(*rounds)}


# Fetching, from a server that misbehaves.

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Site:
    """What the server answers, the last one for ever, and what it was asked."""

    answers: list[Answer] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(dict(self.headers))
            answers = site.answers
            status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site.url = f"http://127.0.0.1:{server.server_port}/feed"
        yield site
        server.shutdown()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


def feed_at(url: str) -> Feed:
    return replace(FEEDS["driver"], url=url)


def test_an_unchanged_feed_is_not_sent_again(site: Site, home: Home) -> None:
    site.answers = [(200, {"ETag": '"one"'}, DRIVERS), (304, {"ETag": '"one"'}, b"")]
    first = refresh(home, feed_at(site.url))
    assert (first.changed, len(first.new)) == (True, 3)
    before = remembered(home, "driver")
    second = refresh(home, feed_at(site.url))
    assert (second.changed, second.new) == (False, ())
    assert site.asked[1]["If-None-Match"] == '"one"'
    after = remembered(home, "driver")
    assert after.releases == before.releases
    assert after.checked_at is not None
    assert before.checked_at is not None
    assert after.checked_at > before.checked_at


def test_an_etag_of_another_address_is_not_used(site: Site, home: Home) -> None:
    site.answers = [(200, {"ETag": '"one"'}, DRIVERS)]
    refresh(home, feed_at(site.url))
    refresh(home, feed_at(site.url + "?mirror"))
    assert "If-None-Match" not in site.asked[1]


@pytest.mark.parametrize(
    "answer",
    [
        (200, {}, DRIVERS[:-30]),
        (200, {}, b"<html>maintenance</html>"),
        (200, {"Content-Length": "100000"}, DRIVERS),
        (404, {}, b""),
        (403, {}, b""),
        (302, {"Location": "http://169.254.169.254/latest"}, b""),
        (302, {"Location": "ftp://127.0.0.1/feed"}, b""),
        (302, {"Location": "file:///etc/passwd"}, b""),
        (302, {}, b""),
    ],
)
def test_a_feed_that_can_not_be_read_changes_nothing(
    site: Site, home: Home, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    site.answers = [(200, {"ETag": '"one"'}, DRIVERS)]
    refresh(home, feed_at(site.url))
    file = home.root / "releases" / "driver.json"
    before = file.read_bytes()
    site.answers = [answer]
    monkeypatch.setattr(ledger, "fetch", lambda url, etag: fetch(url, etag, deadline_s=0.5))
    with pytest.raises(ResilienceError):
        refresh(home, feed_at(site.url))
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_busy_server_is_asked_again_when_it_says(site: Site) -> None:
    site.answers = [(429, {"Retry-After": "7"}, b""), (503, {}, b""), (200, {}, DRIVERS)]
    pauses: list[float] = []
    assert fetch(site.url, pause=pauses.append).body == DRIVERS
    assert pauses[0] == 7
    assert 0 < pauses[1] < 10


def test_patience_ends_at_the_deadline(site: Site) -> None:
    site.answers = [(500, {"Retry-After": "30"}, b"")]
    with pytest.raises(DeadlineError, match="status 500"):
        fetch(site.url, deadline_s=10, pause=lambda _: pytest.fail("it would come too late"))


def test_redirects_end(site: Site) -> None:
    site.answers = [(302, {"Location": "/feed"}, b"")]
    with pytest.raises(FetchError, match="redirects"):
        fetch(site.url)


def test_too_large_a_body_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_BYTES", 1000)
    site.answers = [(200, {}, b" " * 5000)]
    with pytest.raises(FetchError, match="more than 1000 bytes"):
        fetch(site.url)


@pytest.mark.parametrize("url", ["ftp://a/b", "feed.json", "", "gopher://x"])
def test_an_address_of_another_kind_is_bad_input(url: str) -> None:
    with pytest.raises(InputError, match="https"):
        fetch(url)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"none\.json: No such file"):
        fetch((tmp_path / "none.json").as_uri())


def test_a_damaged_memory_is_an_error_and_stays(home: Home) -> None:
    path = home.root / "releases" / "driver.json"
    path.parent.mkdir()
    path.write_text('{"releases": 1}')
    with pytest.raises(CorruptError, match="Move it away"):
        remembered(home, "driver")
    assert path.exists()


def test_a_mirror_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESILIENCE_FEED_VLLM", "file:///mirror/vllm.atom")
    assert FEEDS["vllm"].address == "file:///mirror/vllm.atom"
    assert FEEDS["criu"].address == "https://github.com/checkpoint-restore/criu/releases.atom"


def test_what_is_remembered_is_plain_json(home: Home) -> None:
    refresh(home, feed_at((DATA / "drivers.json").as_uri()))
    content = json.loads((home.root / "releases" / "driver.json").read_text())
    assert [item["version"] for item in content["releases"]] == [
        "570.86.15", "570.9.1", "470.256.02",
    ]  # fmt: skip


def test_a_feed_that_fails_does_not_keep_the_others_from_being_read(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESILIENCE_FEED_VLLM", (DATA / "missing.atom").as_uri())
    monkeypatch.setenv("RESILIENCE_FEED_DRIVER", (DATA / "drivers.json").as_uri())
    told: list[str] = []
    done, failed = refresh_feeds(home, ["vllm", "driver"], told.append)
    assert (list(failed), [item.feed for item in done]) == (["vllm"], ["driver"])
    assert len(told) == 2
    assert remembered(home, "driver").releases
    with pytest.raises(InputError, match="no such feed"):
        refresh_feeds(home, ["driver", "nope"], told.append)
    assert len(told) == 2, "nothing was read"
