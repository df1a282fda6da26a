"""A rank's own part of the flight recorder: it renews its dump again and again.

What belongs here: asking torch, and writing the file whole or not at all. What does not: reading
it (`flight_recorder`). torch dumps by itself only when a collective has run out of time, and a rank
that is killed or stopped dumps nothing: so each rank leaves what it last did, while it can.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from torch._C import _distributed_c10d as c10d

from resilience_pipelines.collectives.flight_recorder import dump_path
from resilience_pipelines.collectives.support import NCCL

INTERVAL_S = 0.2
_STOP_DEADLINE_S = 1.0
# NCCL's entries carry events of the GPU, so they have a recorder of their own.
_NAMES = {NCCL: ("_dump_nccl_trace_json", "_dump_fr_trace_json")}
_OTHERS = ("_dump_fr_trace_json",)


class RankRecorder:
    """Writes the dump of one rank, from `start` to `finish`.

    Attributes:
        works: whether this build of torch has a recorder for the backend that speaks JSON.
    """

    def __init__(self, folder: Path, rank: int, backend: str) -> None:
        names = _NAMES.get(backend, _OTHERS)
        found = [getattr(c10d, name) for name in names if hasattr(c10d, name)]
        self._dump: Callable[[], bytes] | None = found[0] if found else None
        self._path = dump_path(folder, rank)
        self._rank = rank
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="flight-recorder", daemon=True)

    @property
    def works(self) -> bool:
        """See the class."""
        return self._dump is not None

    def start(self) -> None:
        """Write the first dump, and go on until the rank ends."""
        if self.works:
            self._write(final=False)
            self._thread.start()

    def finish(self) -> None:
        """A collective failed: write what was there then, and nothing more."""
        if self._thread.ident is not None:
            self._stopping.set()
            self._thread.join(_STOP_DEADLINE_S)
            self._write(final=True)

    def _renew(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            self._write(final=False)

    def _write(self, *, final: bool) -> None:
        assert self._dump is not None
        head = json.dumps(
            {
                "rank": self._rank, "written_ns": time.monotonic_ns(),
                "realtime_ns": time.time_ns(), "final": final,
            }
        ).encode()  # fmt: skip
        aside = self._path.with_suffix(".final" if final else ".new")
        aside.write_bytes(head[:-1] + b', "trace": ' + bytes(self._dump()) + b"}")
        aside.rename(self._path)
