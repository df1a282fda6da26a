"""The reference worker as a program: starts in phases that it reports, then serves.

Its standard output is JSON lines: `started`, one `phase` for each phase, `ready`, and then what it
does; times are CLOCK_MONOTONIC in nanoseconds. SIGTERM ends it with exit code 0.
"""

from __future__ import annotations

import time

STARTED_NS = time.monotonic_ns()

import argparse  # noqa: E402 - the first statement of this program is its clock
import errno  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from resilience_pipelines.workers.reference.events import Events, Phases  # noqa: E402

EXIT_USAGE = 2
EXIT_NO_WEIGHTS = 66
EXIT_NO_ADDRESS = 71
EXIT_PORT_TAKEN = 98

_STDERR = 2
_WARM_UP_TOKENS = 2
_WARM_UP_PROMPT = 128


def main() -> int:
    """Start and serve until SIGTERM; returns the exit code."""
    options = _options()
    _fill_standard_descriptors()
    events = Events()
    events.report("started", monotonic_ns=STARTED_NS, pid=os.getpid())
    phases = Phases(events, STARTED_NS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    try:
        # Bound now, so that a taken port is known before the long phases; it listens when ready.
        bound = _bind(options.host, options.port)
    except OSError as error:
        return _no_address(options, error)

    # The kernels have threads of their own; those of a BLAS would only lie in every snapshot.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numba  # noqa: F401

    from resilience_pipelines.workers.reference.server import WorkerServer
    from resilience_pipelines.workers.reference.tokenizer import encode
    from resilience_pipelines.workers.reference.weights import WeightsError, load_weights

    phases.end("import")
    try:
        weights = load_weights(options.weights)
    except WeightsError as error:
        return _failed(f"--weights: {error}", EXIT_NO_WEIGHTS)
    phases.end("weights")

    # numba compiles the kernels, or loads them from its cache, when their module is imported.
    from resilience_pipelines.workers.reference.model import Decoder

    phases.end("compile")
    try:
        decoder = Decoder(options.weights, weights, options.max_sequence)
    except ValueError as error:
        return _failed(f"--max-sequence: {error}", EXIT_USAGE)
    # As engines do before they serve: a long prompt, so that no request meets memory not yet there.
    longest = max(1, min(_WARM_UP_PROMPT, decoder.max_sequence - _WARM_UP_TOKENS))
    prompt = encode("warm up " * _WARM_UP_PROMPT)[:longest]
    for _ in decoder.generate(prompt, min(_WARM_UP_TOKENS, decoder.max_sequence - 1)):
        pass
    phases.end("warm_up")

    try:
        server = WorkerServer(bound, decoder, events)
    except OSError as error:
        return _no_address(options, error)
    with server:
        phases.end("server_up")
        port = server.server_address[1]
        events.report("ready", monotonic_ns=time.monotonic_ns(), port=port)
        server.serve_forever()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="resilience_pipelines.workers.reference", description="Serve the reference decoder."
    )
    parser.add_argument("--port", type=_port, required=True, help="0 to 65535; 0 for a free one")
    parser.add_argument("--weights", type=Path, required=True, help="safetensors file")
    parser.add_argument("--host", default="127.0.0.1", help="IPv4 address (default: %(default)s)")
    parser.add_argument("--max-sequence", type=int, help="positions (default: the model's)")
    return parser.parse_args()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}: give 0 to 65535")
    return int(text)


def _fill_standard_descriptors() -> None:
    """Where one is closed, its number would go to the next file: events would be written there."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def _bind(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    return bound


def _exit(number: int, frame: object) -> None:  # noqa: ARG001
    """End at once; a request that computes is cut off.

    Nothing is left to clean up, and the interpreter's own way out would take longer than all of
    this and pull the compiled kernels from under the threads that run them.
    """
    os._exit(0)


def _no_address(options: argparse.Namespace, error: OSError) -> int:
    taken = error.errno == errno.EADDRINUSE
    return _failed(
        f"--host {options.host} --port {options.port}: {error.strerror}. "
        + ("Give a free port, or end the program that holds it" if taken else "Give another"),
        EXIT_PORT_TAKEN if taken else EXIT_NO_ADDRESS,
    )


def _failed(message: str, code: int) -> int:
    print(message, file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
