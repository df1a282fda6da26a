"""The platform under SIGKILL at points of its code: a short run of the benchmark that hits all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROUNDS = 16


def test_nothing_measured_is_lost_or_counted_twice_and_nothing_is_left() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/platform_crashes.py", "--rounds", str(ROUNDS), "--seed", "7",
         "--no-builds"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert done.returncode == 0
    assert sum(report["ends"].values()) == ROUNDS
    assert sum(n for end, n in report["ends"].items() if end.endswith("killed")) > ROUNDS / 2
