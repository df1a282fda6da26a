"""Resilience benchmarking of GPU inference: snapshots, faults, start-up measurements, trends.

This package holds the library. Only `definitions.py` and `dagster_io/` import Dagster.
Dependencies run one way: cli, job -> launchers -> startup, faults, snapshots -> workers ->
stack, records.
"""

__version__ = "0.1.0"
