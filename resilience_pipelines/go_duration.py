"""Durations as programs in Go write them, e.g. `1m2.5s`.

What belongs here: reading one. What does not: which of them a log or a file has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_TERM: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final[Mapping[str, float]] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip


def go_duration_s(text: object) -> float | None:
    """Seconds of a duration that is not negative; None where it is none."""
    if not isinstance(text, str) or len(text) > 100:
        return None
    terms = _TERM.findall(text)
    if not terms or "".join(amount + unit for amount, unit in terms) != text:
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in terms)
