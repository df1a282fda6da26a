"""The torch worker as a program: starts in phases that it reports, then serves.

Standard output is JSON lines, as the reference worker's: `phase` for each phase, times as
CLOCK_MONOTONIC in nanoseconds. SIGTERM ends it with exit code 0.
"""

from __future__ import annotations

import time

STARTED_NS = time.monotonic_ns()

import argparse  # noqa: E402 - the first statement of this program is its clock
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from resilience_pipelines.workers.reference.events import Events, Phases  # noqa: E402

_WARM_UP_PROMPT = b"warm up"
_WARM_UP_TOKENS = 2


def main() -> int:
    """Start and serve until SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(prog="resilience_pipelines.workers.torch_reference")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--breakable", action="store_true", help="serve POST /break, for faults")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _exit)
    phases = Phases(Events(), STARTED_NS)
    # Workers of the compiler would be processes in every snapshot.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

    import torch

    from resilience_pipelines.workers.torch_reference.model import Decoder
    from resilience_pipelines.workers.torch_reference.server import WorkerServer

    phases.end("import")
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        phases.end("device_init")
    decoder = Decoder(options.model, options.device)
    phases.end("weights")
    if on_gpu:
        decoder.compile()
        phases.end("compile")
        decoder.capture()
        phases.end("graph_capture")
    for _ in decoder.generate(_WARM_UP_PROMPT, _WARM_UP_TOKENS):
        pass
    phases.end("warm_up")
    address = ("127.0.0.1", options.port)
    with WorkerServer(address, decoder, breakable=options.breakable) as server:
        phases.end("server_up")
        server.serve_forever()
    return 0


def _exit(number: int, frame: object) -> None:  # noqa: ARG001
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
