"""A server of the worker contract that starts in milliseconds and keeps a little state in memory.

For tests of what surrounds a worker. Started as a program: `contract_server.py PORT [TRAIT ...]`.
Traits make it misbehave in one way each.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

TRAITS = set(sys.argv[2:])
# Answers come from here: a restore that lost memory would answer differently.
MEMORY = bytearray(os.urandom(4096)) if "random_memory" in TRAITS else bytearray(b"state" * 2400)
for trait in TRAITS:
    if trait.startswith("weights="):
        # As an engine without checksums loads them: the header has to be right, the rest may be
        # anything.
        with open(trait.removeprefix("weights="), "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            begin, end = json.loads(stream.read(length))["state"]["data_offsets"]
            MEMORY = bytearray(stream.read())
        if len(MEMORY) != end - begin:
            sys.exit("the weights are cut")
STATE = {"asleep": False, "answered": 0}
LOCK = threading.Lock()
KEEP: list[object] = []

LIBRARY = None
for trait in TRAITS:
    if trait.startswith("library="):
        LIBRARY = ctypes.CDLL(trait.removeprefix("library="))
if "locale" in TRAITS:
    import locale

    locale.setlocale(locale.LC_ALL, "")

if "io_uring" in TRAITS:
    # CRIU cannot dump io_uring rings; where the kernel has none, a userfaultfd will do.
    libc = ctypes.CDLL(None)
    ring = libc.syscall(425, 8, ctypes.create_string_buffer(120))
    if ring < 0:
        ring = libc.syscall(323, 0)
    assert ring >= 0
if "shared_memory" in TRAITS:
    with open("/dev/shm/worker-state", "wb") as stream:
        stream.write(b"shared" * 1000)
    handle = os.open("/dev/shm/worker-state", os.O_RDWR)
    KEEP.append(mmap.mmap(handle, 6000))
if "unlinked" in TRAITS:
    # Unlinked under one name and alive under another: CRIU makes a link_remap file for it.
    with open("/dev/shm/first", "wb") as stream:
        stream.write(b"x" * 100)
    os.link("/dev/shm/first", "/dev/shm/second")
    KEEP.append(open("/dev/shm/first", "rb"))
    os.unlink("/dev/shm/first")


def tokens(count: int) -> tuple[list[int], list[float]]:
    state = bytes(MEMORY)
    if LIBRARY is not None:
        state += str(LIBRARY.version()).encode()
    if "locale" in TRAITS:
        state += locale.nl_langinfo(locale.DAY_1).encode()
    digest = hashlib.sha256(state).digest()
    ids = [digest[i % 32] for i in range(count)]
    return ids, [-(1 + value) / 256 for value in ids]


class Handler(BaseHTTPRequestHandler):
    def _answer(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self._answer(200, {})

    def do_POST(self) -> None:
        path = urlparse(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/sleep":
            if "no_sleep" in TRAITS:
                self._answer(500, {"error": "sleep failed"})
                return
            STATE["asleep"] = True
            self._answer(200, {})
        elif path == "/wake_up":
            STATE["asleep"] = False
            self._answer(200, {})
        elif STATE["asleep"]:
            self._answer(503, {"error": "asleep"})
        else:
            with LOCK:
                STATE["answered"] += 1
            ids, logprobs = tokens(json.loads(body)["max_tokens"])
            print(f"answered {STATE['answered']}", flush=True)
            self._answer(
                200, {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}]}
            )

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    if "exits" in TRAITS:
        sys.exit("this worker ends at once")
    if "child" in TRAITS and os.fork() == 0:
        while True:
            threading.Event().wait(3600)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
