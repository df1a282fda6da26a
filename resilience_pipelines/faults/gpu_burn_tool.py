"""The real `gpu-burn`: where it is, and what its output says.

What belongs here: finding it and reading it. What does not: running it as a fault (`gpu_load`).

Its exit status says nothing: it is 0 for a faulty GPU too, and a GPU that did not compute at all is
called OK. So a GPU has passed only when its line says OK, it was still computing at the end, and no
line counted an error.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "RESILIENCE_GPU_BURN"
"""Names the program where it is not on PATH."""
NAMES = ("gpu_burn", "gpu-burn")

_PROGRESS = re.compile(r"proc'd: (?P<done>.*?)errors: (?P<errors>.*?)(?:temps:|$)")
_DONE = re.compile(r"(?P<products>-?[0-9]{1,18}) \((?P<gflops>-?[0-9]{1,18}|-?inf|-?nan) Gflop/s\)")
_ERRORS = re.compile(r"(?P<errors>-?[0-9]{1,18})\s*(?P<note>\([A-Z!]+\))?")
_VERDICT = re.compile(r"^\s*GPU (?P<index>[0-9]{1,3}): (?P<verdict>OK|FAULTY)\s*$")


@dataclass(frozen=True)
class BurnedGpu:
    """What gpu-burn says of one GPU.

    Attributes:
        verdict: `OK` or `FAULTY`; None where it did not come to a verdict.
        gflops: what it last computed per second; 0 when it did not compute.
        errors: the most errors that it counted between two summaries.
        died: whether its process ended early.
    """

    index: int
    verdict: str | None
    gflops: float
    errors: int
    died: bool

    @property
    def passed(self) -> bool:
        """Whether it computed to the end, and everything right."""
        return self.verdict == "OK" and self.gflops > 0 and self.errors == 0 and not self.died


def find_gpu_burn() -> Path | None:
    """The program; None where there is none."""
    named = os.environ.get(VARIABLE)
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return Path(named) if named else (Path(found) if found else None)


def parse_gpu_burn(output: str) -> tuple[BurnedGpu, ...]:
    """What gpu-burn says of each GPU; empty where it says nothing.

    Args:
        output: its standard output so far; progress lines end in a carriage return or a newline.
    """
    gflops: list[float] = []
    errors: list[int] = []
    died: list[bool] = []
    verdicts: dict[int, str] = {}
    for line in re.split(r"[\r\n]", output):
        if progress := _PROGRESS.search(line):
            done = [_DONE.search(part) for part in progress["done"].split(" - ")]
            counts = [_ERRORS.search(part) for part in progress["errors"].split("- ")]
            if not all(done) or len(done) != len(counts) or not all(counts):
                continue  # cut off in the middle
            if len(gflops) != len(done):
                gflops, errors = [0.0] * len(done), [0] * len(done)
                died = [False] * len(done)
            for place, (product, count) in enumerate(zip(done, counts, strict=True)):
                assert product is not None
                assert count is not None
                value = float(product["gflops"])
                gflops[place] = value if 0 < value < float("inf") else 0.0
                errors[place] = max(errors[place], int(count["errors"]))
                died[place] |= product["products"] == "-1" or count["note"] == "(DIED!)"
        elif verdict := _VERDICT.match(line):
            # Once called faulty, it stays so.
            index = int(verdict["index"])
            if verdicts.get(index) != "FAULTY":
                verdicts[index] = verdict["verdict"]
    count_of = max(len(gflops), max(verdicts, default=-1) + 1)
    return tuple(
        BurnedGpu(
            index,
            verdicts.get(index),
            gflops[index] if index < len(gflops) else 0.0,
            errors[index] if index < len(errors) else 0,
            died[index] if index < len(died) else False,
        )
        for index in range(count_of)
    )
