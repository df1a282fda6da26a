"""What every command waits for before it does anything."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"polars", "duckdb", "plotly", "kubernetes", "numba", "dagster"}


def test_no_command_waits_for_libraries_that_others_need() -> None:
    code = f"import resilience_pipelines.cli, sys; print(*({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == []
