"""The columns of samples: what telemetry produces and `samples.parquet` holds.

What belongs here: the schema alone. What does not: taking samples (`telemetry`) and writing them
(`warehouse.landing`).
"""

from __future__ import annotations

from typing import Final

import polars as pl

SAMPLES_SCHEMA: Final = pl.Schema(
    {
        "subject": pl.String,
        "at_s": pl.Float64,
        "series": pl.String,
        "unit": pl.String,
        "value": pl.Float64,
    }
)
"""`subject` is a measurement_id; `at_s` counts from the beginning of its sampling, in seconds."""
