"""Groups, owners and tags that assets share.

What belongs here: words that a first look at the asset graph shows. What does not: any asset.
"""

from __future__ import annotations

from typing import Final

OPERATORS: Final = "team:gpu-operations"
"""Who answers for the machine and for what is measured on it."""

ANALYSTS: Final = "team:resilience-analytics"
"""Who answers for the warehouse and what is published from it."""

FIRST: Final = "2"
SECOND: Final = "1"
LAST: Final = "0"
"""Priorities of the steps of one run: what harms workers comes last."""

MACHINE: Final = "machine"
MEASUREMENTS: Final = "measurements"
LANDED: Final = "raw"
PUBLISHED: Final = "published"
