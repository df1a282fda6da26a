"""Resilience benchmarking of GPU inference: snapshots, faults, start-up measurements, trends.

This package holds the library. Only `definitions.py` and `dagster_io/` import Dagster, and
only `airflow/` imports Airflow.
Dependencies run one way: cli, job -> launchers -> startup, faults, snapshots -> workers ->
stack, records.

`api` is the library for programs, and its names can be imported from here: `from
resilience_pipelines import Benchmark`. They are loaded when they are first used, so that commands
and the Airflow provider wait for nothing that they don't need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience_pipelines.api import (
        Benchmark,
        Collectives,
        Compatibility,
        Experiment,
        Fanout,
        Result,
        Snapshot,
        compare,
        run,
    )

__all__ = [
    "Benchmark", "Collectives", "Compatibility", "Experiment", "Fanout", "Result", "Snapshot",
    "__version__", "compare", "run",
]  # fmt: skip

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
