"""Dumps of torch's flight recorder: the last collectives of a rank, as a file that it renews.

What belongs here: where the files are, what torch is told so that it records, and reading one that
a rank may have spoilt. What does not: writing them (`rank_recorder`, which needs torch), and what
several of them say about the ranks (`detectors.flight_recorder`).

torch's own dump files are pickles, and reading a pickle runs what it says. These are JSON, made
with the JSON form of the same recorder, and nothing else is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience_pipelines import strict_json
from resilience_pipelines.plain_files import open_plain

ENTRIES = 32
MAX_BYTES = 4 * 2**20
ENVIRONMENT: Mapping[str, str] = {
    "TORCH_FR_BUFFER_SIZE": str(ENTRIES),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": str(ENTRIES),  # the name before torch 2.9
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # no pickles below /tmp
}
_DEFAULT_GROUP = "0"


@dataclass(frozen=True)
class Collective:
    """One collective that a rank has entered.

    Attributes:
        sequence: its number in the group of all ranks; the same on each of them.
        created_ns: when the rank entered it, by CLOCK_REALTIME in nanoseconds.
        done: whether the rank has left it.
    """

    sequence: int
    operation: str
    created_ns: int
    done: bool


@dataclass(frozen=True)
class Dump:
    """What one rank's recorder said.

    Attributes:
        written_ns: when, by CLOCK_MONOTONIC in nanoseconds.
        realtime_ns: the same moment by the clock of `Collective.created_ns`.
        final: whether a collective had failed and the rank was about to end.
        collectives: of the group of all ranks, in order; the last `ENTRIES`.
    """

    rank: int
    written_ns: int
    realtime_ns: int
    final: bool
    collectives: tuple[Collective, ...]

    @property
    def last(self) -> Collective | None:
        """The collective that it entered last."""
        return self.collectives[-1] if self.collectives else None

    @property
    def sequence(self) -> int:
        """Its number; 0 before the first."""
        return self.last.sequence if self.last else 0

    def waited_s(self) -> float | None:
        """How long it had been in its last collective, in seconds; None when it had left it."""
        if self.last is None or (self.last.done and not self.final):
            return None
        return (self.realtime_ns - self.last.created_ns) / 1e9


def dump_path(folder: Path, rank: int) -> Path:
    """Where a rank leaves its dump."""
    return folder / f"flight-{rank}.json"


def read_dump(path: Path) -> Dump:
    """Read one dump.

    Raises:
        OSError: there is none, or it is no plain file.
        ValueError: it is no dump. A pickle is none.
    """
    with open_plain(path) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path.name} has more than {MAX_BYTES} bytes")
    try:
        found = strict_json.loads(content)
        return Dump(
            rank=_whole(found["rank"]),
            written_ns=_whole(found["written_ns"]),
            realtime_ns=_whole(found["realtime_ns"]),
            final=bool(found["final"]),
            collectives=_collectives(found["trace"]["entries"]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path.name} is no dump of a flight recorder: {error!r}") from error


def _collectives(entries: Any) -> tuple[Collective, ...]:
    if not isinstance(entries, list):
        raise TypeError("entries is no list")
    found = [
        Collective(
            sequence=_whole(entry["collective_seq_id"]),
            operation=str(entry["profiling_name"])[:100],
            created_ns=_whole(entry["time_created_ns"]),
            # gloo's entries stay "scheduled"; both backends retire what they are done with.
            done=entry["retired"] is True or entry["state"] == "completed",
        )
        for entry in entries
        if entry["process_group"][0] == _DEFAULT_GROUP and not entry["is_p2p"]
    ]
    return tuple(sorted(found, key=lambda collective: collective.sequence))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value
