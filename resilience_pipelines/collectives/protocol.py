"""What the host and the ranks of a training job say to each other, as plain data.

What belongs here: a rank's specification, the order to stop in the middle of a save, and exit
statuses. What does not: torch, and processes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

COLLECTIVE_FAILED_STATUS = 3
"""A rank's exit status when a collective failed or ran out of time."""


@dataclass(frozen=True)
class RankSpec:
    """All that a rank has to know.

    Args:
        backend: `gloo` or `nccl`.
        master: address of rank 0, where the ranks meet, with `port`.
        timeout_s: how long a collective may take.
        pace_s: pause after each step.
        checkpoints: folder of the job's checkpoints.
        control: folder for orders to the ranks (`Halt`).
        flight: folder of the flight recorders' dumps.
        keep: how many checkpoints stay.
        resume_folder: checkpoint to begin from, made after step `resume_step`.
        last_step: None: train until somebody ends the job.
    """

    rank: int
    ranks: int
    backend: str
    master: str
    port: int
    timeout_s: float
    seed: int
    pace_s: float
    checkpoint_every: int
    checkpoints: str
    control: str
    flight: str
    keep: int
    resume_folder: str | None = None
    resume_step: int | None = None
    last_step: int | None = None

    def to_json(self) -> str:
        """As the rank's argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the argument."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Halt:
    """An order to stop (by SIGSTOP to oneself) in the middle of the next save.

    It makes the moment of a kill exact; nothing is written other than as usual.

    Args:
        after_bytes: so many bytes of the rank's shard are written; None: all is, the metadata too,
            and only the commit is missing.
    """

    after_bytes: int | None

    def write(self, control: Path, rank: int) -> None:
        """Give the order."""
        path = _order(control, rank)
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(asdict(self)))
        aside.rename(path)

    @classmethod
    def read(cls, control: Path, rank: int) -> Self | None:
        """The order to this rank, if there is one."""
        try:
            return cls(**json.loads(_order(control, rank).read_text()))
        except FileNotFoundError:
            return None

    @staticmethod
    def take_back(control: Path, rank: int) -> None:
        """End the order: the next life of the job saves again."""
        _order(control, rank).unlink(missing_ok=True)


def _order(control: Path, rank: int) -> Path:
    return control / f"halt-{rank}.json"
