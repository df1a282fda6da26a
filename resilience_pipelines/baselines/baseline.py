"""One figure that somebody else published.

What belongs here: its data model. What does not: the formats it comes in (`formats`).
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from resilience_pipelines.records import Arm

Text = Annotated[str, Field(min_length=1, max_length=500)]


class Baseline(BaseModel):
    """A figure with its source. What the source does not say is None.

    Attributes:
        source: who published it, e.g. the title of a page or a file's name.
        url: where it can be read again.
        product: what was measured, e.g. `NVIDIA Dynamo Snapshot`, `nccl-tests`.
        figure: what of it, e.g. `start-up, restore`, `all_reduce busbw, 1073741824 bytes`.
        arm, variant: for start-up times, the arm that it is comparable with.
        statistic: what the value is over the repeats, e.g. `median`, `mean`, `single`.
        n: how many repeats.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: Text
    url: Text | None = None
    product: Text
    figure: Text
    arm: Arm | None = None
    variant: Text | None = None
    value: float = Field(ge=0)
    unit: Text
    statistic: Text = "not said"
    n: int | None = Field(default=None, ge=1)
    gpu_sku: Text | None = None
    gpu_count: int | None = Field(default=None, ge=0)
    driver_version: Text | None = None
    engine: Text | None = None
    engine_version: Text | None = None
    model: Text | None = None
    detail: Annotated[str, Field(max_length=2000)] = ""

    @property
    def baseline_id(self) -> str:
        """16 hexadecimal digits that are equal exactly when everything is."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]
