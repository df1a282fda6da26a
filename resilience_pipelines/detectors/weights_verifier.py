"""The detector `weights_verifier`: a scrubber that compares weight files with their hashes.

What belongs here: reading files and comparing. What does not: where the hashes come from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from resilience_pipelines.detectors.base import PollingDetector

INTERVAL_S = 0.1


class WeightsVerifier(PollingDetector):
    """Raises an alarm when a file is not what its hash says.

    A file whose size and times have not changed since the last look is not read again, and none is
    read once one was found to be damaged: a file does not heal, and reading it is load.

    Args:
        sha256: the hash that each file should have, in hexadecimal digits.
    """

    name = "weights_verifier"

    def __init__(self, sha256: Mapping[Path, str], *, interval_s: float = INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._sha256 = dict(sha256)
        self._seen: dict[Path, tuple[int, int, int]] = {}
        self._problem: str | None = None

    def _look(self) -> str | None:
        for path, wanted in self._sha256.items():
            if self._problem is None:
                self._problem = self._check(path, wanted)
        return self._problem

    def _check(self, path: Path, wanted: str) -> str | None:
        try:
            status = path.stat()
            version = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if self._seen.get(path) == version:
                return None
            found = file_sha256(path)
        except FileNotFoundError:
            return f"{path.name} is missing"
        self._seen[path] = version
        return None if found == wanted else f"{path.name} has another SHA-256"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
