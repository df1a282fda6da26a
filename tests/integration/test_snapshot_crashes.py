"""The repository under SIGKILL: a short run of the benchmark that has 200 rounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_good_snapshot_is_lost_and_no_bad_one_accepted() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/snapshot_crashes.py", "--rounds", "8", "--seed", "7"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert done.returncode == 0
    assert sum(report["ends"].values()) == 8
    assert any("killed" in end for end in report["ends"])
    assert report["snapshots_put"] >= 1
