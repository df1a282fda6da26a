"""A worker: an engine that the platform can start, measure, snapshot and break.

The program and its description are one file here. The program speaks the worker contract:
`/health`, `/v1/completions` with token ids and log-probabilities, `/sleep` and `/wake_up`. Its
"model" is a table of weights that it reads from a file, and it says on standard output how long
that took.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience_pipelines.records import Basis
    from resilience_pipelines.workers.base import LaunchPlan, Mark, OutputLine

LOADED = "weights loaded in "


@dataclass(frozen=True)
class TableWorker:
    """The engine as the platform sees it (`resilience_pipelines.workers.base.Worker`).

    Args:
        folder: where its weights lie.
    """

    folder: Path

    name: str = "table"
    engine: str = "table"
    engine_version: str = "1"
    model: str = "table-4k"
    model_precision: str = "uint8"
    start_deadline_s: float = 30.0
    request_deadline_s: float = 5.0
    sleep_levels: tuple[int, ...] = (1,)
    snapshot_sleep_level: int = 1
    logprob_tolerance: float = 0.0

    @property
    def basis(self) -> Basis:
        """What its results stand for: not a real engine, so never `measured`."""
        from resilience_pipelines.records import Basis

        return Basis.REFERENCE

    @property
    def weights(self) -> Path:
        """The file that it loads."""
        return self.folder / "weights.bin"

    def prepare(self) -> None:
        """Weights from a seed; made once, and no part of any measurement."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.weights.exists():
            blocks = (hashlib.sha256(b"seed %d" % index).digest() for index in range(128))
            self.weights.write_bytes(b"".join(blocks))

    def plan(self, port: int, cache: Path) -> LaunchPlan:  # noqa: ARG002 - it compiles nothing
        """How to start it: this file, with a Python that loads no site packages."""
        from resilience_pipelines.workers.base import LaunchPlan

        return LaunchPlan((sys.executable, "-S", __file__, str(port), str(self.weights)), port)

    def weight_files(self) -> Sequence[Path]:
        """Their place in the page cache is set and read back before each start."""
        return (self.weights,)

    def with_weights_in(self, folder: Path) -> TableWorker:
        """The same, reading a copy: faults damage copies, never the weights themselves."""
        return replace(self, folder=folder)

    def marks(self, lines: Sequence[OutputLine]) -> list[Mark]:
        """Phases that its output tells. What no phase explains is shown as `unaccounted`."""
        from resilience_pipelines.workers.base import Mark

        return [
            Mark(
                "load_weights",
                line.received_ns - int(1e9 * float(line.text.removeprefix(LOADED).split()[0])),
                line.received_ns,
                clock="worker_log",
                resolution_s=1e-3,
            )
            for line in lines
            if line.text.startswith(LOADED)
        ]

    def stack_facts(self) -> Mapping[str, str | int | None]:
        """Dimensions of the stack that this engine knows; it has neither torch nor NCCL."""
        return {}


def load(weights: Path) -> bytes:
    """Read the weights, and say how long it took."""
    begin = time.perf_counter()
    table = weights.read_bytes()
    print(f"{LOADED}{time.perf_counter() - begin:.6f} s", flush=True)
    return table


def serve(port: int, table: Callable[[], bytes]) -> None:
    """Serve the contract until the process is ended."""
    state = {"asleep": False}
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: object) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self.answer(200, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                if self.path.startswith("/sleep"):
                    state["asleep"] = True
                    self.answer(200, {})
                elif self.path.startswith("/wake_up"):
                    state["asleep"] = False
                    self.answer(200, {})
                elif state["asleep"]:
                    self.answer(503, {"error": "asleep"})
                else:
                    self.answer(200, self.complete(json.loads(body)))

        def complete(self, request: dict[str, object]) -> object:
            # Deterministic, and from every weight: a start that lost one answers differently.
            text = str(request["prompt"]).encode()
            ids, logprobs = [], []
            for _ in range(int(str(request["max_tokens"]))):
                digest = hashlib.sha256(table() + text).digest()
                ids.append(digest[0])
                logprobs.append(-(1 + digest[1]) / 256)
                text += digest[:1]
            return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}]}

        def log_message(self, *args: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    loaded = load(Path(sys.argv[2]))
    serve(int(sys.argv[1]), lambda: loaded)
