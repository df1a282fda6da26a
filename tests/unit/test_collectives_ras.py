"""RAS is asked as `ncclras` asks, its answers are read strictly, and no server holds anybody up.

The status texts have the form that src/ras/client_support.cc of NVIDIA/nccl prints (2.27 as text,
2.28.7 as JSON); their numbers are made up, since no GPU is here.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from resilience_pipelines.collectives.ras import (
    MAX_BYTES,
    RasAbsentError,
    RasClient,
    RasProtocolError,
    RasSilentError,
    parse_json,
    parse_text,
)
from resilience_pipelines.detectors.nccl_ras import NcclRas


def rank(number: int, count: int, **status: int) -> dict[str, Any]:
    return {
        "rank": number, "host": "127.0.0.1", "pid": 100 + number, "cuda_dev": number,
        "nvml_dev": number,
        "status": {"init_state": 0, "async_error": 0, **status},
        "collective_counts": {"AllReduce": count, "Broadcast": 1},
    }  # fmt: skip


def status_of(*ranks: dict[str, Any], missing: tuple[int, ...] = (), timeouts: int = 0) -> bytes:
    return json.dumps(
        {
            "nccl_version": "2.28.9",
            "communicators": [
                {
                    "hash": "0x1a2b", "size": len(ranks) + len(missing), "ranks": list(ranks),
                    "missing_ranks": [{"rank": number} for number in missing],
                }
            ],
            "ras": {"collection_time_sec": 0.1, "timeouts_count": timeouts},
        }
    ).encode()  # fmt: skip


WELL = status_of(rank(0, 7), rank(1, 7))
TEXT = b"""NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.00s)
=============

Errors
======

%s
Warnings
========

%s
"""


class Server:
    """A RAS service on loopback that says what a test wants.

    Attributes:
        heard: the lines of the client.
    """

    def __init__(self, content: bytes, *, json_form: bool = True) -> None:
        self.content = content
        self.json_form = json_form
        self.heard: list[str] = []
        self.greeting = b"SERVER PROTOCOL 2\n"
        self.silent_at = ""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        for line in stream:
            said = line.decode().strip()
            self.heard.append(said)
            if self.silent_at and said.startswith(self.silent_at):
                self._stop.wait(10)
                return
            try:
                if said.startswith("CLIENT"):
                    connection.sendall(self.greeting)
                elif said.startswith("TIMEOUT"):
                    connection.sendall(b"OK\n")
                elif said.startswith("SET"):
                    connection.sendall(b"OK\n" if self.json_form else b"ERROR: Unknown command\n")
                else:
                    connection.sendall(self.content)
                    return
            except OSError:
                return

    def close(self) -> None:
        self._stop.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(5)


@contextmanager
def served(content: bytes, **how: Any) -> Iterator[tuple[Server, RasClient]]:
    server = Server(content, **how)
    client = RasClient(
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM), server.port,
        handshake_deadline_s=0.3, status_deadline_s=0.5,
    )  # fmt: skip
    try:
        yield server, client
    finally:
        server.close()


def test_it_is_asked_as_ncclras_asks() -> None:
    with served(WELL) as (server, client):
        status = client.status()
    assert server.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]
    (communicator,) = status.communicators
    assert status.nccl_version == "2.28.9"
    assert (communicator.size, communicator.alive, communicator.missing) == (2, (0, 1), ())
    assert not communicator.mismatched


def test_an_older_nccl_is_read_as_text() -> None:
    with served(TEXT % (b"", b""), json_form=False) as (_, client):
        status = client.status()
    assert (status.nccl_version, status.errors, status.warnings) == ("2.27.5", (), ())


def test_sections_of_the_text_are_told_line_by_line() -> None:
    found = parse_text(TEXT % (b"DEAD\n  1 job process is considered dead", b"TIMEOUT\n  1 peer"))
    assert found.errors == ("DEAD", "1 job process is considered dead")
    assert found.warnings == ("TIMEOUT", "1 peer")


def test_the_comma_that_an_nccl_leaves_out_is_put_in() -> None:
    broken = WELL.replace(b'"nvml_dev": 0, "status"', b'"nvml_dev": 0 "status"')
    assert broken != WELL
    assert parse_json(broken) == parse_json(WELL)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", WELL[:-20], b"[]", b'{"communicators": []}',
     WELL.replace(b'"size": 2', b'"size": "2"'),
     WELL.replace(b'"rank": 0', b'"rank": true'), b"\xff\xfe", b"1" * 100],
)  # fmt: skip
def test_what_is_no_status_is_refused(content: bytes) -> None:
    with pytest.raises(RasProtocolError):
        parse_json(content)
    with pytest.raises(RasProtocolError):
        parse_text(content)


def test_nobody_at_the_port_is_absent() -> None:
    with served(WELL) as (_, client):
        pass
    with pytest.raises(RasAbsentError):
        client.status()


@pytest.mark.parametrize("silent_at", ["CLIENT", "TIMEOUT", "SET", "STATUS"])
def test_a_server_that_says_nothing_is_given_up_in_time(silent_at: str) -> None:
    with served(WELL) as (server, client):
        server.silent_at = silent_at
        with pytest.raises(RasSilentError):
            client.status()


def test_a_server_that_trickles_is_given_up_at_the_same_time() -> None:
    with served(WELL) as (server, client):
        server.greeting = b"S"  # and no line's end

        with pytest.raises(RasSilentError):
            client.status()


@pytest.mark.parametrize(
    "greeting", [b"SERVER PROTOCOL 3\n", b"SSH-2.0-OpenSSH\n", b"\n", b"x" * 10_000]
)
def test_another_service_or_version_is_refused(greeting: bytes) -> None:
    with served(WELL) as (server, client):
        server.greeting = greeting
        with pytest.raises(RasProtocolError):
            client.status()


def test_an_answer_without_end_is_refused() -> None:
    with served(b"x" * (MAX_BYTES + 2**20)) as (_, client):
        client._status_deadline_s = 10
        with pytest.raises(RasProtocolError, match="more than"):
            client.status()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (status_of(rank(0, 7), missing=(1,)), "rank 1 of 2 is missing in communicator 0x1a2b"),
        (status_of(rank(0, 7), rank(1, 7, async_error=6)), "errors in communicator 0x1a2b"),
        (status_of(rank(0, 7), rank(1, 7), timeouts=1), "1 RAS threads did not answer another"),
    ],
)
def test_what_is_wrong_with_a_rank_is_an_alarm_at_once(content: bytes, said: str) -> None:
    with served(content) as (_, client):
        found = NcclRas(client)._look()
    assert found is not None
    assert found.startswith(said)


def test_counts_that_differ_for_a_moment_are_usual() -> None:
    with served(status_of(rank(0, 7), rank(1, 6))) as (server, client):
        detector = NcclRas(client, patience_s=0.2)
        assert detector._look() is None
        server.content = WELL
        assert detector._look() is None


def test_counts_that_differ_and_do_not_grow_are_an_alarm() -> None:
    with served(status_of(rank(0, 7), rank(1, 6))) as (_, client):
        detector = NcclRas(client, patience_s=0.2)
        assert detector._look() is None
        time.sleep(0.25)
        assert detector._look() == "rank 1 (7) is behind the others (8) in communicator 0x1a2b"


def test_a_service_that_has_gone_is_an_alarm() -> None:
    with served(WELL) as (_, client):
        detector = NcclRas(client)
        assert detector._look() is None
    found = detector._look()
    assert found is not None
    assert found.startswith("No RAS thread")
