"""The reference worker as a program: starts in phases that it reports, then serves.

Every phase is a JSON line on standard output with CLOCK_MONOTONIC in nanoseconds. Exit codes: 66 no
usable weight file, 98 the port is taken.
"""

from __future__ import annotations

import time

STARTED_NS = time.monotonic_ns()

import argparse  # noqa: E402 - the first statement of this program is its clock
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

EXIT_NO_WEIGHTS = 66
EXIT_PORT_TAKEN = 98


def report(event: dict[str, object]) -> None:
    """Write an event. A reader that is gone or slow never stops the worker: the line is lost."""
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except OSError:
        return


def main() -> int:
    """Start and serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="Reference worker.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    report({"event": "started", "monotonic_ns": STARTED_NS, "pid": os.getpid()})
    clock = _Phases()

    import numba  # noqa: F401
    import pydantic  # noqa: F401
    import starlette.applications  # noqa: F401
    import uvicorn

    from resilience_pipelines.workers.reference.weights import WeightsError, load_weights

    clock.end("import")
    try:
        shape, weights = load_weights(options.weights)
    except WeightsError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_NO_WEIGHTS
    clock.end("weights")

    # numba compiles the kernels, or loads them from its cache, when their module is imported.
    from resilience_pipelines.workers.reference.model import Decoder, encode

    clock.end("compile")
    decoder = Decoder(options.weights, shape, weights)
    del weights  # the decoder alone owns them, so that sleep can give them up
    list(decoder.generate(encode("warm up"), 2))
    clock.end("warm_up")

    from resilience_pipelines.workers.reference.server import WorkerApplication

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        print(f"port {options.port} on {options.host}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return EXIT_PORT_TAKEN

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            clock.end("server_up")
            report({"event": "ready", "monotonic_ns": time.monotonic_ns(), "port": options.port})

    # asyncio, not uvloop: libuv opens io_uring rings, which CRIU cannot dump.
    config = uvicorn.Config(
        WorkerApplication(decoder, report).application,
        loop="asyncio", http="h11", ws="none", lifespan="off",
        log_level="warning", timeout_keep_alive=1, timeout_graceful_shutdown=1,
    )  # fmt: skip
    Server(config).run(sockets=[listener])
    return 0


class _Phases:
    """Reports consecutive phases."""

    def __init__(self) -> None:
        self._start_ns = STARTED_NS

    def end(self, name: str) -> None:
        now = time.monotonic_ns()
        report({"event": "phase", "name": name, "start_ns": self._start_ns, "end_ns": now})
        self._start_ns = now


if __name__ == "__main__":
    sys.exit(main())
